"""What a running broker tells of one store, for `holdfast backend verify`: what should be there.

Pages for the control socket, each a few ms of the loop at most: digests of messages that the store
has confirmed, which of them were acknowledged since, dead letters, and the subscriptions, retained
messages and clients of now. Changes nothing. Read next: `broker.operations.backend_verify`, which
asks, and `session.feed.kept`.
"""

import base64
import json
import struct
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, Final, TypeAlias

from broker.backends.comparing import digests
from broker.backends.comparing.listing import (
    CLIENT,
    MESSAGE,
    RETAIN,
    RETAINED,
    SHAPES,
    STORE,
    SUBSCRIPTION,
    shown,
)
from broker.backends.message_ids import UNSTORED, message_number, node_number
from broker.backends.parameters import expires_s, offset_of
from broker.backends.rows import Row, decode_wire_rows
from broker.backends.sink import Rule
from broker.loop.driver import Driver
from broker.operations.control_socket import LINE_BYTES_MAX, ControlError, Request
from mqtt.message import Message
from session.engine import Engine
from session.feed.dead_letters import DeadLetter
from storage.errors import DamagedRows
from storage.tables import feed_rows
from storage.tables.feed_rows import FeedEvent, is_for
from storage.tables.message_record import decode_message
from storage.tables.tables import retained_topic, unseal

BEGIN: Final = "backend_compare_begin"
MESSAGES: Final = "backend_compare_messages"
EVENTS: Final = "backend_compare_events"
LETTERS: Final = "backend_compare_letters"
STATE: Final = "backend_compare_state"
ONE: Final = "backend_compare_message"
REQUESTS: Final = frozenset({BEGIN, MESSAGES, EVENTS, LETTERS, STATE, ONE})

SUBSCRIBED: Final = "on_subscribed"
CONNECTED: Final = "on_client_connected"
ACKED: Final = "on_message_acked_for_queue"
PAYLOAD_BYTES_MAX: Final = 1 << 20  # of messages whose digests are made for one page
PAGE_ROWS: Final = 64  # of subscriptions, retained messages or clients
PAGE_LETTERS: Final = 16  # one may have 64 KiB
PAGE_EVENTS_BYTES: Final = 8000  # of what events tell, before base64
PAGE_GAPS: Final = 4
PAGE_BYTES: Final = LINE_BYTES_MAX - 4096
# A row for the page, None = nothing that a rule wants; and the bytes that were read for it.
Walked: TypeAlias = tuple[list[str] | None, int]
# offset, when it was accepted, digest of the message and of its place, when it may be gone (ms)
MESSAGE_ROW: Final = struct.Struct(">QQQQQ")
OFFSET: Final = struct.Struct(">Q")


class ComparisonDesk:
    """Answers requests about one backend."""

    def __init__(
        self, name: str, configuration: dict[str, Any], engine: Engine, driver: Driver
    ) -> None:
        """`configuration` is what the process of the backend was told."""
        self._name: Final = name
        self._told: Final = configuration
        self._type: Final[str] = configuration.get("type", "")
        shape = SHAPES.get(self._type)  # None: such a store is not compared
        self._has_retained_messages: Final = shape is not None and shape.has_retained_messages
        self._node: Final = node_number(configuration.get("node", ""))
        self._rules: Final = [Rule(told) for told in configuration.get("rules", ())]
        self._filters: Final = {str(rule.filter) for rule in self._by_action(*STORE)}
        self._engine: Final = engine
        self._driver: Final = driver
        # By kind: the number of the next page, and what is in it.
        self._walks: Final[dict[str, tuple[int, Iterator[Walked]]]] = {}

    def answer(self, request: Request) -> Request:
        """Answer a request of `REQUESTS`. Raises `ControlError`."""
        found: list[dict[str, Any]] = []
        works: dict[str, Callable[[Request, list[dict[str, Any]]], None]] = {
            BEGIN: self._begin,
            MESSAGES: self._messages,
            EVENTS: self._events,
            LETTERS: self._letters,
            STATE: self._state,
            ONE: self._message,
        }
        for key in ("after", "upto", "since"):
            value = request.get(key, "0")
            if not value.isdecimal() or int(value) >= 1 << 63:
                raise ControlError(f"{key} = {value[:40]!r}: expected a number")
        self._driver.run(works[request["do"]], request, found)
        if not found:
            raise ControlError("an internal error, which is in the log")
        return {"answer": json.dumps(found[0])}

    def _by_action(self, *actions: str) -> list[Rule]:
        return [rule for rule in self._rules if rule.action in actions]

    def _begin(self, request: Request, found: list[dict[str, Any]]) -> None:
        """Tell where the store is, and behind which cursor everything is still known."""
        engine, name = self._engine, self._name
        first = engine.kept.first(name, int(request.get("since", "0")))
        cursor = engine.feeds.cursor(name)
        first = (min(first[0], cursor[0]), min(first[1], cursor[1]))
        oldest = engine.kept.message(first[0])
        found.append(
            {
                "rules": self._told.get("rules", []),
                "type": self._type,
                "node": self._told.get("node", ""),
                "now": self._driver.now,
                "first": list(first),
                "first_ms": 0 if oldest is None else oldest.accepted_at_ms,
                "cursor": list(cursor),
                "end": list(engine.feeds.end()),
            }
        )

    # Messages

    def _message(self, request: Request, found: list[dict[str, Any]]) -> None:
        """Tell people which message has an offset."""
        message = self._find(int(request.get("after", "0")))
        ms = 0 if message is None else message.accepted_at_ms
        topic = "" if message is None else shown(message.topic.encode())
        publisher = "" if message is None else shown(message.publisher.encode())
        found.append({"ms": ms, "topic": topic, "from": publisher})

    def _find(self, offset: int) -> Message | None:
        """Return the message at an offset; one outside of the log has the number of an event."""
        if not offset & UNSTORED:
            return self._engine.kept.message(offset)
        seq = offset ^ UNSTORED
        events, _ = self._engine.kept.events(seq - 1, seq)
        return next((self._message_in(event) for event in events), None)

    def _message_in(self, event: FeedEvent) -> Message | None:
        """Return the message of an event that has one with QoS 0; None if it cannot be read."""
        if event.kind != feed_rows.PUBLISHED:
            return None
        try:
            return feed_rows.message_of(event)
        except DamagedRows:
            return None

    def _messages(self, request: Request, found: list[dict[str, Any]]) -> None:
        after, upto = int(request["after"]), int(request["upto"])
        messages, reached, lost = self._engine.kept.messages(
            self._name, self._filters, after, upto, PAYLOAD_BYTES_MAX
        )
        rows = [row for message in messages if (row := self._message_row(message))]
        packed = base64.b64encode(b"".join(rows)).decode()
        found.append({"rows": packed, "after": reached, "lost": lost})

    def _message_row(self, message: Message) -> bytes:
        """Return the row of a message, b"" if no rule stores it."""
        rules = [r for r in self._by_action(*STORE) if r.takes(message, self._type)]
        if not rules:
            return b""
        return self._packed(message, message.offset, message.topic, rules)

    def _packed(self, message: Message, offset: int, topic_text: str, rules: list[Rule]) -> bytes:
        number = message_number(message.accepted_at_ms, self._node, offset)
        topic = topic_text.encode()
        body = digests.message_digest(
            number,
            topic,
            message.publisher.encode(),
            message.qos,
            message.payload,
            retain=message.retain,
            accepted_s=message.accepted_at_ms // 1000,
        )
        ages = [age for rule in rules if (age := expires_s(message, rule))]
        gone_ms = message.accepted_at_ms + min(ages) * 1000 if ages else 0
        place = digests.index_digest(number, topic)
        return MESSAGE_ROW.pack(offset, message.accepted_at_ms, body, place, gone_ms)

    def _events(self, request: Request, found: list[dict[str, Any]]) -> None:
        """Tell which messages of queues were acknowledged, and which were lost on the way.

        And the messages that events tell of: with QoS 0, and retained ones where the store has
        them among its messages.
        """
        after, upto = int(request["after"]), int(request["upto"])
        events, reached = self._engine.kept.events(after, upto)
        rules = self._by_action(ACKED)
        acked, told = bytearray(), bytearray()
        gaps: list[list[object]] = []
        payload = 0
        for event in events:
            if not is_for(self._name, event):
                continue
            if event.kind == feed_rows.ACKED and event.offset:
                if any(rule.takes(event, self._type) for rule in rules):
                    acked += OFFSET.pack(event.offset)
            elif event.kind == feed_rows.RETAINED and self._has_retained_messages:
                told += self._retained_message_row(event)
                payload += len(event.body)
            elif (message := self._message_in(event)) is not None:
                told += self._message_row(message)
                payload += len(message.payload)
            elif event.kind == feed_rows.GAP:
                gaps.append([event.offset, event.accepted_ms, shown(event.text.encode())])
            is_full = len(acked) + len(told) >= PAGE_EVENTS_BYTES or len(gaps) >= PAGE_GAPS
            if is_full or payload >= PAYLOAD_BYTES_MAX:
                reached = event.seq  # a tick may have many: the rest comes with the next page
                break
        found.append(
            {
                "acked": base64.b64encode(acked).decode(),
                "rows": base64.b64encode(told).decode(),
                "gaps": gaps,
                "after": reached,
            }
        )

    def _retained_message_row(self, event: FeedEvent) -> bytes:
        """Return the row of a retained message as it is among the messages, b"" if it is not."""
        rules = [r for r in self._by_action(RETAIN) if r.takes(event, self._type)]
        if not rules:
            return b""
        try:
            message = decode_message(event.body, event.offset)
        except DamagedRows:
            return b""  # a dead letter
        return self._packed(message, offset_of(event), event.text, rules)

    def _letters(self, request: Request, found: list[dict[str, Any]]) -> None:
        """Tell which entries are in dead letters: kind, and the offset or the name."""
        page = self._engine.feeds.dead_letters(self._name, int(request["after"]), PAGE_LETTERS)
        found.append(
            {
                "letters": [each for _, letter in page for each in self._letter(letter)],
                "after": page[-1][0] if page else 0,
                "has_more": bool(page),
            }
        )

    def _letter(self, letter: DeadLetter) -> list[list[object]]:
        """Return what a dead letter is about: kind, and the offset or the name."""
        row: Row | None = None
        if letter.row:
            try:
                (row,) = decode_wire_rows(letter.row)
            except (DamagedRows, ValueError):
                row = None  # its rule says what it was about
        if row is None:  # its cursor is that of a message, or that of an event
            return [[MESSAGE, letter.at[0], UNSTORED | letter.at[1]]]
        if isinstance(row, Message) or row.kind == feed_rows.ACKED:
            return [[MESSAGE, row.offset]]
        if row.kind == feed_rows.PUBLISHED:
            return [[MESSAGE, UNSTORED | row.seq]]
        client_id, text = row.client_id.encode(), row.text.encode()
        if row.kind in (feed_rows.RETAINED, feed_rows.RETAIN_DELETED):
            found: list[list[object]] = [[RETAINED, digests.name_of(RETAINED, text).hex()]]
            if self._has_retained_messages:
                found.append([MESSAGE, offset_of(row)])
            return found
        if row.kind in (feed_rows.SUBSCRIBED, feed_rows.UNSUBSCRIBED):
            return [[SUBSCRIPTION, digests.name_of(SUBSCRIPTION, client_id, text).hex()]]
        if row.kind in (feed_rows.CONNECTED, feed_rows.DISCONNECTED):
            return [[CLIENT, digests.name_of(CLIENT, client_id).hex()]]
        return []

    # What there is now

    def _state(self, request: Request, found: list[dict[str, Any]]) -> None:
        """Tell what there is of a kind: name, digest, and the name for people.

        Pages are numbered; the place of the next one is kept here, for one comparison.
        """
        kind, page = request.get("kind", ""), int(request.get("after", "0"))
        if not page:
            self._walks[kind] = (0, self._walk(kind))
        expected, walk = self._walks.get(kind, (-1, iter(())))
        if page != expected:
            found.append({"rows": [], "more": False, "is_out_of_order": True})
            return
        rows: list[list[str]] = []
        size = payload = 0
        has_more = False
        for row, read_bytes in islice(walk, PAGE_ROWS):
            has_more = True  # perhaps
            payload += read_bytes
            if row is not None:
                rows.append(row)
                size += len(json.dumps(json.dumps(row)))
            if size > PAGE_BYTES or payload > PAYLOAD_BYTES_MAX:
                break
        if has_more:
            self._walks[kind] = (page + 1, walk)
        else:
            del self._walks[kind]
        found.append({"rows": rows, "more": has_more})

    def _walk(self, kind: str) -> Iterator[Walked]:
        if kind == RETAINED:
            return self._retained()
        if kind == SUBSCRIPTION:
            return chain(self._subscriptions(), self._in_memory())
        return self._clients() if kind == CLIENT else iter(())

    def _retained(self) -> Iterator[Walked]:
        rules = self._by_action(RETAIN)
        start = b""
        while page := self._engine.kept.retained(start, 1):
            ((key, value),) = page
            start = key + b"\0"
            yield self._retained_row(rules, key, value), len(value)

    def _retained_row(self, rules: list[Rule], key: bytes, value: bytes) -> list[str] | None:
        topic = retained_topic(key)
        try:
            message = decode_message(value, 0)
        except DamagedRows:
            return None  # noted by whoever sends it
        event = FeedEvent(feed_rows.RETAINED, 0, 0, message.publisher, topic)
        if not any(rule.takes(event, self._type) for rule in rules):
            return None
        encoded = topic.encode()
        ages = [age for rule in rules if (age := expires_s(message, rule))]
        if ages and message.accepted_at_ms + min(ages) * 1000 <= self._driver.now:
            return _row(RETAINED, None, encoded)
        number = message_number(message.accepted_at_ms, self._node, UNSTORED)
        publisher = message.publisher.encode()
        found = digests.retained_digest(number, encoded, publisher, message.qos, message.payload)
        return _row(RETAINED, found, encoded)

    def _subscriptions(self) -> Iterator[Walked]:
        start = b""
        while page := self._engine.kept.subscriptions(start, PAGE_ROWS):
            for key, value in page:
                client_id, _, topic_filter = key.partition(b"\0")
                try:
                    qos = unseal(value, "subscription")[1] & 3
                except (DamagedRows, IndexError):
                    continue
                yield self._subscription(client_id, topic_filter, qos)
            start = page[-1][0] + b"\0"

    def _in_memory(self) -> Iterator[Walked]:
        """Yield what those subscribe to whose sessions are in memory."""
        live = self._engine.kept.live
        for client_id in list(live):
            connection = live.get(client_id)
            session = None if connection is None else connection.session
            if session is None or session.is_stored:
                yield None, 0
                continue
            for text, subscription in list(session.subscriptions.items()):
                yield self._subscription(client_id.encode(), text.encode(), subscription.qos)

    def _subscription(self, client_id: bytes, topic_filter: bytes, qos: int) -> Walked:
        event = FeedEvent(feed_rows.SUBSCRIBED, 0, 0, "", topic_filter.decode())
        if not any(rule.takes(event, self._type) for rule in self._by_action(SUBSCRIBED)):
            return None, 0
        found = digests.subscription_digest(client_id, topic_filter, qos)
        return _row(SUBSCRIPTION, found, client_id, topic_filter), 0

    def _clients(self) -> Iterator[Walked]:
        live = self._engine.kept.live
        for client_id in list(live):
            connection = live.get(client_id)
            if connection is None or connection.session is None:
                yield None, 0
                continue
            name = client_id.encode()
            found = digests.presence_digest(name, connection.session.connected_at_ms // 1000)
            yield _row(CLIENT, found, name), 0


def _row(kind: str, digest: int | None, *names: bytes) -> list[str]:
    """Return what is told of an entry; without a digest it may be gone or still there."""
    told = "" if digest is None else f"{digest:x}"
    return [digests.name_of(kind, *names).hex(), told, shown(*names)]
