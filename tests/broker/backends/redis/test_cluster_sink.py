"""Does a real cluster get every batch, each key in its order, whatever is killed or moves?"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from broker.backends.rows import Row
from broker.backends.sink import Fence, FenceRefused, Unavailable, Unusable
from storage.tables.feed_rows import ACKED, CONNECTED, RETAINED
from storage.tables.message_record import encode_message
from tests.broker.backends.redis_cluster import ClusterServers
from tests.broker.backends.redis_server import PROGRAMS, needs_redis
from tests.broker.backends.told_rows import INSTANCE, NOW_MS, batch, event, message, options, rule

cluster_sink = pytest.importorskip("broker.backends.redis.cluster_sink")
pytestmark = [pytest.mark.full, needs_redis]  # starts processes

SINKS: list[Any] = []  # to be closed
STORE = rule("message.publish", "#", action="on_message_publish")


@pytest.fixture(scope="module", params=PROGRAMS)
def shared(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ClusterServers]:
    """A cluster of three masters."""
    running = ClusterServers(tmp_path_factory.mktemp("cluster"), request.param)
    try:
        yield running.start()
    finally:
        running.kill()


@pytest.fixture
def cluster(shared: ClusterServers) -> ClusterServers:
    """An empty cluster, all of it running."""
    for number, server in enumerate(shared.servers):
        if not server.is_running:
            shared.start_one(number)
    shared.wait()
    for server in shared.masters:
        with server.client() as client:
            client.flushall()
            client.config_set("maxmemory", 0)
    return shared


@pytest.fixture(autouse=True)
def closing_sinks() -> Iterator[None]:
    """Close the sinks of a test."""
    yield
    while SINKS:
        SINKS.pop().close()


def opened(cluster: ClusterServers, *rules: dict[str, Any], **values: Any) -> Any:
    """Return a sink that is connected and begun at (0, 0)."""
    values = {"servers": cluster.addresses, "timeout_ms": 2000, "mode": "cluster", **values}
    sink = cluster_sink.ClusterSink(options(*(rules or (STORE,)), **values))
    SINKS.append(sink)
    if sink.open() is None:
        sink.start(Fence(INSTANCE, (0, 0)), is_rewind=False)
    return sink


def apply(sink: Any, after: int, *rows: Row) -> list[Any]:
    """Apply messages behind the log offset `after`."""
    found: list[Any] = sink.apply(batch((after, 0), (after + len(rows), 0), *rows), INSTANCE)
    return found


def messages(after: int, count: int) -> list[Row]:
    """Return messages of topics that are in all slots."""
    return [message(after + each, f"t/{after + each}") for each in range(1, count + 1)]


def topics(cluster: ClusterServers) -> set[str]:
    """Return the topics that have a list."""
    found = cluster.everything().items()
    return {key.removeprefix("mqtt:msg:") for key, value in found if isinstance(value, list)}


def wanted(count: int) -> set[str]:
    """Return the topics of the first messages."""
    return {f"t/{number}" for number in range(1, count + 1)}


def cursor(sink: Any) -> tuple[int, int] | None:
    """Return the cursor in the store."""
    fence = sink.look()
    return None if fence is None else fence.cursor


def test_a_batch_is_spread_over_all_servers_and_the_cursor_is_behind_it(
    cluster: ClusterServers,
) -> None:
    sink = opened(cluster)
    assert apply(sink, 0, *messages(0, 100)) == []
    assert topics(cluster) == wanted(100)
    assert all(server.everything() for server in cluster.masters)
    assert cursor(sink) == (100, 0)
    assert cursor(opened(cluster)) == (100, 0)


def test_a_batch_that_is_applied_already_counts_as_applied(cluster: ClusterServers) -> None:
    sink = opened(cluster, rule("message.publish", "#", commands=["RPUSH log ${payload}"]))
    assert apply(sink, 0, message(1)) == [] == apply(sink, 0, message(1))
    assert cluster.everything()["log"] == [b"x"]


def test_a_batch_that_does_not_follow_is_refused(cluster: ClusterServers) -> None:
    sink, other = opened(cluster), opened(cluster)
    apply(other, 0, message(1, "theirs"))
    for after, instance in ((0, INSTANCE), (1, "another database"), (7, INSTANCE)):
        with pytest.raises(FenceRefused):
            sink.apply(batch((after, 0), (after + 5, 5), message(after + 5)), instance)
    assert topics(cluster) == {"theirs"}


def test_commands_of_one_key_keep_their_order(cluster: ClusterServers) -> None:
    own = ["RPUSH log:${topic} ${payload}"]
    sink = opened(cluster, rule("message.publish", "#", commands=own))
    rows = [message(each, f"{each % 7}", b"%d" % each) for each in range(1, 400)]
    apply(sink, 0, *rows)
    found = cluster.everything()
    for topic in range(7):
        assert found[f"log:{topic}"] == [b"%d" % n for n in range(1, 400) if n % 7 == topic]


@pytest.mark.parametrize("number", range(3))
def test_a_server_that_lost_its_newest_rows_takes_the_cursor_back(
    cluster: ClusterServers, number: int
) -> None:
    sink = opened(cluster)
    apply(sink, 0, *messages(0, 10))
    with cluster.masters[number].client() as client:  # as it is written again after a crash
        kept = {key: client.dump(key) for key in client.keys("*")}
    apply(sink, 10, *messages(10, 10))
    with cluster.masters[number].client() as client:
        client.flushall()
        for key, value in kept.items():
            client.restore(key, 0, value)
    assert cursor(sink) == (10, 0)
    with pytest.raises(FenceRefused):
        apply(sink, 20, *messages(20, 1))
    sink = opened(cluster)
    sink.start(Fence(INSTANCE, (10, 0)), is_rewind=True)
    apply(sink, 10, *messages(10, 10))
    assert topics(cluster) == wanted(20)


def marks(cluster: ClusterServers) -> list[str]:
    """Return the names of the marks."""
    with contextlib.closing(cluster.client()) as client:
        found: str = client.get("holdfast:marks:{holdfast:cursor:cache}").decode()
    return found.split()


@pytest.mark.parametrize("value", ["", f"{INSTANCE}:4:0", "another database:9:9"])
def test_a_server_that_loses_rows_while_a_batch_is_applied_keeps_the_cursor_back(
    cluster: ClusterServers, value: str
) -> None:
    """As if a replica took the place of its master: the rest of the batch goes there."""
    apply(opened(cluster), 0, *messages(0, 5))
    for mark in marks(cluster):
        sink = opened(cluster, rule("message.publish", "#", commands=[f"SET {mark} '{value}'"]))
        with pytest.raises(FenceRefused):
            apply(sink, 5, message(6))
        with contextlib.closing(cluster.client()) as client:
            assert client.get("holdfast:cursor:cache") == f"{INSTANCE}:5:0".encode()
        assert cursor(sink) in ((4, 0), None)
        sink.start(Fence(INSTANCE, (5, 0)), is_rewind=True)


def test_a_batch_that_was_not_confirmed_may_be_cut_otherwise_when_it_comes_again(
    cluster: ClusterServers,
) -> None:
    sink = opened(cluster)
    apply(sink, 0, *messages(0, 5))
    with contextlib.closing(cluster.client()) as client:
        for mark in marks(cluster):
            client.set(mark, f"{INSTANCE}:9:0")
    assert cursor(opened(cluster)) == (5, 0)
    apply(sink, 5, *messages(5, 1))
    assert cursor(sink) == (6, 0)


@pytest.mark.parametrize("number", range(3))
def test_a_server_that_was_emptied_has_nothing_of_ours(
    cluster: ClusterServers, number: int
) -> None:
    sink = opened(cluster)
    apply(sink, 0, *messages(0, 10))
    with cluster.masters[number].client() as client:
        client.flushall()
    assert cursor(sink) is None


def test_a_batch_whose_cursor_was_not_moved_is_applied_again(cluster: ClusterServers) -> None:
    sink = opened(cluster, STORE, rule("message.publish", "#", 2, commands=["INCR seen"]))
    with pytest.raises(FenceRefused):
        with cluster_moved(cluster, b"other:0:0"):
            apply(sink, 0, *messages(0, 5))
    again = opened(cluster, STORE)
    again.start(Fence(INSTANCE, (0, 0)), is_rewind=False)
    apply(again, 0, *messages(0, 5))
    assert topics(cluster) == wanted(5)


@contextlib.contextmanager
def cluster_moved(cluster: ClusterServers, value: bytes) -> Iterator[None]:
    """Have somebody else move the cursor."""
    with contextlib.closing(cluster.client()) as client:
        client.set("holdfast:cursor:cache", value)
    yield


def test_what_is_refused_for_good_is_told_and_the_rest_is_applied(cluster: ClusterServers) -> None:
    with contextlib.closing(cluster.client()) as client:
        client.set("log", "no list")
    own = ["RPUSH log ${payload}", "INCR seen", "SINTERSTORE a b c", "NOSUCH x", "PUBLISH heard 1"]
    sink = opened(cluster, rule("message.publish", "#", 4, commands=own), STORE)
    found = apply(sink, 0, message(1, "t/1"))
    assert [(each.row, each.rule) for each in found] == [(0, 4)] * 3
    reasons = [each.why for each in found]
    assert "WRONGTYPE" in reasons[0] and "CROSSSLOT" in reasons[1] and "NOSUCH" in reasons[2]
    kept = sink.refusals(INSTANCE)
    assert [(each.upto, each.at, each.rule, each.why) for each in kept] == [
        ((1, 0), (1, 0), 4, why) for why in reasons
    ]
    assert sink.refusals("another database") == []
    assert cluster.everything()["seen"] == b"1" and topics(cluster) == {"t/1"}
    assert cursor(sink) == (1, 0)


def test_own_commands_with_several_keys_of_one_slot_are_carried_out(
    cluster: ClusterServers,
) -> None:
    own = [
        "MSET {${topic}}:a 1 {${topic}}:b 2",
        "ZUNIONSTORE {${topic}}:all 2 {${topic}}:x {${topic}}:y",
        "XGROUP CREATE stream group $ MKSTREAM",
        "SET",
    ]
    sink = opened(cluster, rule("message.publish", "#", commands=own))
    (poison,) = apply(sink, 0, message(1, "t"))
    assert "wrong number of arguments" in poison.why
    assert cluster.everything()["{t}:b"] == b"2"


def test_a_row_that_nothing_can_be_made_of_is_told(cluster: ClusterServers) -> None:
    sink = opened(cluster, STORE, rule("message.publish", "#", 2, action="on_message_retain"))
    broken = event(RETAINED, "", "t", body=b"no record")
    found = sink.apply(batch((0, 0), (1, 1), broken, message(1)), INSTANCE)
    assert [(poison.row, "CorruptRecord" in poison.why) for poison in found] == [(0, True)]
    assert topics(cluster) == {"t"}


def test_a_server_without_memory_makes_the_batch_wait(cluster: ClusterServers) -> None:
    sink = opened(cluster)
    with cluster.masters[1].client() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(Unavailable, match="maxmemory"):
            apply(sink, 0, *messages(0, 50))
        assert sink.open().cursor == (0, 0)
        client.config_set("maxmemory", 0)
    apply(sink, 0, *messages(0, 50))
    assert topics(cluster) == wanted(50)


def test_a_server_that_is_killed_makes_the_batch_wait_until_it_is_back(
    cluster: ClusterServers,
) -> None:
    sink = opened(cluster)
    apply(sink, 0, *messages(0, 50))
    cluster.masters[2].kill()
    with pytest.raises(Unavailable):
        apply(sink, 50, *messages(50, 50))
    cluster.start_one(2)
    cluster.wait()
    found = sink.open()
    assert found is not None and found.cursor == (50, 0)
    apply(sink, 50, *messages(50, 50))
    assert topics(cluster) == wanted(100)


def test_slots_that_move_meanwhile_are_followed(cluster: ClusterServers) -> None:
    own = ["RPUSH {moving}:log ${payload}", "INCR {moving}:seen"]
    sink = opened(cluster, rule("message.publish", "#", commands=own), STORE)
    with contextlib.closing(cluster.client()) as client:
        slot = client.keyslot("{moving}:log")
    source = cluster.owner("{moving}:log")
    target = (source + 1) % 3
    mover = threading.Thread(target=move, args=(cluster, slot, source, target))
    mover.start()
    done = 0
    while mover.is_alive() or done < 200:
        rows = [message(done + each, payload=b"%d" % (done + each)) for each in range(1, 11)]
        assert apply(sink, done, *rows) == []
        done += 10
    mover.join()
    found = cluster.everything()
    assert found["{moving}:log"] == [b"%d" % number for number in range(1, done + 1)]
    assert cluster.owner("{moving}:log") == target
    assert sink.look().cursor == (done, 0)
    move(cluster, slot, target, source)


def move(cluster: ClusterServers, slot: int, source: int, target: int) -> None:
    """Move a slot from one server to another, as redis-cli does."""
    servers = cluster.masters
    with servers[source].client() as giver, servers[target].client() as taker:
        names = [client.execute_command("CLUSTER", "MYID") for client in (giver, taker)]
        taker.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
        giver.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
        while keys := giver.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
            giver.migrate("127.0.0.1", servers[target].port, keys, 0, 30_000)
        for client in (taker, giver):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[1])


def test_a_server_whose_slots_have_all_moved_needs_no_mark(cluster: ClusterServers) -> None:
    """Marks go with their slots, and a server that has a new one gets a mark of its own."""
    sink = opened(cluster)
    apply(sink, 0, *messages(0, 10))
    first = marks(cluster)[0]
    with contextlib.closing(cluster.client()) as client:
        slot = client.keyslot(first)
    assert len({cluster.owner(each) for each in marks(cluster)}) == 3
    source = cluster.owner(first)
    target = (source + 1) % 3
    move(cluster, slot, source, target)
    apply(sink, 10, *messages(10, 10))
    assert len({cluster.owner(each) for each in marks(cluster)}) == 3
    assert cursor(opened(cluster)) == (20, 0)
    move(cluster, slot, target, source)


def test_a_position_never_goes_back(cluster: ClusterServers) -> None:
    sink = opened(cluster, rule("message.acked", "#", action="on_message_acked_for_pubsub"))
    rows = [
        event(ACKED, "c", "t", seq=seq, offset=offset, accepted_ms=NOW_MS)
        for seq, offset in ((1, 5), (2, 3))
    ]
    sink.start(Fence(INSTANCE, (5, 0)), is_rewind=False)
    sink.apply(batch((5, 0), (5, 1), rows[0]), INSTANCE)
    newest = cluster.everything()["mqtt:acked:c:t"]
    sink.apply(batch((5, 1), (5, 2), rows[1]), INSTANCE)
    assert cluster.everything()["mqtt:acked:c:t"] == newest


def test_clients_and_retained_messages_are_as_with_one_server(cluster: ClusterServers) -> None:
    rules = (
        rule("client.connected", None, action="on_client_connected"),
        rule("message.publish", "#", 2, action="on_message_retain", expires_s=60),
    )
    sink = opened(cluster, *rules)
    body = encode_message(message(0, "a", b"kept", retain=True))
    rows = [
        event(CONNECTED, "dev", seq=1),
        event(RETAINED, "dev", "a", seq=2, accepted_ms=NOW_MS, body=body),
    ]
    assert sink.apply(batch((0, 0), (0, 2), *rows), INSTANCE) == []
    found = cluster.everything()
    assert found["mqtt:client:dev"][b"state"] == b"1"
    assert found["mqtt:retain:a"][b"payload"] == b"kept"
    with contextlib.closing(cluster.client()) as client:
        assert 0 < client.ttl("mqtt:retain:a") <= 60


def test_health_says_what_the_cluster_is(cluster: ClusterServers) -> None:
    health = opened(cluster).health()
    assert health["server"] == cluster.servers[0].name and health["version"]
    assert (health["role"], health["writable"]) == ("a cluster of 3 masters", True)
    assert health["persistence"] == "append-only file"
    assert (health["fence"], health["problems"]) == (f"{INSTANCE}:0:0", [])
    with cluster.masters[1].client() as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        (problem,) = opened(cluster).health()["problems"]
        client.config_set("maxmemory-policy", "noeviction")
    assert problem.startswith(f"127.0.0.1:{cluster.masters[1].port}: ") and "allkeys-lru" in problem


def test_one_server_alone_is_no_cluster(cluster: ClusterServers) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        opened(cluster, servers=["127.0.0.1:1"])


def test_a_command_that_cannot_be_parsed_is_told_at_once() -> None:
    with pytest.raises(Unusable, match=r"cache.*closing quote"):
        cluster_sink.ClusterSink(options(rule("message.publish", "#", commands=['SET "a'])))
