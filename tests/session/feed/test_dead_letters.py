"""Is a dead letter there until the store has it, and sent again only when asked?"""

import pytest

from session.feed import dead_letters
from session.feed.dead_letters import DeadLetter, decode_dead_letter, encode_dead_letter
from storage.errors import CorruptRecord
from storage.tables.feed_rows import AGAIN, FeedEvent
from storage.tables.tables import DEAD_LETTERS, FEED, seal
from tests.session.feed.backends import NAME, confirm, feed, read, take, told
from tests.session.harness import Broker


def refused(count: int = 1, row: bytes = b"row") -> Broker:
    """Return a broker whose store has refused rows of rule 1."""
    broker = Broker(feeds=feed("#", kinds=0))
    client = broker.connect("c")
    for _ in range(count):
        client.publish("t", b"poison", 1)
    read(broker)
    letters = [DeadLetter((number + 1, 0), "1", "WRONGTYPE", row) for number in range(count)]
    broker.engine.feeds.confirm(NAME, (count, 0), letters)
    broker.settle()
    return broker


def retry(broker: Broker, number: int = 1) -> str:
    why = broker.engine.feeds.retry_dead_letter(NAME, number)
    broker.settle()
    return why


def letters(broker: Broker) -> list[tuple[int, str, int]]:
    """Return number, reason and tries of the letters that are kept."""
    found = broker.engine.feeds.dead_letters(NAME, 0, 100)
    assert broker.engine.feeds.stats(NAME).dead_letters == len(found)
    return [(number, letter.why, letter.tries) for number, letter in found]


def test_a_letter_is_sent_behind_what_waits_and_goes_with_the_cursor() -> None:
    broker = refused()
    broker.connect("d").publish("t", b"waits", 1)
    assert retry(broker) == ""
    rows = read(broker)
    assert told(rows) == [b"waits", (AGAIN, "", "1")]
    again = rows[-1]
    assert isinstance(again, FeedEvent)
    assert (again.body, again.offset) == (b"row", 1)
    assert letters(broker) == [(1, "WRONGTYPE", 1)]
    confirm(broker)
    assert letters(broker) == []
    assert broker.store.scan(DEAD_LETTERS, b"", count=9) == []
    broker.restart()
    assert read(broker) == []


def test_a_letter_that_is_refused_again_stays_with_its_tries() -> None:
    broker = refused()
    retry(broker)
    (again,) = read(broker)
    assert isinstance(again, FeedEvent)
    letter = DeadLetter((again.end, again.seq), "1", "still WRONGTYPE", b"row")
    broker.engine.feeds.confirm(NAME, (again.end, again.seq), [letter])
    broker.settle()
    assert letters(broker) == [(1, "still WRONGTYPE", 2)]
    broker.restart()
    assert letters(broker) == [(1, "still WRONGTYPE", 2)]
    assert retry(broker) == ""
    take(broker)
    assert letters(broker) == []


def test_a_letter_on_its_way_survives_a_crash_and_goes_when_it_arrives() -> None:
    broker = refused()
    retry(broker)
    read(broker)
    broker.restart()
    assert "on its way" in retry(broker)
    assert told(take(broker)) == [(AGAIN, "", "1")]
    assert letters(broker) == []


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_letter_stays_whose_way_to_the_store_is_damaged(is_behind: bool) -> None:
    broker = refused(2)
    retry(broker)
    if is_behind:
        retry(broker, 2)
    broker.is_audited = False
    broker.store.damage(FEED, [broker.store.scan(FEED, b"", count=1)[0][0]])
    assert told(take(broker)) == ([(AGAIN, "", "1")] if is_behind else [])
    take(broker)
    assert letters(broker)[0] == (1, "WRONGTYPE", 1)
    assert len(letters(broker)) == (1 if is_behind else 2)
    assert retry(broker) == ""
    assert told(take(broker)) == [(AGAIN, "", "1")]
    assert [number for number, _, _ in letters(broker)] == ([] if is_behind else [2])


def test_a_letter_whose_arrival_was_not_heard_goes_with_the_cursor_of_the_store() -> None:
    """After a crash the store is ahead: the event is confirmed without being read again."""
    broker = refused()
    retry(broker)
    read(broker)
    feeds = broker.engine.feeds
    ahead = feeds.backends[NAME].read
    broker.restart()
    broker.engine.feeds.confirm(NAME, ahead)
    broker.settle()
    assert letters(broker) == []


def rows_kept(broker: Broker) -> list[bytes]:
    return [letter.row for _, letter in broker.engine.feeds.dead_letters(NAME, 0, 1000)]


def test_beyond_a_limit_of_bytes_letters_are_kept_without_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letters, "TOTAL_BYTES_MAX", 7_000)
    monkeypatch.setattr(dead_letters, "SCAN_LETTERS", 2)
    large = b"x" * 2_000
    broker = refused(5, large)
    assert rows_kept(broker) == [large, large, large, b"", b""]
    feeds = broker.engine.feeds

    def refuse(at: int) -> None:
        broker.engine.feeds.confirm(NAME, (5, 0), [DeadLetter((at, 0), "1", "no", large)])
        broker.settle()

    refuse(6)
    assert rows_kept(broker)[5:] == [b""]
    assert feeds.drop_dead_letter(NAME, 2) == ""  # there is room again
    broker.settle()
    refuse(7)
    refuse(8)
    assert rows_kept(broker)[5:] == [large, b""]
    broker.restart()  # what is kept still counts
    refuse(9)
    assert rows_kept(broker)[5:] == [large, b"", b""]


def test_a_letter_that_comes_back_counts_once_for_the_limit_and_one_that_arrives_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letters, "TOTAL_BYTES_MAX", 5_000)
    large = b"x" * 2_000
    broker = refused(1, large)

    def refuse() -> None:
        broker.engine.feeds.confirm(
            NAME, broker.engine.feeds.cursor(NAME), [DeadLetter((1, 0), "1", "no", large)]
        )
        broker.settle()

    for _ in range(3):
        retry(broker)
        (again,) = read(broker)
        assert isinstance(again, FeedEvent)
        at = (again.end, again.seq)
        broker.engine.feeds.confirm(NAME, at, [DeadLetter(at, "1", "no", large)])
        broker.settle()
    refuse()
    assert rows_kept(broker) == [large, large]
    retry(broker)
    take(broker)
    assert rows_kept(broker) == [large]
    refuse()
    assert rows_kept(broker) == [large, large]


def test_a_letter_is_not_sent_to_another_backend() -> None:
    broker = Broker(feeds=(*feed("a"), *feed("b", name="other")))
    broker.engine.feeds.confirm(NAME, (0, 0), [DeadLetter((0, 0), "1", "no", b"row")])
    broker.settle()
    retry(broker)
    assert told(take(broker, "other")) == []
    assert told(take(broker)) == [(AGAIN, "", "1")]


def test_what_cannot_be_sent_or_dropped_is_said() -> None:
    broker = refused(dead_letters.RETRIES_MAX + 1)
    feeds = broker.engine.feeds
    assert retry(broker, 999) == "there is no such dead letter"
    assert feeds.drop_dead_letter(NAME, 999) == "there is no such dead letter"
    assert feeds.retry_dead_letter(NAME, 1) == ""
    assert feeds.retry_dead_letter(NAME, 1) == "it is on its way already"
    assert feeds.drop_dead_letter(NAME, 1) == "it is on its way to the store"
    for number in range(2, dead_letters.RETRIES_MAX + 1):
        assert retry(broker, number) == ""
    assert retry(broker, dead_letters.RETRIES_MAX + 1) == dead_letters.FULL
    take(broker)
    assert [number for number, _, _ in letters(broker)] == [dead_letters.RETRIES_MAX + 1]
    without_row = refused(row=b"")
    assert retry(without_row) == "its row was not kept"


def test_a_letter_that_is_dropped_is_gone_for_good() -> None:
    broker = refused(2)
    feeds = broker.engine.feeds
    assert feeds.drop_dead_letter(NAME, 1) == ""
    assert feeds.drop_dead_letter(NAME, 1) == "there is no such dead letter"
    assert feeds.retry_dead_letter(NAME, 1) == "there is no such dead letter"
    assert letters(broker) == [(2, "WRONGTYPE", 1)]
    broker.settle()
    broker.restart()
    assert letters(broker) == [(2, "WRONGTYPE", 1)]


def test_letters_come_in_pages() -> None:
    broker = refused(5)
    feeds = broker.engine.feeds
    assert [number for number, _ in feeds.dead_letters(NAME, 0, 2)] == [1, 2]
    assert [number for number, _ in feeds.dead_letters(NAME, 2, 9)] == [3, 4, 5]


def test_a_row_gives_the_letter_back_also_one_of_version_1() -> None:
    value = encode_dead_letter(DeadLetter((7, 8), "3", "why", b"row", 1_000, 4))
    letter = decode_dead_letter(value)
    found = (letter.at, letter.rule, letter.why, letter.row, letter.at_ms, letter.tries)
    assert found == ((7, 8), "3", "why", b"row", 1_000, 4)
    old = seal(
        bytes.fromhex("01" + "00" * 7 + "07" + "00" * 7 + "08" + "0001" + "00000003") + b"3whyrow"
    )
    letter = decode_dead_letter(old)
    found = (letter.at, letter.rule, letter.why, letter.row, letter.at_ms, letter.tries)
    assert found == ((7, 8), "3", "why", b"row", 0, 1)
    for wrong in (b"", b"\x03" + bytes(60), b"\x01" + bytes(16) + b"\0\x09" + bytes(4)):
        with pytest.raises(CorruptRecord):
            decode_dead_letter(seal(wrong))
