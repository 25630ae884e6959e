"""W1 over rows written by hand."""

import pytest

from audit.checks.fold_findings import Findings
from audit.checks.wills import Wills
from audit.input.fold_context import SECOND, Intervals, Node
from audit.input.gaps import Boot
from audit.input.session_columns import COLUMNS, SessionRow


def _armed(history, delay_s=0, **columns):
    history.boot()
    session = history.session()
    session.create()
    session.row("will_armed", topic="w", qos=1, expiry_s=delay_s, **columns)
    return session


def _accused(history, accused):
    return [what for invariant, what in accused(history) if invariant == "W1"]


def _row(gseq, ev, **columns):
    given = {"gseq": gseq, "us": gseq * SECOND, "ev": ev, **columns}
    return SessionRow(*(given.get(name) for name in COLUMNS))


def _pass(history, seconds):
    history.row("gc_run", wait=seconds, count=0)


def test_wills_that_keep_the_rules(history, accused, verdicts) -> None:
    session = _armed(history)
    session.leave(0)
    session.row("will_cancelled", topic="w", reason=1040)
    session.resume()
    session.row("will_armed", topic="w", qos=1, expiry_s=0)
    session.leave(1001)
    session.row("will_fired", topic="w", msg=1)
    session.resume()
    session.row("will_armed", topic="w", qos=1, expiry_s=30)
    session.leave(1001)
    session.row("will_delayed", topic="w", at=history.time(history.now + 30))
    session.row("will_fired", topic="w", msg=2, wait=31)
    session.resume()
    session.row("will_armed", topic="w", qos=1, expiry_s=30)
    session.leave(4)
    session.row("will_delayed", topic="w", at=history.time(history.now + 30))
    session.row("will_cancelled", topic="w", reason=1041, wait=10)
    session.resume()
    _pass(history, 500)
    assert _accused(history, accused) == []
    assert verdicts(history)["W1"] == (4, 0, 0)


def test_the_end_of_the_session_ends_the_delay(history, accused) -> None:
    session = _armed(history, 3600)
    session.leave(1001)
    session.row("will_fired", topic="w", wait=5)
    session.row("session_terminated", reason=1011)
    _pass(history, 500)
    assert _accused(history, accused) == []


@pytest.mark.parametrize(
    ("reason", "wait", "what"),
    [
        (0, 1, "published after DISCONNECT with 0x00"),
        (1001, 5, "published before its delay was over"),
        (1001, 200, "published late"),
    ],
)
def test_a_will_that_is_published_at_the_wrong_time(
    history, accused, reason: int, wait: int, what: str
) -> None:
    session = _armed(history, 30)
    session.leave(reason)
    session.row("will_fired", topic="w", wait=wait)
    _pass(history, 500)
    assert _accused(history, accused) == [what]


def test_a_will_of_a_connection_that_is_up(history, accused) -> None:
    session = _armed(history)
    session.row("will_fired", topic="w")
    assert _accused(history, accused) == ["published though its client was connected"]


def test_a_will_that_is_published_twice(history, accused) -> None:
    session = _armed(history)
    session.leave(1001)
    session.row("will_fired", topic="w")
    session.row("will_fired", topic="w")
    assert _accused(history, accused) == ["published, but no will was armed any more"]


def test_a_will_that_is_published_after_the_session_was_resumed(history, accused) -> None:
    session = _armed(history, 30)
    session.leave(1001)
    session.resume(wait=5)
    session.row("will_fired", topic="w", wait=30)
    assert _accused(history, accused) == ["published, but no will was armed any more"]


def test_a_will_that_is_never_published(history, accused) -> None:
    session = _armed(history)
    session.leave(1001)
    _pass(history, 59)
    assert _accused(history, accused) == []  # it has a minute
    _pass(history, 2)
    assert _accused(history, accused) == ["never published"]
    session.row("will_fired", topic="w")
    assert _accused(history, accused) == ["published late"]


@pytest.mark.parametrize(
    ("seconds", "counts", "accusations"),
    [
        (5, (0, 0, 0), []),  # not due yet
        (12, (0, 0, 1), []),  # due, and the broker may still publish it in time
        (69, (0, 0, 1), []),
        (72, (1, 1, 0), ["never published"]),
    ],
)
def test_a_will_that_is_overdue_at_the_end_of_the_history_is_never_ok(
    history, accused, verdicts, seconds, counts, accusations
) -> None:
    session = _armed(history, 10)
    session.leave(1001)
    session.row("will_delayed", topic="w", at=history.time(history.now + 10))
    _pass(history, seconds)
    assert verdicts(history).get("W1", (0, 0, 0)) == counts
    assert _accused(history, accused) == accusations


def test_a_broker_that_never_lives_long_enough_leaves_its_overdue_will_unknown(
    history, accused, verdicts
) -> None:
    session = _armed(history, 10)
    session.leave(1001)
    session.row("will_delayed", topic="w", at=history.time(history.now + 10))
    for _ in range(5):
        history.row("shutdown", wait=30)
        history.boot()
        session.sized("session_restored")
        history.row("recovered", count=1)
    assert verdicts(history)["W1"] == (0, 0, 1)
    assert _accused(history, accused) == []


def test_a_will_held_back_in_the_last_second_is_unknown(history, verdicts) -> None:
    session = _armed(history, 10)
    session.leave(1001)
    session.row("will_cancelled", topic="w", reason=1041, wait=5)
    assert verdicts(history)["W1"] == (1, 0, 1)


def test_a_will_that_is_held_back(history, accused) -> None:
    session = _armed(history)
    session.leave(1001)
    session.row("will_cancelled", topic="w", reason=1040)
    assert _accused(history, accused) == [
        "held back, though the connection did not end with DISCONNECT 0x00"
    ]


def test_the_will_of_a_connection_that_died_with_the_broker(history, accused) -> None:
    session = _armed(history)
    died = history.time(history.now)
    history.now += 1000
    history.boot()
    session.leave(1002, at=died)
    session.row("will_fired", topic="w", wait=3)
    history.row("recovered", count=1)
    _pass(history, 500)
    assert _accused(history, accused) == []


def test_in_a_hole_a_will_may_have_been_published(history, accused, verdicts) -> None:
    session = _armed(history)
    session.leave(1001)
    history.lose()
    session.row("will_fired", topic="w", wait=500)
    _pass(history, 500)
    assert _accused(history, accused) == []
    assert verdicts(history)["W1"] == (0, 0, 1)


def test_a_will_that_is_held_back_for_nobody(history, accused) -> None:
    """What looks like a resume is none if no connection comes."""
    session = _armed(history, 30)
    session.leave(1001)
    session.row("will_cancelled", topic="w", reason=1041, wait=5)
    assert _accused(history, accused) == []  # the resume may be the next row
    _pass(history, 5)
    assert _accused(history, accused) == ["held back for a resume that did not come"]
    session.resume(wait=500)
    assert _accused(history, accused) == ["held back for a resume that did not come"]


def test_a_will_that_is_held_back_for_a_disconnect_that_did_not_come(history, accused) -> None:
    session = _armed(history)
    session.row("will_cancelled", topic="w", reason=1040)
    session.leave(1001)
    assert _accused(history, accused) == [
        "held back, though the connection did not end with DISCONNECT 0x00"
    ]


def test_in_a_hole_at_the_end_a_resume_may_have_come(history, accused, verdicts) -> None:
    session = _armed(history, 30)
    session.leave(1001)
    session.row("will_cancelled", topic="w", reason=1041, wait=5)
    history.lose()
    _pass(history, 500)
    assert _accused(history, accused) == []
    assert verdicts(history)["W1"] == (1, 0, 1)


@pytest.mark.parametrize(("wait", "unknown"), [(1, 0), (500, 1)])
def test_in_a_hole_at_the_end_a_will_may_have_been_published(
    history, accused, verdicts, wait: float, unknown: int
) -> None:
    session = _armed(history, 30)
    session.leave(1001)
    history.lose(3)
    _pass(history, wait)
    assert _accused(history, accused) == []
    assert verdicts(history).get("W1", (0, 0, 0)) == (0, 0, unknown)


def test_in_a_hole_at_the_end_the_session_may_have_ended(history, accused, verdicts) -> None:
    """Then a will that was published before its delay was over was due."""
    session = _armed(history, 3600)
    session.leave(1001)
    session.row("will_fired", topic="w", wait=5)
    history.lose()
    _pass(history, 500)
    assert _accused(history, accused) == []
    assert verdicts(history)["W1"] == (0, 0, 1)


def test_what_a_hole_at_the_end_leaves_open_is_kept_and_counted_once() -> None:
    """A late segment may fill the hole; until then no later batch counts it again."""
    wills = Wills()
    wills.arm(_row(3, "will_armed", expiry_s=30))
    wills.arm(_row(4, "will_armed", expiry_s=30))
    wills.leave(_row(5, "session_disconnected"), 1001, 0, 3600)
    found = Findings(1)
    wills.cancel(_row(6, "will_cancelled", reason=1041), found, SECOND)
    boot = Boot("n", 1, "full", "full", 1, 1, 9, 0, 500 * SECOND)
    for before_us in (0, 500 * SECOND):
        node = Node((boot,), Intervals([]), Intervals([]), before_us)
        wills.leave_open(node.last_us, found, node, SECOND)
    assert found.counts == {"W1": [1, 0, 2]}
    assert set(wills.rows()) == {3, 4, 5, 6}
