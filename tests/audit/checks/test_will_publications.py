"""A will that was accepted twice with one row of its publication is named."""

from audit.checks.will_publications import without_event
from tests.audit.conftest import History, Views


def accept(history: History, msg: int, **columns: object) -> dict[str, object]:
    """Tell that the broker accepted a message in the name of a client: its will."""
    own = {"tenant": "", "client_id": "c", "topic": "w", "pub_qos": 1, "msg": msg}
    return history.row("msg_accepted", **{**own, **columns})


def fire(history: History, msg: int) -> None:
    """Tell that a will was published."""
    history.row("will_fired", wait=0.0, tenant="", client_id="c", session=1, conn=0, msg=msg)


def test_each_will_has_one_acceptance(history: History, view: Views) -> None:
    history.boot()
    accept(history, 1)
    fire(history, 1)
    accept(history, 2)
    fire(history, 2)
    accept(history, 3)  # the same will again
    accept(history, 4, actor="client", session=7)
    accept(history, 5, client_id=None)  # an operator's
    history.row("gc_run")
    found = without_event(view(history))
    (witness,) = found.witnesses
    assert (found.violated, found.unknown) == (1, 0)
    assert (witness["msg"], witness["client_id"], witness["node"]) == (3, "c", "n1")


def test_where_its_event_may_be_missing_nobody_is_accused(history: History, view: Views) -> None:
    history.boot()
    accept(history, 1)
    history.lose(1)
    history.row("gc_run")
    accept(history, 2)  # and there the known history ends
    found = without_event(view(history))
    assert (found.violated, found.unknown) == (0, 1)
