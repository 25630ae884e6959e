"""Shared subscriptions: sends each message of `$share/NAME/FILTER` to one member of the group.

A member gets a message only when its window has room; until then the message stays with the group
[MQTT-4.8.2]. If a member's session ends, its unacknowledged QoS 1 messages go to another member and
its QoS 2 messages are dropped [MQTT-4.8.2-5]. A group whose members are all in memory keeps a
bounded queue. Read next: `session.delivery.shared.groups`, `session.delivery.sender`.
"""

from typing import Final

from mqtt.message import Message
from session.delivery.backlog import SCAN_MAX
from session.delivery.context import DeliveryContext
from session.delivery.live import LiveDelivery
from session.delivery.outgoing import Outgoing
from session.delivery.sender import Sender
from session.delivery.shared.groups import Groups
from session.live.connection import ACTIVE, Connection
from session.live.subscribers import Group
from session.live.tick import STEPS_SHIFT
from session.state.in_flight import FROM_GROUP, QOS_MASK, REFERENCE_SHIFT, RELEASED, SOURCE_MASK
from session.state.session import Session
from storage.errors import DamagedRows
from storage.log.message_log import Cursor, Stream

# Messages one group may read from the store in one tick; it bounds how long the sockets wait.
READ_MAX: Final = 64
# Groups that read in one tick.
READERS_MAX: Final = 32


class Distribution:
    """Sends each message to one member of a group."""

    def __init__(
        self,
        context: DeliveryContext,
        groups: Groups,
        outgoing: Outgoing,
        live: LiveDelivery,
        sender: Sender,
    ) -> None:
        self._tick: Final = context.tick
        self._log: Final = context.log
        self._settings: Final = context.settings
        self._is_open: Final = context.is_open
        self._gate: Final = context.gate
        self._counters: Final = context.counters
        self._damage: Final = context.damage
        self._deliveries: Final = context.history.deliveries
        self._groups: Final = groups.by_key
        self._outgoing: Final = outgoing
        self._live: Final = live
        self._sender: Final = sender

    def publish(self, message: Message, groups: list[Group]) -> None:
        """Send a message that was just accepted to one member of each group."""
        for group in groups:
            if group.is_stored and message.offset:
                self._publish_stored(group, message)
            elif message.qos == 0:
                self._publish_qos0(group, message)
            elif group.is_stored:
                self.drop(group, message, "total_limit")
            else:
                self._publish_in_memory(group, message)

    def _publish_stored(self, group: Group, message: Message) -> None:
        if not group.is_lagging and not group.owed and not group.pending:
            connection = self._pick(group, message.topic)
            if connection is not None:
                group.position = message.offset
                self._tick.dirty_groups[group] = None
                self._hand_out(group, connection, message)
                return
        group.is_lagging = True
        if group.cursor is None and any(member.has_room() for member in group.members):
            self._tick.group_readers[group] = None

    def _publish_in_memory(self, group: Group, message: Message) -> None:
        connection = None if group.pending else self._pick(group, message.topic)
        if connection is not None:
            self._hand_out(group, connection, message)
            return
        settings = self._settings
        bytes_max = settings.clean_queue_bytes_max - len(message.payload)
        fits = not group.pending or group.pending_bytes <= bytes_max
        if len(group.pending) < settings.clean_queue_messages_max and fits:
            group.queue(message)
            return
        if settings.on_limit == "drop_oldest" and group.pending:
            self.drop(group, group.next_pending(), "queue_full")
            while group.pending and group.pending_bytes > bytes_max:
                self.drop(group, group.next_pending(), "queue_full")
            group.queue(message)
        else:
            self.drop(group, message, "queue_full")

    def _publish_qos0(self, group: Group, message: Message) -> None:
        members = list(group.members)
        count = len(members)
        self._tick.work += count >> STEPS_SHIFT
        for step in range(count):
            connection = members[(group.rotor + step) % count]
            if connection.state != ACTIVE or not connection.writable:
                continue
            if self._may_receive(connection, message.topic):
                group.rotor = (group.rotor + step + 1) % count
                self._send_qos0(group, connection, message)
                return

    def _pick(self, group: Group, topic: str, *, in_memory: bool = False) -> Connection | None:
        """Return the next member in turn that may receive the topic and has room, or None.

        `in_memory` means: only a member whose session is in memory.
        """
        members = list(group.members)
        count = len(members)
        self._tick.work += count >> STEPS_SHIFT
        for step in range(count):
            connection = members[(group.rotor + step) % count]
            if not connection.has_room() or self._gate.is_full(connection):
                continue
            session = connection.session
            assert session is not None
            if in_memory and session.is_stored:
                continue
            if not self._may_receive(connection, topic):
                continue
            group.rotor = (group.rotor + step + 1) % count
            return connection
        return None

    def _may_receive(self, connection: Connection, topic: str) -> bool:
        if self._is_open:
            return True
        session = connection.session
        assert session is not None
        return self._outgoing.is_permitted(session, topic)

    def _hand_out(self, group: Group, connection: Connection, message: Message) -> None:
        """Send a QoS > 0 message to a member that has room."""
        subscription = group.members[connection]
        session = connection.session
        assert session is not None
        qos = min(message.qos, subscription.qos)
        if qos == 0:
            self._send_qos0(group, connection, message)
            return
        identifier = subscription.identifier
        retain = message.retain and session.keeps_retain(subscription)
        packet_id = self._sender.send_bound(
            connection,
            message,
            qos,
            (identifier,) if identifier else (),
            message.offset,
            FROM_GROUP,
            retain=retain,
            after_commit=group.is_stored,
        )
        if not packet_id:
            return
        session.leases[packet_id] = group.key()
        if self._deliveries.wants_sent:
            self._deliveries.delivered(
                connection,
                session,
                message,
                packet_id,
                qos,
                retain,
                self._tick.now,
                group.share_name,
                group.entry.filter_id,
            )
        if not group.is_stored or not message.offset:
            group.borrowed[connection, packet_id] = message
        elif not session.is_stored and qos == 1:
            group.leased[message.offset] = None
            self._tick.dirty_groups[group] = None

    def _send_qos0(self, group: Group, connection: Connection, message: Message) -> None:
        subscription = group.members[connection]
        session = connection.session
        assert session is not None
        retain = message.retain and session.keeps_retain(subscription)
        identifier = subscription.identifier
        self._live.send_qos0(
            connection,
            message,
            (identifier,) if identifier else (),
            {},
            group.share_name,
            group.entry.filter_id,
            retain=retain,
        )

    def acknowledged(self, connection: Connection, packet_id: int, entry: int) -> None:
        """Note that a member is done with one of the group's messages."""
        session = connection.session
        assert session is not None
        group = self._groups.get(session.leases.pop(packet_id))
        if group is None:
            return
        group.borrowed.pop((connection, packet_id), None)
        offset = entry >> REFERENCE_SHIFT
        if not session.is_stored and offset in group.leased:
            del group.leased[offset]
            self._tick.dirty_groups[group] = None

    def send_waiting(self, connection: Connection) -> None:
        """Send what waits in the groups of a member that may have room again."""
        self._tick.work += len(connection.group_keys) >> STEPS_SHIFT
        for key in connection.group_keys:
            self.hand_out_waiting(self._groups[key])

    def hand_out_waiting(self, group: Group) -> None:
        """Send what waits in a group while its members have room."""
        if group.pending:
            self._move_pending(group)
        if (group.owed or group.is_lagging) and group.members:
            self._tick.group_readers[group] = None

    def _move_pending(self, group: Group) -> None:
        while group.pending:
            message = group.pending[0]
            # A message accepted before the group became a stored one is not on disk. Only members
            # in memory may get it, as long as there are any.
            in_memory = group.is_stored and not message.offset
            connection = self._pick(group, message.topic, in_memory=in_memory)
            is_lost = in_memory and _all_stored(group)
            if connection is None and not is_lost:
                if not group.members or self._may_any_receive(group, message.topic):
                    return
            group.next_pending()
            if message.expires_at_ms and message.expires_at_ms <= self._tick.now:
                self._expire(group, message)
            elif connection is None:
                self.drop(group, message, "storage_refused" if is_lost else "not_authorized")
            else:
                self._hand_out(group, connection, message)

    def read(self) -> bool:
        """Send what waits in stored groups; True if some have more.

        Call it right after the batch was written: the store then has the whole log.
        """
        readers = self._tick.group_readers
        for group in list(readers)[:READERS_MAX]:
            del readers[group]
            if self._read_group(group):
                readers[group] = None
        return bool(readers)

    def _read_group(self, group: Group) -> bool:
        for _ in range(READ_MAX):
            if not any(member.has_room() for member in group.members):
                return False  # goes on when a member has room
            message = self._next(group)
            if message is None:
                return group.is_lagging  # if not, this is the end of the log
            now = self._tick.now
            if message.expires_at_ms and message.expires_at_ms <= now:
                self._expire(group, message)
                continue
            max_age_ms = self._settings.max_age_s * 1000
            if max_age_ms and message.accepted_at_ms + max_age_ms <= now:
                self.drop(group, message, "max_age")
                continue
            connection = self._pick(group, message.topic)
            if connection is None:
                if self._may_any_receive(group, message.topic):
                    group.owed.appendleft(message.offset)
                    return False
                self.drop(group, message, "not_authorized")
                continue
            self._hand_out(group, connection, message)
        return True

    def _next(self, group: Group) -> Message | None:
        """Take the next message that waits in a stored group; None at the end of the log."""
        self._tick.dirty_groups[group] = None
        while group.owed:
            offset = group.owed.popleft()
            try:
                message = self._log.get(offset)
            except DamagedRows as problem:
                self._damage.note("message", problem, "", f"offset {offset}")
                self.drop_known(group, offset, 0, "damaged")
                continue
            if message is not None:
                return message
            self.drop_known(group, offset, 0, "max_age")
        if not group.is_lagging:
            return None
        cursor = self._cursor(group)
        before = cursor.position
        found = self._read_log(group, cursor, 1)
        if found:
            group.position = found[0].offset
            return found[0]
        if cursor.position > before:
            group.position = cursor.position
            return None
        group.is_lagging = False
        group.cursor = None
        group.position = self._log.end
        return None

    def _cursor(self, group: Group) -> Cursor:
        """Return what reads the log for a stored group, from its position on."""
        if group.cursor is None:
            entry = group.entry
            stream = Stream(entry.filter_id, entry.topic_filter, group.since)
            group.cursor = self._log.cursor([stream], group.position)
        return group.cursor

    def _read_log(self, group: Group, cursor: Cursor, count: int) -> list[Message]:
        """Return the next messages of the log; count and record those that cannot be read."""
        found = cursor.next(count, SCAN_MAX)
        if cursor.lost:
            for offset in self._damage.passed_over(cursor):
                self.drop_known(group, offset, 0, "damaged")
        return found

    def look_behind(self, group: Group, count: int) -> tuple[list[Message], int]:
        """Return messages behind the position of a stored group that lags, and how far they reach.

        The caller decides what becomes of each, and moves the position with `move`. Call it when
        the batch is written.
        """
        cursor = self._cursor(group)
        return self._read_log(group, cursor, count), cursor.position

    def move(self, group: Group, upto: int) -> None:
        """Move the position of a stored group; what `look_behind` returned behind it stays."""
        if upto > group.position:
            group.position = upto
        if group.cursor is not None and group.cursor.position != group.position:
            group.cursor = None  # read again from there
        self._tick.dirty_groups[group] = None

    def _may_any_receive(self, group: Group, topic: str) -> bool:
        """May a connected member receive the topic, once it has room?"""
        return any(
            connection.session is not None and self._may_receive(connection, topic)
            for connection in group.members
        )

    def session_ended(self, session: Session, connection: Connection | None) -> None:
        """Give the unacknowledged QoS 1 messages of an ending session back to their groups."""
        for packet_id, key in session.leases.items():
            group = self._groups.get(key)
            entry = session.in_flight[packet_id]
            if group is None or entry & SOURCE_MASK != FROM_GROUP:
                continue
            is_kept = entry & QOS_MASK == 1 and not entry & RELEASED
            offset = entry >> REFERENCE_SHIFT
            message = None
            if connection is not None:
                message = group.borrowed.pop((connection, packet_id), None)
            if message is not None:
                if is_kept:
                    group.queue_again(message)
            elif offset:
                group.leased.pop(offset, None)
                if is_kept:
                    group.owed.append(offset)
                    self._record_moved(session, connection, offset, group)
                self._tick.dirty_groups[group] = None
            self.hand_out_waiting(group)
        session.leases.clear()

    def _record_moved(
        self, session: Session, connection: Connection | None, offset: int, group: Group
    ) -> None:
        if self._deliveries.is_on:
            conn = 0 if connection is None else connection.number
            stream = group.entry.filter_id
            now = self._tick.now
            self._deliveries.moved(session, conn, offset, group.share_name, stream, now)

    def _expire(self, group: Group, message: Message) -> None:
        """Count and record that a message expired before a member got it."""
        self._counters.expired_messages += 1
        if self._deliveries.is_on:
            self._deliveries.expired_in_group(
                group.share_name, group.entry.filter_id, message, self._tick.now
            )

    def drop(self, group: Group, message: Message, reason: str) -> None:
        """Count and record that no member gets a message; the caller takes it from the group."""
        size = len(message.payload)
        self.drop_known(group, self._deliveries.id_of(message), size, reason)

    def drop_known(self, group: Group, message_id: int, size: int, reason: str) -> None:
        """Do as `drop` for a message that is known by its id in the history, and its size."""
        self._counters.drop(reason)
        if self._deliveries.is_on:
            stream = group.entry.filter_id
            self._deliveries.dropped_by_group(
                group.share_name, stream, message_id, size, reason, self._tick.now
            )


def _all_stored(group: Group) -> bool:
    """Are the sessions of all connected members stored?"""
    for connection in group.members:
        session = connection.session
        if session is not None and not session.is_stored:
            return False
    return True
