"""The tables of a database's state: sessions, subscriptions, queues, messages, wills.

A table is its columns and a function that reads a part of it. docs/forensics.md defines the
columns. Read next: `audit.database.reading`, which divides tables into parts and reads them.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from audit.database.reader import Database
from session.state.in_flight import (
    FROM_GROUP,
    FROM_LOG,
    FROM_MAILBOX,
    QOS_MASK,
    REFERENCE_SHIFT,
    RELEASED,
    SOURCE_MASK,
)
from session.state.session import EXPIRY_NEVER
from session.state.shared_group_record import decode_group
from session.state.will_record import ConnectionRecord, decode_connection
from storage.api import Row
from storage.errors import CorruptRecord
from storage.log.gaps import NO_GAPS, Gaps
from storage.log.layouts.api import Stream
from storage.tables.message_record import decode_message
from storage.tables.tables import (
    CONNECTIONS,
    DUE,
    GROUPS,
    INCOMING,
    RETAINED,
    SESSIONS,
    SUBSCRIPTIONS,
    client_prefix,
    retained_topic,
    scan_all,
    scan_prefix,
    split_group_key,
    unseal,
)
from storage.tables.timers import WILL

MESSAGES: Final = "messages"
QUEUES: Final = "queues"
MESSAGES_READ: Final = 64  # at once: their payloads, of any size, are in memory

_DUE: Final = struct.Struct(">QB")
_SOURCES: Final = {FROM_LOG: "log", FROM_MAILBOX: "mailbox", FROM_GROUP: "group"}

Values = tuple[object, ...]
Columns = tuple[tuple[str, str], ...]


class Part(NamedTuple):
    """The keys start <= key < stop of a column family: one piece of a table."""

    table: str
    family: str
    start: bytes
    stop: bytes | None


class Table(NamedTuple):
    """One table: its columns as (name, type), like those of the history, and its reader."""

    columns: Columns
    families: tuple[str, ...]  # its parts are ranges of their keys; none: it is one part
    read: Callable[[Database, Part], Iterator[Values]]


def rows_of(database: Database, part: Part) -> Iterator[Row]:
    """Yield the rows of a part, page by page."""
    yield from scan_all(database.store, part.family, part.start, part.stop)


def _connection(value: bytes) -> ConnectionRecord:
    return decode_connection(unseal(value, "value"))


def _read_sessions(database: Database, part: Part) -> Iterator[Values]:
    for key, value in rows_of(database, part):
        session = database.session(key, value)
        if session is None:
            continue
        connected = database.store.get(CONNECTIONS, key) is not None
        expires_ms = 0
        if not connected and session.expiry_interval_s != EXPIRY_NEVER:
            expires_ms = session.disconnected_at_ms + session.expiry_interval_s * 1000
        streams = [stream for _, stream in database.held(session)]
        counts = database.waiting(streams, session.position, session.gaps)
        waiting = None if counts is None else sum(counts.values())
        incoming = scan_prefix(database.store, INCOMING, client_prefix(session.client_id))
        yield (
            session.client_id,
            session.identity,
            session.incarnation or None,
            connected,
            session.protocol_version,
            database.time(session.created_at_ms),
            database.time(session.connected_at_ms),
            database.time(session.disconnected_at_ms),
            database.time(expires_ms),
            session.expiry_interval_s,
            session.position,
            len(session.subscriptions),
            len(session.in_flight),
            sum(1 for _ in incoming),
            waiting,
            waiting == database.waiting_max,
        )


SESSION_COLUMNS: Final[Columns] = (
    ("client_id", "string"),
    ("tenant", "string"),
    ("session", "int64"),  # incarnation, as in the history; null: not yet known
    ("connected", "bool"),  # now, or when the broker last ran
    ("proto", "int8"),
    ("created_at", "time"),
    ("connected_at", "time"),
    ("disconnected_at", "time"),
    ("expires_at", "time"),  # null: connected, or never
    ("expiry_s", "int64"),  # 4294967295 = never
    ("position", "int64"),
    ("subs", "int32"),
    ("inflight", "int32"),
    ("incoming_qos2", "int32"),  # ids received and not yet released by the client
    ("waiting", "int64"),  # messages behind the position, each once; null: a damaged index
    ("waiting_is_at_least", "bool"),
)


def _read_subscriptions(database: Database, part: Part) -> Iterator[Values]:
    for key, value in rows_of(database, part):
        found = database.subscription(key, value)
        if found is None:
            continue
        client_id, subscription = found
        is_held = subscription.holds or subscription.share_name is not None
        stream = database.stream(subscription.stream_filter, 0) if is_held else None
        yield (
            client_id,
            subscription.topic_filter,
            subscription.share_name,
            None if stream is None else stream.filter_id,
            subscription.qos,
            subscription.no_local,
            subscription.retain_as_published,
            subscription.retain_handling,
            subscription.identifier or None,
            subscription.since,
        )


SUBSCRIPTION_COLUMNS: Final[Columns] = (
    ("client_id", "string"),
    ("tfilter", "string"),  # as subscribed, `$share/NAME/` included
    ("share", "string"),
    ("stream", "int64"),  # whose messages are stored for the session, or for its group
    ("qos", "int8"),  # granted
    ("no_local", "bool"),
    ("retain_as_published", "bool"),
    ("retain_handling", "int8"),
    ("identifier", "int64"),
    ("since", "int64"),  # only messages behind it are owed
)


def _read_queues(database: Database, part: Part) -> Iterator[Values]:
    for key, value in rows_of(database, part):
        if part.family == GROUPS:
            yield from _group_queue(database, key, value)
            continue
        session = database.session(key, value)
        if session is None:
            continue
        for subscription, stream in database.held(session):
            yield from _queue(
                database,
                (session.client_id, None, subscription.topic_filter),
                stream,
                session.position,
                [],
                session.gaps,
            )


def _group_queue(database: Database, key: bytes, value: bytes) -> Iterator[Values]:
    what = f"group {key!r}"
    names = database.decoded(what, split_group_key, key)
    record = database.decoded(what, lambda: decode_group(unseal(value, "value")))
    if names is None or record is None:
        return
    share_name, topic_filter = names
    stream = database.stream(topic_filter, record.since)
    if stream is not None:
        owner = (None, share_name, topic_filter)
        yield from _queue(database, owner, stream, record.position, record.owed)


def _queue(
    database: Database,
    owner: tuple[str | None, str | None, str],
    stream: Stream,
    position: int,
    owed: list[int],
    gaps: Gaps = NO_GAPS,
) -> Iterator[Values]:
    """Yield a row for each generation with waiting messages, or one row if nothing waits."""
    waiting = database.waiting([stream], position, gaps)
    given_back: dict[int | None, int] = {}
    for offset in owed:
        number = database.generation_of(offset)
        given_back[number] = given_back.get(number, 0) + 1
    is_most = waiting is not None and sum(waiting.values()) == database.waiting_max
    head = (*owner, stream.filter_id, stream.since, position)
    for number in sorted({*(waiting or ()), *given_back}, key=lambda n: n or 0) or [None]:
        count = None if waiting is None else waiting.get(number or 0, 0)
        yield (*head, number, count, is_most, given_back.get(number, 0))


QUEUE_COLUMNS: Final[Columns] = (
    ("client_id", "string"),  # null: the queue of a shared subscription
    ("share", "string"),
    ("tfilter", "string"),
    ("stream", "int64"),
    ("since", "int64"),
    ("position", "int64"),
    ("generation", "int64"),  # of the messages; null: nothing waits
    ("waiting", "int64"),  # messages of the stream and generation after the position
    ("waiting_is_at_least", "bool"),
    ("owed", "int64"),  # of a shared subscription: up to the position, not completed
)


def _read_in_flight(database: Database, part: Part) -> Iterator[Values]:
    for key, value in rows_of(database, part):
        session = database.session_alone(key, value)
        if session is None:
            continue
        for packet_id, entry in session.in_flight.items():
            source = entry & SOURCE_MASK
            number = entry >> REFERENCE_SHIFT
            share_name, topic_filter = session.leases.get(packet_id, (None, None))
            is_stored = source != FROM_MAILBOX and number > 0
            yield (
                session.client_id,
                packet_id,
                entry & QOS_MASK,
                bool(entry & RELEASED),
                _SOURCES.get(source),
                number if is_stored else None,
                database.generation_of(number) if is_stored else None,
                share_name,
                topic_filter,
            )


IN_FLIGHT_COLUMNS: Final[Columns] = (
    ("client_id", "string"),
    ("pid", "int32"),
    ("qos", "int8"),
    ("released", "bool"),  # QoS 2: PUBREC has come, PUBREL is owed
    ("source", "string"),  # log, mailbox (a retained message) or group
    ("msg", "int64"),
    ("generation", "int64"),
    ("share", "string"),
    ("tfilter", "string"),  # of the group
)


def _read_generations(database: Database, part: Part) -> Iterator[Values]:
    for generation in database.generations:
        yield (
            generation.number,
            generation.layout,
            generation.first_offset,
            generation.last_offset,
            database.time(generation.created_ms),
            generation.is_closed,
        )


GENERATION_COLUMNS: Final[Columns] = (
    ("generation", "int64"),
    ("layout", "string"),
    ("first_msg", "int64"),
    ("last_msg", "int64"),  # first_msg - 1: it is empty
    ("created_at", "time"),
    ("is_closed", "bool"),
)


def _read_messages(database: Database, part: Part) -> Iterator[Values]:
    number = int(part.family.partition(".")[2])
    slab = database.slab(number)
    assert part.stop is not None
    stop = int.from_bytes(part.stop, "big")
    for start in range(int.from_bytes(part.start, "big"), stop, MESSAGES_READ):
        offsets = range(start, min(start + MESSAGES_READ, stop))
        try:
            found = slab.get_many(offsets)
        except CorruptRecord:  # read one by one, to find the damaged ones
            found = [
                (database.decoded(f"message {offset}", slab.get_many, [offset]) or [None])[0]
                for offset in offsets
            ]
        for message in found:
            if message is not None:
                yield (
                    message.offset,
                    number,
                    database.time(message.accepted_at_ms),
                    database.time(message.expires_at_ms),
                    message.publisher,
                    message.topic,
                    message.qos,
                    message.retain,
                    len(message.payload),
                )


MESSAGE_COLUMNS: Final[Columns] = (
    ("msg", "int64"),
    ("generation", "int64"),
    ("accepted_at", "time"),
    ("expires_at", "time"),  # null: never
    ("publisher", "string"),  # its client_id
    ("topic", "string"),
    ("pub_qos", "int8"),
    ("retain", "bool"),
    ("bytes", "int64"),  # of the payload
)


def _read_retained(database: Database, part: Part) -> Iterator[Values]:
    for key, value in rows_of(database, part):
        what = f"retained message {key!r}"
        topic = database.decoded(what, retained_topic, key)
        message = database.decoded(what, decode_message, value, 0)
        if topic is not None and message is not None:
            yield (
                topic,
                database.time(message.accepted_at_ms),
                database.time(message.expires_at_ms),
                message.publisher,
                message.qos,
                len(message.payload),
            )


RETAINED_COLUMNS: Final[Columns] = (
    ("topic", "string"),
    ("accepted_at", "time"),
    ("expires_at", "time"),  # null: never
    ("publisher", "string"),
    ("pub_qos", "int8"),
    ("bytes", "int64"),
)


def _read_wills(database: Database, part: Part) -> Iterator[Values]:
    for key, value in rows_of(database, part):
        name, at_ms = key, 0
        if part.family == DUE:
            at_ms, kind = _DUE.unpack_from(key)
            if kind != WILL:
                continue
            name = key[_DUE.size :].partition(b"\0")[0]  # and a number, without a session
        what = f"will {name!r}"
        client_id = database.decoded(what, name.decode)
        record = database.decoded(what, _connection, value)
        if client_id is None or record is None or record.will is None:
            continue
        will = record.will
        yield (
            client_id,
            record.identity,
            at_ms > 0,
            database.time(at_ms),
            will.topic,
            will.qos,
            will.retain,
            len(will.payload),
            will.delay_interval,
            will.message_expiry_interval,
        )


WILL_COLUMNS: Final[Columns] = (
    ("client_id", "string"),
    ("tenant", "string"),
    ("waits", "bool"),  # its connection has ended; false: the client is connected
    ("due_at", "time"),  # when it is published, if it waits
    ("topic", "string"),
    ("qos", "int8"),
    ("retain", "bool"),
    ("bytes", "int64"),
    ("delay_s", "int64"),
    ("expiry_s", "int64"),  # of the message; null: none
)


TABLES: Final[dict[str, Table]] = {
    "sessions": Table(SESSION_COLUMNS, (SESSIONS,), _read_sessions),
    "subscriptions": Table(SUBSCRIPTION_COLUMNS, (SUBSCRIPTIONS,), _read_subscriptions),
    QUEUES: Table(QUEUE_COLUMNS, (SESSIONS, GROUPS), _read_queues),
    "in_flight": Table(IN_FLIGHT_COLUMNS, (SESSIONS,), _read_in_flight),
    "retained": Table(RETAINED_COLUMNS, (RETAINED,), _read_retained),
    MESSAGES: Table(MESSAGE_COLUMNS, (), _read_messages),
    "generations": Table(GENERATION_COLUMNS, (), _read_generations),
    "wills": Table(WILL_COLUMNS, (CONNECTIONS, DUE), _read_wills),
}
