"""Does a real DynamoDB get each batch once, as applications expect it, whatever it refuses?"""

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.backends.message_ids import UNSTORED
from broker.backends.rows import Row
from broker.backends.sink import Unavailable, Unusable
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
from tests.broker.backends.dynamodb_server import DynamodbServer, needs_dynamodb
from tests.broker.backends.dynamodb_sinks import (
    MODES,
    STORED,
    cursor,
    made,
    name_of,
    opened,
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

dynamodb_sink = pytest.importorskip("broker.backends.dynamodb_sink")
pytestmark = [pytest.mark.full, needs_dynamodb]  # starts processes


@pytest.fixture
def server(running_dynamodb: DynamodbServer) -> DynamodbServer:
    """The running one, with tables of the test's own."""
    return running_dynamodb.fresh()


def done(server: DynamodbServer, told: dict[str, Any], *rows: Row, **values: Any) -> None:
    """Apply events, the first one with the number 1."""
    sink = opened(server, told, **values)
    assert sink.apply(batch((0, 0), (0, len(rows)), *rows), INSTANCE) == []
    assert cursor(sink) == (0, len(rows))


# Each action, read by another client


@MODES
def test_who_is_online_and_who_was(server: DynamodbServer, exact: bool) -> None:
    rules = (
        rule("client.connected", action="on_client_connected"),
        rule("client.disconnected", action="on_client_disconnected"),
    )
    sink = opened(server, *rules, exact=exact)
    rows = [event(CONNECTED, "a"), event(CONNECTED, "b", seq=2), event(DISCONNECTED, "b", seq=3)]
    assert sink.apply(batch((0, 0), (0, 3), *rows), INSTANCE) == []
    sink.apply(batch((0, 3), (0, 4), event(DISCONNECTED, "a", seq=4)), INSTANCE)
    at = NOW_MS // 1000
    assert server.table("client") == [
        {"clientid": name, "node": NODE, "connect_state": 0, "online_at": at, "offline_at": at}
        for name in ("a", "b")
    ]


@MODES
def test_subscriptions_of_a_client_until_its_session_ends(
    server: DynamodbServer, exact: bool
) -> None:
    rules = (
        rule("session.subscribed", "#", action="on_subscribed"),
        rule("session.unsubscribed", "#", action="on_unsubscribed"),
    )
    sink = opened(server, *rules, exact=exact)
    rows = [event(SUBSCRIBED, "c", f"t/{seq}", seq, qos=2) for seq in range(1, 131)]
    rows += [event(SUBSCRIBED, "other", "t/#", 131, qos=1), event(UNSUBSCRIBED, "c", "t/1", 132)]
    assert sink.apply(batch((0, 0), (0, 132), *rows), INSTANCE) == []
    assert len(server.table("sub")) == 130
    assert {"clientid": "other", "topic": "t/#", "qos": 1} in server.table("sub")
    more = [event(SUBSCRIBED, "c", "new", 133), event(SESSION_ENDED, "c", "", 134)]
    assert sink.apply(batch((0, 132), (0, 134), *more), INSTANCE) == []
    assert server.table("sub") == [{"clientid": "other", "topic": "t/#", "qos": 1}]


@MODES
def test_a_message_and_its_place_in_the_list_of_its_topic(
    server: DynamodbServer, exact: bool
) -> None:
    sink = opened(server, exact=exact)
    rows = [message(1, "test", b'{ "msg": "Hello" }'), message(3, "test", b"\xff", qos=2)]
    assert sink.apply(batch((0, 0), (3, 0), *rows), INSTANCE) == []
    first, second = server.table("msg")
    assert first == {
        "arrived": NOW_MS // 1000, "qos": 1, "sender": "sender", "retain": 0, "topic": "test",
        "payload": '{ "msg": "Hello" }', "msgid": name_of(1),
    }  # fmt: skip
    assert (second["payload"], second["qos"], second["msgid"]) == (b"\xff", 2, name_of(3))
    assert server.table("topic_msg_map") == [
        {"topic": "test", "MsgId": sorted([name_of(1), name_of(3)])}
    ]


@pytest.mark.parametrize("layout", ["v1", "v2"])
@MODES
def test_an_acknowledged_message_of_a_queue_is_gone_with_its_place(
    server: DynamodbServer, layout: str, exact: bool
) -> None:
    queue = rule("message.acked", "#", 2, action="on_message_acked_for_queue")
    sink = opened(server, STORED, queue, layout=layout, exact=exact)
    acked = event(ACKED, "c", "t", offset=2, accepted_ms=NOW_MS, end=3)
    rows = [message(1), message(2), message(3), acked, message(4)]
    assert sink.apply(batch((0, 0), (4, 1), *rows), INSTANCE) == []
    left = sorted(name_of(offset) for offset in (1, 3, 4))
    assert sorted(item["msgid"] for item in server.table("msg")) == left
    if layout == "v1":
        assert server.table("topic_msg_map") == [{"topic": "t", "MsgId": left}]
    else:
        listed = server.table("topic_msg")
        assert sorted(item["msgid"] for item in listed) == left
        assert {item["topic"] for item in listed} == {"t"}


def test_the_retained_message_of_a_topic_until_it_is_cleared(server: DynamodbServer) -> None:
    rules = (
        rule("message.publish", "#", action="on_message_retain"),
        rule("message.publish", "#", 2, action="on_retain_delete"),
    )
    sink = opened(server, *rules)

    def kept(topic: str, payload: bytes, seq: int) -> Row:
        body = encode_message(message(0, topic, payload, retain=True))
        return event(RETAINED, "c", topic, seq, offset=seq, accepted_ms=NOW_MS, body=body)

    rows = [kept("a", b"old", 1), kept("a", b"new", 2), kept("b", b"x", 3)]
    rows.append(event(RETAIN_DELETED, "", "b", 4))
    assert sink.apply(batch((0, 0), (0, 4), *rows), INSTANCE) == []
    (found,) = server.table("retain")
    assert (found["topic"], found["payload"], found["retain"]) == ("a", "new", 1)
    assert found["msgid"] == name_of(2)


def test_a_position_never_goes_back_until_it_is_deleted(server: DynamodbServer) -> None:
    rules = (
        rule("message.acked", "#", action="on_message_acked"),
        rule("session.unsubscribed", "#", 2, action="on_acked_delete"),
    )
    sink = opened(server, *rules)

    def acked(offset: int, seq: int, client: str = "c") -> Row:
        return event(ACKED, client, "t", seq, offset=offset, accepted_ms=NOW_MS)

    rows = [acked(5, 1), acked(3, 2), acked(9, 3, "d")]
    assert sink.apply(batch((0, 0), (0, 3), *rows), INSTANCE) == []
    sink.apply(batch((0, 3), (0, 4), acked(4, 4)), INSTANCE)
    assert server.table("acked") == [
        {"topic": "t", "clientid": "c", "msgid": name_of(5)},
        {"topic": "t", "clientid": "d", "msgid": name_of(9)},
    ]
    more = [event(UNSUBSCRIBED, "c", "t", 5), acked(2, 6)]
    sink.apply(batch((0, 4), (0, 6), *more), INSTANCE)
    assert server.table("acked")[0] == {"topic": "t", "clientid": "c", "msgid": name_of(2)}


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_a_message_that_expires_says_when(server: DynamodbServer, layout: str) -> None:
    sink = opened(server, {**STORED, "expires_s": 60}, layout=layout)
    sink.apply(batch((0, 0), (1, 0), message(1)), INSTANCE)
    assert server.table("msg")[0]["expires_at"] == NOW_MS // 1000 + 60
    if layout == "v2":
        assert server.table("topic_msg")[0]["expires_at"] == NOW_MS // 1000 + 60
    told = server.client().describe_time_to_live(TableName=server.prefix + "msg")
    assert told["TimeToLiveDescription"]["AttributeName"] == "expires_at"


# Once


def test_values_of_statements_have_types_and_are_never_text(server: DynamodbServer) -> None:
    server.make_table("own", "id")
    text = (
        "INSERT INTO \"{prefix}own\" VALUE {'id': ${topic}, 'qos': ${qos}, 'at': ${timestamp}, "
        "'payload': ${payload}, 'c': ${payload.c}, 'msgid': ${msgid}, 'retain': ${retain}}"
    )
    sink = opened(server, rule("message.publish", "#", commands=[text]))
    evil = "x'}; DROP"
    rows = [message(1, evil, b'{"c": 21.5}'), message(2, "bytes", b"\xff")]
    assert sink.apply(batch((0, 0), (2, 0), *rows), INSTANCE) == []
    client = server.client()
    found = client.get_item(TableName=server.prefix + "own", Key={"id": {"S": evil}})["Item"]
    assert found == {
        "id": {"S": evil}, "qos": {"N": "1"}, "at": {"N": str(NOW_MS)},
        "payload": {"S": '{"c": 21.5}'}, "c": {"N": "21.5"}, "msgid": {"S": name_of(1)},
        "retain": {"BOOL": False},
    }  # fmt: skip


# The store itself


def test_a_missing_table_is_named_with_what_makes_it(server: DynamodbServer) -> None:
    sink = opened(server)
    server.client().delete_table(TableName=server.prefix + "topic_msg_map")
    with pytest.raises(Unavailable, match="a table is missing: `holdfast backend create cache`"):
        sink.apply(batch((0, 0), (1, 0), message(1)), INSTANCE)
    sink.open()
    health = sink.health()
    assert health["writable"] is False
    assert f"the table {server.prefix}topic_msg_map is missing" in health["problems"][0]
    assert sink.create() == [f"{server.prefix}topic_msg_map"]
    assert sink.create() == []
    sink.apply(batch((0, 0), (1, 0), message(1)), INSTANCE)
    assert len(server.table("msg")) == 1


def test_health_says_what_the_store_is(server: DynamodbServer) -> None:
    health = opened(server, layout="v2").health()
    assert (health["server"], health["writable"], health["problems"]) == ("DynamoDB", True, [])
    assert health["fence"] == f"{INSTANCE}:0:0"
    assert "v1 keeps all ids" in opened(server.fresh(), layout="v1").health()["problems"][0]


def test_a_server_that_is_not_there_and_a_secret_that_is_not_there_are_named(
    server: DynamodbServer, tmp_path: Path
) -> None:
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1: "):
        made(server, STORED, endpoint="http://127.0.0.1:1").open()
    secret = tmp_path / "secret"
    with pytest.raises(Unavailable, match=f"secret_access_key_file {secret}"):
        made(server, STORED, secret_access_key_file=str(secret)).open()
    secret.write_text("mine\n")
    assert opened(server, STORED, secret_access_key_file=str(secret)).look() is not None


@pytest.mark.parametrize("answer", [b"", b"x", b"HTTP/1.1 503 Busy\r\n\r\n"])
def test_a_server_that_hangs_or_says_something_else_is_named(
    server: DynamodbServer, answer: bytes
) -> None:
    """Without bytes it hangs; otherwise it answers this and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = f"http://127.0.0.1:{listener.getsockname()[1]}"
        sink = made(server, STORED, endpoint=place, timeout_ms=300)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                if not answer:
                    connection.recv(1)  # until the client has given up

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Unavailable, match=f"{place}: "):
            sink.open()
        thread.join()


def test_a_statement_that_cannot_be_parsed_is_told_at_once(server: DynamodbServer) -> None:
    with pytest.raises(Unusable, match=r"cache.*without quotes"):
        made(server, rule("message.publish", "#", commands=["DELETE '${topic}'"]))


@MODES
def test_each_message_of_every_qos_is_one_item_however_many_rules_store_it(
    server: DynamodbServer, exact: bool
) -> None:
    store = rule("message.publish", "a/#", 2, action="on_message_store", qos0=True)
    sink = opened(server, STORED, store, exact=exact)
    rows = [
        unlogged(1, "a/1", b"zero"),
        message(1, "a/1"),
        message(2, "b"),
        unlogged(2, "b", end=2),
    ]
    told = batch((0, 0), (2, 2), *rows)
    assert sink.apply(told, INSTANCE) == []
    assert sink.apply(told, INSTANCE) == []  # the answer was lost
    found = {each["msgid"]: (each["topic"], each["qos"]) for each in server.table("msg")}
    assert found == {
        name_of(UNSTORED | 1): ("a/1", 0), name_of(1): ("a/1", 1), name_of(2): ("b", 1),
    }  # fmt: skip
    lists = {each["topic"]: set(each["MsgId"]) for each in server.table("topic_msg_map")}
    assert lists == {"a/1": {name_of(UNSTORED | 1), name_of(1)}, "b": {name_of(2)}}
