"""History events of incoming messages: accepted, persisted, acknowledged, refused.

A `Publication` exists from the arrival of a PUBLISH to its acknowledgement; each step reports to
it. An acknowledgement is recorded when it is sent, not when it is made: `attach` assigns what a
tick accepted to its batch, `release` records it after the commit. So the history would show an
acknowledgement that was sent before its commit. If messages are not recorded, `is_on` is False and
no publications are made. Read next: `session.history.delivery_events` (the way out),
`session.history.recorder`, docs/history.md.
"""

from collections import deque
from typing import Final

from mqtt.message import Message
from session.history.recorder import DROPPED, UNSTORED_BOOT_SHIFT, Recorder
from session.history.stage_counts import Book, check1_of, check2_of
from session.live.connection import CLOSED, Connection
from session.state.session import Session
from storage.history import events
from storage.history.packed_rows import (
    ACTOR_SHIFT,
    DUP_SHIFT,
    HAS_BYTES,
    HAS_COUNT,
    HAS_EXPIRY,
    HAS_FLAGS,
    HAS_MSG,
    HAS_PID,
    HAS_PUB_QOS,
    HAS_REASON,
    PUB_QOS_SHIFT,
    REASON_SHIFT,
    RETAIN_SHIFT,
)

NO_FILTERS: Final[list[int]] = []

_CLIENT: Final = events.CLIENT << ACTOR_SHIFT
_STORAGE: Final = events.STORAGE << ACTOR_SHIFT
_ACCEPTED: Final = events.MSG_ACCEPTED | HAS_MSG | HAS_PUB_QOS | HAS_FLAGS | HAS_BYTES
_PERSISTED: Final = events.MSG_PERSISTED | HAS_MSG | _STORAGE
_PUB_ACKED: Final = events.PUB_ACKED | HAS_PUB_QOS | HAS_PID | HAS_REASON
_PUB_COMPLETED: Final = events.PUB_COMPLETED | HAS_PID
_PUB_RELEASED: Final = events.PUB_RELEASED | HAS_PID | _CLIENT
_PUB_DUP: Final = events.PUB_DUP_RECEIVED | HAS_PID | HAS_PUB_QOS | _CLIENT
_DROPPED: Final = events.MSG_DROPPED | HAS_REASON | HAS_COUNT

COMPLETED: Final = 0  # in place of the QoS: the answer is PUBCOMP


class PersistedSum:
    """Messages of one book that were written but are not durable yet."""

    __slots__ = ("check1", "check2", "count", "size")

    def __init__(self) -> None:
        self.count: int = 0
        self.size: int = 0
        self.check1: int = 0
        self.check2: int = 0


class WrittenBatch:
    """What is recorded when one batch becomes durable."""

    __slots__ = ("acknowledged", "end", "serial", "stored", "traced")

    def __init__(
        self,
        serial: int,
        end: int,
        acknowledged: "list[Publication]",
        stored: dict[Book, PersistedSum],
        traced: list[tuple[int, int]],
    ) -> None:
        self.serial: int = serial
        self.end: int = end  # of the log
        self.acknowledged: list[Publication] = acknowledged
        self.stored: dict[Book, PersistedSum] = stored
        self.traced: list[tuple[int, int]] = traced


class PublishEvents:
    """Records what happens to incoming messages."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder: Final = recorder
        self._unstored: int = 0  # messages of this boot that were never stored
        # Of this tick: answers that wait for the commit, and what was stored.
        self._acknowledged: list[Publication] = []
        self._stored: dict[Book, PersistedSum] = {}
        # Runs of offsets, first and count, of messages that are recorded because of a trace.
        self._traced: list[tuple[int, int]] = []
        self._marks: deque[WrittenBatch] = deque()
        self._end: int = 0  # of the log, when a batch was written last
        self._persisted: int = 0  # of the log, as far as it is durable

    @property
    def is_on(self) -> bool:
        """Return whether messages are recorded or counted at all."""
        return self.recorder.has_books

    def begin(self, end: int) -> None:
        """Begin a boot with a log that is durable up to its end, `end`."""
        self._end = self._persisted = end

    def received(
        self,
        session: Session,
        connection: Connection,
        packet_id: int,
        packet_ids: list[int] | None = None,
        *,
        dup: bool = False,
    ) -> "Publication":
        """Begin to record a PUBLISH, or a run of them.

        `packet_ids` are those of a run, if they are not consecutive.
        """
        return Publication(
            self,
            session.client_id,
            session.identity,
            session,
            connection,
            packet_id,
            packet_ids,
            1 << DUP_SHIFT if dup else 0,
        )

    def will(self, client_id: str, identity: str) -> "Publication":
        """Begin to record the publishing of a will, which has no acknowledgement."""
        return Publication(self, client_id, identity)

    def completed(
        self, session: Session, connection: Connection, packet_id: int, *, waits: bool, now: int
    ) -> None:
        """Record a PUBCOMP: after the commit if it `waits` for it, else now."""
        if self.is_whole(session.client_id):
            publication = self.received(session, connection, packet_id)
            self.answer(publication, waits=waits, now=now)

    def released(self, session: Session, connection: Connection, packet_id: int, now: int) -> None:
        """Record that a PUBREL freed a packet id; call it in the tick that frees it.

        So the batch that frees it has the proof: PUBCOMP and its event come later, and a crash
        between them may lose the event.
        """
        recorder = self.recorder
        if self.is_whole(session.client_id):
            recorder.at(now)
            who = recorder.who(session)
            recorder.put(
                _PUB_RELEASED, session.incarnation, connection.number, who, 0, w6=packet_id
            )

    def attach(self, serial: int, durable: int, end: int, now: int) -> None:
        """Assign what this tick accepted to batch `serial`; the log ends at `end` with it."""
        if not self.recorder.has_books and not self._marks and not self._acknowledged:
            self._end = self._persisted = end
        elif self._acknowledged or self._stored or end != self._end:
            self._end = end
            self._marks.append(
                WrittenBatch(serial, end, self._acknowledged, self._stored, self._traced)
            )
            self._acknowledged = []
            self._stored = {}
            self._traced = []
            if serial <= durable:
                self.release(serial, now)

    def release(self, serial: int, now: int) -> None:
        """Record what is durable up to batch `serial`, and the acknowledgements it released."""
        marks = self._marks
        while marks and marks[0].serial <= serial:
            mark = marks.popleft()
            if not self.recorder.has_books:
                self._persisted = mark.end
                continue
            self._persist(mark, now)
            for publication in mark.acknowledged:
                publication.leave(now)

    # For publications

    def numbers(self, count: int) -> int:
        """Return the first of `count` new numbers for messages that are not stored."""
        if not self.recorder.has_messages:
            return 0
        first = self._unstored + 1
        self._unstored += count
        return first

    def unstored_id(self, number: int) -> int:
        """Return the id of a message that is not stored."""
        if not number:
            return events.UNSTORED
        return events.UNSTORED | self.recorder.boot << UNSTORED_BOOT_SHIFT | number

    def is_sampled_out(self, message_id: int) -> bool:
        """Return whether sampling leaves this message out."""
        recorder = self.recorder
        if recorder.is_full:
            return False
        return not recorder.is_sampled or message_id % recorder.sample != 0

    def is_whole(self, client_id: str) -> bool:
        """Return whether everything of a client is recorded: at `full`, or because of a trace."""
        return self.recorder.is_full or self.recorder.traces(client_id)

    def note_traced(self, offset: int, count: int) -> None:
        """Note messages that are recorded because of a trace: so is that they become durable."""
        if offset:
            self._traced.append((offset, count))

    def stored(self, book: Book, count: int, size: int, check1: int, check2: int) -> None:
        """Count messages that become durable with the batch of this tick."""
        stored = self._stored.get(book)
        if stored is None:
            stored = self._stored[book] = PersistedSum()
        stored.count += count
        stored.size += size
        stored.check1 += check1
        stored.check2 += check2

    def answer(self, publication: "Publication", *, waits: bool, now: int) -> None:
        """Record an acknowledgement: after the commit if it `waits` for it, else now."""
        if waits:
            self._acknowledged.append(publication)
        else:
            publication.leave(now)

    def _persist(self, mark: WrittenBatch, now: int) -> None:
        recorder = self.recorder
        recorder.at(now)
        for book, stored in mark.stored.items():
            recorder.count(
                book,
                events.STAGE_PERSISTED,
                stored.count,
                stored.size,
                stored.check1,
                stored.check2,
            )
        first, count = self._persisted + 1, mark.end - self._persisted
        self._persisted = mark.end
        if count <= 0 or not recorder.has_messages:
            return
        if recorder.is_full:
            recorder.put(_PERSISTED, 0, 0, 0, first, count)
            return
        if recorder.is_sampled:
            for offset in range(first + -first % recorder.sample, first + count, recorder.sample):
                recorder.put(_PERSISTED, 0, 0, 0, offset)
        if recorder.has_traces:
            self._persist_traced(mark)

    def _persist_traced(self, mark: WrittenBatch) -> None:
        recorder = self.recorder
        for first, count in mark.traced:
            if not recorder.is_sampled:
                recorder.put(_PERSISTED, 0, 0, 0, first, count)
                continue
            for offset in range(first, first + count):
                if offset % recorder.sample != 0:
                    recorder.put(_PERSISTED, 0, 0, 0, offset)


class Publication:
    """One PUBLISH, a run of them, or a will, from its arrival to its acknowledgement."""

    __slots__ = (
        "_events",
        "book",
        "client_id",
        "connection",
        "count",
        "dup",
        "first",
        "packet_id",
        "packet_ids",
        "qos",
        "reason_code",
        "session",
        "size",
        "tenant",
    )

    def __init__(
        self,
        events: PublishEvents,
        client_id: str,
        tenant: str,
        session: Session | None = None,
        connection: Connection | None = None,
        packet_id: int = 0,
        packet_ids: list[int] | None = None,
        dup: int = 0,
    ) -> None:
        self._events: PublishEvents = events
        self.client_id: str = client_id
        self.tenant: str = tenant
        self.session: Session | None = session  # None = it is a will
        self.connection: Connection | None = connection
        self.packet_id: int = packet_id
        self.packet_ids: list[int] | None = packet_ids  # of a run whose ids are not consecutive
        self.dup: int = dup
        # Set by `accepted`.
        self.first: int = 0  # id of the first message, 0 = nothing was accepted
        self.count: int = 1
        self.size: int = 0
        self.book: Book | None = None
        # Set by `acknowledged`.
        self.qos: int = COMPLETED
        self.reason_code: int = 0

    def accepted(self, message: Message, filter_ids: list[int], now: int) -> None:
        """Record that a message was accepted, and stored for the streams `filter_ids`.

        A message that is not stored gets a number in place of its offset.
        """
        publish_events = self._events
        offset = message.offset
        if not offset:
            message.number = publish_events.numbers(1)
        size = len(message.payload)
        self._count_accepted(message.qos, offset, 1, size, now)
        if not publish_events.recorder.has_messages:
            return
        first = self.first = offset or publish_events.unstored_id(message.number)
        if not offset:
            filter_ids = NO_FILTERS
        if publish_events.is_sampled_out(first):
            if not self._is_traced(filter_ids):
                return
            publish_events.note_traced(offset, 1)
        self._put_accepted(message, first, 1, size, self.packet_id, filter_ids, now)

    def accepted_run(
        self,
        message: Message,
        payloads: list[bytes],
        size: int,
        offset: int,
        filter_ids: list[int],
        now: int,
    ) -> int:
        """Record that messages were accepted that differ from `message` only in their payloads.

        `size` is that of all payloads, `offset` that of the first message, 0 = they are not stored.
        Returns the number of the first one; 0 = they are stored, or messages are only counted.
        """
        publish_events = self._events
        count = len(payloads)
        number = 0 if offset else publish_events.numbers(count)
        self._count_accepted(message.qos, offset, count, size, now)
        recorder = publish_events.recorder
        if not recorder.has_messages:
            return number
        sizes = [len(payload) for payload in payloads]
        if not offset:
            filter_ids = NO_FILTERS
        first = self.first = offset or publish_events.unstored_id(number)
        is_whole = recorder.is_full
        if not is_whole and self._is_traced(filter_ids):
            is_whole = True
            publish_events.note_traced(offset, count)
        if is_whole:
            same = sizes[0] * count == size and min(sizes) == sizes[0]
            recorder.at(now)
            w7 = sizes[0] if same else recorder.extra(sizes)
            ids = self.packet_ids
            w6 = recorder.extra(ids) if ids is not None else self.packet_id
            self._put_accepted(message, first, count, w7, w6, filter_ids, now)
            return number
        for index in range(count):
            if not publish_events.is_sampled_out(first + index):
                w6 = self._packet_id_at(index)
                self._put_accepted(message, first + index, 1, sizes[index], w6, filter_ids, now)
        return number

    def refused(self, topic: str, size: int, reason: str, now: int) -> None:
        """Record that the message was refused."""
        recorder = self._events.recorder
        book = recorder.book(self.tenant, now)
        recorder.count(book, events.STAGE_DROPPED, 1, size, 0, 0)
        if not self._events.is_whole(self.client_id):
            return
        recorder.at(now)
        session, connection = self.session, self.connection
        who = recorder.name(f"{self.client_id}\0{self.tenant}")
        recorder.put(
            _DROPPED | DROPPED[reason] << REASON_SHIFT,
            session.incarnation if session is not None else 0,
            connection.number if connection is not None else 0,
            who | recorder.text(topic),
            0,
            w9=1,
        )

    def received_again(self, now: int) -> None:
        """Record that a QoS 2 message was received again before its PUBREL."""
        session, connection = self.session, self.connection
        recorder = self._events.recorder
        if session is None or connection is None or not self._events.is_whole(self.client_id):
            return
        recorder.at(now)
        recorder.put(
            _PUB_DUP | 2 << PUB_QOS_SHIFT,
            session.incarnation,
            connection.number,
            recorder.who(session),
            0,
            w6=self.packet_id,
        )

    def acknowledged(self, qos: int, reason_code: int, *, waits: bool, now: int) -> None:
        """Record PUBACK or PUBREC: after the commit if it `waits` for it, else now."""
        self.qos = qos
        self.reason_code = reason_code
        self._events.answer(self, waits=waits, now=now)

    def leave(self, now: int) -> None:
        """Record that the acknowledgement was sent, or that its connection is gone."""
        publish_events = self._events
        connection, session = self.connection, self.session
        assert connection is not None and session is not None
        is_gone = connection.state == CLOSED or connection.is_over
        recorder = publish_events.recorder
        first, count = self.first, self.count
        if self.book is not None:
            stage = events.STAGE_UNANSWERED if is_gone else events.STAGE_PUB_ACKED
            check1 = check2 = 0
            if 0 < first < events.UNSTORED:
                check1, check2 = check1_of(first, count), check2_of(first, count)
            recorder.count(self.book, stage, count, self.size, check1, check2)
        if is_gone:
            return
        recorder.at(now)
        if self.qos == COMPLETED:
            if not publish_events.is_whole(self.client_id):
                return  # the level was lowered, or the trace has ended
            recorder.put(
                _PUB_COMPLETED,
                session.incarnation,
                connection.number,
                recorder.who(session),
                0,
                w6=self.packet_id,
            )
            return
        if not recorder.has_messages:
            return
        is_whole = publish_events.is_whole(self.client_id)
        if not is_whole and (not first or count == 1) and publish_events.is_sampled_out(first or 1):
            return
        w0 = _PUB_ACKED | self.qos << PUB_QOS_SHIFT | self.reason_code << REASON_SHIFT
        if first:
            w0 |= HAS_MSG
        who = recorder.who(session)
        ids = self.packet_ids
        if is_whole or count == 1:
            w6 = self.packet_id if ids is None else recorder.extra(ids)
            recorder.put(w0, session.incarnation, connection.number, who, first, count, w6)
            return
        for index in range(count):
            if not publish_events.is_sampled_out(first + index):
                w6 = self._packet_id_at(index)
                recorder.put(w0, session.incarnation, connection.number, who, first + index, 1, w6)

    def _is_traced(self, filter_ids: list[int]) -> bool:
        """Return whether a trace wants it: of its publisher, or of one for whom it is stored."""
        recorder = self._events.recorder
        if not recorder.has_traces:
            return False
        return self.client_id in recorder.traced.clients or recorder.traced.wants_stored(filter_ids)

    def _packet_id_at(self, index: int) -> int:
        ids = self.packet_ids
        if ids is not None:
            return ids[index]
        if not self.packet_id:
            return 0
        return self.packet_id + index  # a run that wraps around has `packet_ids`

    def _count_accepted(self, qos: int, offset: int, count: int, size: int, now: int) -> None:
        recorder = self._events.recorder
        book = recorder.book(self.tenant, now)
        self.book = book
        self.count = count
        self.size = size
        self.first = offset
        check1 = check2 = 0
        if offset:
            check1 = check1_of(offset, count)
            check2 = check2_of(offset, count)
            recorder.count(book, events.STAGE_STORED, count, size, check1, check2)
            self._events.stored(book, count, size, check1, check2)
        recorder.count(book, events.STAGE_ACCEPTED, count, size, check1, check2)
        if qos and self.session is not None:
            recorder.count(book, events.STAGE_ACK_OWED, count, size, check1, check2)

    def _put_accepted(
        self,
        message: Message,
        first: int,
        count: int,
        w7: int,
        w6: int,
        filter_ids: list[int],
        now: int,
    ) -> None:
        recorder = self._events.recorder
        recorder.at(now)
        session, connection = self.session, self.connection
        w0 = _ACCEPTED | message.qos << PUB_QOS_SHIFT | self.dup
        if session is not None:
            incarnation = session.incarnation
            who = recorder.who(session)
            w0 |= _CLIENT
        else:
            incarnation = 0
            who = recorder.name(f"{self.client_id}\0{self.tenant}")
        if message.retain:
            w0 |= 1 << RETAIN_SHIFT
        if w6:
            w0 |= HAS_PID
        expiry_s = 0
        if message.expires_at_ms:
            w0 |= HAS_EXPIRY
            expiry_s = (message.expires_at_ms - message.accepted_at_ms) // 1000
        w9 = 0
        more = 0
        if filter_ids:
            w9 = recorder.extra([len(filter_ids), *filter_ids])
            more = count * len(filter_ids)
        recorder.put(
            w0,
            incarnation,
            connection.number if connection is not None else 0,
            who | recorder.text(message.topic),
            first,
            count,
            w6,
            w7,
            expiry_s,
            w9,
            more,
        )
