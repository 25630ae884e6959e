"""What folds know: gaps looked up fast, and until when a broker has to act."""

from audit.input.fold_context import SECOND, Intervals, known
from audit.input.gaps import Boot, Gap


def _gap(start: int, end: int, kind: str = "hole") -> Gap:
    return Gap("n", start, end, "", kind)  # type: ignore[arg-type]


def _boot(number: int, first_s: int, last_s: int) -> Boot:
    return Boot("n", number, "full", "full", 1, 1, 9, first_s * SECOND, last_s * SECOND)


def test_an_interval_is_touched_at_its_ends() -> None:
    intervals = Intervals([_gap(10, 12), _gap(11, 20), _gap(30, 30)])
    touched = [(1, 9), (1, 10), (20, 21), (21, 29), (25, 30), (31, 99), (9, 8)]
    assert [intervals.touch(*span) for span in touched] == [
        False, True, True, False, True, False, False,
    ]  # fmt: skip
    assert not Intervals([]).touch(0, 99)


def test_a_broker_has_its_time_while_it_is_up_on_end() -> None:
    boots = [_boot(1, 0, 100), _boot(2, 200, 230), _boot(3, 300, 400)]
    node = known(boots, [], [], tolerance_s=60, witnesses_max=9).nodes["n"]
    minute = 60 * SECOND
    assert node.deadline(10 * SECOND, minute) == 70 * SECOND
    # 50 s of the first boot and 30 s of the second are not a minute on end.
    assert node.deadline(50 * SECOND, minute) == 360 * SECOND
    assert node.deadline(390 * SECOND, minute) is None
    assert node.last_us == 400 * SECOND


def test_what_came_before_the_history_is_no_gap_between_rows() -> None:
    gaps = [_gap(0, 5), _gap(8, 8, "messages")]
    node = known([_boot(1, 0, 9)], gaps, [_boot(1, 0, 4)], tolerance_s=1, witnesses_max=9).nodes[
        "n"
    ]
    assert node.is_cut
    assert not node.holes.touch(0, 99)
    assert node.silences.touch(0, 99)
    assert node.before_us == 4 * SECOND
