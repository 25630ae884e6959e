"""Does a real Cassandra get each batch as applications expect it, whatever it refuses?"""

import datetime
import socket
from collections.abc import Iterator
from typing import Any, Final

import pytest

from broker.backends.comparing import cassandra_listing
from broker.backends.comparing.listing import MESSAGE, SUBSCRIPTION, Window
from broker.backends.message_ids import UNSTORED, message_id, node_number, split_number
from broker.backends.rows import Row
from broker.backends.sink import Fence, FenceRefused, Options, Rule, Unavailable, Unusable
from storage.tables.feed_rows import (
    ACKED,
    CONNECTED,
    DISCONNECTED,
    RETAIN_DELETED,
    RETAINED,
    SESSION_ENDED,
    SUBSCRIBED,
    UNSUBSCRIBED,
)
from storage.tables.message_record import encode_message
from tests.broker.backends.cassandra_server import (
    FRAME_BYTES_MAX,
    MUTATION_BYTES_MAX,
    CassandraServer,
    needs_cassandra,
    shared,
)
from tests.broker.backends.told_rows import (
    INSTANCE,
    NODE,
    NOW_MS,
    batch,
    event,
    message,
    rule,
    unlogged,
)

cassandra_sink = pytest.importorskip("broker.backends.cassandra_sink")
InvalidRequest: Any = pytest.importorskip("cassandra").InvalidRequest
connection: Any = pytest.importorskip("cassandra.connection")
pool: Any = pytest.importorskip("cassandra.pool")
pytestmark = [pytest.mark.full, needs_cassandra]  # starts processes

STORED: Final = rule("message.publish", "#", action="on_message_publish")
ACKS: Final = (
    rule("message.acked", "#", 1, action="on_message_acked"),
    rule("session.unsubscribed", "#", 2, action="on_acked_delete"),
)
NOW: Final = datetime.datetime.fromtimestamp(NOW_MS / 1000, datetime.UTC).replace(tzinfo=None)


_sinks: Final[list[Any]] = []


@pytest.fixture
def server() -> Iterator[CassandraServer]:
    """The running one, with a keyspace of the test's own."""
    running = shared()
    if not running.is_running:  # a test that failed has left it so
        running.start()
    yield running.fresh()
    while _sinks:
        _sinks.pop().close()


def made(server: CassandraServer, *rules: dict[str, Any], **values: Any) -> Any:
    """Return a sink."""
    told = [
        Rule({**each, "commands": [text.replace("{k}", server.keyspace) for text in given]})
        for each in rules
        if (given := each.get("commands", ())) is not None
    ]
    options = Options("cache", "cassandra", NODE, {**server.options(), **values}, told)
    sink = cassandra_sink.CassandraSink(options)
    _sinks.append(sink)
    return sink


def opened(server: CassandraServer, *rules: dict[str, Any], **values: Any) -> Any:
    """Return a sink with its tables that is connected and begun at (0, 0)."""
    sink = made(server, *(rules or (STORED,)), **values)
    sink.create()
    if sink.open() is None:
        sink.start(Fence(INSTANCE, (0, 0)), is_rewind=False)
    return sink


def done(server: CassandraServer, *rules: dict[str, Any], rows: list[Row]) -> Any:
    """Apply events, the first one with the number 1."""
    sink = opened(server, *rules)
    assert sink.apply(batch((0, 0), (0, len(rows)), *rows), INSTANCE) == []
    assert cursor(sink) == (0, len(rows))
    return sink


def name_of(offset: int) -> str:
    """Return the id of a message of the log."""
    return message_id(NOW_MS, node_number(NODE), offset)


def acked(seq: int, offset: int, client: str = "c") -> Row:
    """Return the acknowledgement of a message."""
    return event(ACKED, client, "t", seq, offset=offset, accepted_ms=NOW_MS)


def cursor(sink: Any) -> tuple[int, int] | None:
    """Return the cursor in the store."""
    fence = sink.look()
    return None if fence is None else fence.cursor


def test_no_connection_uses_segments_where_the_driver_drops_bytes(server: CassandraServer) -> None:
    """A read that ended within the header of a segment broke a connection of version 5."""
    sink = opened(server)
    sink.apply(batch((0, 0), (1, 0), message(1)), INSTANCE)
    clients = server.execute("SELECT driver_name, protocol_version FROM system_views.clients")
    assert {each["protocol_version"] for each in clients if each["driver_name"]} == {4}


# Each action, read by another client


def test_who_is_online_and_who_was(server: CassandraServer) -> None:
    rules = (
        rule("client.connected", number=1, action="on_client_connected"),
        rule("client.disconnected", number=2, action="on_client_disconnected"),
    )
    rows = [event(CONNECTED, "a"), event(CONNECTED, "b", seq=2), event(DISCONNECTED, "b", seq=3)]
    done(server, *rules, rows=rows)
    common = {"node": NODE, "connected": NOW}
    assert server.table("client") == [
        {"clientid": "a", **common, "state": 1, "disconnected": None},
        {"clientid": "b", **common, "state": 0, "disconnected": NOW},
    ]


def test_subscriptions_of_a_client_until_its_session_ends(server: CassandraServer) -> None:
    rules = (
        rule("session.subscribed", "#", 1, action="on_subscribed"),
        rule("session.unsubscribed", "#", 2, action="on_unsubscribed"),
    )
    rows = [event(SUBSCRIBED, "c", f"t/{seq}", seq, qos=2) for seq in range(1, 131)]
    rows += [event(SUBSCRIBED, "other", "t/#", 131, qos=1), event(UNSUBSCRIBED, "c", "t/1", 132)]
    sink = done(server, *rules, rows=[*rows])
    assert len(server.table("sub")) == 130
    more = [event(SESSION_ENDED, "c", "", 133), event(SUBSCRIBED, "c", "new", 134)]
    assert sink.apply(batch((0, 132), (0, 134), *more), INSTANCE) == []
    assert server.table("sub") == [
        {"clientid": "c", "topic": "new", "qos": 0},
        {"clientid": "other", "topic": "t/#", "qos": 1},
    ]


def test_messages_and_the_retained_one_of_a_topic(server: CassandraServer) -> None:
    rules = (
        STORED,
        rule("message.publish", "#", 2, action="on_message_retain"),
        rule("message.publish", "#", 3, action="on_retain_delete"),
    )
    sink = opened(server, *rules, table_prefix="Mqtt_")
    kept = message(1, "t", b"\xff\x00", retain=True)
    told = event(
        RETAINED, "", "t", 1, end=1, offset=1, accepted_ms=NOW_MS, body=encode_message(kept)
    )
    assert sink.apply(batch((0, 0), (1, 1), kept, told), INSTANCE) == []
    row = {
        **{"topic": "t", "msgid": name_of(1), "sender": "sender", "qos": 1, "retain": 1},
        **{"payload": b"\xff\x00", "arrived": NOW},
    }
    assert server.table("mqtt_msg") == [row]
    assert server.table("mqtt_retain") == [{"topic": "t", "msgid": name_of(1)}]
    gone = event(RETAIN_DELETED, "", "t", 2, end=1)
    assert sink.apply(batch((1, 1), (1, 2), gone), INSTANCE) == []
    assert server.table("mqtt_retain") == []
    assert server.table("mqtt_msg") == [row], "it was published, too"


@pytest.mark.parametrize(
    ("expires_s", "shortest", "longest"),
    [(3600, 3000, 3600), (15 * 365 * 86400, None, None), (40 * 365 * 86400, None, None)],
)
def test_what_expires_goes_unless_cassandra_cannot_say_when(
    server: CassandraServer, expires_s: int, shortest: int | None, longest: int | None
) -> None:
    sink = opened(server)
    sent = message(1, expires_at_ms=NOW_MS + expires_s * 1000)
    assert sink.apply(batch((0, 0), (1, 0), sent), INSTANCE) == []
    (found,) = server.execute("SELECT TTL(payload) AS ttl FROM {k}.msg")
    if shortest is None or longest is None:
        assert found["ttl"] is None
    else:
        assert shortest <= found["ttl"] <= longest


def test_a_position_is_that_of_the_newest_message_and_never_goes_back(
    server: CassandraServer,
) -> None:
    sink = done(server, *ACKS, rows=[acked(1, 5), acked(2, 9), acked(3, 7)])
    assert server.table("acked") == [{"clientid": "c", "topic": "t", "msgid": name_of(9)}]
    assert sink.apply(batch((0, 3), (0, 4), acked(4, 8)), INSTANCE) == []
    assert server.table("acked")[0]["msgid"] == name_of(9)
    rows = [event(UNSUBSCRIBED, "c", "t", 5), acked(6, 2)]
    assert sink.apply(batch((0, 4), (0, 6), *rows), INSTANCE) == []
    assert server.table("acked")[0]["msgid"] == name_of(2), "a new subscription begins anew"


# Once more


def test_rows_that_come_again_undo_nothing_that_came_behind_them(server: CassandraServer) -> None:
    """All in the same millisecond: only their places in the feed tell them apart."""
    rules = (
        rule("session.subscribed", "#", 1, action="on_subscribed"),
        rule("session.unsubscribed", "#", 2, action="on_unsubscribed"),
        *({**each, "number": 2 + at} for at, each in enumerate(ACKS, 1)),
    )
    first = [event(SUBSCRIBED, "c", "t", 1), event(SUBSCRIBED, "c", "u", 2, qos=2), acked(3, 4)]
    second = [event(UNSUBSCRIBED, "c", "t", 4), event(SUBSCRIBED, "c", "u", 5, qos=1)]
    sink = opened(server, *rules)
    whole = batch((0, 0), (0, 3), *first), batch((0, 3), (0, 5), *second)
    for each in whole:
        sink.apply(each, INSTANCE)
    wanted = [{"clientid": "c", "topic": "u", "qos": 1}]
    assert (server.table("sub"), server.table("acked")) == (wanted, [])
    # The answer to the cursor was lost and the process died: as the store was before it.
    server.execute(
        "UPDATE {k}.holdfast_cursor SET fence = %s, written = 0 WHERE feed = 'cache'",
        f"{INSTANCE}:0:0",
    )
    again = opened(server, *rules)
    again.apply(whole[0], INSTANCE)
    assert (server.table("sub"), server.table("acked")) == (wanted, [])
    again.apply(whole[1], INSTANCE)
    assert (server.table("sub"), server.table("acked")) == (wanted, [])


def test_a_batch_that_is_applied_already_counts_as_applied(server: CassandraServer) -> None:
    count = rule("message.publish", "#", commands=["UPDATE own SET n = n + 1 WHERE id = ${topic}"])
    made(server).create()
    server.execute("CREATE TABLE {k}.own (id text PRIMARY KEY, n counter)")
    sink = opened(server, count)
    one = batch((0, 0), (1, 0), message(1))
    assert sink.apply(one, INSTANCE) == sink.apply(one, INSTANCE) == []
    assert server.table("own") == [{"id": "t", "n": 1}]


@pytest.mark.parametrize("after", [(1, 0), (0, 1)])
def test_a_batch_with_rows_missing_before_it_is_refused(
    server: CassandraServer, after: tuple[int, int]
) -> None:
    sink = opened(server)
    with pytest.raises(FenceRefused):
        sink.apply(batch(after, (5, 5), message(5)), INSTANCE)
    assert server.table("msg") == []


def test_a_cursor_that_was_deleted_can_be_written_again(server: CassandraServer) -> None:
    sink = opened(server)
    sink.apply(batch((0, 0), (1, 0), message(1)), INSTANCE)
    server.execute("DELETE FROM {k}.holdfast_cursor WHERE feed = 'cache'")
    assert sink.look() is None
    sink.start(Fence(INSTANCE, (1, 0)), is_rewind=True)
    assert cursor(sink) == (1, 0)


# Own statements


def test_own_statements_get_the_types_of_their_columns(server: CassandraServer) -> None:
    text = (
        "INSERT INTO own (id, celsius, n, is_on, at, raw, label) VALUES (${topic}, "
        "${payload.celsius}, ${qos}, ${retain}, ${timestamp}, ${payload}, ${payload.label})"
    )
    told = rule("message.publish", "#", commands=[text])
    made(server).create()
    server.execute(
        "CREATE TABLE {k}.own (id text PRIMARY KEY, celsius double, n int, is_on boolean, "
        "at timestamp, raw blob, label text)"
    )
    sink = opened(server, told)
    payload = b'{"celsius": 21.5, "label": "x\' OR 1"}'
    rows = [message(1, "a", payload), message(2, "b", b"no json")]
    assert sink.apply(batch((0, 0), (2, 0), *rows), INSTANCE) == []
    assert server.table("own") == [
        {"id": "a", "celsius": 21.5, "n": 1, "is_on": False, "at": NOW, "raw": payload,
         "label": "x' OR 1"},
        {"id": "b", "celsius": None, "n": 1, "is_on": False, "at": NOW, "raw": b"no json",
         "label": ""},
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["${topic}", "'t'"], ids=["bound", "written"])
def test_own_statements_for_a_partition_keep_their_order(server: CassandraServer, key: str) -> None:
    text = f"UPDATE own SET l = l + ${{payload.l}} WHERE id = {key}"
    told = rule("message.publish", "#", commands=[text])
    made(server).create()
    server.execute("CREATE TABLE {k}.own (id text PRIMARY KEY, l list<int>)")
    sink = opened(server, told)
    rows = [message(each, payload=b'{"l": [%d]}' % each) for each in range(1, 301)]
    assert sink.apply(batch((0, 0), (300, 0), *rows), INSTANCE) == []
    assert server.table("own") == [{"id": "t", "l": [*range(1, 301)]}]


def test_a_statement_for_a_table_that_is_missing_waits_and_says_so(server: CassandraServer) -> None:
    told = rule("message.publish", "#", commands=["INSERT INTO nowhere (id) VALUES (${topic})"])
    sink = made(server, told)
    sink.create()
    with pytest.raises(Unavailable, match=r"table nowhere does not exist.*cannot run 'INSERT"):
        sink.open()


# What the server refuses


def test_what_is_refused_is_told_and_remembered_and_the_rest_is_there(
    server: CassandraServer,
) -> None:
    count = rule("message.publish", "#", 2, commands=["INSERT INTO own (n) VALUES (${payload})"])
    made(server).create()
    server.execute("CREATE TABLE {k}.own (n int PRIMARY KEY)")
    sink = opened(server, STORED, count)
    large = bytes(MUTATION_BYTES_MAX)
    rows = [message(1, payload=b"1"), message(2, payload=large), message(3, payload=b"x")]
    poisons = sink.apply(batch((0, 0), (3, 0), *rows), INSTANCE)
    told = {(each.row, each.rule): each.why for each in poisons}
    assert told.keys() == {(1, 1), (1, 2), (2, 2)}
    assert "oversized mutation" in told[1, 1]
    assert told[2, 2] == "expected a value of the type int, not 'x'"
    assert [row["n"] for row in server.table("own")] == [1]
    assert {row["msgid"] for row in server.table("msg")} == {name_of(1), name_of(3)}
    again = opened(server, STORED, count)
    refusals = [(each.upto, each.at, each.rule, each.why) for each in again.refusals(INSTANCE)]
    assert sorted(refusals) == [
        ((3, 0), (index + 1, 0), number, why) for (index, number), why in sorted(told.items())
    ]
    assert again.refusals("another") == []


@pytest.mark.parametrize("limit", [MUTATION_BYTES_MAX, FRAME_BYTES_MAX], ids=["mutation", "frame"])
@pytest.mark.parametrize("below", [-1000, 10, 100, 200, 400, 4000])
def test_a_message_near_a_limit_is_there_or_refused_and_stops_nothing(
    server: CassandraServer, limit: int, below: int
) -> None:
    sink = opened(server)
    rows = [message(1, payload=bytes(limit - below)), message(2)]
    poisons = sink.apply(batch((0, 0), (2, 0), *rows), INSTANCE)
    assert cursor(sink) == (2, 0)
    assert len(server.table("msg")) + len(poisons) == 2


def test_a_topic_that_is_too_long_for_a_key_is_a_dead_letter(server: CassandraServer) -> None:
    rules = (rule("session.subscribed", "#", 3, action="on_subscribed"), *ACKS)
    sink = opened(server, *rules)
    long = "x" * 65_535 + "x"
    rows = [
        event(SUBSCRIBED, "c", long, 1),
        event(ACKED, long, "t", 2, offset=1, accepted_ms=NOW_MS),
        event(SUBSCRIBED, "c", "t", 3),
    ]
    poisons = sink.apply(batch((0, 0), (0, 3), *rows), INSTANCE)
    assert {(each.row, each.rule) for each in poisons} == {(0, 3), (1, 1)}
    assert [row["topic"] for row in server.table("sub")] == ["t"]


def test_a_table_that_was_dropped_makes_rows_wait_and_no_dead_letter(
    server: CassandraServer,
) -> None:
    sink = opened(server)
    server.execute("DROP TABLE {k}.msg")
    with pytest.raises(Unavailable, match="does not exist"):
        sink.apply(batch((0, 0), (1, 0), message(1)), INSTANCE)
    with pytest.raises(Unavailable, match="holdfast backend create cache"):
        sink.open()
    again = opened(server)
    assert again.apply(batch((0, 0), (1, 0), message(1)), INSTANCE) == []
    assert len(server.table("msg")) == 1


# What an operator asks, and what goes wrong


def test_tables_are_made_once(server: CassandraServer) -> None:
    sink = made(server, STORED)
    assert sink.create() == [f"keyspace {server.keyspace}", "holdfast_cursor", "msg"]
    assert sink.create() == []


def test_messages_are_found_by_who_has_sent_them_with_the_index(server: CassandraServer) -> None:
    opened(server, table_prefix="Mqtt_").close()
    wanted = "SELECT msgid FROM {k}.mqtt_msg WHERE sender = 'till-3'"
    with pytest.raises(InvalidRequest, match="ALLOW FILTERING"):
        server.execute(wanted)
    sink = made(server, STORED, table_prefix="Mqtt_", sender_index=True)
    sink.open()
    assert "no index mqtt_msg_sender: `holdfast backend create" in " ".join(
        sink.health()["problems"]
    )
    assert sink.create() == ["index mqtt_msg_sender"]
    assert sink.create() == []
    sink.open()
    assert "index" not in " ".join(sink.health()["problems"])
    rows = [message(1, publisher="till-3"), message(2, publisher="till-4")]
    assert sink.apply(batch((0, 0), (2, 0), *rows), INSTANCE) == []
    assert server.execute(wanted) == [{"msgid": name_of(1)}]


def test_where_no_messages_are_stored_there_is_nothing_to_index(server: CassandraServer) -> None:
    sink = made(server, *ACKS, sender_index=True)
    assert sink.create() == [f"keyspace {server.keyspace}", "holdfast_cursor", "acked"]


def test_the_health_names_what_should_be_changed(server: CassandraServer) -> None:
    told = opened(server, consistency="any").health()
    assert (told["server"], told["version"], told["writable"]) == ("Cassandra", "5.0.4", True)
    assert told["fence"] == f"{INSTANCE}:0:0"
    shown = " ".join(told["problems"])
    assert "one copy" in shown and "consistency is any" in shown and "without a bound" in shown
    assert len(server.table("holdfast_cursor")) == 1, "the probe is gone"


def test_a_keyspace_that_is_missing_is_named(server: CassandraServer) -> None:
    with pytest.raises(Unavailable, match=r"does not exist.*holdfast backend create cache"):
        made(server, STORED).open()


def test_nobody_there_is_unavailable(server: CassandraServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nowhere = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(Unavailable, match=nowhere):
        made(server, STORED, servers=[nowhere], timeout_ms=1000).open()
    with pytest.raises(Unavailable, match="password_file"):
        made(server, STORED, username="u", password_file="/nowhere").open()


def test_a_server_that_hangs_is_unavailable_and_closing_waits_for_nobody(
    server: CassandraServer,
) -> None:
    sink = opened(server, timeout_ms=1000)
    server.freeze()
    try:
        with pytest.raises(Unavailable):
            sink.apply(batch((0, 0), (1, 0), message(1)), INSTANCE)
        for _ in range(2):
            with pytest.raises(Unavailable):
                sink.open()
        with pytest.raises(Unavailable):
            sink.create()
        sink.close()
    finally:
        server.thaw()
    again = opened(server)
    assert again.apply(batch((0, 0), (1, 0), message(1)), INSTANCE) == []


def test_a_server_that_was_killed_says_what_it_has_lost(server: CassandraServer) -> None:
    """It writes its commit log now and then, by default every ten seconds."""
    sink = opened(server, timeout_ms=2000)
    batches = [batch((each, 0), (each + 1, 0), message(each + 1)) for each in range(2)]
    sink.apply(batches[0], INSTANCE)
    server.kill()
    with pytest.raises(Unavailable):
        sink.apply(batches[1], INSTANCE)
    server.start()
    again = opened(server)
    have = (cursor(again) or (0, 0))[0]
    for each in batches[have:]:
        assert again.apply(each, INSTANCE) == []
    assert [row["msgid"] for row in server.table("msg")] == [name_of(1), name_of(2)]


class Lost:
    """What an answer would have come in, had its connection not ended."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def result(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        connection.ConnectionShutdown("[Errno 104] Connection reset by peer"),
        connection.ConnectionBusy("too many questions"),
        connection.ProtocolError("no frame"),
        pool.NoConnectionsAvailable("all are in use"),
    ],
)
def test_a_connection_that_ends_under_a_question_lets_rows_wait(
    server: CassandraServer, error: Exception
) -> None:
    sink = opened(server)
    with pytest.raises(Unavailable, match=str(error).split()[-1]):
        sink.result(Lost(error))
    with pytest.raises(Unavailable):
        sink.settle(Lost(error))


def test_a_statement_that_cannot_be_parsed_is_unusable(server: CassandraServer) -> None:
    told = rule("message.publish", "#", commands=["DROP TABLE msg"])
    with pytest.raises(Unusable, match="begins with INSERT, UPDATE, DELETE"):
        made(server, told)


# For a comparison


def window(start_ms: int = NOW_MS) -> Window:
    """Return which entries are asked for."""
    return Window(NODE, node_number(NODE), start_ms, frozenset({MESSAGE, SUBSCRIPTION}))


LISTED: Final = (STORED, rule("session.subscribed", "#", 2, action="on_subscribed"))


def test_everything_is_listed_once_over_many_pages(
    server: CassandraServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cassandra_listing, "PAGE_ROWS", 7)
    monkeypatch.setattr(cassandra_listing, "PAGE_MESSAGES", 3)
    sink = opened(server, *LISTED, table_prefix="Mqtt_")
    rows: list[Row] = [message(each, f"t/{each % 20}") for each in range(1, 201)]
    rows += [
        message(each, f"old/{each % 20}", accepted_at_ms=NOW_MS - 1) for each in range(201, 301)
    ]
    rows += [event(SUBSCRIBED, f"c{each % 5}", f"f/{each}", each, end=300) for each in range(1, 51)]
    assert sink.apply(batch((0, 0), (300, 50), *rows), INSTANCE) == []
    found = list(sink.listing(window()))
    messages = [split_number(each.number)[2] for each in found if each.kind == MESSAGE]
    assert sorted(messages) == list(range(1, 201))
    names = {each.text for each in found if each.kind == SUBSCRIPTION}
    assert len(found) == 250 and len(names) == 50
    assert len(list(sink.listing(window(NOW_MS - 1)))) == 350


def test_a_server_that_hangs_while_it_is_read_is_unavailable(
    server: CassandraServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cassandra_listing, "PAGE_ROWS", 7)
    sink = opened(server, *LISTED, timeout_ms=2000)
    rows = [message(each, f"t/{each}") for each in range(1, 51)]
    sink.apply(batch((0, 0), (50, 0), *rows), INSTANCE)
    entries = sink.listing(window())
    assert next(entries).kind == MESSAGE
    server.freeze()
    try:
        with pytest.raises(Unavailable, match=str(server.port)):
            list(entries)
    finally:
        server.thaw()
    sink.close()
    with pytest.raises(Unavailable, match="not connected"):
        list(sink.listing(window()))


def test_each_message_of_every_qos_is_one_row_however_many_rules_store_it(
    server: CassandraServer,
) -> None:
    rules = (
        STORED,
        rule("message.publish", "a/#", 2, action="on_message_store", qos0=True),
        rule("message.publish", "a/#", 3, action="on_message_retain"),
    )
    sink = opened(server, *rules)
    first = unlogged(1, "a/1", b"zero", retain=True)
    kept = event(
        RETAINED, "sender", "a/1", 2, body=first.body, offset=UNSTORED | 1, accepted_ms=NOW_MS
    )
    rows = [first, kept, message(1, "a/1"), message(2, "b"), unlogged(3, "b", end=2)]
    told = batch((0, 0), (2, 3), *rows)
    assert sink.apply(told, INSTANCE) == []
    assert sink.apply(told, INSTANCE) == []  # the answer was lost
    found = {each["msgid"]: (each["topic"], each["qos"]) for each in server.table("msg")}
    assert len(server.table("msg")) == 3
    assert found == {
        name_of(UNSTORED | 1): ("a/1", 0), name_of(1): ("a/1", 1), name_of(2): ("b", 1),
    }  # fmt: skip
    assert server.table("retain") == [{"topic": "a/1", "msgid": name_of(UNSTORED | 1)}]
