"""History events of outgoing messages: delivered, acknowledged, dropped, expired, moved.

The engine calls it where these things happen, in their order. It sends and decides nothing. If
messages are not recorded, `is_on` is False and callers do not call it. First deliveries are told to
external stores, too: callers look at `wants_sent`. Read next:
`session.history.publish_events` (incoming messages), `session.history.recorder`, docs/history.md.
"""

from typing import Final

from mqtt.message import Message
from session.feed.recorder import FeedRecorder
from session.history.recorder import DROPPED, UNSTORED_BOOT_SHIFT, Recorder
from session.history.stage_counts import check1_of, check2_of
from session.live.connection import Connection
from session.state.in_flight import (
    FROM_MAILBOX,
    QOS_MASK,
    REFERENCE_SHIFT,
    SOURCE_MASK,
    UNSTORED_REFERENCE,
)
from session.state.session import Session
from storage.history import events
from storage.history.packed_rows import (
    ACTOR_SHIFT,
    DUP_SHIFT,
    HAS_AT,
    HAS_COUNT,
    HAS_FLAGS,
    HAS_MSG,
    HAS_PID,
    HAS_QOS,
    HAS_REASON,
    HAS_STREAM,
    QOS_SHIFT,
    REASON_SHIFT,
    RETAIN_SHIFT,
)

_CLIENT: Final = events.CLIENT << ACTOR_SHIFT
_DELIVERED: Final = events.MSG_DELIVERED | HAS_MSG | HAS_QOS | HAS_FLAGS | HAS_PID
_ACKED: Final = events.MSG_ACKED | HAS_QOS | HAS_PID | HAS_REASON | _CLIENT
_COMPLETED: Final = events.MSG_COMPLETED | HAS_QOS | HAS_PID | _CLIENT
_DROPPED: Final = events.MSG_DROPPED | HAS_REASON | HAS_COUNT
_EXPIRED: Final = events.MSG_EXPIRED | HAS_MSG
_MOVED: Final = events.MSG_MOVED | HAS_MSG | HAS_STREAM
_RETAINED_SENT: Final = events.RETAINED_SENT | HAS_QOS | HAS_FLAGS | HAS_PID | HAS_AT


class DeliveryEvents:
    """Records what happens to outgoing messages."""

    def __init__(self, recorder: Recorder, feed: FeedRecorder) -> None:
        self.recorder: Final = recorder
        self._feed: Final = feed

    @property
    def is_on(self) -> bool:
        """Return whether messages are recorded or counted at all."""
        return self.recorder.has_books

    @property
    def wants_sent(self) -> bool:
        """Return whether first deliveries are recorded or counted, or told to a store."""
        return self.recorder.has_books or self._feed.has_sent

    def id_of(self, message: Message) -> int:
        """Return the id of a message in the history; 0 = it has none."""
        if message.offset:
            return message.offset
        if not message.number:
            return 0
        return events.UNSTORED | self.recorder.boot << UNSTORED_BOOT_SHIFT | message.number

    def _id_in_flight(self, entry: int) -> int:
        """Return the id of a message in flight; 0 = it has none in the history."""
        if entry & SOURCE_MASK == FROM_MAILBOX:
            return 0
        reference = entry >> REFERENCE_SHIFT
        if entry & UNSTORED_REFERENCE and reference:
            return events.UNSTORED | self.recorder.boot << UNSTORED_BOOT_SHIFT | reference
        return reference

    def _is_wanted(self, message_id: int, client_id: str = "") -> bool:
        """Return whether what becomes of a message is recorded, here of a client's."""
        recorder = self.recorder
        if recorder.is_full:
            return True
        if recorder.is_sampled and message_id != 0 and message_id % recorder.sample == 0:
            return True
        return recorder.has_traces and client_id in recorder.traced.clients

    def _is_whole(self, client_id: str) -> bool:
        """Return whether everything of a client is recorded: at `full`, or because of a trace."""
        return self.recorder.is_full or self.recorder.traces(client_id)

    # Sent

    def delivered(
        self,
        connection: Connection,
        session: Session,
        message: Message,
        packet_id: int,
        qos: int,
        retain: bool,
        now: int,
        share_name: str = "",
        stream: int = 0,
    ) -> None:
        """Record the first delivery of a message; with its group for a shared subscription."""
        if not message.publisher:
            return  # `$SYS` messages have no publisher and are not recorded
        if self._feed.has_sent:
            self._feed.sent(session.client_id, connection.username, message, qos)
        recorder = self.recorder
        if not recorder.has_books:
            return
        offset = message.offset
        check1, check2 = _checks(offset)
        book = recorder.book(session.identity, now)
        recorder.count(book, events.STAGE_DELIVERED, 1, len(message.payload), check1, check2)
        if not recorder.has_messages:
            return
        message_id = offset or self.id_of(message)
        if not self._is_wanted(message_id, session.client_id):
            return
        recorder.at(now)
        w0 = _DELIVERED | qos << QOS_SHIFT
        if not message_id:
            w0 &= ~HAS_MSG
        if retain:
            w0 |= 1 << RETAIN_SHIFT
        names = recorder.who(session)
        if share_name:
            w0 |= HAS_STREAM
            names |= recorder.share(share_name)
        recorder.put(
            w0, session.incarnation, connection.number, names, message_id, 1, packet_id, stream
        )

    def delivered_run(
        self,
        connection: Connection,
        session: Session,
        message: Message,
        offset: int,
        number: int,
        count: int,
        size: int,
        packet_ids: list[int] | None,
        qos: int,
        now: int,
    ) -> None:
        """Record the first delivery of consecutive messages; `message` is like them all."""
        if self._feed.has_sent:
            self._feed.sent_run(session.client_id, connection.username, message, qos, offset, count)
        recorder = self.recorder
        if not recorder.has_books:
            return
        check1 = check2 = 0
        if offset:
            check1, check2 = check1_of(offset, count), check2_of(offset, count)
        book = recorder.book(session.identity, now)
        recorder.count(book, events.STAGE_DELIVERED, count, size, check1, check2)
        if not recorder.has_messages:
            return
        first = offset or events.UNSTORED | recorder.boot << UNSTORED_BOOT_SHIFT | number
        recorder.at(now)
        w0 = _DELIVERED | qos << QOS_SHIFT
        who = recorder.who(session)
        if self._is_whole(session.client_id):
            w6 = 0 if packet_ids is None else self._packet_ids(packet_ids)
            recorder.put(w0, session.incarnation, connection.number, who, first, count, w6)
            return
        for index in range(count):
            if self._is_wanted(first + index):
                w6 = 0 if packet_ids is None else packet_ids[index]
                recorder.put(w0, session.incarnation, connection.number, who, first + index, 1, w6)

    def delivered_each(
        self,
        connection: Connection,
        session: Session,
        messages: list[Message],
        packet_ids: list[int],
        qos: int,
        retained: list[bool],
        now: int,
    ) -> None:
        """Record the first delivery of stored messages at one QoS; `retained` is their RETAIN."""
        if self._feed.has_sent:
            for message in messages:
                self._feed.sent(session.client_id, connection.username, message, qos)
        recorder = self.recorder
        if not recorder.has_books:
            return
        check1 = check2 = size = 0
        offsets: list[int] = []
        for message in messages:
            offset = message.offset
            offsets.append(offset)
            check1 += offset
            check2 += check2_of(offset, 1)
            size += len(message.payload)
        book = recorder.book(session.identity, now)
        count = len(offsets)
        recorder.count(book, events.STAGE_DELIVERED, count, size, check1, check2)
        if not recorder.has_messages:
            return
        recorder.at(now)
        w0 = _DELIVERED | qos << QOS_SHIFT
        at = 0
        while at < count:
            retain = retained[at]
            end = at + 1
            while end < count and retained[end] == retain:
                end += 1
            flags = 1 << RETAIN_SHIFT if retain else 0
            self._put_each(w0 | flags, connection, session, offsets[at:end], packet_ids[at:end])
            at = end

    def _put_each(
        self,
        w0: int,
        connection: Connection,
        session: Session,
        ids: list[int],
        packet_ids: list[int],
    ) -> None:
        recorder = self.recorder
        who = recorder.who(session)
        if self._is_whole(session.client_id):
            first = ids[0]
            w9 = 0 if first and _are_consecutive(ids) else recorder.extra(ids)
            w6 = self._packet_ids(packet_ids)
            recorder.put(
                w0, session.incarnation, connection.number, who, first, len(ids), w6, 0, 0, w9
            )
            return
        for index in range(len(ids)):
            if ids[index] and self._is_wanted(ids[index]):
                recorder.put(
                    w0,
                    session.incarnation,
                    connection.number,
                    who,
                    ids[index],
                    1,
                    packet_ids[index],
                )

    def _packet_ids(self, packet_ids: list[int]) -> int:
        if _are_consecutive(packet_ids):
            return packet_ids[0]
        return self.recorder.extra(packet_ids)

    def delivered_again(
        self,
        connection: Connection,
        session: Session,
        packet_id: int,
        entry: int,
        message: Message,
        retain: bool,
        now: int,
    ) -> None:
        """Record that a message in flight is sent again, with DUP."""
        recorder = self.recorder
        message_id = self._id_in_flight(entry)
        size = len(message.payload)
        check1, check2 = _checks(message_id)
        book = recorder.book(session.identity, now)
        recorder.count(book, events.STAGE_REDELIVERED, 1, size, check1, check2)
        if not recorder.has_messages or not (
            self._is_whole(session.client_id) or (message_id and self._is_wanted(message_id))
        ):
            return
        recorder.at(now)
        flags = (entry & QOS_MASK) << QOS_SHIFT | 1 << DUP_SHIFT
        if retain:
            flags |= 1 << RETAIN_SHIFT
        names = recorder.who(session)
        incarnation, conn = session.incarnation, connection.number
        if message_id:
            recorder.put(_DELIVERED | flags, incarnation, conn, names, message_id, 1, packet_id)
            return
        names |= recorder.text(message.topic)
        at_ms = message.accepted_at_ms
        recorder.put(_RETAINED_SENT | flags, incarnation, conn, names, 0, 1, packet_id, 0, at_ms)

    def sent_before(
        self, connection: Connection, session: Session, packet_id: int, entry: int, now: int
    ) -> None:
        """Record that a message was sent before a crash, or may have been; no row told it.

        Its size is not known any more.
        """
        self._count_end(session, events.STAGE_DELIVERED, entry, now)
        w0 = _DELIVERED | (entry & QOS_MASK) << QOS_SHIFT
        self._put_end(w0, connection, session, packet_id, entry, now)

    def retained(
        self,
        connection: Connection,
        session: Session,
        message: Message,
        packet_id: int,
        qos: int,
        now: int,
        *,
        retain: bool = True,
        message_id: str = "",
    ) -> None:
        """Record that a message which is not in the log is sent to a subscription.

        A retained one, or with `retain` False one that came from an external store, which calls it
        `message_id`.
        """
        if not message.publisher:
            return
        if self._feed.has_sent:
            self._feed.sent(session.client_id, connection.username, message, qos, message_id)
        recorder = self.recorder
        if not recorder.has_books:
            return
        book = recorder.book(session.identity, now)
        recorder.count(book, events.STAGE_DELIVERED, 1, len(message.payload), 0, 0)
        if not self._is_whole(session.client_id):
            return
        recorder.at(now)
        recorder.put(
            _RETAINED_SENT | qos << QOS_SHIFT | retain << RETAIN_SHIFT,
            session.incarnation,
            connection.number,
            recorder.who(session) | recorder.text(message.topic),
            0,
            1,
            packet_id,
            0,
            message.accepted_at_ms,
        )

    # Acknowledged

    def acked(
        self,
        connection: Connection,
        session: Session,
        packet_id: int,
        entry: int,
        reason_code: int,
        now: int,
    ) -> None:
        """Record PUBACK or PUBREC for a message in flight."""
        self._count_end(session, events.STAGE_ACKED, entry, now)
        w0 = _ACKED | (entry & QOS_MASK) << QOS_SHIFT | reason_code << REASON_SHIFT
        self._put_end(w0, connection, session, packet_id, entry, now)

    def acked_run(
        self,
        connection: Connection,
        session: Session,
        packet_ids: list[int],
        entries: list[int],
        now: int,
    ) -> None:
        """Record PUBACKs for several messages in flight."""
        recorder = self.recorder
        ids: list[int] = []
        check1 = check2 = 0
        for entry in entries:
            message_id = self._id_in_flight(entry)
            ids.append(message_id)
            if message_id < events.UNSTORED:  # 0, no message of the history, adds nothing
                check1 += message_id
                check2 += check2_of(message_id, 1)
        book = recorder.book(session.identity, now)
        recorder.count(book, events.STAGE_ACKED, len(ids), 0, check1, check2)
        if recorder.has_messages:
            recorder.at(now)
            w0 = _ACKED | HAS_MSG | 1 << QOS_SHIFT
            self._put_each(w0, connection, session, ids, packet_ids)

    def completed(
        self, connection: Connection, session: Session, packet_id: int, entry: int, now: int
    ) -> None:
        """Record PUBCOMP for a message in flight."""
        self._count_end(session, events.STAGE_COMPLETED, entry, now)
        w0 = _COMPLETED | 2 << QOS_SHIFT
        self._put_end(w0, connection, session, packet_id, entry, now)

    def _count_end(self, session: Session, stage: int, entry: int, now: int) -> None:
        """Count a message in flight, whose size is not known any more."""
        message_id = self._id_in_flight(entry)
        check1, check2 = _checks(message_id)
        recorder = self.recorder
        recorder.count(recorder.book(session.identity, now), stage, 1, 0, check1, check2)

    def _put_end(
        self,
        w0: int,
        connection: Connection,
        session: Session,
        packet_id: int,
        entry: int,
        now: int,
    ) -> None:
        recorder = self.recorder
        if not recorder.has_messages:
            return
        message_id = self._id_in_flight(entry)
        if message_id:
            w0 |= HAS_MSG
            if not self._is_wanted(message_id, session.client_id):
                return
        elif not self._is_whole(session.client_id):
            return
        recorder.at(now)
        recorder.put(
            w0,
            session.incarnation,
            connection.number,
            recorder.who(session),
            message_id,
            1,
            packet_id,
        )

    # Not delivered

    def dropped_in_flight(
        self, session: Session, conn: int, packet_id: int, entry: int, reason: str, now: int
    ) -> None:
        """Record that a message in flight is dropped and its packet id is free."""
        message_id = self._id_in_flight(entry)
        self._drop(session, conn, message_id, 0, 1, 0, reason, packet_id, now)

    def dropped_message(
        self, session: Session, conn: int, message: Message, reason: str, now: int
    ) -> None:
        """Record that a session does not get a message; `conn` is 0 while it is away."""
        if not message.publisher:
            return  # `$SYS` messages have no publisher and are not recorded
        message_id = self.id_of(message)
        size = len(message.payload)
        self._drop(session, conn, message_id, 0, 1, size, reason, 0, now)

    def dropped_range(
        self, session: Session, conn: int, first: int, last: int, count: int, reason: str, now: int
    ) -> None:
        """Record that `count` messages of a session's streams were dropped, `first` to `last`."""
        self._drop(session, conn, first, last, count, 0, reason, 0, now)

    def _drop(
        self,
        session: Session,
        conn: int,
        message_id: int,
        last: int,
        count: int,
        size: int,
        reason: str,
        packet_id: int,
        now: int,
    ) -> None:
        recorder = self.recorder
        check1 = check2 = 0
        if not last:
            check1, check2 = _checks(message_id)
        book = recorder.book(session.identity, now)
        recorder.count(book, events.STAGE_DROPPED, count, size, check1, check2)
        is_whole = self._is_whole(session.client_id)
        if not is_whole and (last or not self._is_wanted(message_id)):
            return
        recorder.at(now)
        w0 = _DROPPED | DROPPED[reason] << REASON_SHIFT
        if message_id:
            w0 |= HAS_MSG
        if packet_id:
            w0 |= HAS_PID
        recorder.put(
            w0,
            session.incarnation,
            conn,
            recorder.who(session),
            message_id,
            1,
            packet_id,
            0,
            last,
            count,
        )

    def dropped_by_group(
        self, share_name: str, stream: int, message_id: int, size: int, reason: str, now: int
    ) -> None:
        """Record that a message was dropped for a whole shared subscription."""
        if self._count_for_group(events.STAGE_DROPPED, message_id, size, now):
            recorder = self.recorder
            w0 = _DROPPED | HAS_MSG | HAS_STREAM | DROPPED[reason] << REASON_SHIFT
            names = recorder.name("\0") | recorder.share(share_name)
            recorder.put(w0, 0, 0, names, message_id, 1, 0, stream, 0, 1)

    def expired_in_group(self, share_name: str, stream: int, message: Message, now: int) -> None:
        """Record that a message expired before any member of a shared subscription got it."""
        message_id = self.id_of(message)
        if self._count_for_group(events.STAGE_EXPIRED, message_id, len(message.payload), now):
            recorder = self.recorder
            names = recorder.name("\0") | recorder.share(share_name)
            recorder.put(_EXPIRED | HAS_STREAM, 0, 0, names, message_id, 1, 0, stream)

    def _count_for_group(self, stage: int, message_id: int, size: int, now: int) -> bool:
        """Count a message that no member gets; return whether to record it as well."""
        recorder = self.recorder
        check1, check2 = _checks(message_id)
        recorder.count(recorder.book("", now), stage, 1, size, check1, check2)
        if not message_id or not self._is_wanted(message_id):
            return False
        recorder.at(now)
        return True

    def expired(self, session: Session, conn: int, message: Message, now: int) -> None:
        """Record that a message expired before a session got it."""
        recorder = self.recorder
        offset = message.offset
        check1, check2 = _checks(offset)
        book = recorder.book(session.identity, now)
        recorder.count(book, events.STAGE_EXPIRED, 1, len(message.payload), check1, check2)
        message_id = self.id_of(message)
        if not message_id or not self._is_wanted(message_id, session.client_id):
            return
        recorder.at(now)
        recorder.put(_EXPIRED, session.incarnation, conn, recorder.who(session), message_id)

    def moved(
        self, session: Session, conn: int, offset: int, share_name: str, stream: int, now: int
    ) -> None:
        """Record that a session returned a message to its shared subscription."""
        recorder = self.recorder
        if not self._is_wanted(offset, session.client_id):
            return
        recorder.at(now)
        names = recorder.who(session) | recorder.share(share_name)
        recorder.put(_MOVED, session.incarnation, conn, names, offset, 1, 0, stream)


def _checks(message_id: int) -> tuple[int, int]:
    """Return what one message adds to the check sums of a book; 0 if it is not stored."""
    if message_id < events.UNSTORED:
        return message_id, check2_of(message_id, 1)
    return 0, 0


def _are_consecutive(numbers: list[int]) -> bool:
    """Return whether each number is one more than the one before it."""
    expected = numbers[0]
    for number in numbers:
        if number != expected:
            return False
        expected += 1
    return True
