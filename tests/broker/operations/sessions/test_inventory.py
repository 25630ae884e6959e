"""What the inventory reads is what the broker has written, and it writes nothing itself."""

import pytest

from broker.operations.sessions.inventory import Inventory
from mqtt.packets import Disconnect, Puback, Publish, Suback
from storage.api import Change
from storage.errors import CorruptRecord
from storage.local.memory import MemoryStore
from storage.tables.tables import FILTERS, META, SESSIONS, SUBSCRIPTIONS, seal
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat
from tests.broker.inside import InsideBroker, publish, run, subscribe
from tests.session.harness import Broker


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
        for _ in numbers:
            await peer.receive(Puback)


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
        assert report.backlog.waiting == 7
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


def test_a_deep_backlog_is_counted_to_its_end_while_the_broker_runs() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await offline_with(broker, "boat", "a", "#")
        await publish_all(broker, "a", 2100)
        report = Inventory(broker.store).session("boat", with_bytes=True)
        assert report is not None
        assert (report.backlog.waiting, report.backlog.size_bytes) == (2100, 4200)

    run(scenario)


def test_only_sessions_that_are_wanted_are_read() -> None:
    async def scenario(broker: InsideBroker) -> None:
        for client_id in ("boat-1", "boat-2", "crane"):
            await offline_with(broker, client_id)
        await broker.connect("boat-3", expiry=3600)
        broker.store.write([(SESSIONS, b"crane", b"damaged")])
        inventory = Inventory(broker.store)
        found = inventory.sessions(wanted=lambda name: name.startswith("boat"), is_offline=True)
        assert [report.session.client_id for report in found] == ["boat-1", "boat-2"]

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
        with pytest.raises(CorruptRecord, match="session 'boat': record: checksum"):
            Inventory(broker.store).session("boat")
        with pytest.raises(CorruptRecord, match="boat"):
            list(Inventory(broker.store).sessions())

    run(scenario)


DAMAGES = (
    (SESSIONS, b"crane", b"damaged"),
    (SESSIONS, b"crane", seal(b"\x02 too short")),
    (SESSIONS, b"crane", seal(b"\x02" + b"\xff" * 90)),
    (SUBSCRIPTIONS, b"crane\0a", b"damaged"),
    (SUBSCRIPTIONS, b"crane\0a", seal(b"\x09")),
    (SUBSCRIPTIONS, b"crane\0\xff", seal(b"")),
    (FILTERS, b"a", None),
    (FILTERS, b"a", b"damaged"),
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_session_does_not_hide_the_others(damage: Change) -> None:
    async def scenario(broker: InsideBroker) -> None:
        await offline_with(broker, "boat", "b")
        await offline_with(broker, "crane", "a")
        await offline_with(broker, "tug", "b")
        broker.store.write([damage])
        complaints: list[str] = []
        reports = Inventory(broker.store).sessions(damaged=complaints.append)
        assert [report.session.client_id for report in reports] == ["boat", "tug"]
        (line,) = complaints
        assert line.startswith("session 'crane': ")
        assert line.count("session 'crane'") == 1
        assert line.isprintable()

    run(scenario)


def test_a_client_id_that_is_not_utf_8_is_told() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await offline_with(broker, "boat")
        broker.store.write([(SESSIONS, b"\xff\x1b", b"damaged")])
        complaints: list[str] = []
        assert len(list(Inventory(broker.store).sessions(damaged=complaints.append))) == 1
        assert complaints[0].startswith("session b'\\xff\\x1b': ")

    run(scenario)


def test_rows_that_the_disk_does_not_give_back_are_told_and_passed_over() -> None:
    broker = Broker()
    for client_id in ("boat", "crane", "tug"):
        broker.durable(client_id, client_id).drop()
    broker.is_audited = False
    broker.store.damage(SESSIONS, [b"crane"])
    broker.store.damage(SUBSCRIPTIONS, [b"tug\0tug"])
    complaints: list[str] = []
    reports = Inventory(broker.store).sessions(damaged=complaints.append)
    assert [report.session.client_id for report in reports] == ["boat"]
    assert len(complaints) == 2
    assert complaints[0].startswith("session 'tug': ")
    assert b"crane".hex() in complaints[1]


def test_since_and_expiry_are_those_of_being_online_or_away() -> None:
    broker = Broker()
    connected = broker.now
    broker.connect("online", expiry=60)
    away = broker.connect("away", expiry=60)
    kept = broker.durable("kept")
    broker.advance(s=5)
    away.drop()
    kept.drop()
    found = {
        each.session.client_id: (each.since_ms, each.expires_ms)
        for each in Inventory(broker.store).sessions()
    }
    assert found == {
        "online": (connected, 0),
        "away": (broker.now, broker.now + 60_000),
        "kept": (broker.now, 0),
    }


def test_broker_time_is_wall_time_by_the_last_heartbeat() -> None:
    store = MemoryStore()
    store.create_family(META)
    store.write([(META, HEARTBEAT_KEY, Heartbeat(1_000, 50_000, "boot", 7).encode())])
    assert Inventory(store).wall_ms(1_500) == 50_500


def test_streams_are_those_of_filters_that_hold_messages_for_the_session() -> None:
    broker = Broker()
    broker.durable("other", "x", "y").drop()
    broker.durable("boat", "a", "y", "$share/g/b")
    inventory = Inventory(broker.store)
    report = inventory.session("boat")
    assert report is not None
    other = inventory.session("other")
    assert other is not None
    found = {each.topic_filter: each.filter_id for each in inventory.streams(report.session)}
    assert set(found) == {"a", "y"}
    ids = {each.topic_filter: each.filter_id for each in inventory.streams(other.session)}
    assert found["y"] == ids["y"]
    assert len({*found.values(), *ids.values()}) == 3


def test_bytes_are_counted_only_where_they_are_asked_for() -> None:
    broker = Broker()
    broker.durable("boat", "a").drop()
    broker.publish("a")
    inventory = Inventory(broker.store)
    one = inventory.session("boat")
    assert one is not None
    assert (
        [one.backlog.size_bytes]
        == [each.backlog.size_bytes for each in inventory.sessions()]
        == [None]
    )


def test_sessions_behind_one_that_is_not_wanted_are_found() -> None:
    broker = Broker()
    for client_id in ("a", "b", "c"):
        broker.durable(client_id).drop()
    found = Inventory(broker.store).sessions(wanted=lambda name: name != "a")
    assert [each.session.client_id for each in found] == ["b", "c"]
