"""R1: the retained message that is served."""

from audit.checks.retained_checks import carry, check
from audit.input import kept_rows


def _set(history, topic: str, at: float) -> None:
    history.row("retained_set", topic=topic, at=history.time(at), msg=int(at))


def _sent(history, topic: str, at: float, session: int, **columns: object) -> None:
    name = {"client_id": f"c{session}", "session": session}
    history.row("retained_sent", topic=topic, at=history.time(at), pid=0, **{**name, **columns})


def _subscribed(history, session: int) -> None:
    history.row("subscribed", client_id=f"c{session}", session=session, tfilter="#", qos=1)


def test_only_the_last_value_may_be_served_or_what_was_owed(history, view) -> None:
    history.boot()
    _set(history, "a", 1)
    _subscribed(history, 1)
    _set(history, "a", 2)
    _set(history, "b", 3)
    history.row("retained_cleared", topic="b", at=history.time(3))
    _subscribed(history, 2)
    _sent(history, "a", 1, session=1)  # owed since it subscribed
    _sent(history, "a", 2, session=2)
    _sent(history, "a", 1, session=3, dup=True)  # sent again: that is not judged
    _sent(history, "a", 1, session=2)
    _sent(history, "b", 3, session=2)
    _sent(history, "never", 4, session=2)
    history.lose()
    _sent(history, "a", 9, session=2)
    made = view(history)
    (outcome,) = check(made)
    assert (outcome.checked, outcome.violated, outcome.unknown) == (5, 3, 1)
    assert [(witness["topic"], witness["what"]) for witness in outcome.witnesses] == [
        ("a", "a retained message was served that is not the last one of its topic"),
        ("b", "a retained message was served that was no longer there"),
        ("never", "a retained message was served that was never set"),
    ]
    kept = {(row.topic, row.ev, row.msg) for row in kept_rows.rows(made, [carry(made)]).collect()}
    assert ("a", "retained_set", 2) in kept


def test_of_a_topic_older_than_the_history_nothing_is_said(history, view) -> None:
    history.number, history.seq = 3, 70
    _sent(history, "a", 1, session=1)
    _set(history, "a", 2)
    _sent(history, "a", 2, session=1)
    history.row("gc_run", wait=1000)
    _set(history, "b", 5)
    made = view(history)
    (outcome,) = check(made)
    assert (outcome.status, outcome.checked, outcome.unknown) == ("ok", 1, 0)
    assert sorted(row.topic for row in kept_rows.rows(made, [carry(made)]).collect()) == ["a", "b"]
