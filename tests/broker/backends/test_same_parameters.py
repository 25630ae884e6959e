"""Has a hook the same parameters in every store? One table of rows, own commands, real servers.

What a store calls a message is its own: ids are compared as numbers. What a store cannot tell from
something else is in `NULL`.
"""

import decimal
import functools
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from broker.backends.actions import DOTTED, HOOKS
from broker.backends.message_ids import (
    UNSTORED,
    message_number,
    node_number,
    number_of,
    number_of_id,
)
from broker.backends.process import make_sink
from broker.backends.rows import Row
from broker.backends.sink import Fence, Options, Rule
from mqtt.message import Message
from storage.tables.feed_rows import (
    ACKED,
    CONNECTED,
    DISCONNECTED,
    SENT,
    SUBSCRIBED,
    UNSUBSCRIBED,
)
from tests.broker.backends import cassandra_server
from tests.broker.backends.cassandra_server import needs_cassandra
from tests.broker.backends.dynamodb_server import DynamodbServer, needs_dynamodb
from tests.broker.backends.redis_server import RedisServer, needs_redis
from tests.broker.backends.told_rows import INSTANCE, NODE, NOW_MS, batch, event, message, rule

pytestmark = pytest.mark.full  # starts processes

# By the client of a row, which none shares: what each name is.
Values: TypeAlias = dict[str, dict[str, object]]
AT: Final = b"%d" % NOW_MS
ODD: Final = 'it\'s "odd" ${clientid} \\ -- ; täg 😀 {a} $ % ? \t\n'
LONG: Final = "langer Text " * 2500
FIELDS: Final = (
    *("payload.text", "payload.empty", "payload.number", "payload.fraction", "payload.large"),
    *("payload.yes", "payload.no", "payload.null", "payload.object", "payload.object.in.1"),
    *("payload.list", "payload.list.0", "payload.list.9", "payload.none", "payload.half"),
    *("user_properties.k", "user_properties.none"),
)
NAMES: Final = tuple(dict.fromkeys((*(n for h in HOOKS.values() for n in h.parameters), *FIELDS)))
BINARY: Final = ("payload", "correlation_data")
PAYLOAD: Final = {
    "text": ODD,
    "empty": "",
    "number": -7,
    "fraction": 21.5,
    "large": 1 << 70,
    "yes": True,
    "no": False,
    "null": None,
    "object": {"in": [1, {"b": None, "q": "'\""}], "täg": "${topic}"},
    "list": ["first", 2.5, True, "\udfff"],
    "half": "\ud800!",
}
EMPTY_FIELDS: Final = dict.fromkeys(FIELDS, b"")
# type 1, 3, 8, 9, 38 twice: format, content type, response topic, correlation data, user properties
PROPERTIES: Final = (
    b"\x01\x01\x03\x00\x05a'\"\xc3\xa4\x08\x00\x0c${topic}/re/\x09\x00\x03\x00\xff'"
    b'\x26\x00\x01k\x00\x04"v" \x26\x00\x01k\x00\x0a${payload}'
)
# CQL has no null of JSON: in a text it is empty.
NULL: Final = {"cassandra": b""}


def number(offset: int, at_ms: int = NOW_MS) -> int:
    return message_number(at_ms, node_number(NODE), offset)


def whole(row: Message, payload: str) -> dict[str, object]:
    """Return what ${message} is."""
    return {
        **{"id": number(row.offset), "from": row.publisher, "qos": row.qos, "topic": row.topic},
        **{"payload": payload, "ts": NOW_MS // 1000, "retain": row.retain},
    }


def published(row: Message, payload: str, **more: object) -> tuple[Row, dict[str, object]]:
    """Return a message, and what its names are; `payload` is how JSON has it."""
    values: dict[str, object] = {
        **{"clientid": row.publisher.encode(), "topic": row.topic.encode(), "qos": b"%d" % row.qos},
        "username": row.username.encode(),
        **{"payload": row.payload, "msgid": number(row.offset), "message": whole(row, payload)},
        **{"retain": b"true" if row.retain else b"false", "dup": b"false", "timestamp": AT},
        **{"node": NODE.encode(), "expiry": b"", "content_type": b"", "response_topic": b""},
        **{"correlation_data": b"", **EMPTY_FIELDS},
    }
    return row, {**values, **more}


def publishes() -> list[tuple[Row, dict[str, object]]]:
    """Return messages, with what is expected of each."""
    told = json.dumps(PAYLOAD).encode()
    rich = message(
        1, ODD.strip(), told, qos=2, retain=True, publisher=f"p1 {ODD}", properties=PROPERTIES,
        expires_at_ms=NOW_MS + 5000, username=f"u1 {ODD}",
    )  # fmt: skip
    large = json.dumps({"text": LONG}).encode()
    return [
        published(
            rich,
            told.decode(),
            **{
                "expiry": b"5",
                "content_type": "a'\"ä".encode(),
                "response_topic": b"${topic}/re/",
                "correlation_data": b"\x00\xff'",
                "payload.text": ODD.encode(),
                "payload.number": b"-7",
                "payload.fraction": b"21.5",
                "payload.large": b"1180591620717411303424",
                "payload.yes": b"true",
                "payload.no": b"false",
                "payload.null": b"null",
                "payload.object": '{"in":[1,{"b":null,"q":"\'\\""}],"täg":"${topic}"}'.encode(),
                "payload.object.in.1": b'{"b":null,"q":"\'\\""}',
                "payload.list": b'["first",2.5,true,"?"]',
                "payload.list.0": b"first",
                "payload.half": b"?!",
                "user_properties.k": b'"v" ,${payload}',
            },
        ),
        published(message(2, "t", b"", publisher="p2"), ""),
        published(message(3, "t", b"\xff\x00${qos}'", publisher="p3"), "\xff\x00${qos}'"),
        published(
            message(4, "t", large, publisher="p4"),
            large.decode(),
            **{"payload.text": LONG.encode()},
        ),
        published(message(5, "t", b'"only a text"', publisher="p5"), '"only a text"'),
        published(message(6, "t", b"[" * 60_000, publisher="p6"), "[" * 60_000),
    ]


def events() -> list[tuple[str, Row, dict[str, object]]]:
    """Return events with their hooks, and what is expected of each."""
    found: list[tuple[str, Row, dict[str, object]]] = []

    def add(hook: str, kind: int, client_id: str, text: str = "", **fields: Any) -> None:
        seq = len(found) + 1
        offset, body = fields.get("offset", 0), fields.get("body", b"")
        values: dict[str, object] = {
            "clientid": client_id.encode(),
            "username": fields.get("username", "").encode(),
            "topic": text.encode(),
            "qos": b"%d" % fields.get("qos", 0),
            "msgid": body or number(offset or UNSTORED | seq, fields.get("accepted_ms", 0)),
            "timestamp": AT,
            "node": NODE.encode(),
        }
        names = HOOKS[hook].parameters
        row = event(kind, client_id, text, seq, end=6, **fields)
        found.append((hook, row, {name: values[name] for name in names}))

    for hook, kind in (("client.connected", CONNECTED), ("client.disconnected", DISCONNECTED)):
        for user in ("", "ann", ODD):
            add(hook, kind, f"{kind} {user}", username=user)
    for hook, kind in (("session.subscribed", SUBSCRIBED), ("session.unsubscribed", UNSUBSCRIBED)):
        for qos, text in enumerate(("#", "$share/g/a/+", ODD)):
            add(hook, kind, f"{kind} {text}", text, qos=qos)
    for hook, kind in (("message.delivered", SENT), ("message.acked", ACKED)):
        for offset in (0, 7):
            told = {"qos": offset % 3, "offset": offset, "accepted_ms": NOW_MS - 1}
            add(hook, kind, f"{kind} {offset} {ODD}", f"t/{offset}", **told)
        add(hook, kind, f"{kind} told", "t", qos=1, body=b"an id of an application")
    return found


PUBLISHES: Final = [("message.publish", *each) for each in publishes()]
TABLE: Final = PUBLISHES + events()


def client_of(row: Row) -> str:
    return row.publisher if isinstance(row, Message) else row.client_id


def names_of(hook: str) -> list[str]:
    """Return every name that a hook has."""
    parameters = HOOKS[hook].parameters
    return [n for n in NAMES if n in parameters or (HOOKS[hook].messages and n in FIELDS)]


def rules(command: Callable[[list[str]], str]) -> list[dict[str, Any]]:
    """Return a rule for each hook that has parameters, with a command made of their names."""
    found: list[dict[str, Any]] = []
    for hook in (each for each in HOOKS.values() if each.parameters):
        topic = "#" if hook.has_topic else None
        commands = [command(names_of(hook.name))]
        found.append(rule(hook.name, topic, len(found) + 1, commands=commands))
    return found


def applied(
    type: str,
    values: dict[str, Any],
    told: list[dict[str, Any]],
    prepare: Callable[[], None] = lambda: None,
) -> None:
    """Apply the table to a store; `prepare` makes a table there."""
    given = Options("cache", type, NODE, values, [Rule(each) for each in told])
    with closing(make_sink(given)) as sink:
        sink.create()
        prepare()
        assert sink.open() is None
        sink.start(Fence(INSTANCE, (0, 0)), is_rewind=False)
        rows = [row for _, row, _ in TABLE]
        upto = (len(PUBLISHES), len(TABLE) - len(PUBLISHES))
        poisons = sink.apply(batch((0, 0), upto, *rows), INSTANCE)
        assert [(each.row, each.rule, each.why) for each in poisons] == []


def in_redis(directory: Path) -> Values:
    """Return what Redis has of each row."""
    server = RedisServer(directory).start()
    try:
        told = rules(
            lambda names: "HSET own:${clientid} " + " ".join(f"{n} ${{{n}}}" for n in names)
        )
        applied("redis", {"servers": [f"127.0.0.1:{server.port}"], "timeout_ms": 10_000}, told)
        return {
            key.removeprefix("own:"): {name.decode(): value for name, value in row.items()}
            for key, row in server.everything().items()
        }
    finally:
        server.kill()


def in_cassandra(directory: Path) -> Values:
    """Return what Cassandra has of each row; names stand for columns by their places."""
    server = cassandra_server.shared().fresh()
    types = {"qos": "int", "timestamp": "bigint", "expiry": "int"}
    types |= {"retain": "boolean", "dup": "boolean", **dict.fromkeys(BINARY, "blob")}
    columns = {name: f"c{at}" for at, name in enumerate(NAMES)}

    def make() -> None:
        made = "".join(f", {columns[name]} {types.get(name, 'text')}" for name in NAMES)
        server.execute(f"CREATE TABLE {{k}}.own (id text PRIMARY KEY{made})")

    def insert(names: list[str]) -> str:
        listed = ", ".join(columns[name] for name in names)
        bound = ", ".join(f"${{{name}}}" for name in names)
        return f"INSERT INTO own (id, {listed}) VALUES (${{clientid}}, {bound})"

    applied("cassandra", server.options(), rules(insert), make)
    found: Values = {}
    hooks = {client_of(row): hook for hook, row, _ in TABLE}
    for row in server.table("own"):
        names = names_of(hooks[row["id"]])
        found[row["id"]] = {name: plain(row[columns[name]]) for name in names}
    return found


def in_dynamodb(directory: Path, *, exact: bool) -> Values:
    """Return what DynamoDB has of each row."""
    server = DynamodbServer(directory).start()
    try:

        def insert(names: list[str]) -> str:
            members = "".join(f", '{name}': ${{{name}}}" for name in names)
            return f"INSERT INTO \"{server.prefix}own\" VALUE {{'id': ${{clientid}}{members}}}"

        values = {**server.options(), "exact": exact}
        applied("dynamodb", values, rules(insert), lambda: server.make_table("own", "id"))
        with closing(server.client()) as client:
            items = client.scan(TableName=server.prefix + "own", ConsistentRead=True)["Items"]
        return {
            item.pop("id")["S"]: {name: typed(value) for name, value in item.items()}
            for item in items
        }
    finally:
        server.kill()


def plain(value: object) -> bytes:
    """Return a value of a column as text; null is none."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode()


def typed(value: dict[str, Any]) -> bytes:
    """Return a value with its type as text."""
    ((kind, said),) = value.items()
    if kind == "NULL":
        return b"null"
    if kind == "N":
        return b"%s" % format(decimal.Decimal(said), "f").encode()
    return plain(said)


def compared(name: str, value: object, number_of_text: Callable[[str], int]) -> object:
    """Return a value so that it can be compared: ids are numbers, JSON is what it says."""
    assert isinstance(value, bytes)
    if name == "msgid" and value != b"an id of an application":
        return number_of_text(value.decode())
    if name == "message":
        told = json.loads(value)
        return {**told, "id": number_of_text(told["id"])}
    return value


def test_the_table_has_every_parameter_of_every_hook() -> None:
    for hook in HOOKS.values():
        rows = [expected for name, _, expected in TABLE if name == hook.name]
        assert bool(rows) is bool(hook.parameters), hook.name
        for expected in rows:
            assert list(expected.keys() & set(NAMES)) and set(expected) == set(names_of(hook.name))
    for first in DOTTED:
        assert any(name.startswith(first + ".") for name in FIELDS)
    clients = [client_of(row) for _, row, _ in TABLE]
    assert len(clients) == len(set(clients))


@pytest.mark.parametrize(
    "type, read, number_of_text",
    [
        pytest.param("redis", in_redis, number_of_id, id="redis", marks=needs_redis),
        pytest.param(
            "cassandra", in_cassandra, number_of_id, id="cassandra", marks=needs_cassandra
        ),
        *(
            pytest.param(
                "dynamodb",
                functools.partial(in_dynamodb, exact=exact),
                number_of,
                id=f"dynamodb-{'exact' if exact else 'plain'}",
                marks=needs_dynamodb,
            )
            for exact in (True, False)
        ),
    ],
)
def test_a_hook_has_the_same_parameters_in_every_store(
    tmp_path: Path,
    type: str,
    read: Callable[[Path], Values],
    number_of_text: Callable[[str], int],
) -> None:
    found = read(tmp_path / type)
    assert set(found) == {client_of(row) for _, row, _ in TABLE}
    for hook, row, expected in TABLE:
        told = found[client_of(row)]
        assert set(told) == set(expected), hook
        for name, value in expected.items():
            wanted = NULL.get(type, value) if value == b"null" else value
            assert compared(name, told[name], number_of_text) == wanted, (hook, name)
