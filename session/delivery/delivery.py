"""Messages on their way to one session: live from memory, behind from the store, again at resume.

A session that keeps up is handed each message as it arrives. When its window is full a bounded
queue takes over; when that is full too the session lags: it then reads its streams from the store,
in log order, whenever its window has room, until it reaches the tail and is live again. Both ways
lead through the same position, so nothing is skipped and nothing is sent twice.

A packet id that is bound later than in the batch of its message's append leaves only when the
binding is durable, at QoS 1 too: after a crash the store then knows every id that a client may have
seen. Read next: `session.delivery.publish_bytes` (bytes), `session.routing.retained`,
`session.delivery.shared`.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from mqtt.encoder import PACKET_ID, pubrel
from mqtt.message import Message
from mqtt.packets import PUBREL
from mqtt.topics import SHARE_PREFIX, matches
from session.counters import Counters
from session.delivery.backlog_page import Pages
from session.delivery.outgoing import Fitting
from session.delivery.publish_bytes import Parts, RunParts, encode_delivery
from session.history.delivery_events import Dispatches
from session.live.backlog_trim import Trimmer
from session.live.commit_gate import CommitGate
from session.live.connection import ACTIVE, Connection, Pending
from session.live.tick import Tick
from session.ports import Policy
from session.routing.retained import EXAMINE_MAX, Retained
from session.routing.router import Routes, Target
from session.settings import Settings
from session.state.in_flight import (
    FROM_GROUP,
    FROM_LOG,
    FROM_MAILBOX,
    QOS_MASK,
    REFERENCE_SHIFT,
    RELEASED,
    SOURCE_MASK,
    UNSTORED_REFERENCE,
)
from session.state.session import Session
from storage.api import Store
from storage.log.message_log import Cursor, MessageLog, Stream
from storage.tables.message_record import decode_message, encode_message
from storage.tables.tables import MAILBOX, mailbox_key

# Messages one group may read from the store in one tick, and retained ones one session. It bounds
# the work between two looks at the sockets; what is more simply takes more ticks.
READ_MAX: Final = 64
# Rows a reader may look at in vain in one tick, where the layout has no index; about 2 ms.
SCAN_MAX: Final = 2048
# Messages of its backlog that one session may read in one tick: as many as are in flight to it.
PAGE_MAX: Final = 256
# What all that read in one tick may do together, in messages: about 15 ms. One more page than that,
# and a reader costs something whatever it reads; one that looked at rows in vain as much as a page.
READ_WORK_MAX: Final = 2048
READER_WORK: Final = 8
# Bytes one session is sent again in one tick, and bytes of retained messages; one message more.
SENT_BYTES_MAX: Final = 1 << 20
# Groups that read in one tick.
READERS_MAX: Final = 32
# Topics whose new retained message one SUBSCRIBE remembers; beyond it there may be a second copy.
OVERTAKEN_MAX: Final = 10_000


class Delivery:
    """Moves messages into connections' out-buffers and keeps each session's place."""

    def __init__(
        self,
        tick: Tick,
        gate: CommitGate,
        store: Store,
        log: MessageLog,
        routes: Routes,
        retained: Retained,
        settings: Settings,
        policy: Policy,
        counters: Counters,
        dispatches: Dispatches,
    ) -> None:
        self._tick: Final = tick
        self._gate: Final = gate
        self._store: Final = store
        self._log: Final = log
        self._routes: Final = routes
        self._retained: Final = retained
        self._settings: Final = settings
        self._policy: Final = policy
        self._counters: Final = counters
        self._dispatches: Final = dispatches
        self._trimmer: Final = Trimmer(log, settings)
        self._fitting: Final = Fitting(tick, routes, policy, counters, dispatches)
        self._pages: Final = Pages(tick, gate, routes, settings, policy, counters, dispatches)
        self._is_open: Final = policy.is_open

    # Live

    def publish(self, message: Message, targets: list[Target]) -> None:
        """Hand a message that was just accepted to every connected session that matches.

        If it has an offset, its log rows are in the current batch, and so will be the packet ids.
        """
        self._tick.work += len(targets)
        variants: dict[object, Parts] = {}
        for target in targets:
            self._hand_over(target, message, variants)

    def publish_run(
        self,
        message: Message,
        payloads: list[bytes],
        first: int,
        number: int,
        targets: list[Target],
    ) -> None:
        """Hand over what `publish` would one by one: messages that differ only in their payloads.

        `message` stands for all of them. The first has the offset `first`, the others follow it;
        0 = none is stored, and `number` is what the history calls the first.
        """
        self._tick.work += len(targets) * len(payloads)
        variants: dict[object, RunParts] = {}
        messages: list[Message] = []
        each: list[dict[object, Parts]] = []
        for target in targets:
            if self._send_run(target, message, payloads, first, number, variants):
                continue
            if not messages:
                messages = _one_by_one(message, payloads, first, number)
                each = [{} for _ in messages]
            for index, single in enumerate(messages):
                self._hand_over(target, single, each[index])

    def _send_run(
        self,
        target: Target,
        message: Message,
        payloads: list[bytes],
        first: int,
        number: int,
        variants: dict[object, RunParts],
    ) -> bool:
        """Send a whole run to a session that keeps up; False if its messages need a look each."""
        connection = target.connection
        session = connection.session
        assert session is not None
        waiting = connection.waiting
        if (
            not self._is_open
            or connection.state != ACTIVE
            or not connection.writable
            or (waiting is not None and waiting.messages)
            or connection.alias_out_max
            or (target.no_local and message.publisher == session.client_id)
        ):
            return False
        qos = message.qos if message.qos < target.qos else target.qos
        count = len(payloads)
        if qos == 0:
            if first or self._gate.is_full(connection):
                return False
        elif (
            connection.is_lagging
            or (session.is_stored and not first)
            or session.send_quota < count
            or connection.pending
            or connection.resend
        ):
            return False
        parts = self._fitting.run_parts(
            connection, message, payloads, qos, target.identifiers, variants
        )
        limit = connection.maximum_packet_size
        if limit and parts.size_max > limit:
            return False
        self._counters.messages_sent[qos] += count
        self._counters.payload_bytes_sent += parts.payload_bytes
        if qos == 0:
            self._gate.send(connection, parts.joined())
            packet_ids = None
        else:
            packet_ids = self._bind_run(session, first, number, qos, count)
            self._gate.send_run(connection, parts.heads, packet_ids, parts.tails)
        if self._dispatches.is_on:
            size, now = parts.payload_bytes, self._tick.now
            self._dispatches.delivered_run(
                connection, session, first, number, count, size, packet_ids, qos, now
            )
        return True

    def _bind_run(
        self, session: Session, first: int, number: int, qos: int, count: int
    ) -> list[int]:
        """Bind packet ids to the messages of a run."""
        reference, flags = first, qos | FROM_LOG
        if not first and number:
            reference, flags = number, flags | UNSTORED_REFERENCE
        packet_ids = session.bind_run(reference, 1 if reference else 0, flags, count)
        if session.is_stored:
            session.position = first + count - 1
            self._tick.dirty[session] = None
        return packet_ids

    def _hand_over(self, target: Target, message: Message, variants: dict[object, Parts]) -> None:
        """Hand one message to one connected session that matches."""
        qos = message.qos
        offset = message.offset
        connection = target.connection
        session = connection.session
        assert session is not None
        identifiers = target.identifiers
        effective = qos if qos < target.qos else target.qos
        retain = message.retain and target.retain_as_published
        if target.no_local and message.publisher == session.client_id:
            options = self._fitting.options(session, message)
            if options is None:
                # Done with, whatever the subscription's options are when it reads again.
                if connection.pending:
                    connection.passed_over = offset
                elif not connection.is_lagging:
                    self._pass_over(session, offset)
                return
            effective, retain, identifiers = options
        if effective == 0:
            if offset and self._is_held(session, message):
                self._publish_held_qos0(connection, message, retain, identifiers, variants)
            else:
                self.send_qos0(connection, message, retain, identifiers, variants)
            return
        if connection.is_lagging:
            return  # it is in the session's streams
        if session.is_stored and not offset:
            self._fitting.drop(connection, message, "total_limit")
            return
        if (
            session.send_quota == 0
            or connection.pending
            or connection.resend
            or not connection.writable
            or (connection.waiting is not None and self._gate.blocks_messages(connection))
        ):
            self._queue(connection, Pending(message, effective, retain, identifiers))
            return
        at_once = effective == 1 or not session.is_stored
        parts = self._fitting.parts(
            connection, message, effective, retain, identifiers, variants, at_once
        )
        if parts is None:
            self._pass_over(session, offset)
            return
        self._counters.payload_bytes_sent += len(message.payload)
        self._send_live(connection, session, parts, message, effective, retain)

    def _send_live(
        self,
        connection: Connection,
        session: Session,
        parts: Parts,
        message: Message,
        qos: int,
        retain: bool,
    ) -> None:
        """Bind a packet id in the batch of the append, and send.

        At QoS 1 at once: a crash that takes the binding takes the message. At QoS 2 to a stored
        session after the commit, and never past a message that is held.
        """
        tick = self._tick
        packet_id = self._bind(session, message, message.offset, qos | FROM_LOG)
        self._counters.messages_sent[qos] += 1
        if self._dispatches.is_on:
            self._dispatches.delivered(
                connection, session, message, packet_id, qos, retain, tick.now
            )
        if session.is_stored:
            session.position = message.offset
            tick.dirty[session] = None
            if qos == 2:
                data = b"".join((parts[0], PACKET_ID[packet_id], parts[1]))
                self._gate.send_messages_after_commit(connection, data)
                return
        self._gate.send_message(connection, parts[0], PACKET_ID[packet_id], parts[1])

    def _bind(self, session: Session, message: Message, reference: int, flags: int) -> int:
        """Bind a packet id to a message, which the history may know by a number of its own."""
        if not reference and message.number and not flags & SOURCE_MASK:
            return session.bind(message.number, flags | UNSTORED_REFERENCE)
        return session.bind(reference, flags)

    def _is_held(self, session: Session, message: Message) -> bool:
        """Is this stored message in one of the session's own streams?"""
        for entry in self._routes.match(message.topic).entries:
            subscription = session.subscriptions.get(entry.topic_filter)
            if subscription is not None and subscription.holds:
                return True
        return False

    def _publish_held_qos0(
        self,
        connection: Connection,
        message: Message,
        retain: bool,
        identifiers: tuple[int, ...],
        variants: dict[object, Parts],
    ) -> None:
        """Send at QoS 0 what is in the session's streams, too: in its turn there, and once."""
        session = connection.session
        assert session is not None
        if connection.is_lagging:
            return
        if connection.pending:
            self._queue(connection, Pending(message, 0, retain, identifiers))
            return
        self.send_qos0(connection, message, retain, identifiers, variants)
        self._pass_over(session, message.offset)

    def _pass_over(self, session: Session, offset: int) -> None:
        """A message is done without having been sent."""
        if session.is_stored and offset > session.position:
            session.position = offset
            self._tick.mark_late(session)

    def _queue(self, connection: Connection, item: Pending) -> None:
        session = connection.session
        assert session is not None
        settings = self._settings
        pending = connection.pending
        size = len(item.message.payload)
        if session.is_stored:
            limit, bytes_max = settings.pending_messages_max, settings.pending_bytes_max
        else:
            limit, bytes_max = settings.clean_queue_messages_max, settings.clean_queue_bytes_max
        fits = not pending or connection.pending_bytes + size <= bytes_max
        if len(pending) < limit and fits:
            connection.queue(item)
        elif session.is_stored:
            # All of them are in the log above its position: read them from there.
            connection.clear_queue()
            self.lag(connection)
        elif settings.on_limit == "drop_oldest" and limit:
            self._fitting.drop(connection, connection.next_pending().message, "queue_full")
            while pending and connection.pending_bytes + size > bytes_max:
                self._fitting.drop(connection, connection.next_pending().message, "queue_full")
            connection.queue(item)
        else:
            self._fitting.drop(connection, item.message, "queue_full")

    def lag(self, connection: Connection) -> None:
        """From now on the session reads its streams from the store."""
        connection.is_lagging = True
        connection.cursor = None
        connection.passed_over = 0
        self.want_room(connection)

    def send_qos0(
        self,
        connection: Connection,
        message: Message,
        retain: bool,
        identifiers: tuple[int, ...],
        variants: dict[object, Parts],
        share_name: str = "",
        stream: int = 0,
    ) -> None:
        """Send at QoS 0, or drop and count it if the client does not take what it has already.

        A shared subscription has the name `share_name` and the durable stream `stream`, 0 = none.
        """
        if not connection.writable or connection.state != ACTIVE:
            self._fitting.drop(connection, message, "slow_consumer")
            return
        if connection.waiting is not None and self._gate.blocks_messages(connection):
            # What it waits behind has not been committed for long.
            self._fitting.drop(connection, message, "slow_consumer")
            return
        parts = self._fitting.parts(connection, message, 0, retain, identifiers, variants, True)
        if parts is None:
            return
        self._counters.messages_sent[0] += 1
        self._counters.payload_bytes_sent += len(message.payload)
        if self._dispatches.is_on:
            session = connection.session
            assert session is not None
            self._dispatches.delivered(
                connection, session, message, 0, 0, retain, self._tick.now, share_name, stream
            )
        self._gate.send_message(connection, parts[0], b"", parts[1])

    # Room

    def want_room(self, connection: Connection) -> None:
        """Something waits for this connection: move it on if its window has room."""
        if not connection.has_room():
            if connection.resend and connection.writable and connection.state == ACTIVE:
                self._resend_waiting(connection)
            if not connection.has_room():
                return
        session = connection.session
        assert session is not None
        pending = connection.pending
        now = self._tick.now
        while pending and session.send_quota > 0 and not self._gate.is_full(connection):
            item = connection.next_pending()
            message = item.message
            if message.expires_at_ms and message.expires_at_ms <= now:
                self._fitting.expire(connection, session, message)
                self._pass_over(session, message.offset)
                continue
            if item.qos == 0:
                self._send_qos0_in_order(connection, message, item.retain, item.identifiers)
                self._pass_over(session, message.offset)
                continue
            self.send_bound(
                connection, message, item.qos, item.retain, item.identifiers, message.offset, 0
            )
        if connection.passed_over and not pending:
            self._pass_over(session, connection.passed_over)
            connection.passed_over = 0
        if session.send_quota > 0 and (connection.is_lagging or session.replays):
            self._tick.readers[connection] = None

    def send_bound(
        self,
        connection: Connection,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        reference: int,
        source: int,
        *,
        after_commit: bool = False,
    ) -> int:
        """Bind a packet id and send when that is durable; returns the id, 0 if it was too large.

        For a session in memory it goes out at once, unless `after_commit`. The window has room.
        """
        session = connection.session
        assert session is not None
        parts = self._fitting.parts(connection, message, qos, retain, identifiers, {}, False)
        if parts is None:
            if source == FROM_LOG:
                self._pass_over(session, reference)
            return 0
        packet_id = self._bind(session, message, reference, qos | source)
        self._counters.messages_sent[qos] += 1
        if source == FROM_LOG and self._dispatches.is_on:
            now = self._tick.now
            self._dispatches.delivered(connection, session, message, packet_id, qos, retain, now)
        self._counters.payload_bytes_sent += len(message.payload)
        data = b"".join((parts[0], PACKET_ID[packet_id], parts[1]))
        if not session.is_stored:
            if after_commit:
                self._gate.send_messages_after_commit(connection, data)
            else:
                self._gate.send_message_in_turn(connection, data)
            return packet_id
        if source == FROM_LOG and reference > session.position:
            session.position = reference
        self._tick.dirty[session] = None
        self._gate.send_messages_after_commit(connection, data)
        return packet_id

    # Behind: from the store, after the batch was written

    def read(self) -> bool:
        """Let those read who have room and want to; True if some of them did not get all.

        Call right after the batch was written: what is in the log is then in the store.
        """
        tick = self._tick
        readers = tick.readers
        work = 0
        for connection in list(islice(readers, READ_WORK_MAX // READER_WORK)):
            if work > READ_WORK_MAX:
                break
            work += READER_WORK
            del readers[connection]
            session = connection.session
            quota = 0 if session is None else session.send_quota
            if connection.resend and connection.writable and connection.state == ACTIVE:
                self._resend_waiting(connection)
                assert session is not None
                work += quota - session.send_quota
                quota = session.send_quota
            if session is None or not connection.has_room():
                continue
            if self._gate.is_full(connection):
                continue  # woken when some of it is released
            if session.replays:
                self._replay(connection, session)
            work += quota - session.send_quota
            if connection.is_lagging and connection.has_room():
                work += self._catch_up(connection, session)
            if connection.has_room() and (connection.is_lagging or session.replays):
                readers[connection] = None
        return bool(readers)

    def _cursor(self, connection: Connection, session: Session) -> Cursor:
        cursor = connection.cursor
        if cursor is None:
            cursor = self._log.cursor(self.streams(session), session.position)
            connection.cursor = cursor
        return cursor

    def streams(self, session: Session) -> list[Stream]:
        """Return the streams whose messages are stored for the session."""
        found = []
        for subscription in session.subscriptions.values():
            if subscription.share_name is None and subscription.holds:
                filter_id = self._routes.filter_id(subscription.stream_filter)
                assert filter_id
                found.append(Stream(filter_id, subscription.stream_filter, subscription.since))
        return found

    def _catch_up(self, connection: Connection, session: Session) -> int:
        """Send the next page of a session's backlog; returns what that has cost, in messages."""
        if connection.plan is not None:
            if not connection.plan.advance():
                return PAGE_MAX
            connection.trim = connection.plan.trim()
            connection.plan = None
        cursor = self._cursor(connection, session)
        missing, before = cursor.missing, cursor.position
        messages = cursor.next(min(PAGE_MAX, session.send_quota), SCAN_MAX)
        if cursor.missing > missing:
            gone = cursor.missing - missing
            self._counters.drop("max_age", gone)
            if self._dispatches.is_on:
                self._dispatches.dropped_range(
                    session,
                    connection.number,
                    before + 1,
                    cursor.position,
                    gone,
                    "max_age",
                    self._tick.now,
                )
        if not messages and cursor.position == before:
            # The tail: everything up to the end of the log was handed out. Live again.
            connection.is_lagging = False
            connection.cursor = None
            connection.trim = None
            if session.position < self._log.end:
                session.position = self._log.end
                self._tick.mark_late(session)
            return 0
        at = 0
        while at < len(messages):
            at = self._pages.send(connection, session, messages, at)
            if at < len(messages):
                self._deliver_stored(connection, session, messages[at])
                at += 1
        session.position = max(session.position, cursor.position)
        self._tick.mark(session)
        return len(messages) or PAGE_MAX

    def _deliver_stored(self, connection: Connection, session: Session, message: Message) -> None:
        # A plan counts every message of the backlog, so it is asked about every one.
        is_dropped = connection.trim is not None and connection.trim.drops(message.offset)
        options = self._fitting.options(session, message)
        if options is None:
            return
        if is_dropped:
            self._fitting.drop(connection, message, "session_limit")
            return
        now = self._tick.now
        if message.expires_at_ms and message.expires_at_ms <= now:
            self._fitting.expire(connection, session, message)
            return
        max_age_ms = self._settings.max_age_s * 1000
        if max_age_ms and message.accepted_at_ms + max_age_ms <= now:
            self._fitting.drop(connection, message, "max_age")
            return
        qos, retain, identifiers = options
        if qos == 0:
            self._send_qos0_in_order(connection, message, retain, identifiers)
        else:
            self.send_bound(connection, message, qos, retain, identifiers, message.offset, FROM_LOG)

    def _send_qos0_in_order(
        self,
        connection: Connection,
        message: Message,
        retain: bool,
        identifiers: tuple[int, ...],
        is_retained: bool = False,
    ) -> None:
        """Send a stored message at QoS 0, behind what is held for this connection.

        One that `is_retained` answers a SUBSCRIBE.
        """
        parts = self._fitting.parts(connection, message, 0, retain, identifiers, {}, False)
        if parts is not None:
            self._counters.messages_sent[0] += 1
            self._counters.payload_bytes_sent += len(message.payload)
            if self._dispatches.is_on:
                session = connection.session
                assert session is not None
                now = self._tick.now
                if is_retained:
                    self._dispatches.retained(connection, session, message, 0, 0, now)
                else:
                    self._dispatches.delivered(connection, session, message, 0, 0, retain, now)
            self._gate.send_message_in_turn(connection, parts[0] + parts[1])

    def _replay(self, connection: Connection, session: Session) -> None:
        """Send the next retained messages that SUBSCRIBEs are owed, of several filters at once.

        Many filters that find nothing must not take a tick each: the record of a stored session
        names all that are left, and is written with every one.
        """
        replays = session.replays
        rows = EXAMINE_MAX
        left = READ_MAX
        size = 0
        while (
            replays and rows > 0 and left > 0 and session.send_quota > 0 and size < SENT_BYTES_MAX
        ):
            replay = next(iter(replays.values()))
            found, replay.start, examined = self._retained.read(
                replay.topic_filter, replay.start, min(left, session.send_quota)
            )
            rows -= examined + 1
            left -= len(found)
            for message in found:
                size += len(message.payload)
                if message.topic not in replay.overtaken:
                    self.send_retained(connection, session, message, replay.qos, replay.identifier)
            if not replay.start:
                del replays[replay.topic_filter]
        self._tick.mark(session)

    def retained_again(self, topic: str, publisher: str, targets: list[Target]) -> None:
        """A retained message was replaced: who gets the new one live does not get it twice.

        Without this a SUBSCRIBE that is still being answered would find a message that was
        published after it, at QoS 2 too.
        """
        for target in targets:
            session = target.connection.session
            assert session is not None
            if target.no_local and session.client_id == publisher:
                continue  # to it the new one goes as a retained message only
            for replay in session.replays.values():
                if len(replay.overtaken) < OVERTAKEN_MAX and matches(replay.topic_filter, topic):
                    replay.overtaken.add(topic)

    def send_retained(
        self,
        connection: Connection,
        session: Session,
        message: Message,
        granted: int,
        identifier: int,
    ) -> None:
        """Send one retained message to a new subscription, with RETAIN 1 [MQTT-3.3.1-8]."""
        if message.expires_at_ms and message.expires_at_ms <= self._tick.now:
            return
        identifiers = (identifier,) if identifier else ()
        qos = min(message.qos, granted)
        if qos == 0:
            self._send_qos0_in_order(connection, message, True, identifiers, True)
            return
        reference = 0
        if session.is_stored:
            # A copy: the packet id must keep its message when the topic gets a new one.
            reference = session.next_mailbox
            session.next_mailbox += 1
        packet_id = self.send_bound(
            connection, message, qos, True, identifiers, reference, FROM_MAILBOX
        )
        if packet_id and self._dispatches.is_on:
            now = self._tick.now
            self._dispatches.retained(connection, session, message, packet_id, qos, now)
        if packet_id and session.is_stored:
            row = identifier.to_bytes(4, "big") + encode_message(message)
            self._tick.batch.append((MAILBOX, mailbox_key(session.client_id, reference), row))

    # Again

    def resume(self, connection: Connection) -> None:
        """Re-send what was in flight, in its order and with its packet ids [MQTT-4.4.0-1].

        PUBREL never waits for the window; a PUBLISH that finds it full is sent when it opens, and
        nothing new is sent before it. The caller has written the batch.
        """
        session = connection.session
        assert session is not None
        for packet_id, entry in list(session.in_flight.items()):
            if entry & RELEASED:
                self._counters.redeliveries += 1
                self._counters.packets_sent[PUBREL] += 1
                self._gate.send_after_commit(connection, pubrel(packet_id))
            elif connection.resend or session.send_quota == 0 or self._gate.is_full(connection):
                connection.send_later(packet_id)
            else:
                self._resend(connection, session, packet_id, entry)
        if session.position < self._log.end:
            connection.is_lagging = True
            connection.plan = self._trimmer.begin(self.streams(session), session.position)
        self.want_room(connection)

    def _resend_waiting(self, connection: Connection) -> None:
        session = connection.session
        assert session is not None
        waiting = connection.resend
        size = 0
        while waiting and session.send_quota > 0 and not self._gate.is_full(connection):
            if size >= SENT_BYTES_MAX:
                self._tick.readers[connection] = None  # goes on in the next tick
                return
            packet_id = waiting.popleft()
            entry = session.in_flight.get(packet_id)
            if entry is not None and not entry & RELEASED:
                size += self._resend(connection, session, packet_id, entry)

    def _resend(self, connection: Connection, session: Session, packet_id: int, entry: int) -> int:
        """Send a message in flight again; returns its size, 0 if it is given up."""
        loaded = self._load_in_flight(session, packet_id, entry)
        if loaded is None:
            self._drop_in_flight(connection, session, packet_id, entry, "max_age")
            self.abandon(session, packet_id)
            return 0
        message, retain, identifiers = loaded
        if not self._is_open and not self._fitting.is_permitted(session, message):
            self._drop_in_flight(connection, session, packet_id, entry, "not_authorized")
            self.abandon(session, packet_id)
            return 0
        qos = entry & QOS_MASK
        head, tail = encode_delivery(
            connection.version, message, qos, retain, True, identifiers, self._tick.now
        )
        limit = connection.maximum_packet_size
        if limit and len(head) + len(tail) + 2 > limit:
            self._drop_in_flight(connection, session, packet_id, entry, "too_large")
            self.abandon(session, packet_id)
            return 0
        session.take_quota_again(packet_id)
        self._counters.redeliveries += 1
        if self._dispatches.is_on:
            now = self._tick.now
            self._dispatches.delivered_again(
                connection, session, packet_id, entry, message, retain, now
            )
        self._counters.messages_sent[qos] += 1
        self._counters.payload_bytes_sent += len(message.payload)
        self._gate.send_message_in_turn(connection, b"".join((head, PACKET_ID[packet_id], tail)))
        return len(head) + len(tail)

    def _drop_in_flight(
        self, connection: Connection, session: Session, packet_id: int, entry: int, reason: str
    ) -> None:
        self._counters.drop(reason)
        if self._dispatches.is_on:
            self._dispatches.dropped_in_flight(
                session, connection.number, packet_id, entry, reason, self._tick.now
            )

    def _load_in_flight(
        self, session: Session, packet_id: int, entry: int
    ) -> tuple[Message, bool, tuple[int, ...]] | None:
        """Return (message, RETAIN, subscription identifiers) of an in-flight entry, from disk."""
        reference = entry >> REFERENCE_SHIFT
        if entry & SOURCE_MASK == FROM_MAILBOX:
            row = self._store.get(MAILBOX, mailbox_key(session.client_id, reference))
            if row is None:
                return None
            identifier = int.from_bytes(row[:4], "big")
            return decode_message(row[4:], 0), True, (identifier,) if identifier else ()
        message = self._log.get(reference)
        if message is None:
            return None
        if entry & SOURCE_MASK == FROM_GROUP:
            share_name, stream_filter = session.leases[packet_id]
            shared = session.subscriptions.get(f"{SHARE_PREFIX}{share_name}/{stream_filter}")
            if shared is None:
                return message, False, ()
            identifier = shared.identifier
            retain = message.retain and session.keeps_retain(shared)
            return message, retain, (identifier,) if identifier else ()
        options = self._fitting.options(session, message)
        if options is None:  # unsubscribed meanwhile: what was begun is completed
            return message, False, ()
        return message, options[1], options[2]

    def abandon(self, session: Session, packet_id: int) -> None:
        """End an exchange that must not be continued; its packet id is free."""
        entry = session.drop_in_flight(packet_id)
        session.leases.pop(packet_id, None)
        self.finished(session, entry)
        self._tick.mark(session)

    def finished(self, session: Session, entry: int) -> None:
        """Drop what was kept for an exchange that ended."""
        if entry & SOURCE_MASK == FROM_MAILBOX and session.is_stored:
            key = mailbox_key(session.client_id, entry >> REFERENCE_SHIFT)
            self._tick.batch.append((MAILBOX, key, None))

    def drop_mailbox(self, session: Session) -> None:
        """Remove all mailbox rows of a stored session that ends: each is in flight."""
        for entry in session.in_flight.values():
            self.finished(session, entry)

    def invariants(self, connection: Connection) -> Iterator[str]:
        """Yield what must hold of a connection's deliveries and does not."""
        session = connection.session
        if session is None:
            return
        if connection.is_lagging and connection.pending:
            yield f"{session.client_id}: lags and has {len(connection.pending)} pending"
        if connection.pending and not session.is_stored:
            return
        for item in connection.pending:
            if item.message.offset <= session.position:
                yield (
                    f"{session.client_id}: offset {item.message.offset} is pending,"
                    f" but the position is {session.position}"
                )


def _one_by_one(message: Message, payloads: list[bytes], first: int, number: int) -> list[Message]:
    """Return the messages of a run."""
    messages = [
        Message(
            message.topic,
            payload,
            message.qos,
            False,
            message.properties,
            message.publisher,
            message.accepted_at_ms,
            message.expires_at_ms,
            first + index if first else 0,
        )
        for index, payload in enumerate(payloads)
    ]
    if number:
        for index, single in enumerate(messages):
            single.number = number + index
    return messages
