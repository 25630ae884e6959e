"""What the one pass over messages finds: fan-out, waste, and what was stored for how long."""

import pytest

from audit.analytics import messages
from tests.audit.conftest import History, Views
from tests.audit.numbers import Numbers
from tests.audit.scenario import BYTES, MESSAGES


def test_what_expired_unread_was_stored_in_vain(whole: Numbers) -> None:
    assert whole.rows("waste") == [{"expired": 1, "expired_bytes": BYTES}]


def test_a_publisher_fans_out_to_those_who_got_it(whole: Numbers) -> None:
    gateway = next(row for row in whole.rows("clients") if row["client_id"] == "gateway")
    assert gateway["deliveries"] == MESSAGES + 10


def test_bytes_are_stored_until_nobody_is_owed_them(whole: Numbers) -> None:
    """The laggard is still owed 47 of the messages at the end."""
    assert sum(row["delta"] for row in whole.rows("storage")) == 47 * BYTES
    assert {row["tenant"] for row in whole.rows("storage")} == {"plant"}


def test_flags_count_up_to_millions_without_touching_each_other(view: Views) -> None:
    history = History()
    history.boot()
    for _ in range(3):
        history.row("msg_delivered", tenant="t", client_id="c", session=1, conn=1, msg=5, attempt=1)
    history.row("msg_delivered", tenant="t", client_id="c", session=1, conn=1, msg=5, attempt=2)
    history.row("msg_expired", tenant="t", client_id="c", session=2, conn=0, msg=5)
    history.row("msg_persisted", msg=5)
    row = (
        messages.messages(view(history), None)
        .select(
            messages.counted(messages.DELIVERED_ONE).alias("delivered"),
            messages.counted(messages.EXPIRED_ONE).alias("expired"),
            messages.counted(messages.PERSISTED_ONE).alias("persisted"),
            messages.counted(messages.ACKED_ONE).alias("acked"),
        )
        .collect()[0]
    )
    assert tuple(row) == (3, 1, 1, 0)


@pytest.mark.parametrize("place", ["PERSISTED_ONE", "ACKED_ONE", "EXPIRED_ONE", "DELIVERED_ONE"])
def test_the_places_of_flags_do_not_overlap(place: str) -> None:
    places = [
        getattr(messages, name)
        for name in ("PERSISTED_ONE", "ACKED_ONE", "EXPIRED_ONE", "DELIVERED_ONE")
    ]
    shift, bits = getattr(messages, place)
    assert all(shift + bits <= other or other >= 63 or other <= shift for other, _ in places)
    assert shift + bits <= 63
