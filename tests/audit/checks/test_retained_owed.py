"""R2: retained messages that a subscription asked for and did not get."""

from audit.checks.retained_owed import check
from tests.audit.conftest import History, Views

LATER = 400.0


def _keep(history: History, topic: str, msg: int, **columns: object) -> None:
    """Retain a message."""
    own = {"msg": msg, "topic": topic}
    history.row("msg_accepted", **own, client_id="p", session=9, pub_qos=1, pid=msg, **columns)
    history.row("retained_set", **own, at=history.time(msg))


def _come(history: History, session: int, tfilter: str, **columns: object) -> None:
    """Let a session connect and subscribe."""
    name = {"client_id": f"c{session}", "session": session, "conn": session, "tenant": ""}
    rmax = columns.pop("rmax", 10)
    history.row("session_created", **name, expiry_s=3600, sp=False, rmax=rmax)
    own = {"tfilter": tfilter, "qos": 1, "stream": 1, "no_local": False, "retain": True}
    history.row("subscribed", **name, **{**own, **columns})


def _sent(history: History, session: int, topic: str) -> None:
    name = {"client_id": f"c{session}", "session": session, "conn": session}
    history.row("retained_sent", **name, topic=topic, qos=1, pid=1, retain=True, dup=False)


def test_what_was_asked_for_and_is_not_sent_within_the_horizon_is_missed(
    history: History, view: Views
) -> None:
    history.boot()
    for msg, topic in enumerate(("a/1", "a/2", "gone", "replaced"), 1):
        _keep(history, topic, msg)
    _keep(history, "a/expiring", 5, expiry_s=60)
    history.row("retained_cleared", topic="gone")
    _come(history, 1, "a/+")
    _sent(history, 1, "a/1")  # and not a/2
    _come(history, 2, "a/+", retain=None)  # it does not ask
    _come(history, 3, "a/2", rmax=1)  # its window may be full
    history.row("msg_delivered", client_id="c3", session=3, conn=3, msg=90, qos=1, pid=1)
    _come(history, 4, "a/2")  # it leaves at once
    history.row("session_disconnected", client_id="c4", session=4, conn=4, reason=0)
    _come(history, 5, "a/2")  # something was dropped for it
    history.row("msg_dropped", client_id="c5", session=5, reason=1028, msg=91, count=1)
    _come(history, 6, "replaced")
    _come(history, 7, "gone")
    _keep(history, "replaced", 6)
    _come(history, 8, "a/2")  # it got a later message instead
    history.row("msg_delivered", client_id="c8", session=8, conn=8, msg=2, qos=1, pid=1)
    history.row("gc_run", wait=LATER)
    _come(history, 9, "a/2")  # there was no time
    (outcome,) = check(view(history))
    assert (outcome.invariant, outcome.checked) == ("R2", 2)
    assert (outcome.violated, outcome.unknown) == (1, 2)
    (witness,) = outcome.witnesses
    assert (witness["client_id"], witness["topic"], witness["msg"]) == ("c1", "a/2", 2)
    assert witness["what"] == "a retained message was not sent to a subscription that asks for it"


def test_a_gap_may_hide_the_row_and_an_old_broker_does_not_say_what_was_asked(
    history: History, view: Views
) -> None:
    history.boot()
    _keep(history, "a", 1)
    _come(history, 1, "a", retain=None)
    (outcome,) = check(view(history))
    assert (outcome.status, outcome.checked) == ("ok", 0)
    _come(history, 2, "a")
    history.lose()
    history.row("gc_run", wait=LATER)
    (outcome,) = check(view(history))
    assert (outcome.violated, outcome.unknown) == (0, 1)
