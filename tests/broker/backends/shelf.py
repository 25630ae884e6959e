"""A broker without sockets, and a store in memory that keeps the rows it is told, entry by entry.

For comparisons of the two (`broker.operations.backend_verify`). Rows are kept as real stores keep
them; a test may change `entries` as somebody else would.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from broker.backends.comparing import digests
from broker.backends.comparing.listing import (
    CLIENT,
    INDEX,
    MESSAGE,
    RETAIN,
    RETAINED,
    SHAPES,
    STORE,
    SUBSCRIPTION,
    Entry,
    Window,
    shown,
)
from broker.backends.message_ids import message_number, node_number, split_number
from broker.backends.parameters import offset_of
from broker.backends.rows import encode_wire_row
from broker.backends.sink import Rule
from broker.operations.control_socket import LINE_BYTES_MAX
from broker.process.desks.comparing import ComparisonDesk
from mqtt.message import Message
from session.feed.dead_letters import DeadLetter
from session.settings import Feed
from storage.tables import feed_rows
from storage.tables.feed_rows import FeedEvent
from storage.tables.message_record import decode_message
from tests.session.feed.backends import EVERYTHING, NAME
from tests.session.harness import Broker

NODE: Final = "me"
ALL: Final = (
    ("client.connected", None, "on_client_connected"),
    ("client.disconnected", None, "on_client_disconnected"),
    ("session.subscribed", "#", "on_subscribed"),
    ("session.unsubscribed", "#", "on_unsubscribed"),
    ("message.publish", "#", "on_message_publish"),
    ("message.publish", "#", "on_message_retain"),
    ("message.publish", "#", "on_retain_delete"),
    ("message.acked", "q/#", "on_message_acked_for_queue"),
)


class Turn:
    """The loop around the engine: calls at once, as a driver does within a turn."""

    def __init__(self, broker: Broker) -> None:
        self._broker: Final = broker

    @property
    def now(self) -> int:
        """The broker's time."""
        return self._broker.now

    def run(self, call: Callable[..., None], *arguments: object) -> None:
        """Call inside a tick."""
        call(*arguments)
        self._broker.settle()


class Shelf:
    """The store, and the broker that feeds it."""

    def __init__(
        self,
        rules: tuple[tuple[str, str | None, str], ...] = ALL,
        *,
        type: str = "redis",
        keep_ms: int = 900_000,
        expires_s: int = 0,
        backlog_bytes_max: int = 0,
        others: tuple[str, ...] = (),
    ) -> None:
        """`others` are topic filters of rules with own commands."""
        published = [str(topic) for _, topic, what in rules if what in STORE]
        qos0 = tuple(str(topic) for _, topic, what in rules if what == "on_message_store")
        filters = tuple(dict.fromkeys((*published, *others)))
        feed = Feed(NAME, filters, EVERYTHING, keep_ms, (), backlog_bytes_max, qos0=qos0)
        self.broker: Final = Broker(feeds=(feed,))
        self.told: Final[dict[str, Any]] = {
            "name": NAME,
            "type": type,
            "node": NODE,
            "rules": [
                {
                    "number": n,
                    "on": on,
                    "topic": topic,
                    "action": what,
                    "expires_s": expires_s,
                    "qos0": what == "on_message_store",
                }
                for n, (on, topic, what) in enumerate(rules, 1)
            ],
        }
        self._shape: Final = SHAPES[type]
        self._rules: Final = [Rule(each) for each in self.told["rules"]]
        self.entries: Final[dict[tuple[str, object], Entry]] = {}
        self.refuses: Callable[[Message | FeedEvent], bool] = lambda row: False
        self.meanwhile: Callable[[], None] = lambda: None  # happens while the store is read
        self.waits: int = 0
        self.desk = ComparisonDesk(
            NAME,
            self.told,
            self.broker.engine,
            Turn(self.broker),  # type: ignore[arg-type]
        )

    # The feed

    def feed(self) -> None:
        """Let the store have and confirm everything."""
        self.broker.advance(1000)
        feeds = self.broker.engine.feeds
        while (page := feeds.read(NAME, 100, 1 << 20)) is not None:
            letters: list[DeadLetter] = []
            for row in page.rows:
                if self.refuses(row):
                    at = (row.end, row.seq) if isinstance(row, FeedEvent) else (row.offset, 0)
                    letters.append(DeadLetter(at, "1", "refused", encode_wire_row(row)))
                elif isinstance(row, Message):
                    self._publish(row)
                else:
                    self._note(row)
            feeds.confirm(NAME, page.upto, letters)
            self.broker.settle()

    def _is_for(self, row: Message | FeedEvent, action: str) -> bool:
        return any(
            rule.action == action and rule.takes(row, self.told["type"]) for rule in self._rules
        )

    def _publish(self, message: Message) -> None:
        if any(self._is_for(message, action) for action in STORE):
            self._keep(message, message.offset)

    def _keep(self, message: Message, offset: int) -> None:
        number = message_number(message.accepted_at_ms, node_number(NODE), offset)
        topic = message.topic.encode()
        body = digests.message_digest(
            number,
            topic,
            message.publisher.encode(),
            message.qos,
            message.payload,
            retain=message.retain,
            accepted_s=message.accepted_at_ms // 1000,
        )
        self.put(Entry(MESSAGE, f"msg:{offset}", number=number, digest=body))
        if not self._shape.has_index:
            return
        place = digests.index_digest(number, topic)
        self.put(Entry(INDEX, f"list:{message.topic}", number=number, digest=place))

    def _note(self, event: FeedEvent) -> None:
        client_id, text = event.client_id.encode(), event.text.encode()
        if event.kind == feed_rows.PUBLISHED:
            message = feed_rows.message_of(event)
            self._keep(message, message.offset)
        elif event.kind == feed_rows.CONNECTED:
            digest = digests.presence_digest(client_id, event.at_ms // 1000)
            self.name(CLIENT, digest, client_id)
        elif event.kind == feed_rows.DISCONNECTED:
            self.remove(CLIENT, client_id)
        elif event.kind == feed_rows.SUBSCRIBED:
            digest = digests.subscription_digest(client_id, text, event.qos)
            self.name(SUBSCRIPTION, digest, client_id, text)
        elif event.kind == feed_rows.UNSUBSCRIBED:
            self.remove(SUBSCRIPTION, client_id, text)
        elif event.kind == feed_rows.SESSION_ENDED:
            for key, entry in list(self.entries.items()):
                if key[0] == SUBSCRIPTION and entry.text.startswith(event.client_id + " "):
                    del self.entries[key]
        elif event.kind == feed_rows.RETAINED:
            message = decode_message(event.body, 0)
            offset = offset_of(event)
            if self._shape.has_retained_messages and self._is_for(event, RETAIN):
                self._keep(message, offset)
            number = message_number(message.accepted_at_ms, node_number(NODE), offset)
            publisher, payload = message.publisher.encode(), message.payload
            digest = digests.retained_digest(number, text, publisher, message.qos, payload)
            self.name(RETAINED, digest, text)
        elif event.kind == feed_rows.RETAIN_DELETED:
            self.remove(RETAINED, text)
        elif event.kind == feed_rows.ACKED and event.text.startswith("q/"):
            for key, entry in list(self.entries.items()):
                if entry.number and split_number(entry.number)[2] == event.offset:
                    del self.entries[key]

    # What tests do to the store

    def put(self, entry: Entry) -> None:
        """Put an entry; one of a message at the same place is replaced."""
        self.entries[(entry.kind, entry.name or (entry.number, entry.place))] = entry

    def name(self, kind: str, digest: int, *names: bytes) -> None:
        """Put an entry with a name."""
        name = digests.name_of(kind, *names)
        self.put(Entry(kind, f"at {shown(*names)}", name=name, text=shown(*names), digest=digest))

    def remove(self, kind: str, *names: bytes) -> None:
        """Remove an entry with a name."""
        self.entries.pop((kind, digests.name_of(kind, *names)), None)

    def of(self, kind: str, offset: int) -> Entry:
        """Return the entry of a message."""
        (found,) = [
            entry
            for entry in self.entries.values()
            if entry.kind == kind and split_number(entry.number)[2] == offset
        ]
        return found

    def drop(self, entry: Entry) -> None:
        """Remove an entry of a message."""
        del self.entries[(entry.kind, (entry.number, entry.place))]

    # For the comparison

    def ask(self, what: str, **request: str) -> dict[str, Any]:
        """Ask the broker; the answer fits into a line."""
        answer = self.desk.answer({"do": f"backend_compare_{what}", "name": NAME, **request})
        assert len(json.dumps(answer)) < LINE_BYTES_MAX
        found = json.loads(answer["answer"])
        assert isinstance(found, dict)
        return found

    def listing(self, window: Window) -> Iterator[Entry]:
        """Yield what the store has, some of it twice, as stores do."""
        entries = list(self.entries.values())
        self.meanwhile()
        for entry in entries + entries[::3]:
            if entry.kind not in window.kinds:
                continue
            if entry.number:
                us, node, _ = split_number(entry.number)
                if us < window.start_ms * 1000 or node != window.node_number:
                    continue
            yield entry

    def wait(self) -> bool:
        """Wait a moment, in which the store gets nothing."""
        self.waits += 1
        self.broker.advance(1000)
        return self.waits < 10
