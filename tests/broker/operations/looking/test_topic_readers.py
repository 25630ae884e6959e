"""Who gets a topic is who the broker would send it to."""

from broker.operations.looking.rows import Problems
from broker.operations.looking.shared_groups import SharedGroups
from broker.operations.looking.topic_readers import LATER, NO, NOW, TopicReaders
from broker.operations.sessions.inventory import Inventory
from mqtt.packets import Disconnect, Puback, Suback, Subscribe, Subscription
from mqtt.topics import split_shared
from session.state.subscription import Subscription as Row
from storage.local.memory import MemoryStore
from storage.tables.tables import SUBSCRIPTIONS, seal, subscription_key
from tests.broker.inside import InsideBroker, Peer, publish, run, subscribe


async def session(broker: InsideBroker, client_id: str, *filters: tuple[str, int]) -> Peer:
    """Connect a stored session with these subscriptions."""
    peer = await broker.connect(client_id, expiry=3600)
    for topic_filter, qos in filters:
        peer.send(subscribe(topic_filter, qos))
        await peer.receive(Suback)
    return peer


async def away(broker: InsideBroker, client_id: str, *filters: tuple[str, int]) -> None:
    """Leave a stored session with these subscriptions behind."""
    peer = await session(broker, client_id, *filters)
    peer.send(Disconnect())
    await peer.closed()


def found(broker: InsideBroker, topic: str) -> list[tuple[str, str, int, str]]:
    """Return client id, filter, QoS and when it gets the message, of all sessions."""
    problems = Problems()
    readers = TopicReaders(broker.store, topic, problems)
    rows = [(s.client_id, s.topic_filter, s.qos, s.gets) for s in readers.sessions()]
    assert problems.count == 0
    return rows


def test_a_store_without_sessions_has_no_readers() -> None:
    readers = TopicReaders(MemoryStore(), "a", Problems())
    assert list(readers.sessions()) == []
    assert readers.groups == {}


def test_sessions_are_found_by_every_filter_that_matches_and_counted_once() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await session(broker, "online", ("fleet/+/gps", 2), ("other", 1))
        await away(broker, "boat", ("fleet/#", 1), ("fleet/17/gps", 2), ("fleet/17", 1))
        await away(broker, "watch", ("fleet/#", 0))
        readers = TopicReaders(broker.store, "fleet/17/gps", Problems())
        rows = [(s.client_id, s.topic_filter, s.qos, s.gets) for s in readers.sessions()]
        assert rows == [
            ("boat", "fleet/#", 1, LATER),
            ("boat", "fleet/17/gps", 2, LATER),
            ("online", "fleet/+/gps", 2, NOW),
            ("watch", "fleet/#", 0, NO),
        ]
        assert readers.sessions_count == 3
        assert readers.sessions_connected == 1
        assert readers.subscriptions_count == 4

    run(scenario)


def test_who_gets_it_is_who_the_broker_sends_it_to() -> None:
    async def scenario(broker: InsideBroker) -> None:
        for client_id, topic_filter in (("a", "t/#"), ("b", "t/x"), ("c", "+/y"), ("d", "#")):
            await away(broker, client_id, (topic_filter, 1))
        named = {row[0] for row in found(broker, "t/x")}
        peer = await broker.connect("publisher")
        peer.send(publish("t/x"))
        await peer.receive(Puback)
        waiting = {
            r.session.client_id for r in Inventory(broker.store).sessions() if r.backlog.waiting
        }
        assert named == waiting == {"a", "b", "d"}

    run(scenario)


def test_a_topic_with_a_dollar_is_hidden_from_leading_wildcards() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await away(broker, "all", ("#", 1), ("+/broker/uptime", 1))
        await away(broker, "system", ("$SYS/#", 1), ("$SYS/broker/uptime", 1))
        rows = found(broker, "$SYS/broker/uptime")
        assert [row[:2] for row in rows] == [
            ("system", "$SYS/#"),
            ("system", "$SYS/broker/uptime"),
        ]

    run(scenario)


def test_a_clean_session_is_not_in_the_store() -> None:
    async def scenario(broker: InsideBroker) -> None:
        peer = await broker.connect("clean")
        peer.send(subscribe("a", 1))
        await peer.receive(Suback)
        assert found(broker, "a") == []

    run(scenario)


def test_no_local_is_told() -> None:
    async def scenario(broker: InsideBroker) -> None:
        peer = await broker.connect("boat", expiry=3600)
        peer.send(Subscribe(1, [Subscription("a", 1, no_local=True), Subscription("+", 1)]))
        await peer.receive(Suback)
        readers = TopicReaders(broker.store, "a", Problems())
        assert [(s.topic_filter, s.no_local) for s in readers.sessions()] == [
            ("+", False),
            ("a", True),
        ]

    run(scenario)


def test_a_shared_group_is_one_reader_with_its_members() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await session(broker, "w1", ("$share/work/a/#", 1))
        await away(broker, "w2", ("$share/work/a/#", 2), ("$share/night/a/+", 0), ("a/x", 1))
        await away(broker, "w3", ("$share/work/b", 1))
        readers = TopicReaders(broker.store, "a/x", Problems())
        assert [s.topic_filter for s in readers.sessions()] == ["a/x"]
        work = readers.groups["work", "a/#"]
        assert (work.members, work.connected, work.gets) == (2, 1, NOW)
        assert (work.qos_min, work.qos_max) == (1, 2)
        night = readers.groups["night", "a/+"]
        assert (night.members, night.connected, night.gets) == (1, 0, LATER)
        assert len(readers.groups) == 2
        assert readers.sessions_count == 1

    run(scenario)


def test_an_offline_group_stores_at_qos_0_too() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await away(broker, "w", ("$share/night/a", 0))
        peer = await broker.connect("publisher")
        peer.send(publish("a"))
        await peer.receive(Puback)
        (group,) = SharedGroups(broker.store, Problems()).all(0)
        assert group.waiting == 1

    run(scenario)


def row(
    client_id: str, topic_filter: str, sealed: bytes | None = None, *, qos: int = 1
) -> tuple[str, bytes, bytes]:
    """Return the row of a subscription that holds messages."""
    share_name, stream_filter = split_shared(topic_filter) or (None, topic_filter)
    made = Row(topic_filter, share_name, stream_filter, qos, False, False, 0, 0, 0, True)
    value = seal(made.encode()) if sealed is None else sealed
    return SUBSCRIPTIONS, subscription_key(client_id, topic_filter), value


def test_damaged_rows_hide_nobody_else() -> None:
    store = MemoryStore([SUBSCRIPTIONS, "connections"])
    store.write(
        [
            row("a", "t"),
            row("b\x1b[31m", "t", b"damaged"),
            row("c", "t", seal(b"\x09")),
            (SUBSCRIPTIONS, b"d\xff\0t", b"x"),
            (SUBSCRIPTIONS, b"e", b"x"),
            row("f", "elsewhere", b"damaged"),
            row("g", "t"),
        ]
    )
    problems = Problems()
    readers = TopicReaders(store, "t", problems)
    assert [s.client_id for s in readers.sessions()] == ["a", "g"]
    lines = list(problems.lines())
    assert len(lines) == 4
    assert lines[0].startswith("subscription b'b\\x1b[31m\\x00t': ")


def test_groups_beyond_the_limit_are_counted() -> None:
    store = MemoryStore([SUBSCRIPTIONS, "connections"])
    store.write([row(client, f"$share/{g}/t") for client in ("a", "b") for g in ("x", "y", "z")])
    readers = TopicReaders(store, "t", Problems(), groups_max=2)
    assert list(readers.sessions()) == []
    assert [name for name, _ in readers.groups] == ["x", "y"]
    assert readers.members_left_out == 2
