"""The packed rows of one tick: fixed-width records of ten signed 64-bit words.

Packs the events that `session.history.recorder` collects during a tick into one value, and expands
it into the columns of `storage.history.events`. A record is one event, or a run of them: n messages
of one publisher and topic, or n messages of one connection. `expand` defines what a record means;
`storage.history.columns` does the same for many rows at once.

    w0  bits 0-7 event, 8-23 reason (books: stage), 24-27 actor, 28-29 QoS granted, 30-31 QoS
        published, 32 DUP, 33 RETAIN, 34 Session Present, 35 Clean Start, 36 No Local, 40-47
        protocol version, 48-60 the HAS bits below: which columns are not null (books: none)
    w1  session (0 = none); of retained_set, retained_cleared and retained_expired it is `pub`, and
        `session` is null; of backend_told and backend_gap it is `msg_last`
    w2  connection (0 = offline); null where session is null and it is 0
    w3  who | text << 20 | text2 << 40: each an index + 1 into the names, 0 = none
        who    client_id NUL tenant; an empty client_id is null, an empty tenant is ""
        text   topic (messages, wills, retained), tfilter (subscriptions), detail (all others)
        text2  share, or backend in the events about external stores
        Names that clients chose are `shortened`.
    w4  HAS_MSG: msg, the first of n; HAS_POSITION: position; books: bin in ms
    w5  n >= 1: how many messages (events) the record stands for; 1 for books
    w6  HAS_PID: 0 = all have packet id 0; > 0 = the first of n consecutive ones, 1 after 65535;
        < 0 = ~index into the extras of n packet ids. Books: count
    w7  HAS_BYTES: payload bytes of each, or ~index into the extras of n sizes; HAS_STREAM: stream;
        HAS_SESSION_STATE: ~index into the extras of STATE_SIZE numbers: subs, inflight,
        subs_check, rmax (NULL = null), at in ms (0 = null). Books: total_bytes
    w8  HAS_EXPIRY: expiry_s; HAS_AT: at in ms; msg_dropped: msg_last (0 = null). Books: check1
    w9  HAS_COUNT: count. Books: check2. msg_accepted: 0, or ~index into the extras of k and k
        filter ids: the n msg_accepted are followed by n * k msg_enqueued, message by message, in
        the order of the filter ids. With HAS_MSG and without HAS_COUNT: 0 = msg, msg + 1 ..., or
        ~index into the extras of n message ids, in which 0 = null

Not by a bit but by event: proto, sp, clean_start of session_created and session_resumed; no_local
of subscribed and sub_restored; retain of subscribed, true or null; order = msg and pub = session of
msg_accepted; attempt of msg_delivered with HAS_FLAGS: 2 with DUP, else 1. backend_told and
backend_gap have HAS_MSG and HAS_COUNT, n is 1, and w6 is check1, w7 check2, w8 bin in ms. A
msg_enqueued that msg_accepted stands for has msg and stream, its actor is the broker. `queued` is
always null. The checksum of the stored value is added by `storage.tables.tables.seal`. Read next:
`storage.history.columns`.
"""

import hashlib
import struct
from array import array
from collections.abc import Iterator
from typing import Final

from storage.history.events import (
    ACTORS,
    BACKEND_EVENTS,
    BACKEND_GAP,
    BACKEND_TOLD,
    BOOKS,
    BROKER,
    COLUMNS,
    EVENTS,
    HISTORY_GAP,
    MSG_ACCEPTED,
    MSG_DELIVERED,
    MSG_DROPPED,
    MSG_ENQUEUED,
    OUTBOX_TRIMMED,
    RETAINED_CLEARED,
    RETAINED_EXPIRED,
    RETAINED_SET,
    SCHEMA_VERSION,
    SESSION_CREATED,
    SESSION_RESUMED,
    STAGES,
    SUB_RESTORED,
    SUBSCRIBED,
)

RECORD_WORDS: Final = 10
STATE_SIZE: Final = 5  # numbers in the extras of an event with HAS_SESSION_STATE

# w0
REASON_SHIFT: Final = 8
ACTOR_SHIFT: Final = 24
QOS_SHIFT: Final = 28
PUB_QOS_SHIFT: Final = 30
DUP_SHIFT: Final = 32
RETAIN_SHIFT: Final = 33
SP_SHIFT: Final = 34
CLEAN_START_SHIFT: Final = 35
NO_LOCAL_SHIFT: Final = 36
PROTO_SHIFT: Final = 40
HAS_QOS: Final = 1 << 48
HAS_PUB_QOS: Final = 1 << 49
HAS_FLAGS: Final = 1 << 50  # dup and retain
HAS_PID: Final = 1 << 51
HAS_BYTES: Final = 1 << 52
HAS_EXPIRY: Final = 1 << 53
HAS_POSITION: Final = 1 << 54
HAS_AT: Final = 1 << 55
HAS_SESSION_STATE: Final = 1 << 56
HAS_COUNT: Final = 1 << 57
HAS_MSG: Final = 1 << 58
HAS_REASON: Final = 1 << 59
HAS_STREAM: Final = 1 << 60

# w3
TEXT_SHIFT: Final = 20
TEXT2_SHIFT: Final = 40
NAMES_MAX: Final = (1 << 20) - 1  # of a row: what fits into w3; also the mask of an index

# A client chooses names of up to 65,535 bytes, and each tick in which it is active stores them
# again. A name longer than this is recorded as its beginning and a hash.
NAME_CHARACTERS_MAX: Final = 1024
_KEPT_CHARACTERS: Final = 256
_HASH_BYTES: Final = 16

NULL: Final = -1  # a number of the session's state that is null
PID_MAX: Final = 65_535

# Events with a range of messages and their checksums, and the flags that they have and have not.
RANGES: Final = (BACKEND_TOLD, BACKEND_GAP)
RANGE_FLAGS: Final = HAS_MSG | HAS_COUNT | HAS_REASON

# Groups of events, by number: which column `text` is.
SUBSCRIPTION_EVENTS: Final = 16  # the first of them; before: sessions
MESSAGE_EVENTS: Final = 32  # messages, wills and retained messages
BROKER_EVENTS: Final = 96

_VERSION: Final = 1
# version, now, boot, first seq, events, records, extras, names
_HEAD: Final = struct.Struct(">BQQQIIII")
_HEAD_SIZE: Final = 41
_NAME_SIZE: Final = struct.Struct(">I")
_KEY: Final = struct.Struct(">IQ")
_KEY_SIZE: Final = 12
_IS_BIG_ENDIAN: Final = struct.pack("=H", 1) == b"\0\1"
_HAS_SHIFT: Final = 48
_ALL_FLAGS: Final = 0x1FFF << _HAS_SHIFT
_W0_FREE: Final = 7 << 37 | 7 << 61
_INT16_MAX: Final = 2**15 - 1
_INT32_MAX: Final = 2**31 - 1
_INT8_MAX: Final = 2**7 - 1


class Row:
    """The events of one tick, checked by `unpack`."""

    __slots__ = ("boot_ms", "events", "extras", "first_seq", "names", "now_ms", "words")

    def __init__(
        self,
        now_ms: int,
        boot_ms: int,
        first_seq: int,
        events: int,
        words: "array[int]",
        extras: "array[int]",
        names: list[str],
    ) -> None:
        self.now_ms = now_ms  # broker time of the tick
        self.boot_ms = boot_ms  # broker time of the start
        self.first_seq = first_seq
        self.events = events  # number of rows in the table
        self.words = words
        self.extras = extras
        self.names = names


def history_key(boot: int, first_seq: int) -> bytes:
    """Return the key of a row. Rows sort by boot, then by their first event."""
    return _KEY.pack(boot, first_seq)


def split_history_key(key: bytes) -> tuple[int, int]:
    """Return (boot, first seq) of a key; raises ValueError if it is not a key of a row."""
    if len(key) != _KEY_SIZE:
        raise ValueError(f"history key {key.hex()}: {len(key)} bytes, expected {_KEY_SIZE}")
    boot, first_seq = _KEY.unpack(key)
    return boot, first_seq


def shortened(name: str) -> str:
    """Return a client id, user name, topic or filter as the history stores it: cut if too long."""
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=_HASH_BYTES).hexdigest()
    return f"{name[:_KEPT_CHARACTERS]}...{digest}"


def pack(
    now_ms: int,
    boot_ms: int,
    first_seq: int,
    events: int,
    words: list[int],
    extras: list[int],
    names: list[str],
) -> bytes:
    """Return the bytes of one tick's records, which are `events` events from `first_seq` on.

    Does not check the records (`unpack` does): this runs once a tick in the broker.
    """
    packed = array("q", words)
    packed.extend(extras)
    if _IS_BIG_ENDIAN:
        packed.byteswap()
    head = _HEAD.pack(
        _VERSION,
        now_ms,
        boot_ms,
        first_seq,
        events,
        len(words) // RECORD_WORDS,
        len(extras),
        len(names),
    )
    parts = [head, packed.tobytes()]
    for name in names:
        encoded = name.encode()
        parts.append(_NAME_SIZE.pack(len(encoded)))
        parts.append(encoded)
    return b"".join(parts)


def unpack(body: bytes) -> Row:
    """Return the row that `pack` encoded; raises ValueError for bytes that cannot be expanded."""
    size = len(body)
    if size < _HEAD_SIZE or body[0] != _VERSION:
        raise ValueError(
            f"history row: version {body[:1].hex()} of {size} bytes, expected {_VERSION}"
        )
    _, now_ms, boot_ms, first_seq, events, records, extra_count, name_count = _HEAD.unpack_from(
        body
    )
    extras_at = _HEAD_SIZE + 8 * RECORD_WORDS * records
    at = extras_at + 8 * extra_count
    if at > size:
        raise ValueError(f"history row: ends at {size} bytes, expected {at}")
    words = _numbers(body[_HEAD_SIZE:extras_at])
    extras = _numbers(body[extras_at:at])
    names: list[str] = []
    for _ in range(name_count):
        start = at + 4
        if start > size:
            raise ValueError(f"history row: ends at {size} bytes, expected {start}")
        at = start + int.from_bytes(body[at:start], "big")
        if at > size:
            raise ValueError(f"history row: ends at {size} bytes, expected {at}")
        names.append(body[start:at].decode())
    if at != size:
        raise ValueError(f"history row: {size - at} bytes left over at {at}")
    row = Row(now_ms, boot_ms, first_seq, events, words, extras, names)
    _check(row)
    return row


def peek(body: bytes) -> tuple[int, int, int]:
    """Return (broker time in ms, first seq, events) of a row without reading its records.

    Raises ValueError if it is not a row.
    """
    if len(body) < _HEAD_SIZE or body[0] != _VERSION:
        raise ValueError(
            f"history row: version {body[:1].hex()} of {len(body)} bytes, expected {_VERSION}"
        )
    _, now_ms, _, first_seq, events, _, _, _ = _HEAD.unpack_from(body)
    return now_ms, first_seq, events


def count_missing(body: bytes) -> tuple[int, int]:
    """Return (events of the row, events before it that it reports as deleted).

    If the row itself is deleted, both are missing. Does not check the records. Raises ValueError if
    it is not a row.
    """
    _, _, events = peek(body)
    records = _HEAD.unpack_from(body)[5]
    words = _numbers(body[_HEAD_SIZE : _HEAD_SIZE + 8 * RECORD_WORDS * records])
    gap = HISTORY_GAP | OUTBOX_TRIMMED << REASON_SHIFT
    missing = 0
    for at in range(0, len(words), RECORD_WORDS):
        if words[at] & 0xFFFFFF == gap:
            missing += words[at + 9]
    return events, missing


def _numbers(data: bytes) -> "array[int]":
    numbers = array("q")
    numbers.frombytes(data)
    if _IS_BIG_ENDIAN:
        numbers.byteswap()
    return numbers


def count_events(words: list[int], extras: list[int]) -> int:
    """Return how many events the records are, to add to `first_seq` for the next row."""
    events = 0
    for at in range(0, len(words), RECORD_WORDS):
        n = words[at + 5]
        events += n
        filters = words[at + 9]
        if words[at] & 0xFF == MSG_ACCEPTED and filters < 0:
            events += n * extras[~filters]
    return events


def _check(row: Row) -> None:
    """Raise ValueError unless every record can be expanded and the number of events is right."""
    events = 0
    for at in range(0, len(row.words), RECORD_WORDS):
        record = row.words[at : at + RECORD_WORDS]
        wrong = _wrong_flags(record[0]) or _wrong_numbers(record, row.extras, len(row.names))
        if wrong:
            raise ValueError(f"history row: record {at // RECORD_WORDS}: {wrong}")
        n = record[5]
        events += n
        if record[0] & 0xFF == MSG_ACCEPTED and record[9] < 0:
            events += n * row.extras[~record[9]]
    if events != row.events:
        raise ValueError(f"history row: {events} events, expected {row.events}")


def _wrong_flags(w0: int) -> str:
    """Return why a w0 is invalid, "" if it is valid."""
    ev = w0 & 0xFF
    reason = w0 >> REASON_SHIFT & 0xFFFF
    if ev not in EVENTS:
        return f"event {ev} is not known"
    if w0 & _W0_FREE or (ev == BOOKS and w0 >> _HAS_SHIFT):
        return f"flags {w0:#x} are not known"
    if w0 >> ACTOR_SHIFT & 0xF not in ACTORS:
        return f"actor {w0 >> ACTOR_SHIFT & 0xF} is not known"
    if ev in RANGES and w0 & _ALL_FLAGS != RANGE_FLAGS:
        return f"flags {w0:#x} are not those of a range"
    if reason > _INT16_MAX or (ev == BOOKS and reason not in STAGES):
        return f"reason or stage {reason} is not known"
    if w0 >> PROTO_SHIFT & 0xFF > _INT8_MAX:
        return f"protocol version {w0 >> PROTO_SHIFT & 0xFF}"
    for both in (HAS_MSG | HAS_POSITION, HAS_EXPIRY | HAS_AT):
        if w0 & both == both:
            return f"flags {w0:#x} give one word two meanings"
    w7 = w0 & (HAS_BYTES | HAS_STREAM | HAS_SESSION_STATE)
    if w7 & (w7 - 1) or (ev == MSG_ACCEPTED and w0 & HAS_COUNT):
        return f"flags {w0:#x} give one word two meanings"
    return ""


def _wrong_numbers(record: "array[int]", extras: "array[int]", names: int) -> str:
    """Return which word does not fit its event, the extras or the names, "" if all do."""
    w0, n, w3, pid, w7, w9 = record[0], record[5], record[3], record[6], record[7], record[9]
    ev = w0 & 0xFF
    size = len(extras)
    if n < 1 or (n != 1 and (ev == BOOKS or ev in RANGES)):
        return f"stands for {n} events"
    for index in (w3 & NAMES_MAX, w3 >> TEXT_SHIFT & NAMES_MAX, w3 >> TEXT2_SHIFT):
        if index < 0 or index > names:
            return f"name {index} of {names}"
    if w0 & HAS_PID:
        if pid > PID_MAX or (pid < 0 and ~pid + n > size):
            return f"packet id {pid}"
        if pid < 0 and not _are_within(extras, ~pid, n, PID_MAX):
            return "a packet id above 65535"
    if w0 & HAS_BYTES:
        if w7 > _INT32_MAX or (w7 < 0 and ~w7 + n > size):
            return f"payload of {w7} bytes"
        if w7 < 0 and not _are_within(extras, ~w7, n, _INT32_MAX):
            return "a payload above 2 GiB"
    if w0 & HAS_SESSION_STATE:
        if w7 >= 0 or ~w7 + STATE_SIZE > size:
            return f"state of the session at {~w7} of {size} extras"
        for at in (~w7, ~w7 + 1, ~w7 + 3):
            if not NULL <= extras[at] <= _INT32_MAX:
                return f"state of the session holds {extras[at]}"
    if ev == MSG_ACCEPTED:
        if w9 > 0 or (w9 < 0 and (~w9 >= size or not 0 <= extras[~w9] < size - ~w9)):
            return f"filter ids at {~w9} of {size} extras"
    elif w0 & HAS_MSG and not w0 & HAS_COUNT and (w9 > 0 or (w9 < 0 and ~w9 + n > size)):
        return f"message ids at {~w9} of {size} extras"
    return ""


def _are_within(extras: "array[int]", at: int, count: int, most: int) -> bool:
    for number in extras[at : at + count]:
        if number < 0 or number > most:
            return False
    return True


def expand(row: Row, node: str, boot: int) -> Iterator[dict[str, object]]:
    """Yield a row's events in the order of seq, each with every column of `events.COLUMNS`.

    Times (`ts`, `at`, `bin`) are microseconds since 1970, in broker time.
    """
    empty: dict[str, object] = {name: None for name, _ in COLUMNS}
    empty["v"] = SCHEMA_VERSION
    empty["node"] = node
    empty["boot"] = boot
    empty["ts"] = row.now_ms * 1000
    empty["mono_ns"] = (row.now_ms - row.boot_ms) * 1_000_000
    extras = row.extras
    seq = row.first_seq
    for start in range(0, len(row.words), RECORD_WORDS):
        record = row.words[start : start + RECORD_WORDS]
        w0, n = record[0], record[5]
        ev = w0 & 0xFF
        common = empty.copy()
        common["ev"] = EVENTS[ev]
        common["actor"] = ACTORS[w0 >> ACTOR_SHIFT & 0xF]
        _fill_names(common, ev, record[3], row.names)
        if ev == BOOKS:
            _fill_books(common, record)
        else:
            _fill_flags(common, ev, record)
            _fill_numbers(common, ev, record, extras)
        for i in range(n):
            flat = common.copy()
            flat["seq"] = seq
            _fill_message(flat, record, extras, i)
            yield flat
            seq += 1
        if ev == MSG_ACCEPTED and record[9] < 0:
            at = ~record[9]
            streams = extras[at + 1 : at + 1 + extras[at]]
            for i in range(n):
                for stream in streams:
                    flat = empty.copy()
                    flat["ev"] = EVENTS[MSG_ENQUEUED]
                    flat["actor"] = ACTORS[BROKER]
                    flat["seq"] = seq
                    flat["msg"] = record[4] + i if w0 & HAS_MSG else None
                    flat["stream"] = stream
                    yield flat
                    seq += 1


def _fill_names(common: dict[str, object], ev: int, w3: int, names: list[str]) -> None:
    who = w3 & NAMES_MAX
    text = w3 >> TEXT_SHIFT & NAMES_MAX
    text2 = w3 >> TEXT2_SHIFT
    if who:
        client_id, _, tenant = names[who - 1].partition("\0")
        common["client_id"] = client_id or None
        common["tenant"] = tenant
    if text:
        if ev < SUBSCRIPTION_EVENTS or ev >= BROKER_EVENTS:
            common["detail"] = names[text - 1]
        elif ev < MESSAGE_EVENTS:
            common["tfilter"] = names[text - 1]
        else:
            common["topic"] = names[text - 1]
    if text2:
        common["backend" if ev in BACKEND_EVENTS else "share"] = names[text2 - 1]


def _fill_books(common: dict[str, object], record: "array[int]") -> None:
    common["stage"] = STAGES[record[0] >> REASON_SHIFT & 0xFFFF]
    common["bin"] = record[4] * 1000
    common["count"] = record[6]
    common["total_bytes"] = record[7]
    common["check1"] = record[8]
    common["check2"] = record[9]


def _fill_flags(common: dict[str, object], ev: int, record: "array[int]") -> None:
    """Fill the columns from w0, w1 and w2."""
    w0, session, conn = record[0], record[1], record[2]
    if ev == RETAINED_SET or ev == RETAINED_CLEARED or ev == RETAINED_EXPIRED:
        common["pub"] = session or None
        session = 0
    elif ev in RANGES:
        common["msg_last"] = session
        session = 0
    if session:
        common["session"] = session
    if session or conn:
        common["conn"] = conn
    if w0 & HAS_REASON:
        common["reason"] = w0 >> REASON_SHIFT & 0xFFFF
    if w0 & HAS_QOS:
        common["qos"] = w0 >> QOS_SHIFT & 3
    if w0 & HAS_PUB_QOS:
        common["pub_qos"] = w0 >> PUB_QOS_SHIFT & 3
    if w0 & HAS_FLAGS:
        common["dup"] = bool(w0 >> DUP_SHIFT & 1)
        common["retain"] = bool(w0 >> RETAIN_SHIFT & 1)
        if ev == MSG_DELIVERED:
            common["attempt"] = 1 + (w0 >> DUP_SHIFT & 1)
    if ev == SESSION_CREATED or ev == SESSION_RESUMED:
        common["proto"] = w0 >> PROTO_SHIFT & 0xFF
        common["sp"] = bool(w0 >> SP_SHIFT & 1)
        common["clean_start"] = bool(w0 >> CLEAN_START_SHIFT & 1)
    elif ev == SUBSCRIBED or ev == SUB_RESTORED:
        common["no_local"] = bool(w0 >> NO_LOCAL_SHIFT & 1)
        if ev == SUBSCRIBED and w0 >> RETAIN_SHIFT & 1:
            common["retain"] = True
    elif ev == MSG_ACCEPTED:
        common["pub"] = session or None


def _fill_numbers(
    common: dict[str, object], ev: int, record: "array[int]", extras: "array[int]"
) -> None:
    """Fill the columns from w4 and w7 to w9 that are the same for all events of the record."""
    w0, w7, w8 = record[0], record[7], record[8]
    if w0 & HAS_POSITION:
        common["position"] = record[4]
    if w0 & HAS_STREAM:
        common["stream"] = w7
    if w0 & HAS_EXPIRY:
        common["expiry_s"] = w8
    elif w0 & HAS_AT:
        common["at"] = w8 * 1000
    elif ev == MSG_DROPPED and w8:
        common["msg_last"] = w8
    if ev in RANGES:
        common["check1"] = record[6]
        common["check2"] = w7
        common["bin"] = w8 * 1000
    if w0 & HAS_COUNT:
        common["count"] = record[9]
    if w0 & HAS_SESSION_STATE:
        at = ~w7
        for name in ("subs", "inflight", "subs_check", "rmax"):
            if extras[at] != NULL:
                common[name] = extras[at]
            at += 1
        if extras[at]:
            common["at"] = extras[at] * 1000


def _fill_message(
    flat: dict[str, object], record: "array[int]", extras: "array[int]", i: int
) -> None:
    """Fill the columns that differ between the events of a record: message, packet id, size."""
    w0, pid, size, ids = record[0], record[6], record[7], record[9]
    if w0 & 0xFF == BOOKS:
        return
    if w0 & HAS_MSG:
        if ids < 0 and w0 & 0xFF != MSG_ACCEPTED and not w0 & HAS_COUNT:
            flat["msg"] = extras[~ids + i] or None
        else:
            flat["msg"] = record[4] + i
        if w0 & 0xFF == MSG_ACCEPTED:
            flat["order"] = flat["msg"]
    if w0 & HAS_PID:
        if pid < 0:
            flat["pid"] = extras[~pid + i]
        else:
            flat["pid"] = (pid - 1 + i) % PID_MAX + 1 if pid else 0
    if w0 & HAS_BYTES:
        flat["bytes"] = extras[~size + i] if size < 0 else size
