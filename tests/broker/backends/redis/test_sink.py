"""Does a real Redis apply each batch once, whatever it answers, forgets or refuses?"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.backends.message_ids import node_number, unstored_id
from broker.backends.rows import RowBatch
from broker.backends.sink import Fence, FenceRefused, Unavailable, Unusable
from storage.tables.feed_rows import ACKED, RETAINED
from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.broker.backends.told_rows import (
    INSTANCE,
    NODE,
    NOW_MS,
    batch,
    event,
    message,
    options,
    rule,
    unlogged,
)

redis_sink = pytest.importorskip("broker.backends.redis.sink")
pytestmark = [pytest.mark.full, needs_redis]  # starts processes

LOG = rule("message.publish", "#", commands=["RPUSH log ${payload}"])


@pytest.fixture(params=PROGRAMS)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A running Redis, or Valkey."""
    running = RedisServer(tmp_path / "redis", request.param).start()
    yield running
    running.kill()


def opened(server: RedisServer, *rules: dict[str, Any], **values: Any) -> Any:
    """Return a sink that is connected and begun at (0, 0)."""
    values = {"servers": [f"127.0.0.1:{server.port}"], "timeout_ms": 2000, **values}
    sink = redis_sink.RedisSink(options(*(rules or (LOG,)), **values))
    if sink.open() is None:
        sink.start(Fence(INSTANCE, (0, 0)), is_rewind=False)
    return sink


def large(number: int) -> RowBatch:
    """Return a batch of one message that takes some bytes of a file."""
    return batch((number - 1, 0), (number, 0), message(number, payload=bytes(200)))


def cursor(sink: Any) -> tuple[int, int] | None:
    """Return the cursor in the store."""
    fence = sink.look()
    return None if fence is None else fence.cursor


def test_rows_and_cursor_move_together(server: RedisServer) -> None:
    sink = opened(server)
    rows = [message(1, payload=b"a"), message(3, payload=b"b")]
    assert sink.apply(batch((0, 0), (3, 0), *rows), INSTANCE) == []
    assert server.list("log") == [b"a", b"b"]
    assert cursor(sink) == (3, 0)
    again = opened(server)
    assert cursor(again) == (3, 0)


def test_a_batch_that_is_applied_already_counts_as_applied(server: RedisServer) -> None:
    sink = opened(server)
    one = batch((0, 0), (1, 0), message(1))
    sink.apply(one, INSTANCE)
    assert sink.apply(one, INSTANCE) == []
    assert len(server.list("log")) == 1


@pytest.mark.parametrize("after", [(1, 0), (0, 1)])
def test_a_batch_with_rows_missing_before_it_is_refused(
    server: RedisServer, after: tuple[int, int]
) -> None:
    sink = opened(server)
    with pytest.raises(FenceRefused):
        sink.apply(batch(after, (5, 5), message(5)), INSTANCE)
    assert server.list("log") == []


def test_a_cursor_that_others_have_moved_is_noticed(server: RedisServer) -> None:
    sink, other = opened(server), opened(server)
    other.apply(batch((0, 0), (9, 0), message(9, payload=b"theirs")), INSTANCE)
    with pytest.raises(FenceRefused):
        sink.apply(batch((0, 0), (1, 0), message(1)), INSTANCE)
    with pytest.raises(FenceRefused):
        sink.apply(batch((9, 0), (10, 0), message(10)), "another database")
    assert server.list("log") == [b"theirs"]


def test_a_batch_without_commands_moves_the_cursor(server: RedisServer) -> None:
    sink = opened(server)
    sink.apply(batch((0, 0), (0, 7), event(ACKED, seq=7)), INSTANCE)
    assert cursor(sink) == (0, 7)


def test_a_command_that_fails_is_told_and_the_others_are_applied(server: RedisServer) -> None:
    with server.client() as client:
        client.set("log", "no list")
    both = rule("message.publish", "#", 4, commands=["RPUSH log ${payload}", "INCR seen"])
    sink = opened(server, rule("message.publish", "b", 3, commands=["NOSUCH x"]), both)
    rows = [message(1, "a"), message(2, "b")]
    found = sink.apply(batch((0, 0), (2, 0), *rows), INSTANCE)
    assert [(poison.row, poison.rule) for poison in found] == [(0, 4), (1, 3), (1, 4)]
    kept = sink.refusals(INSTANCE)
    assert [(each.upto, each.at, each.rule, each.why) for each in kept] == [
        ((2, 0), (rows[poison.row].offset, 0), poison.rule, poison.why) for poison in found
    ]
    assert sink.refusals("another database") == []
    assert "WRONGTYPE" in found[0].why and "nknown" in found[1].why
    with server.client() as client:
        assert client.get("seen") == b"2"
    assert cursor(sink) == (2, 0)


def test_only_the_last_refusals_are_kept(server: RedisServer) -> None:
    sink = opened(server, rule("message.publish", "#", commands=["NOSUCH x"]))
    for number in range(1, 40):
        sink.apply(large(number), INSTANCE)
    assert [each.upto[0] for each in sink.refusals(INSTANCE)] == list(range(24, 40))


def test_a_row_that_nothing_can_be_made_of_is_told_and_the_rest_is_applied(
    server: RedisServer,
) -> None:
    retain = rule("message.publish", "#", 2, action="on_message_retain")
    sink = opened(server, LOG, retain)
    broken = event(RETAINED, "", "t", body=b"no record")
    found = sink.apply(batch((0, 0), (1, 1), broken, message(1)), INSTANCE)
    assert [(poison.row, "CorruptRecord" in poison.why) for poison in found] == [(0, True)]
    assert len(server.list("log")) == 1


def test_a_server_without_memory_applies_nothing_and_then_all(server: RedisServer) -> None:
    sink = opened(server)
    one = batch((0, 0), (1, 0), message(1))
    with server.client() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(Unavailable, match="maxmemory"):
            sink.apply(one, INSTANCE)
        client.config_set("maxmemory", 0)
    assert server.list("log") == []
    assert sink.open().cursor == (0, 0)
    assert sink.apply(one, INSTANCE) == []
    assert len(server.list("log")) == 1


def test_a_replica_is_no_place_for_rows(server: RedisServer) -> None:
    sink = opened(server)
    with server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(Unavailable, match="read only replica"):
        sink.apply(batch((0, 0), (1, 0), message(1)), INSTANCE)


def test_a_server_that_forgot_the_script_gets_it_again(server: RedisServer) -> None:
    sink = opened(server)
    with server.client() as client:
        client.script_flush()
    assert sink.apply(batch((0, 0), (1, 0), message(1)), INSTANCE) == []
    assert len(server.list("log")) == 1


def test_a_position_never_goes_back(server: RedisServer) -> None:
    sink = opened(server, rule("message.acked", "#", action="on_message_acked_for_pubsub"))
    rows = [
        event(ACKED, "c", "t", seq=seq, offset=offset, accepted_ms=NOW_MS)
        for seq, offset in ((1, 5), (2, 3))
    ]
    sink.start(Fence(INSTANCE, (5, 0)), is_rewind=False)
    sink.apply(batch((5, 0), (5, 1), rows[0]), INSTANCE)
    newest = server.everything()["mqtt:acked:c:t"]
    sink.apply(batch((5, 1), (5, 2), rows[1]), INSTANCE)
    assert server.everything()["mqtt:acked:c:t"] == newest


def test_half_a_transaction_does_not_come_back(server: RedisServer) -> None:
    sink = opened(server)
    for number in range(1, 40):
        sink.apply(large(number), INSTANCE)
    server.kill()
    server.lose(0.3)
    server.start()
    found = sink.open()
    assert found is not None and 0 < found.cursor[0] < 39
    sink.start(found, is_rewind=True)
    for number in range(found.cursor[0] + 1, 40):
        sink.apply(large(number), INSTANCE)
    server.kill()
    server.start()
    assert len(server.list("log")) == 39
    assert sink.open().cursor == (39, 0)


@pytest.mark.parametrize("count", [1, 60, 200, 300])
def test_half_of_what_was_not_confirmed_does_not_come_back(server: RedisServer, count: int) -> None:
    """The server died while it wrote a batch: nothing is lost that it had confirmed."""
    sink = opened(server)
    for number in range(1, 4):
        sink.apply(large(number), INSTANCE)
    server.kill()
    server.cut(count)
    server.start()
    found = sink.open()
    assert found is not None and found.cursor == (2, 0)
    sink.apply(large(3), INSTANCE)
    server.kill()
    server.start()
    assert (len(server.list("log")), sink.open().cursor) == (3, (3, 0))


def test_a_file_that_is_not_written_anew_is_no_start(server: RedisServer) -> None:
    sink = opened(server)
    sink.apply(large(1), INSTANCE)
    with server.client() as client:
        client.config_set("rdb-key-save-delay", 10_000_000)  # µs for each key
    killer = threading.Thread(target=server.kill_child)
    killer.start()
    with pytest.raises(Unavailable, match="written anew"):
        sink.start(Fence(INSTANCE, (1, 0)), is_rewind=True)
    killer.join()


def test_a_password_may_be_in_a_file_and_may_change(server: RedisServer, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    with server.client() as client:
        client.config_set("requirepass", "first")
    values = {"password_file": str(secret)}
    with pytest.raises(Unavailable, match="secret"):
        opened(server, **values)
    secret.write_text("wrong\n")
    with pytest.raises(Unavailable, match=r"password|WRONGPASS"):
        opened(server, **values)
    secret.write_text("first\n")
    assert cursor(opened(server, **values)) == (0, 0)


def test_health_says_what_the_server_is(server: RedisServer) -> None:
    health = opened(server).health()
    assert health["server"] == server.name and health["version"]
    assert health["writable"] is True
    assert health["persistence"] == "append-only file"
    assert health["fence"] == f"{INSTANCE}:0:0"
    assert health["problems"] == []
    with server.client() as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
    assert "allkeys-lru" in opened(server).health()["problems"][0]


def test_a_server_that_is_not_there_is_named(server: RedisServer) -> None:
    server.kill()
    with pytest.raises(Unavailable, match=f"127.0.0.1:{server.port}"):
        opened(server)


def test_a_command_that_cannot_be_parsed_is_told_at_once() -> None:
    with pytest.raises(Unusable, match=r"cache.*closing quote"):
        redis_sink.RedisSink(options(rule("message.publish", "#", commands=['SET "a'])))


def test_a_refused_message_with_qos_0_is_a_dead_letter_and_its_place_is_that_of_its_event(
    server: RedisServer,
) -> None:
    store = rule("message.publish", "#", action="on_message_store", qos0=True)
    sink = opened(server, store)
    with server.client() as client:
        client.set("mqtt:msg:bad", "a text")
    rows = [unlogged(1, "bad", end=3), unlogged(2, "good", end=3)]
    (poison,) = sink.apply(batch((0, 0), (3, 2), *rows), INSTANCE)
    assert (poison.row, poison.rule) == (0, 1) and "WRONGTYPE" in poison.why
    (refusal,) = sink.refusals(INSTANCE)
    assert refusal.at == (3, 1)
    name = unstored_id(NOW_MS, node_number(NODE), 2)
    assert server.everything()["mqtt:msg:good"] == [name.encode()]
