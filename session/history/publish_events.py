"""What publishers sent, told to the history: accepted, durable, acknowledged, refused.

The engine's parts call it where something happens, in its order. That something was promised is
told when it was: `attach` ties what a tick accepted to its batch, `release` follows the commit. So
an acknowledgement that left before its commit would show. Sends nothing, decides nothing; where the
level of detail wants nothing of messages, callers see `is_on` and do not call. Read next:
`session.history.delivery_events` (the way out), `session.history.recorder`, docs/history.md.
"""

from collections import deque
from typing import Final

from mqtt.message import Message
from session.history.recorder import DROPPED, UNSTORED_BOOT_SHIFT, Ledger
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
_PUB_DUP: Final = events.PUB_DUP_RECEIVED | HAS_PID | HAS_PUB_QOS | _CLIENT
_DROPPED: Final = events.MSG_DROPPED | HAS_REASON | HAS_COUNT


class Promise:
    """An acknowledgement that a publisher is owed, for one message or a run of them."""

    __slots__ = (
        "book",
        "connection",
        "count",
        "first",
        "packet_id",
        "packet_ids",
        "qos",
        "reason_code",
        "session",
        "size",
    )

    def __init__(
        self,
        connection: Connection,
        session: Session,
        packet_id: int,
        packet_ids: list[int] | None,
        qos: int,
        reason_code: int,
    ) -> None:
        self.connection: Connection = connection
        self.session: Session = session
        self.packet_id: int = packet_id
        self.packet_ids: list[int] | None = packet_ids  # of a run whose ids are not consecutive
        self.qos: int = qos  # 0 = PUBCOMP
        self.reason_code: int = reason_code
        self.first: int = 0  # id of the first message, 0 = nothing was accepted
        self.count: int = 1
        self.size: int = 0
        self.book: Book | None = None


class Sum:
    """What of one book waits to become durable."""

    __slots__ = ("check1", "check2", "count", "size")

    def __init__(self) -> None:
        self.count: int = 0
        self.size: int = 0
        self.check1: int = 0
        self.check2: int = 0


class Mark:
    """What becomes true when one batch is durable."""

    __slots__ = ("end", "promises", "serial", "stored")

    def __init__(
        self, serial: int, end: int, promises: list[Promise], stored: dict[Book, Sum]
    ) -> None:
        self.serial: int = serial
        self.end: int = end  # of the log
        self.promises: list[Promise] = promises
        self.stored: dict[Book, Sum] = stored


class Receipts:
    """Tells the history what came in."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger: Final = ledger
        self._unstored: int = 0  # messages of this boot that were never stored
        # The publication under way: who, and what `accepted` has made of it.
        self._session: Session | None = None
        self._conn: int = 0
        self._packet_id: int = 0
        self._packet_ids: list[int] | None = None
        self._dup: int = 0
        self._client_id: str = ""
        self._tenant: str = ""
        self._first: int = 0
        self._count: int = 1
        self._size: int = 0
        self._book: Book | None = None
        # What waits for the batch of this tick, and for commits.
        self._promises: list[Promise] = []
        self._stored: dict[Book, Sum] = {}
        self._marks: deque[Mark] = deque()
        self._end: int = 0  # of the log, when a batch was written last
        self._persisted: int = 0  # of the log, as far as it is durable

    @property
    def is_on(self) -> bool:
        """Does anybody want to know about messages?"""
        return self.ledger.has_books

    def begin(self, end: int) -> None:
        """Begin a boot: the log ends at `end`, and all of it is durable."""
        self._end = self._persisted = end

    # Publishers

    def publisher(
        self,
        session: Session,
        connection: Connection,
        packet_id: int,
        packet_ids: list[int] | None = None,
        dup: bool = False,
    ) -> None:
        """Say whose PUBLISH is judged next; `packet_ids` of a run if they are not consecutive."""
        self._session = session
        self._conn = connection.number
        self._client_id = session.client_id
        self._tenant = session.identity
        self._packet_id = packet_id
        self._packet_ids = packet_ids
        self._dup = 1 << DUP_SHIFT if dup else 0
        self._first = 0
        self._count = 1
        self._size = 0
        self._book = None

    def publisher_of_will(self, client_id: str, identity: str) -> None:
        """Say whose will is published next."""
        self._session = None
        self._conn = 0
        self._client_id = client_id
        self._tenant = identity
        self._packet_id = 0
        self._packet_ids = None
        self._dup = 0
        self._first = 0

    def number(self, count: int = 1) -> int:
        """Return the first of `count` numbers for messages that are not stored."""
        if not self.ledger.has_messages:
            return 0
        first = self._unstored + 1
        self._unstored += count
        return first

    def id_of(self, message: Message) -> int:
        """Return what names a message in the history."""
        return message.offset or self._unstored_id(message.number)

    def _unstored_id(self, number: int) -> int:
        if not number:
            return events.UNSTORED
        return events.UNSTORED | self.ledger.boot << UNSTORED_BOOT_SHIFT | number

    def accepted(self, message: Message, filter_ids: list[int], now: int) -> None:
        """A message was taken over; if it has an offset, for the streams `filter_ids`."""
        size = len(message.payload)
        offset = message.offset
        self._count_accepted(message.qos, offset, 1, size, now)
        if not self.ledger.has_messages:
            return
        first = offset or self._unstored_id(message.number)
        self._first = first
        if self._is_sampled_out(first):
            return
        self._put_accepted(message, first, 1, size, self._packet_id, filter_ids, now)

    def accepted_run(
        self,
        message: Message,
        payloads: list[bytes],
        offset: int,
        number: int,
        filter_ids: list[int],
        now: int,
    ) -> None:
        """Messages were taken over that differ from `message` only in their payloads."""
        count = len(payloads)
        sizes = [len(payload) for payload in payloads]
        size = sum(sizes)
        self._count_accepted(message.qos, offset, count, size, now)
        ledger = self.ledger
        if not ledger.has_messages:
            return
        first = offset or self._unstored_id(number)
        self._first = first
        if ledger.is_full:
            same = sizes[0] * count == size and min(sizes) == sizes[0]
            ledger.at(now)
            w7 = sizes[0] if same else ledger.extra(sizes)
            ids = self._packet_ids
            w6 = ledger.extra(ids) if ids is not None else self._packet_id
            self._put_accepted(message, first, count, w7, w6, filter_ids, now)
            return
        for index in range(count):
            if not self._is_sampled_out(first + index):
                w6 = self._packet_id_at(index)
                self._put_accepted(message, first + index, 1, sizes[index], w6, filter_ids, now)

    def _packet_id_at(self, index: int) -> int:
        ids = self._packet_ids
        if ids is not None:
            return ids[index]
        if not self._packet_id:
            return 0
        return (self._packet_id + index - 1) % 65_535 + 1

    def _is_sampled_out(self, message_id: int) -> bool:
        return not self.ledger.is_full and message_id % self.ledger.sample != 0

    def _count_accepted(self, qos: int, offset: int, count: int, size: int, now: int) -> None:
        ledger = self.ledger
        book = ledger.book(self._tenant, now)
        self._book = book
        self._count = count
        self._size = size
        self._first = offset
        check1 = check2 = 0
        if offset:
            check1 = check1_of(offset, count)
            check2 = check2_of(offset, count)
            ledger.count(book, events.STAGE_STORED, count, size, check1, check2)
            stored = self._stored.get(book)
            if stored is None:
                stored = self._stored[book] = Sum()
            stored.count += count
            stored.size += size
            stored.check1 += check1
            stored.check2 += check2
        ledger.count(book, events.STAGE_ACCEPTED, count, size, check1, check2)
        if qos and self._session is not None:
            ledger.count(book, events.STAGE_ACK_OWED, count, size, check1, check2)

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
        ledger = self.ledger
        ledger.at(now)
        session = self._session
        w0 = _ACCEPTED | message.qos << PUB_QOS_SHIFT | self._dup
        if session is not None:
            incarnation = session.incarnation
            who = ledger.who(session)
            w0 |= _CLIENT
        else:
            incarnation = 0
            who = ledger.name(f"{self._client_id}\0{self._tenant}")
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
            w9 = ledger.extra([len(filter_ids), *filter_ids])
            more = count * len(filter_ids)
        ledger.put(
            w0,
            incarnation,
            self._conn,
            who | ledger.text(message.topic),
            first,
            count,
            w6,
            w7,
            expiry_s,
            w9,
            more,
        )

    def refused(self, topic: str, size: int, reason: str, now: int) -> None:
        """A publisher's message was not taken over."""
        ledger = self.ledger
        book = ledger.book(self._tenant, now)
        ledger.count(book, events.STAGE_DROPPED, 1, size, 0, 0)
        if not ledger.is_full:
            return
        ledger.at(now)
        session = self._session
        who = ledger.name(f"{self._client_id}\0{self._tenant}")
        ledger.put(
            _DROPPED | DROPPED[reason] << REASON_SHIFT,
            session.incarnation if session is not None else 0,
            self._conn,
            who | ledger.text(topic),
            0,
            w9=1,
        )

    def received_again(self, now: int) -> None:
        """The publisher sent a QoS 2 message again whose packet id is held already."""
        session = self._session
        ledger = self.ledger
        if session is None or not ledger.is_full:
            return
        ledger.at(now)
        ledger.put(
            _PUB_DUP | 2 << PUB_QOS_SHIFT,
            session.incarnation,
            self._conn,
            ledger.who(session),
            0,
            w6=self._packet_id,
        )

    # Promises

    def acknowledge(
        self,
        connection: Connection,
        session: Session,
        qos: int,
        reason_code: int,
        waits: bool,
        now: int,
    ) -> None:
        """The publication under way is answered: with the commit if `waits`, else right now."""
        promise = Promise(connection, session, self._packet_id, self._packet_ids, qos, reason_code)
        promise.first = self._first
        promise.count = self._count
        promise.size = self._size
        promise.book = self._book
        self._promise(promise, waits, now)

    def complete(
        self, connection: Connection, session: Session, packet_id: int, waits: bool, now: int
    ) -> None:
        """PUBREL is answered with PUBCOMP."""
        if self.ledger.is_full:
            self._promise(Promise(connection, session, packet_id, None, 0, 0), waits, now)

    def _promise(self, promise: Promise, waits: bool, now: int) -> None:
        if waits:
            self._promises.append(promise)
        else:
            self._kept(promise, now)

    def attach(self, serial: int, durable: int, end: int, now: int) -> None:
        """Batch `serial` was written, and the log ends at `end` with it."""
        if not self.ledger.has_books and not self._marks and not self._promises:
            self._end = self._persisted = end
        elif self._promises or self._stored or end != self._end:
            self._end = end
            self._marks.append(Mark(serial, end, self._promises, self._stored))
            self._promises = []
            self._stored = {}
            if serial <= durable:
                self.release(serial, now)

    def release(self, serial: int, now: int) -> None:
        """Everything up to batch `serial` is durable: promises that waited for it are kept."""
        marks = self._marks
        while marks and marks[0].serial <= serial:
            mark = marks.popleft()
            if not self.ledger.has_books:
                self._persisted = mark.end
                continue
            self._persist(mark, now)
            for promise in mark.promises:
                self._kept(promise, now)

    def _persist(self, mark: Mark, now: int) -> None:
        ledger = self.ledger
        ledger.at(now)
        for book, stored in mark.stored.items():
            ledger.count(
                book,
                events.STAGE_PERSISTED,
                stored.count,
                stored.size,
                stored.check1,
                stored.check2,
            )
        first, count = self._persisted + 1, mark.end - self._persisted
        self._persisted = mark.end
        if count <= 0 or not ledger.has_messages:
            return
        if ledger.is_full:
            ledger.put(_PERSISTED, 0, 0, 0, first, count)
            return
        for offset in range(first + -first % ledger.sample, first + count, ledger.sample):
            ledger.put(_PERSISTED, 0, 0, 0, offset)

    def _kept(self, promise: Promise, now: int) -> None:
        """An acknowledgement goes out, unless its connection is gone."""
        connection = promise.connection
        if connection.state == CLOSED or connection.is_over:
            return
        ledger = self.ledger
        ledger.at(now)
        session, first, count = promise.session, promise.first, promise.count
        if promise.qos == 0:
            ledger.put(
                _PUB_COMPLETED,
                session.incarnation,
                connection.number,
                ledger.who(session),
                0,
                w6=promise.packet_id,
            )
            return
        if promise.book is not None:
            check1 = check2 = 0
            if 0 < first < events.UNSTORED:
                check1, check2 = check1_of(first, count), check2_of(first, count)
            ledger.count(promise.book, events.STAGE_PUB_ACKED, count, promise.size, check1, check2)
        if not ledger.has_messages:
            return
        if not ledger.is_full and (not first or count == 1) and self._is_sampled_out(first or 1):
            return
        w0 = _PUB_ACKED | promise.qos << PUB_QOS_SHIFT | promise.reason_code << REASON_SHIFT
        if first:
            w0 |= HAS_MSG
        who = ledger.who(session)
        ids = promise.packet_ids
        if ledger.is_full or count == 1:
            w6 = promise.packet_id if ids is None else ledger.extra(ids)
            ledger.put(w0, session.incarnation, connection.number, who, first, count, w6)
            return
        for index in range(count):
            if not self._is_sampled_out(first + index):
                w6 = ids[index] if ids is not None else (promise.packet_id + index - 1) % 65535 + 1
                ledger.put(w0, session.incarnation, connection.number, who, first + index, 1, w6)
