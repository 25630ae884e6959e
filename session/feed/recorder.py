"""Collects the events of a tick that external stores are told of, and puts them into its batch.

An event is in the same batch as the change it tells of, or in an earlier one: a store is never told
of what did not happen. Events alone cause no batch at once; they wait for the next one, at most
`progress_delay_ms`. Without backends every call returns at once. Decides nothing. Read next:
`session.feed.outlet`, which reads the rows, and `storage.tables.feed_rows`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from mqtt.message import Message
from session.feed.backlogs import EventSizes
from session.live.damage import Damage
from session.live.tick import Tick
from session.settings import Feed
from session.state.in_flight import (
    FROM_MAILBOX,
    QOS_MASK,
    REFERENCE_SHIFT,
    SOURCE_MASK,
    UNSTORED_REFERENCE,
)
from storage.api import Batch
from storage.errors import DamagedRows
from storage.log.message_log import MessageLog
from storage.tables.feed_rows import (
    ACKED,
    AGAIN,
    CONNECTED,
    DELIVERED,
    DISCONNECTED,
    GAP,
    NOT_FOR,
    PUBLISHED,
    RETAIN_DELETED,
    RETAINED,
    RETURNED,
    SENT,
    SESSION_ENDED,
    SUBSCRIBED,
    UNSTORED,
    UNSUBSCRIBED,
    FeedEvent,
    encode_row,
    feed_key,
)
from storage.tables.message_record import encode_message
from storage.tables.tables import FEED, PRESENCE

_PRESENCE: Final = 1 << CONNECTED | 1 << DISCONNECTED
# Whoever is told of these must be told, too, what a crash ended: it is kept who is connected.
_LIVES: Final = _PRESENCE | 1 << SESSION_ENDED
STORED: Final = b"\x01"  # the session of a client that is connected outlives a crash
IN_MEMORY: Final = b"\x02"  # it does not
_RETAINED: Final = 1 << RETAINED | 1 << RETAIN_DELETED
# Whoever reads a row decodes it whole, in one turn of the loop: 256 events take about 1 ms.
ROW_EVENTS_MAX: Final = 256
ROW_BYTES_MAX: Final = 64 << 10  # of messages in it, exceeded by one of them
# Of messages that wait for a batch: more of them have one written at once.
WAITING_BYTES_MAX: Final = 1 << 20


class FeedRecorder:
    """Collects events for the next batch."""

    def __init__(
        self, tick: Tick, log: MessageLog, damage: Damage, feeds: Sequence[Feed], delay_ms: int
    ) -> None:
        self._tick: Final = tick
        self._log: Final = log
        self._damage: Final = damage
        self._delay_ms: Final = delay_ms
        kinds = 0
        for feed in feeds:
            kinds |= feed.kinds
        self._kinds: Final = kinds  # a bit for each kind that somebody wants
        self.has_acks: Final = bool(kinds & 1 << ACKED)
        self.has_sent: Final = bool(kinds & 1 << SENT)
        self.seq: int = 0  # of the last event that was put into a batch
        self.sealed: int = 0  # how often events were put into a batch
        self.sizes: Final = EventSizes()
        self._events: list[FeedEvent] = []
        self._waiting_bytes: int = 0  # of messages among them
        # Retained messages that are not in the log, with the events which have their numbers.
        self._unstored: list[tuple[FeedEvent, FeedEvent]] = []
        self.again: Final[list[FeedEvent]] = []  # those of them that carry dead letters
        # Who came and went. Not in the tick's batch before it is written: a client's CONNACK does
        # not wait for these.
        self._presence: dict[bytes, bytes | None] = {}
        self._due_ms: int = 0  # when they must be written, 0 = there are none

    @property
    def has_presence(self) -> bool:
        """Is it kept who is connected?"""
        return bool(self._kinds & _LIVES)

    def _put(self, event: FeedEvent) -> None:
        self._wait()
        self._events.append(event)

    def _wait(self) -> None:
        if not self._due_ms:
            self._due_ms = self._tick.now + self._delay_ms

    def hurry(self) -> None:
        """Let the next write take what was collected, alone if need be."""
        if self._due_ms:
            self._due_ms = 1

    # Clients

    def connected(self, client_id: str, username: str, *, is_stored: bool) -> None:
        """Tell of an accepted CONNECT; `is_stored` says that a crash does not end its session."""
        if not self._kinds & _LIVES:
            return
        self._presence[client_id.encode()] = STORED if is_stored else IN_MEMORY
        self._wait()
        if not self._kinds & _PRESENCE:
            return
        now = self._tick.now
        self._put(FeedEvent(CONNECTED, now, self._log.end, client_id, username=username))

    def disconnected(self, client_id: str, username: str) -> None:
        """Tell of the end of a connection that no other one of its client follows at once."""
        if self._kinds & _LIVES:
            self._gone(client_id, username, self._tick.now)

    def crashed(self, client_id: str, value: bytes, at_ms: int) -> None:
        """Tell of a connection that a crash of the broker ended, about at `at_ms`.

        `value` is that of its row: a session in memory is gone with it.
        """
        self._gone(client_id, "", at_ms)
        if value == IN_MEMORY:
            self.session_ended(client_id)

    def _gone(self, client_id: str, username: str, at_ms: int) -> None:
        self._presence[client_id.encode()] = None
        self._wait()
        if self._kinds & _PRESENCE:
            self._put(FeedEvent(DISCONNECTED, at_ms, self._log.end, client_id, username=username))

    # Sessions

    def subscribed(self, client_id: str, username: str, topic_filter: str, qos: int) -> None:
        """Tell of a new or changed subscription."""
        self._put_subscription(SUBSCRIBED, client_id, username, topic_filter, qos)

    def unsubscribed(self, client_id: str, username: str, topic_filter: str, qos: int) -> None:
        """Tell of the end of a subscription by UNSUBSCRIBE."""
        self._put_subscription(UNSUBSCRIBED, client_id, username, topic_filter, qos)

    def _put_subscription(
        self, kind: int, client_id: str, username: str, topic_filter: str, qos: int
    ) -> None:
        if self._kinds & 1 << kind:
            self._put(
                FeedEvent(
                    kind,
                    self._tick.now,
                    self._log.end,
                    client_id,
                    topic_filter,
                    qos=qos,
                    client_username=username,
                )
            )

    def session_ended(self, client_id: str) -> None:
        """Tell that a session is gone, with all its subscriptions."""
        if self._kinds & 1 << SESSION_ENDED:
            self._put(FeedEvent(SESSION_ENDED, self._tick.now, self._log.end, client_id))

    # Messages

    def acked(self, client_id: str, username: str, entry: int) -> None:
        """Tell that a client has a message of the log that was in flight as `entry`.

        Call it only if `has_acks`. The topic is looked up when the batch is written.
        """
        offset = entry >> REFERENCE_SHIFT
        if entry & UNSTORED_REFERENCE or entry & SOURCE_MASK == FROM_MAILBOX or not offset:
            return
        self._put(
            FeedEvent(
                ACKED,
                self._tick.now,
                self._log.end,
                client_id,
                qos=entry & QOS_MASK,
                offset=offset,
                client_username=username,
            )
        )

    def published(self, message: Message) -> FeedEvent:
        """Tell of a message with QoS 0 that is not in the log.

        Call it only for stores that want it. A crash may lose it: it waits for a batch of others,
        or until much waits.
        """
        event = FeedEvent(
            PUBLISHED,
            self._tick.now,
            self._log.end,
            message.publisher,
            message.topic,
            accepted_ms=message.accepted_at_ms,
            body=encode_message(message),
        )
        self._put(event)
        self._waiting_bytes += len(event.body)
        if self._waiting_bytes >= WAITING_BYTES_MAX:
            self.hurry()
        return event

    def published_run(self, message: Message, payloads: Sequence[bytes]) -> None:
        """Tell of messages that differ from `message` only in their payloads."""
        one = Message(
            message.topic,
            b"",
            message.qos,
            message.retain,
            message.properties,
            message.publisher,
            message.accepted_at_ms,
            message.expires_at_ms,
            username=message.username,
        )
        for payload in payloads:
            one.payload = payload
            self.published(one)

    def sent(
        self, client_id: str, username: str, message: Message, qos: int, message_id: str = ""
    ) -> None:
        """Tell that a message goes to a client for the first time.

        Call it only if `has_sent`. `message_id` is what a store calls a message that came from it.
        """
        self._put(
            FeedEvent(
                SENT,
                self._tick.now,
                self._log.end,
                client_id,
                message.topic,
                qos=qos,
                offset=message.offset,
                accepted_ms=message.accepted_at_ms,
                body=message_id.encode(),
                client_username=username,
            )
        )

    def sent_run(
        self, client_id: str, username: str, message: Message, qos: int, first: int, count: int
    ) -> None:
        """Tell of consecutive messages like `message`; their offsets begin at `first`, 0 = none."""
        for offset in range(first, first + count) if first else [0] * count:
            self._put(
                FeedEvent(
                    SENT,
                    self._tick.now,
                    self._log.end,
                    client_id,
                    message.topic,
                    qos=qos,
                    offset=offset,
                    accepted_ms=message.accepted_at_ms,
                    client_username=username,
                )
            )

    def fetched_acked(
        self, client_id: str, username: str, backend: str, topic: str, message_id: str, qos: int
    ) -> None:
        """Tell a store that a client has a message which came from there."""
        self._put_foreign(ACKED, client_id, backend, topic, message_id, qos, username)

    def fetched_kept(
        self, client_id: str, backend: str, topic: str, message_id: str, qos: int
    ) -> None:
        """Tell a store that one of its messages is kept for a client: it is for nobody else."""
        self._put_foreign(DELIVERED, client_id, backend, topic, message_id, qos)

    def fetched_returned(self, client_id: str, backend: str, topic: str, message_id: str) -> None:
        """Tell a store that a client will not acknowledge a message: it is for anybody again."""
        self._put_foreign(RETURNED, client_id, backend, topic, message_id, 0)

    def _put_foreign(
        self,
        kind: int,
        client_id: str,
        backend: str,
        topic: str,
        message_id: str,
        qos: int,
        username: str = "",
    ) -> None:
        if not self._kinds & 1 << kind:
            return
        self._put(
            FeedEvent(
                kind,
                self._tick.now,
                self._log.end,
                client_id,
                topic,
                qos=qos,
                username=backend,
                body=message_id.encode(),
                client_username=username,
            )
        )

    @property
    def is_empty(self) -> bool:
        """Is everything that was collected in a batch?"""
        return not self._due_ms

    def retained(
        self, message: Message, published: FeedEvent | None = None, *, source: str = ""
    ) -> None:
        """Tell of a new retained message, or with an empty payload, that there is none now.

        `published` has told of it already: it is one message there. `source` is the name of the
        store that it comes from, which is not told.
        """
        if not self._kinds & _RETAINED:
            return
        if not message.payload:
            self.retained_gone(message.topic)
            return
        event = FeedEvent(
            RETAINED,
            self._tick.now,
            self._log.end,
            message.publisher,
            message.topic,
            qos=message.qos,
            offset=message.offset,
            accepted_ms=message.accepted_at_ms,
            username=NOT_FOR + source if source else "",
            body=encode_message(message),
        )
        self._put(event)
        if published is not None:
            self._unstored.append((event, published))

    def retained_gone(self, topic: str) -> None:
        """Tell that a topic has no retained message any more."""
        if self._kinds & _RETAINED:
            self._put(FeedEvent(RETAIN_DELETED, self._tick.now, self._log.end, "", topic))

    def lost(self, name: str, why: str, first: int, last: int) -> None:
        """Tell the backend `name` that the messages with these offsets are gone before it came."""
        self._put(
            FeedEvent(
                GAP,
                self._tick.now,
                self._log.end,
                "",
                why,
                offset=first,
                accepted_ms=last,
                body=name.encode(),
            )
        )

    def retry(self, name: str, number: int, rule: str, row: bytes) -> None:
        """Let the backend `name` have the row of a dead letter again, alone if need be."""
        event = FeedEvent(
            AGAIN, self._tick.now, self._log.end, "", rule, offset=number, username=name, body=row
        )
        self._put(event)
        self.again.append(event)
        self.hurry()

    def fill(self, event: FeedEvent) -> int:
        """Let one backend have an event of its backfill; return the number that it has at most."""
        self._put(event)
        return self.seq + len(self._events)

    # The batch

    def next_deadline(self) -> int | None:
        """Return when the events must be written, broker ms; None = there are none."""
        return self._due_ms or None

    def is_due(self, now: int) -> bool:
        """Return whether a batch must be written now for events alone."""
        return bool(self._due_ms) and self._due_ms <= now

    def seal(self, batch: Batch) -> None:
        """Put the row of the collected events into the batch, and who came and went."""
        if not self._due_ms:
            return
        for key, value in self._presence.items():
            batch.append((PRESENCE, key, value))
        self._presence = {}
        if self.has_acks:
            self._find_topics()
        if self.again or self._unstored:
            for index, event in enumerate(self._events, self.seq + 1):
                event.seq = index
            for event, published in self._unstored:
                event.offset = UNSTORED | published.seq
            self._unstored.clear()
        for events in _rows_of(self._events):
            key, row = feed_key(self.seq + 1), encode_row(events)
            batch.append((FEED, key, row))
            self.seq += len(events)
            self.sizes.add(self.seq, events[-1].end, len(key) + len(row))
        self._events = []
        self._waiting_bytes = 0
        self._due_ms = 0
        self.sealed += 1

    def _find_topics(self) -> None:
        """Look up the topics of acknowledged messages; drop events whose message is gone."""
        wanted = sorted(
            {event.offset for event in self._events if event.kind == ACKED and event.offset}
        )
        if not wanted:
            return
        found: dict[int, Message] = {}
        try:
            messages = self._log.get_many(wanted)
        except DamagedRows:
            messages = [self._get(offset) for offset in wanted]
        for message in messages:
            if message is not None:
                found[message.offset] = message
        kept: list[FeedEvent] = []
        for event in self._events:
            if event.kind == ACKED and event.offset:
                known = found.get(event.offset)
                if known is None:
                    continue
                event.text = known.topic
                event.accepted_ms = known.accepted_at_ms
            kept.append(event)
        self._events = kept

    def _get(self, offset: int) -> Message | None:
        try:
            return self._log.get(offset)
        except DamagedRows as problem:
            self._damage.note("message", problem)
            return None


def _rows_of(events: list[FeedEvent]) -> Iterator[list[FeedEvent]]:
    """Yield the events of each row: what is read at once is bounded."""
    size = start = 0
    for index, event in enumerate(events):
        if index > start and (size >= ROW_BYTES_MAX or index - start >= ROW_EVENTS_MAX):
            yield events[start:index]
            size, start = 0, index
        size += len(event.body)
    if start < len(events):
        yield events[start:]
