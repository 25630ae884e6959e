"""Sinks that write to a real DynamoDB Local, for tests."""

from typing import Any

import pytest

from broker.backends.message_ids import decimal_id, message_number, node_number
from broker.backends.sink import Fence, Options, Rule
from tests.broker.backends.dynamodb_server import DynamodbServer
from tests.broker.backends.told_rows import INSTANCE, NODE, NOW_MS, rule

dynamodb_sink = pytest.importorskip("broker.backends.dynamodb_sink")
MODES = pytest.mark.parametrize("exact", [True, False], ids=["exact", "plain"])
STORED = rule("message.publish", "#", action="on_message_publish")
COUNT = rule(
    "message.publish",
    "#",
    2,
    commands=['UPDATE "{prefix}own" SET n = n + 1 WHERE id = ${topic}'],
)


def made(server: DynamodbServer, *rules: dict[str, Any], **values: Any) -> Any:
    """Return a sink."""
    told = []
    for each in rules:
        commands = [text.replace("{prefix}", server.prefix) for text in each.get("commands", ())]
        told.append(Rule({**each, "commands": commands}))
    values = {**server.options(), **values}
    return dynamodb_sink.DynamodbSink(Options("cache", "dynamodb", NODE, values, told))


def opened(server: DynamodbServer, *rules: dict[str, Any], **values: Any) -> Any:
    """Return a sink with its tables that is connected and begun at (0, 0)."""
    sink = made(server, *(rules or (STORED,)), **values)
    sink.create()
    if sink.open() is None:
        sink.start(Fence(INSTANCE, (0, 0)), is_rewind=False)
    return sink


def counting(server: DynamodbServer, *topics: str, **values: Any) -> Any:
    """Return a sink whose rule counts messages by topic."""
    server.make_table("own", "id")
    client = server.client()
    for topic in topics:
        item = {"id": {"S": topic}, "n": {"N": "0"}}
        client.put_item(TableName=server.prefix + "own", Item=item)
    client.close()
    return opened(server, COUNT, **values)


def name_of(offset: int) -> str:
    """Return the id of a message of the log."""
    return decimal_id(message_number(NOW_MS, node_number(NODE), offset))


def cursor(sink: Any) -> tuple[int, int] | None:
    """Return the cursor in the store."""
    fence = sink.look()
    return None if fence is None else fence.cursor
