"""What of the log a store was told is counted modulo 2 ** 61, and comes back with the record."""

from session.history.stage_counts import check1_of, check2_of
from session.state.records import RecordReader
from session.state.told_record import Told, add, encode_told, take_told


def test_a_tally_is_that_of_the_books() -> None:
    """The audit adds them up with the same rules."""
    tally = [0, 0, 0]
    for offset in range(2**60 - 5, 2**60 + 5):
        add(tally, offset)
    assert tally == [10, check1_of(2**60 - 5, 10), check2_of(2**60 - 5, 10)]


def test_a_message_is_in_a_gap_only_between_its_ends() -> None:
    told = Told(3)
    told.gaps.extend([(5, 6), (9, 9)])
    assert [each for each in range(3, 12) if told.is_in_gap(each)] == [5, 6, 9]


def test_it_comes_back_and_what_follows_is_left() -> None:
    told = Told(7)
    told.gaps.append((9, 12))
    reader = RecordReader(encode_told(told) + b"more", "backend")
    again = take_told(reader)
    assert (again.upto, again.counted, again.gaps) == (7, 7, [(9, 12)])
    assert reader.take(4) == b"more"
