"""Reads what a DynamoDB store has, for a comparison with the broker.

Scans of the tables, page by page of at most 1 MB: what a comparison costs depends on how large they
are. Read next: `broker.backends.comparing.listing`.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from broker.backends.comparing import digests
from broker.backends.comparing.listing import (
    CLIENT,
    INDEX,
    MESSAGE,
    NOT_OURS,
    RETAINED,
    SUBSCRIPTION,
    Entry,
    Window,
    shown,
)
from broker.backends.dynamodb_actions import CLIENT as CLIENT_TABLE
from broker.backends.dynamodb_actions import (
    MSG,
    MSG_ID_SET,
    RETAIN,
    SUB,
    TOPIC_MSG,
    TOPIC_MSG_MAP,
    Item,
    number,
    text,
)
from broker.backends.message_ids import number_of, split_number

Scan = Callable[..., Any]  # of the sink: a table's name without its prefix, and what to ask for


class DynamodbListing:
    """One pass over the tables of a backend."""

    def __init__(self, scan: Scan, tables: list[str], window: Window) -> None:
        self._scan: Final = scan
        self._tables: Final = tables  # those that rules need
        self._window: Final = window

    def entries(self) -> Iterator[Entry]:
        """Yield what there is. Raises what `scan` raises."""
        kinds = self._window.kinds
        if MESSAGE in kinds:
            yield from self._messages()
        if INDEX in kinds:
            yield from self._index()
        if RETAINED in kinds:
            yield from self._retained()
        if SUBSCRIPTION in kinds:
            yield from self._subscriptions()
        if CLIENT in kinds:
            yield from self._clients()

    def _items(self, table: str, **asked: Any) -> Iterator[Item]:
        if table not in self._tables:
            return
        after: dict[str, Any] = {}
        while True:
            page = self._scan(table, ConsistentRead=True, **asked, **after)
            yield from page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            after = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def _is_meant(self, id_: int) -> bool:
        us, node, _ = split_number(id_)
        return node == self._window.node_number and us >= self._window.start_ms * 1000

    def _messages(self) -> Iterator[Entry]:
        since = {":since": number(self._window.start_ms // 1000)}
        asked = {"FilterExpression": "arrived >= :since", "ExpressionAttributeValues": since}
        for item in self._items(MSG, **asked):
            name = item["msgid"]["S"]
            id_ = number_of(name)
            place = f"{MSG} {shown(name.encode())}"
            if not self._is_meant(id_):
                yield Entry(NOT_OURS, place)
                continue
            found = digests.message_digest(
                id_,
                _bytes(item, "topic"),
                _bytes(item, "sender"),
                _number(item, "qos"),
                _bytes(item, "payload"),
                retain=_number(item, "retain") == 1,
                accepted_s=_number(item, "arrived"),
            )
            yield Entry(MESSAGE, place, number=id_, digest=found)

    def _index(self) -> Iterator[Entry]:
        for table in (TOPIC_MSG_MAP, TOPIC_MSG):
            for item in self._items(table):
                topic = _bytes(item, "topic")
                names = item.get(MSG_ID_SET, {}).get("SS", ())
                if table == TOPIC_MSG:
                    names = (item["msgid"]["S"],)
                for name in names:
                    id_ = number_of(name)
                    if self._is_meant(id_):
                        found = digests.index_digest(id_, topic)
                        yield Entry(INDEX, f"{table} {shown(topic)}", number=id_, digest=found)

    def _retained(self) -> Iterator[Entry]:
        for item in self._items(RETAIN):
            topic = _bytes(item, "topic")
            id_ = number_of(item.get("msgid", {}).get("S", ""))
            if split_number(id_)[1] != self._window.node_number:
                yield Entry(NOT_OURS, f"{RETAIN} {shown(topic)}")
                continue
            found = digests.retained_digest(
                id_, topic, _bytes(item, "sender"), _number(item, "qos"), _bytes(item, "payload")
            )
            name = digests.name_of(RETAINED, topic)
            place = f"{RETAIN} {shown(topic)}"
            yield Entry(RETAINED, place, name=name, text=shown(topic), digest=found)

    def _subscriptions(self) -> Iterator[Entry]:
        for item in self._items(SUB):
            client_id, topic_filter = _bytes(item, "clientid"), _bytes(item, "topic")
            qos = _number(item, "qos")
            yield Entry(
                SUBSCRIPTION,
                f"{SUB} {shown(client_id, topic_filter)}",
                name=digests.name_of(SUBSCRIPTION, client_id, topic_filter),
                text=shown(client_id, topic_filter),
                digest=digests.subscription_digest(client_id, topic_filter, qos),
            )

    def _clients(self) -> Iterator[Entry]:
        asked = {
            "FilterExpression": "#node = :node AND connect_state = :online",
            "ExpressionAttributeNames": {"#node": "node"},
            "ExpressionAttributeValues": {":node": text(self._window.node), ":online": number(1)},
        }
        for item in self._items(CLIENT_TABLE, **asked):
            client_id = _bytes(item, "clientid")
            found = digests.presence_digest(client_id, _number(item, "online_at"))
            name = digests.name_of(CLIENT, client_id)
            place = f"{CLIENT_TABLE} {shown(client_id)}"
            yield Entry(CLIENT, place, name=name, text=shown(client_id), digest=found)


def _bytes(item: Item, attribute: str) -> bytes:
    """Return a text or bytes; b"" if it is neither."""
    value = item.get(attribute, {})
    if "S" in value:
        found: bytes = value["S"].encode()
        return found
    return bytes(value.get("B", b""))


def _number(item: Item, attribute: str) -> int:
    """Return a number, -1 if it is none."""
    value = item.get(attribute, {}).get("N", "")
    return int(value) if value.isdecimal() else -1
