"""Finds in DynamoDB what a session fetches.

A message of a queue is claimed for a client by a write that is refused if somebody else has it: two
clients never get the same one, whichever broker asks. A claim ends with its time, unless the broker
keeps it for what it has put into the client's mailbox. The caller has looked at the cursor. Read
next: `broker.backends.dynamodb_batch`, `broker.backends.redis.inbox`.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from broker.backends.dynamodb_tables import (
    ACKED,
    BATCH_READ_MAX,
    CLAIM,
    CLAIMED_UNTIL,
    EXPIRES_AT,
    KEYS,
    MSG,
    MSG_ID_SET,
    ORDERED,
    RETAIN,
    SUB,
    TOPIC_MSG_MAP,
    CallRefused,
    Item,
    Tables,
    number,
    ordered_id,
    text,
)
from broker.backends.inbox.questions import ANSWER_BYTES_MAX, Page, Question
from broker.backends.message_ids import decimal_id, number_of, split_number
from session.delivery.fetching.inbox import LEASE_MS
from storage.tables import fetch_rows
from storage.tables.fetch_rows import MESSAGE_ID_BYTES_MAX
from storage.time.machine_clocks import wall_ms

READ_IDS_MAX: Final = 20_000  # of a topic, for one question
CLAIMS_MAX: Final = 100  # for one question, each a call: rows wait meanwhile
_TIME_SHIFT: Final = 64
_CLAIM_CONDITION: Final = (
    f"attribute_exists(msgid) AND (attribute_not_exists({CLAIM}) OR {CLAIMED_UNTIL} < :now"
    f" OR ({CLAIM} = :client AND attribute_exists({CLAIMED_UNTIL})))"
)


class DynamodbInbox:
    """Answers the questions of one backend."""

    def __init__(self, tables: Tables, node: int, index: str) -> None:
        """`node` is the number of this broker in message ids, `index` the table of ids."""
        self._tables: Final = tables
        self._node: Final = node
        self._index: Final = index

    def fetch(self, question: Question) -> Page:
        """Return a page. Raises `Unavailable`, and `CallRefused`."""
        if question.kind == fetch_rows.QUEUE:
            return self._queue(question)
        if question.kind == fetch_rows.RETAIN:
            return self._retained(question)
        if question.kind == fetch_rows.SUBSCRIPTIONS:
            return self._subscriptions(question)
        return self._after(question)

    # Messages of a queue

    def _queue(self, question: Question) -> Page:
        page = Page(question.after)
        client, now_ms = question.client_id, wall_ms()
        names = [each for each in self._ids(question.topic) if self._is_wanted(each, question)]
        names.sort(key=lambda each: (number_of(each), each))
        most = min(question.count, CLAIMS_MAX)
        size = claims = 0
        for name, item in self._free(names, client, now_ms):
            if len(page.messages) >= most or claims >= CLAIMS_MAX or size >= ANSWER_BYTES_MAX:
                page.more = True
                break
            if _arrived_ms(item) < question.not_before_ms and not number_of(name):
                continue
            claims += 1
            claimed = self._claim(name, client, now_ms)
            if claimed is not None:
                size += page.add(name, _fields(claimed))
        return page

    def _is_wanted(self, name: str, question: Question) -> bool:
        known = number_of(name)
        if not known:
            return True
        parts = split_number(known)
        is_young = parts[0] // 1000 >= question.not_before_ms
        return is_young and not question.comes_from_here(parts, self._node)

    def _free(self, names: list[str], client: str, now_ms: int) -> Iterator[tuple[str, Item]]:
        """Yield messages that nobody else has: their ids, and all but their contents."""
        wanted = f"msgid, arrived, {EXPIRES_AT}, {CLAIM}, {CLAIMED_UNTIL}"
        for start in range(0, len(names), BATCH_READ_MAX):
            part = names[start : start + BATCH_READ_MAX]
            items = self._read(part, wanted)
            for name in part:
                item = items.get(name)
                if item is None or _is_expired(item, now_ms):
                    continue
                until_ms = _number(item, CLAIMED_UNTIL)
                is_ours = until_ms > 0 and item.get(CLAIM, {}).get("S") == client
                if CLAIM not in item or 0 < until_ms < now_ms or is_ours:
                    yield name, item

    def _claim(self, name: str, client: str, now_ms: int) -> Item | None:
        """Claim a message for a while and return it; None if somebody else has it, or had."""
        try:
            answer = self._tables.call(
                "update_item",
                TableName=self._tables.name_of(MSG),
                Key={"msgid": text(name)},
                UpdateExpression=f"SET {CLAIM} = :client, {CLAIMED_UNTIL} = :until",
                ConditionExpression=_CLAIM_CONDITION,
                ExpressionAttributeValues={
                    ":client": text(client),
                    ":until": number(now_ms + LEASE_MS),
                    ":now": number(now_ms),
                },
                ReturnValues="ALL_NEW",
            )
        except CallRefused as problem:
            if problem.is_condition:
                return None
            raise
        item: Item = answer["Attributes"]
        return item

    # Messages of a topic with positions

    def _after(self, question: Question) -> Page:
        """Return the messages behind the position of a client, in the order of their ids."""
        key = {"topic": text(question.topic), "clientid": text(question.client_id)}
        acked = self._get(ACKED, key).get("msgid", {}).get("S", "")
        told = question.after.removeprefix(ORDERED)
        after = max(
            int(told) if told else 0,
            number_of(acked),
            (question.not_before_ms * 1000 << _TIME_SHIFT) - 1 if question.not_before_ms else 0,
        )
        page = Page(ordered_id(after))
        numbers = sorted({number_of(each) for each in self._ids(question.topic)})
        numbers = [each for each in numbers if each > after]
        size = 0
        for start in range(0, len(numbers), BATCH_READ_MAX):
            part = numbers[start : start + BATCH_READ_MAX]
            wanted = [
                each
                for each in part
                if not question.comes_from_here(split_number(each), self._node)
            ]
            items = self._read(list(map(decimal_id, wanted)), "")
            for each in part:
                if len(page.messages) >= question.count or size >= ANSWER_BYTES_MAX:
                    page.more = True
                    return page
                item = items.get(decimal_id(each))
                if item is not None and not _is_expired(item, wall_ms()):
                    size += page.add(ordered_id(each), _fields(item))
                page.upto = ordered_id(each)
        return page

    # Retained messages

    def _retained(self, question: Question) -> Page:
        """Return the retained message of a topic, unless this broker has written it."""
        page = Page("")
        item = self._get(RETAIN, {"topic": text(question.topic)})
        name, now_ms = item.get("msgid", {}).get("S", ""), wall_ms()
        known = number_of(name)
        at_us, node, _ = split_number(known)
        if (known and node == self._node) or _is_expired(item, now_ms):
            return page
        expires_ms = _number(item, EXPIRES_AT) * 1000 - now_ms if EXPIRES_AT in item else 0
        page.add_retained(name, _fields(item), at_us // 1000, expires_ms)
        return page

    # Subscriptions

    def _subscriptions(self, question: Question) -> Page:
        """Return what a client is subscribed to, in the order of the filters."""
        page = Page("")
        rows: list[tuple[bytes, bytes]] = []
        condition, values = "clientid = :client", {":client": text(question.client_id)}
        if question.after:
            condition += " AND topic > :after"
            values[":after"] = text(question.after)
        for item in self._query(SUB, condition, values, "topic, qos"):
            qos = item.get("qos", {})
            value = str(qos.get("N", qos.get("S", "")))
            rows.append((item["topic"]["S"].encode(), value.encode()))
            if len(rows) > question.count:
                page.more = True
                break
        page.add_subscriptions(rows, question)
        if page.more and not page.subscriptions:
            page.why = f"{question.count} rows of {question.client_id} are no subscriptions"
        return page

    # Reading

    def _get(self, table: str, key: Item) -> Item:
        name = self._tables.name_of(table)
        answer = self._tables.call("get_item", TableName=name, Key=key, ConsistentRead=True)
        item: Item = answer.get("Item", {})
        return item

    def _ids(self, topic: str) -> list[str]:
        """Return the ids of a topic, without those that are none."""
        key = {"topic": text(topic)}
        if self._index == TOPIC_MSG_MAP:
            found = self._get(TOPIC_MSG_MAP, key).get(MSG_ID_SET, {}).get("SS", [])
        else:
            found = list(islice(self._listed(key), READ_IDS_MAX))
        return [each for each in found if 0 < len(each.encode()) <= MESSAGE_ID_BYTES_MAX]

    def _listed(self, key: Item) -> Iterator[str]:
        for item in self._query(self._index, "topic = :topic", {":topic": key["topic"]}, "msgid"):
            yield item["msgid"]["S"]

    def _query(self, table: str, condition: str, values: Item, attributes: str) -> Iterator[Item]:
        """Yield items of a partition, in the order of their sort key."""
        page: dict[str, Any] = {}
        while True:
            answer = self._tables.call(
                "query",
                TableName=self._tables.name_of(table),
                ConsistentRead=True,
                KeyConditionExpression=condition,
                ExpressionAttributeValues=values,
                ProjectionExpression=attributes,
                **page,
            )
            yield from answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            page = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    def _read(self, names: list[str], attributes: str) -> dict[str, Item]:
        """Return messages by their ids, at most `BATCH_READ_MAX`; with all attributes for ""."""
        (key,) = KEYS[MSG]
        found: dict[str, Item] = {}
        table = self._tables.name_of(MSG)

        def take(answer: Any) -> None:
            for item in answer["Responses"].get(table, ()):
                found[item[key]["S"]] = item

        if names:
            asked: dict[str, Any] = {"Keys": [{key: text(each)} for each in names]}
            asked["ConsistentRead"] = True
            if attributes:
                asked["ProjectionExpression"] = attributes
            self._tables.until_done("batch_get_item", {table: asked}, "UnprocessedKeys", take)
        return found


def _fields(item: Item) -> dict[str, bytes]:
    """Return a message as other stores have it."""
    found: dict[str, bytes] = {}
    for name, ours in (
        ("payload", "payload"),
        ("sender", "from"),
        ("qos", "qos"),
        ("arrived", "ts"),
    ):
        for kind, value in item.get(name, {}).items():
            if kind in ("S", "N"):
                found[ours] = value.encode()
            elif kind == "B":
                found[ours] = bytes(value)
    return found


def _number(item: Item, name: str) -> int:
    """Return a whole number of an item, 0 if it has none."""
    value = str(item.get(name, {}).get("N", ""))
    return int(value) if value.isdecimal() and len(value) < 20 else 0


def _arrived_ms(item: Item) -> int:
    return _number(item, "arrived") * 1000


def _is_expired(item: Item, now_ms: int) -> bool:
    """Has the time of an item passed? The service deletes it later."""
    return 0 < _number(item, EXPIRES_AT) * 1000 <= now_ms
