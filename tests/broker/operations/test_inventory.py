"""What the inventory reads is what the broker has written, and it writes nothing itself."""

import pytest

from broker.operations.inventory import WAITING_COUNT_MAX, Inventory
from mqtt.packets import Disconnect, Publish, Suback
from storage.errors import CorruptRecord
from storage.local.memory import MemoryStore
from storage.tables.tables import SESSIONS
from tests.broker.inside import InsideBroker, publish, run, subscribe


async def offline_with(broker: InsideBroker, client_id: str, *filters: str) -> None:
    """Leave a session with these subscriptions behind."""
    peer = await broker.connect(client_id, expiry=3600)
    for topic_filter in filters:
        peer.send(subscribe(topic_filter, 1))
        await peer.receive(Suback)
    peer.send(Disconnect())
    await peer.closed()


async def publish_all(broker: InsideBroker, topic: str, count: int) -> None:
    """Publish `count` messages and return once all are stored."""
    peer = await broker.connect("publisher")
    for start in range(0, count, 500):
        numbers = range(start, min(start + 500, count))
        peer.send(*[publish(topic, packet_id=number % 500 + 1) for number in numbers])
        await broker.until(lambda end=numbers[-1] + 1: broker.engine.stats()["log_end"] >= end)  # type: ignore[misc]


def test_an_empty_store_has_no_sessions() -> None:
    inventory = Inventory(MemoryStore())
    assert list(inventory.sessions()) == []
    assert inventory.session("c") is None
    assert inventory.wall_ms(5) == 5


def test_an_offline_session_is_reported_with_what_waits_for_it() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await offline_with(broker, "boat", "a/#", "b", "$share/g/a/#")
        await publish_all(broker, "a/x", 7)
        report = Inventory(broker.store).session("boat")
        assert report is not None
        assert not report.is_connected
        assert sorted(report.session.subscriptions) == ["$share/g/a/#", "a/#", "b"]
        assert report.waiting == 7
        assert report.incoming == 0
        assert report.expires_ms == report.session.disconnected_at_ms + 3_600_000

    run(scenario)


def test_a_connected_session_is_reported_as_that_and_does_not_expire() -> None:
    async def scenario(broker: InsideBroker) -> None:
        peer = await broker.connect("boat", expiry=3600)
        peer.send(subscribe("a", 1))
        await peer.receive(Suback)
        await publish_all(broker, "a", 2)
        await peer.receive(Publish)
        (report,) = Inventory(broker.store).sessions()
        assert report.is_connected
        assert report.expires_ms == 0

    run(scenario)


def test_counting_stops_at_its_limit() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await offline_with(broker, "boat", "a")
        await publish_all(broker, "a", WAITING_COUNT_MAX + 100)
        report = Inventory(broker.store).session("boat")
        assert report is not None
        assert report.waiting == WAITING_COUNT_MAX

    run(scenario)


def test_sessions_come_by_client_id() -> None:
    async def scenario(broker: InsideBroker) -> None:
        for client_id in ("c", "a", "b"):
            await offline_with(broker, client_id)
        reports = Inventory(broker.store).sessions()
        assert [report.session.client_id for report in reports] == ["a", "b", "c"]

    run(scenario)


def test_looking_changes_nothing() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await offline_with(broker, "boat", "a")
        await publish_all(broker, "a", 3)
        before = broker.store.sequence()
        assert len(list(Inventory(broker.store).sessions())) == 1
        assert broker.store.sequence() == before

    run(scenario)


def test_a_damaged_record_is_an_error_and_not_a_guess() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await offline_with(broker, "boat")
        broker.store.write([(SESSIONS, b"boat", b"damaged")])
        with pytest.raises(CorruptRecord, match="boat"):
            Inventory(broker.store).session("boat")

    run(scenario)
