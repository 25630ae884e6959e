"""What one session is owed, message by message, in the order in which it will be sent.

First what is in flight, which is sent again with its packet ids, then what waits behind the
session's position. Decides of each message what the broker would do with it now
(`session.delivery.backlog`, `session.delivery.redelivery`), but for the rules of access and the
largest packet of the client, which only a connection has. Reads page by page and must never hold a
whole backlog. Read next: `broker.operations.sessions.inventory`.
"""

from collections.abc import Iterator
from typing import Final

from broker.operations.sessions.backlogs import load_copy
from broker.operations.sessions.inventory import Inventory, SessionReport
from broker.operations.sessions.sizes import READ_PAGE
from mqtt.message import Message
from mqtt.topics import matches
from session.live.backlog_trim import Trim, Trimmer
from session.settings import Settings
from session.state.in_flight import (
    FROM_GROUP,
    FROM_MAILBOX,
    PERHAPS_SENT,
    QOS_MASK,
    REFERENCE_SHIFT,
    RELEASED,
    SOURCE_MASK,
)
from session.state.session import Session
from session.state.subscription import Subscription
from storage.errors import DamagedRows

# In flight
SENT: Final = "sent"
PERHAPS_SENT_STATE: Final = "perhaps_sent"  # its packet id was bound ahead
RECEIVED: Final = "received"  # PUBREC has come: PUBREL is owed, and not the message
# Behind the position
WAITS: Final = "waits"
# What the broker will not send, by the reason that it counts: see holdfast_messages_dropped_total.
EXPIRED: Final = "expired"
TOO_OLD: Final = "max_age"
OVER_LIMIT: Final = "session_limit"
NO_LOCAL: Final = "no_local"  # its own message
PURGED: Final = "purged"  # an operator has dropped it by its topic
DAMAGED: Final = "damaged"

# Where a message is
LOG: Final = "log"
SHARED: Final = "shared"  # in the log, for a shared subscription
RETAINED: Final = "retained"  # a copy of a retained message
FETCHED: Final = "fetched"  # a copy of one from an external store

TOPICS_MAX: Final = 4096  # topics whose subscriptions are remembered


class Owed:
    """One message that a session is owed, or one packet id."""

    __slots__ = ("message", "offset", "packet_id", "qos", "source", "state")

    def __init__(
        self,
        state: str,
        packet_id: int,
        source: str,
        offset: int,
        qos: int | None,
        message: Message | None,
    ) -> None:
        self.state: Final = state
        self.packet_id: Final = packet_id  # 0 = not in flight
        self.source: Final = source
        self.offset: Final = offset  # 0 = not in the log
        self.qos: Final = qos  # as it is delivered, None = it is not
        self.message: Final = message  # None = gone or damaged


def owed(
    inventory: Inventory, report: SessionReport, settings: Settings, now_ms: int
) -> Iterator[Owed]:
    """Yield what a session is owed at broker time `now_ms`, in the order of sending.

    Limits of a backlog (`session.max_offline_messages` and others) are applied as for a session
    that comes back now; one that is connected had them applied when it came back. Raises
    `DamagedRows` if its topic filters cannot be read; messages that cannot be are yielded.
    """
    yield from in_flight(inventory, report.session)
    yield from waiting(inventory, report, settings, now_ms)


def in_flight(inventory: Inventory, session: Session) -> Iterator[Owed]:
    """Yield the messages in flight, in the order in which they were first sent."""
    for packet_id, entry in session.in_flight.items():
        qos, reference = entry & QOS_MASK, entry >> REFERENCE_SHIFT
        source, offset = LOG, reference
        state = RECEIVED if entry & RELEASED else SENT
        if entry & PERHAPS_SENT:
            state = PERHAPS_SENT_STATE
        message: Message | None = None
        if entry & SOURCE_MASK == FROM_MAILBOX:
            offset = 0
            copy = load_copy(inventory.store, session.client_id, reference)
            source = RETAINED
            if copy is not None:
                message = copy.message
                source = RETAINED if copy.origin is None else FETCHED
        elif reference:  # else it was given up
            source = SHARED if entry & SOURCE_MASK == FROM_GROUP else LOG
            try:
                message = None if inventory.log is None else inventory.log.get(reference)
            except DamagedRows:
                state = state if state == RECEIVED else DAMAGED
        if message is None and state not in (RECEIVED, DAMAGED):
            state = DAMAGED if source in (RETAINED, FETCHED) else TOO_OLD
        yield Owed(state, packet_id, source, offset, qos, message)


def waiting(
    inventory: Inventory, report: SessionReport, settings: Settings, now_ms: int
) -> Iterator[Owed]:
    """Yield the messages behind the position, in the order of the log."""
    log, session = inventory.log, report.session
    streams = inventory.streams(session)
    if log is None or not streams:
        return
    trim: Trim | None = None
    trimmer = Trimmer(log, settings)
    if trimmer.is_limited and not report.is_connected and session.position < log.end:
        plan = trimmer.begin(streams, session)
        while not plan.advance():
            pass
        trim = plan.trim()
    judge = _Judge(session, settings, now_ms, trim)
    cursor = log.cursor(streams, session.position, 0, session.gaps)
    while not cursor.is_at_end:
        messages = cursor.next(READ_PAGE)
        lost = list(cursor.lost)
        cursor.lost.clear()
        if not lost:
            yield from map(judge.owed, messages)
            continue
        if trim is not None:
            trim.pass_over(lost)
        page: list[Message | int] = [*messages, *lost]
        page.sort(key=lambda each: each if isinstance(each, int) else each.offset)
        for each in page:
            if isinstance(each, int):
                yield Owed(DAMAGED, 0, LOG, each, None, None)
            else:
                yield judge.owed(each)


class _Judge:
    """Decides what becomes of the messages of a backlog; it must see each of them in order."""

    def __init__(
        self, session: Session, settings: Settings, now_ms: int, trim: Trim | None
    ) -> None:
        self._session: Final = session
        self._max_age_ms: Final = settings.max_age_s * 1000
        self._now_ms: Final = now_ms
        self._trim: Final = trim
        self._topics: dict[str, list[Subscription]] = {}

    def owed(self, message: Message) -> Owed:
        """Return a message with what becomes of it."""
        is_dropped = self._trim is not None and self._trim.drops(message.offset)
        qos = self._qos(message)
        state = WAITS
        if self._session.has_purged(message.topic, message.offset):
            qos, state = None, PURGED
        elif qos is None:
            state = NO_LOCAL
        elif is_dropped:
            state = OVER_LIMIT
        elif message.expires_at_ms and message.expires_at_ms <= self._now_ms:
            state = EXPIRED
        elif self._max_age_ms and message.accepted_at_ms + self._max_age_ms <= self._now_ms:
            state = TOO_OLD
        return Owed(state, 0, LOG, message.offset, qos, message)

    def _qos(self, message: Message) -> int | None:
        """Return the QoS of a message for this session, None if no subscription wants it."""
        session = self._session
        granted: int | None = None
        for subscription in self._matching(message.topic):
            if message.publisher == session.client_id and session.is_no_local(subscription):
                continue
            if message.offset <= subscription.since:
                continue
            granted = max(granted or 0, subscription.qos)
        return None if granted is None else min(granted, message.qos)

    def _matching(self, topic: str) -> list[Subscription]:
        found = self._topics.get(topic)
        if found is None:
            if len(self._topics) >= TOPICS_MAX:
                self._topics.clear()
            found = self._topics[topic] = [
                subscription
                for subscription in self._session.subscriptions.values()
                if subscription.share_name is None and matches(subscription.stream_filter, topic)
            ]
        return found
