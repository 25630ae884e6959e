"""Sessions come in the order that was asked for, and only as many as were asked for."""

import pytest

from broker.operations.sessions import ranking
from broker.operations.sessions.inventory import Inventory
from storage.tables.tables import SESSIONS
from tests.session.harness import Broker


def fleet() -> Broker:
    """Leave `many` with small messages, `large` with a large one, `old` with the oldest, `idle`."""
    broker = Broker()
    for client_id in ("old", "many", "large", "idle"):
        broker.durable(client_id, client_id).drop()
        broker.advance(s=1)
    broker.publish("old", b"x")
    broker.advance(s=1)
    for _ in range(5):
        broker.publish("many", b"x")
    broker.advance(s=1)
    broker.publish("large", b"x" * 1000)
    broker.publish("large", b"x")
    return broker


def ranked(broker: Broker, order: str, limit: int | None = None) -> list[str]:
    inventory = Inventory(broker.store)
    reports = inventory.sessions(with_bytes=order == ranking.BYTES)
    complaints: list[str] = []
    found = ranking.ranked(
        inventory, reports, order, limit, with_bytes=False, damaged=complaints.append
    )
    names = [report.session.client_id for report in found]
    assert complaints == []
    return names


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (ranking.MESSAGES, ["many", "large", "old", "idle"]),
        (ranking.BYTES, ["large", "many", "old", "idle"]),
        (ranking.OLDEST, ["old", "many", "large", "idle"]),
        (ranking.SINCE, ["old", "many", "large", "idle"]),
    ],
)
def test_sessions_are_sorted_with_the_most_urgent_first(order: str, expected: list[str]) -> None:
    broker = fleet()
    assert ranked(broker, order) == expected
    assert ranked(broker, order, 2) == expected[:2]
    assert ranked(broker, order, 1 << 62) == expected


def test_equal_sessions_come_by_client_id() -> None:
    broker = Broker()
    for client_id in ("c", "a", "b"):
        broker.durable(client_id).drop()
    assert ranked(broker, ranking.MESSAGES, 2) == ["a", "b"]


def test_messages_in_flight_count_with_those_that_wait() -> None:
    broker = Broker(max_inflight=1)
    broker.durable("boat", "a")
    broker.publish("a")
    broker.publish("a")
    (report,) = Inventory(broker.store).sessions()
    assert ranking.messages(report) == 2


def test_bytes_are_counted_of_those_that_are_printed() -> None:
    inventory = Inventory(fleet().store)
    complaints: list[str] = []
    (report,) = ranking.ranked(
        inventory,
        inventory.sessions(),
        ranking.MESSAGES,
        1,
        with_bytes=True,
        damaged=complaints.append,
    )
    assert report.backlog.size_bytes == 5 * (4 + 1)


def test_a_session_that_breaks_while_it_is_read_is_told() -> None:
    broker = fleet()
    inventory = Inventory(broker.store)
    reports = list(inventory.sessions())
    broker.is_audited = False
    broker.store.write([(SESSIONS, b"many", b"damaged")])
    complaints: list[str] = []
    found = ranking.ranked(
        inventory, reports, ranking.MESSAGES, 2, with_bytes=False, damaged=complaints.append
    )
    assert [report.session.client_id for report in found] == ["large"]
    assert len(complaints) == 1 and "'many'" in complaints[0]


def test_totals_leave_out_who_is_owed_nothing() -> None:
    totals = ranking.Totals()
    reports = Inventory(fleet().store).sessions(with_bytes=True)
    names = [report.session.client_id for report in totals.counting(reports)]
    assert names == ["large", "many", "old"]
    assert (totals.sessions, totals.messages) == (3, 8)
    assert totals.size_bytes == (2 * 5 + 1001) + 5 * 5 + 4


def test_bytes_that_were_not_counted_add_nothing_to_the_totals() -> None:
    totals = ranking.Totals()
    assert len(list(totals.counting(Inventory(fleet().store).sessions()))) == 3
    assert (totals.messages, totals.size_bytes) == (8, 0)
