"""Shared groups are told with their stored members and with what waits for them."""

from broker.operations.looking.rows import Problems
from broker.operations.looking.shared_groups import SharedGroup, SharedGroups
from mqtt.packets import Connack, Connect, Disconnect, Puback, Publish, Suback
from session.state.shared_group_record import GroupRecord, encode_group
from storage.local.memory import MemoryStore
from storage.tables.tables import (
    CONNECTIONS,
    FAMILIES,
    FILTERS,
    GROUPS,
    SESSIONS,
    group_key,
    seal,
)
from tests.broker.inside import InsideBroker, publish, run, subscribe
from tests.broker.operations.looking.test_topic_readers import away, row, session


def groups_of(broker: InsideBroker) -> list[SharedGroup]:
    problems = Problems()
    found = list(SharedGroups(broker.store, problems).all(0))
    assert problems.count == 0
    return found


async def publish_all(broker: InsideBroker, topic: str, count: int) -> None:
    """Publish `count` messages and return once all are stored."""
    peer = await broker.connect("publisher")
    for start in range(0, count, 50):
        size = min(50, count - start)
        peer.send(*[publish(topic, packet_id=number + 1) for number in range(size)])
        for _ in range(size):
            await peer.receive(Puback)


def group_row(share_name: str, topic_filter: str, owed: int = 0) -> tuple[str, bytes, bytes]:
    record = GroupRecord(9, 0, 1, list(range(owed)))
    return GROUPS, group_key(share_name, topic_filter), seal(encode_group(record))


def test_an_empty_store_has_no_groups() -> None:
    for store in (MemoryStore(), MemoryStore(FAMILIES)):
        groups = SharedGroups(store, Problems())
        assert list(groups.all(0)) == []
        assert groups.find("g", "a", 0) is None


def test_what_waits_for_an_offline_group_is_counted_for_each_group() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await away(broker, "w1", ("$share/night/a/#", 1), ("$share/work/a/#", 1), ("a/#", 1))
        await publish_all(broker, "a/x", 3)
        await away(broker, "w2", ("$share/late/a/x", 2), ("$share/late/b", 2))
        await publish_all(broker, "a/x", 2)
        told = [
            (g.share_name, g.topic_filter, g.members_count, g.connected, g.waiting)
            for g in groups_of(broker)
        ]
        assert told == [
            ("late", "a/x", 1, 0, 2),
            ("late", "b", 1, 0, 0),
            ("night", "a/#", 1, 0, 5),
            ("work", "a/#", 1, 0, 5),
        ]

    run(scenario)


def test_members_are_told_with_what_is_in_flight_to_them() -> None:
    async def scenario(broker: InsideBroker) -> None:
        peer = await session(broker, "w1", ("$share/g/a", 1))
        await away(broker, "w2", ("$share/g/a", 0))
        await publish_all(broker, "a", 3)
        first = await peer.receive(Publish)
        await peer.receive(Publish)
        await peer.receive(Publish)
        peer.send(Puback(first.packet_id))
        await broker.until(lambda: groups_of(broker)[0].in_flight == 2)
        (group,) = groups_of(broker)
        assert (group.members_count, group.connected, group.waiting) == (2, 1, 0)
        assert [(m.client_id, m.qos, m.is_connected, m.in_flight) for m in group.members] == [
            ("w1", 1, True, 2),
            ("w2", 0, False, 0),
        ]

    run(scenario)


def test_what_members_in_memory_hold_counts_as_owed() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await away(broker, "stored", ("$share/g/a", 1))
        clean = await broker.connect("clean")
        clean.send(subscribe("$share/g/a", 1))
        await clean.receive(Suback)
        await publish_all(broker, "a", 2)
        await clean.receive(Publish)
        await clean.receive(Publish)
        await broker.until(lambda: groups_of(broker)[0].owed == 2)
        (group,) = groups_of(broker)
        assert (group.members_count, group.waiting, group.in_flight) == (1, 0, 0)

    run(scenario)


def test_a_group_of_clean_sessions_alone_is_not_in_the_store() -> None:
    async def scenario(broker: InsideBroker) -> None:
        clean = await broker.connect("clean")
        clean.send(subscribe("$share/g/a", 1))
        await clean.receive(Suback)
        assert groups_of(broker) == []

    run(scenario)


def test_a_group_ends_with_its_last_session() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await away(broker, "w", ("$share/g/a", 1))
        assert len(groups_of(broker)) == 1
        peer = await broker.peer()
        peer.send(Connect("w", clean_start=True))
        await peer.receive(Connack)
        peer.send(Disconnect())
        await peer.closed()
        assert groups_of(broker) == []

    run(scenario)


def test_what_waits_is_counted_to_its_end() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await away(broker, "w", ("$share/g/a", 1))
        await publish_all(broker, "a", 1234)
        (group,) = groups_of(broker)
        assert group.waiting == 1234

    run(scenario)


def test_one_group_is_found_by_its_name_and_filter() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await away(broker, "w1", ("$share/g/a", 1), ("$share/g/a/b", 1))
        await away(broker, "w2", ("$share/g/a", 1))
        groups = SharedGroups(broker.store, Problems())
        group = groups.find("g", "a", 0)
        assert group is not None
        assert [member.client_id for member in group.members] == ["w1", "w2"]
        assert groups.find("g", "b", 0) is None

    run(scenario)


def test_looking_changes_nothing() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await away(broker, "w", ("$share/g/a", 1))
        await publish_all(broker, "a", 3)
        before = broker.store.sequence()
        groups_of(broker)
        assert broker.store.sequence() == before

    run(scenario)


def test_groups_beyond_a_page_get_their_members_too_and_a_member_list_has_a_limit() -> None:
    store = MemoryStore(FAMILIES)
    names = ("a", "b", "c", "d", "e")
    store.write([group_row(name, "t", owed=2) for name in names])
    store.write([row(f"m{number}", f"$share/{name}/t") for name in names for number in range(3)])
    groups = SharedGroups(store, Problems(), page_groups=2, members_max=2)
    told = [(g.share_name, g.members_count, len(g.members), g.owed) for g in groups.all(0)]
    assert told == [(name, 3, 2, 2) for name in names]


def test_damaged_rows_are_named_and_hide_nothing_else() -> None:
    store = MemoryStore(FAMILIES)
    store.write(
        [
            group_row("a", "t"),
            (GROUPS, group_key("b\x1b", "t"), b"damaged"),
            (GROUPS, b"\xff\0t", b"x"),
            group_row("c", "t"),
            row("m1", "$share/a/t", b"damaged"),
            row("m2", "$share/a/t"),
            row("m3", "$share/c/t"),
            (SESSIONS, b"m2", b"damaged"),
            row("m4", "$share/gone/t", b"damaged, and of no group"),
            (CONNECTIONS, b"m3", b"row"),
        ]
    )
    problems = Problems()
    told = [
        (g.share_name, g.members_count, g.connected) for g in SharedGroups(store, problems).all(0)
    ]
    assert told == [("a", 1, 0), ("c", 1, 1)]
    assert [line.split(": ")[0] for line in problems.lines()] == [
        "shared group b'b\\x1b\\x00t'",
        "shared group b'\\xff\\x00t'",
        "subscription b'm1\\x00$share/a/t'",
        "session 'm2'",
    ]


def test_a_group_whose_filter_is_damaged_waits_for_an_unknown_number() -> None:
    async def scenario(broker: InsideBroker) -> None:
        await away(broker, "w", ("$share/g/a", 1), ("$share/g/b", 1))
        broker.store.write([(FILTERS, b"a", b"damaged"), (FILTERS, b"b", None)])
        problems = Problems()
        groups = list(SharedGroups(broker.store, problems).all(0))
        assert [group.waiting for group in groups] == [None, None]
        assert [line.split(":")[0] for line in problems.lines()] == [
            "topic filter 'a'",
            "topic filter 'b'",
        ]

    run(scenario)
