"""Expand packed rows of many ticks into the flat table of the history.

Same result as `storage.history.packed_rows.expand`, with numpy over the words of all records at
once: no Python step per message. Needs the extra `history`. Read next: `storage.history.segments`.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.history import packed_rows as packed
from storage.history.events import (
    ACTORS,
    BACKEND_EVENTS,
    BOOKS,
    BROKER,
    COLUMNS,
    EVENTS,
    MSG_ACCEPTED,
    MSG_DELIVERED,
    MSG_DROPPED,
    MSG_ENQUEUED,
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
from storage.history.packed_rows import Row

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_TYPES: Final = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "dict": pa.dictionary(pa.int32(), pa.string()),
    # Microseconds with a zone: Spark refuses nanoseconds, and reads naive times as local ones.
    "time": pa.timestamp("us", tz="UTC"),
}
ARROW_SCHEMA: Final = pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS])

_NONE: Final = -1  # the index that means no name


def expand_table(rows: list[Row], node: str, boot: int) -> pa.Table:
    """Return the events of `rows` as a table with `ARROW_SCHEMA`.

    The rows must be of one boot and in order, and come from `storage.history.packed_rows.unpack`,
    which checks them.
    """
    records = _Records(rows)
    table = _Table(records)
    table.one_word("node", node)
    table.numbers("v", np.full(records.size, SCHEMA_VERSION, np.int64))
    table.numbers("boot", np.full(records.size, boot, np.int64))
    _add_envelope(table, records, rows)
    _add_names(table, records)
    _add_flags(table, records)
    _add_session_state(table, records)
    _add_numbers(table, records)
    _add_messages(table, records)
    return table.finish()


class _Records:
    """The records of many rows, by column; a msg_accepted with filters becomes two records."""

    def __init__(self, rows: list[Row]) -> None:
        sizes = np.array([len(row.words) // packed.RECORD_WORDS for row in rows], np.int64)
        words = _joined([row.words for row in rows]).reshape(-1, packed.RECORD_WORDS)
        self.extras = _joined([row.extras for row in rows])
        row = np.repeat(np.arange(len(rows), dtype=np.int64), sizes)
        extras_at = _starts(np.array([len(r.extras) for r in rows], np.int64))[row]

        accepted = (words[:, 0] & 0xFF == MSG_ACCEPTED) & (words[:, 9] < 0)
        parts = 1 + accepted.astype(np.int64)
        fans = np.flatnonzero(np.repeat(accepted, parts))[1::2]  # the second record of each pair
        columns = np.repeat(words, parts, axis=0).T.copy()
        self.row = np.repeat(row, parts)
        self.extras_at = np.repeat(extras_at, parts)
        # For the second records: how many filters a message has, and where their ids are.
        self.fanout = np.zeros(len(self.row), np.int64)
        self.filters_at = np.zeros(len(self.row), np.int64)
        at = self.extras_at[fans] + ~columns[9, fans]
        self.fanout[fans] = self.extras[at]
        self.filters_at[fans] = at + 1
        columns[0, fans] &= packed.HAS_MSG
        columns[0, fans] |= MSG_ENQUEUED | BROKER << packed.ACTOR_SHIFT | packed.HAS_STREAM
        columns[5, fans] *= self.fanout[fans]
        for word in (1, 2, 3, 6, 7, 8, 9):
            columns[word, fans] = 0
        self.fans = fans

        self.words: list[Numbers] = list(columns)
        self.ev = self.words[0] & 0xFF
        self.is_books = self.ev == BOOKS
        self.counts = self.words[5]
        self.size = len(self.row)
        self.names, self.who, self.text, self.text2 = _name_indexes(rows, self.row, self.words[3])

    def has(self, flag: int) -> Flags:
        """Return which records have this bit of w0."""
        found: Flags = self.words[0] & flag != 0
        return found

    def bits(self, shift: int, mask: int) -> Numbers:
        """Return a field of w0 of every record."""
        return self.words[0] >> shift & mask

    def among(self, *evs: int) -> Flags:
        """Return which records are one of these events."""
        return np.isin(self.ev, evs)


class _Table:
    """Columns being built: values of a record are repeated for all of its events."""

    def __init__(self, records: _Records) -> None:
        self.counts = records.counts
        self.events = int(self.counts.sum())
        self.is_plain = bool((self.counts == 1).all())  # one event per record: nothing to repeat
        self.index = np.arange(self.events, dtype=np.int64) - self.spread(_starts(self.counts))
        self._columns: dict[str, Any] = {}

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Repeat the value of each record for each of its events."""
        return values if self.is_plain else np.repeat(values, self.counts)

    def numbers(self, name: str, values: npt.NDArray[Any], present: Flags | None = None) -> None:
        """Add a column from one value per record, null where not `present`."""
        if present is not None and not present.any():
            return
        kind = ARROW_SCHEMA.field(name).type
        if pa.types.is_integer(kind):
            values = values.astype(kind.to_pandas_dtype())
        absent = None if present is None or present.all() else self.spread(~present)
        self.events_of(name, self.spread(values), absent)

    def events_of(self, name: str, values: npt.NDArray[Any], absent: Flags | None) -> None:
        """Add a column from one value per event, null where `absent`."""
        kind = ARROW_SCHEMA.field(name).type
        if pa.types.is_timestamp(kind):
            self._columns[name] = pa.array(values, pa.int64(), mask=absent).cast(kind)
        else:
            self._columns[name] = pa.array(values, kind, mask=absent)

    def times(self, name: str, values_ms: Numbers, present: Flags | None = None) -> None:
        """Add a column of times, given in ms per record."""
        self.numbers(name, values_ms * 1000, present)

    def words(self, name: str, indexes: Numbers, names: list[str]) -> None:
        """Add a column of strings from one index into `names` per record; `_NONE` is null."""
        absent = indexes == _NONE
        if absent.all():
            return
        used = np.zeros(len(names) + 1, np.bool_)  # the last entry is for _NONE
        used[indexes] = True
        places = (np.cumsum(used) - 1).astype(np.int32)
        words = pa.array([names[at] for at in np.flatnonzero(used[:-1])], pa.string())
        absent_events = self.spread(absent) if absent.any() else None
        which = pa.array(self.spread(places[indexes]), pa.int32(), mask=absent_events)
        # Clients choose names of up to 65,535 bytes, so names are never repeated per event.
        column = pa.DictionaryArray.from_arrays(which, words)
        is_coded = pa.types.is_dictionary(ARROW_SCHEMA.field(name).type)
        self._columns[name] = column if is_coded else column.dictionary_decode()

    def one_word(self, name: str, word: str) -> None:
        """Add a column with the same string in every row."""
        which = pa.array(np.zeros(self.events, np.int32))
        self._columns[name] = pa.DictionaryArray.from_arrays(which, pa.array([word]))

    def finish(self) -> pa.Table:
        """Return the table; columns that were not added are null."""
        columns = []
        for field in ARROW_SCHEMA:
            column = self._columns.get(field.name)
            columns.append(pa.nulls(self.events, field.type) if column is None else column)
        return pa.Table.from_arrays(columns, schema=ARROW_SCHEMA)


def _joined(parts: list[Any]) -> Numbers:
    """Return arrays of 64-bit words joined into one."""
    if not parts:
        return np.empty(0, np.int64)
    return np.concatenate([np.frombuffer(part, np.int64) for part in parts])


def _starts(sizes: Numbers) -> Numbers:
    """Return where each of consecutive pieces of these sizes begins."""
    return np.cumsum(sizes) - sizes


def _name_indexes(
    rows: list[Row], row: Numbers, w3: Numbers
) -> tuple[list[str], Numbers, Numbers, Numbers]:
    """Return the distinct names of all rows, and the indexes of who, text and text2 per record."""
    known: dict[str, int] = {}
    indexes = [known.setdefault(name, len(known)) for r in rows for name in r.names]
    of_row = np.array([_NONE, *indexes], np.int64)
    first = _starts(np.array([len(r.names) for r in rows], np.int64))[row]
    found = []
    for shift in (0, packed.TEXT_SHIFT, packed.TEXT2_SHIFT):
        index = w3 >> shift & packed.NAMES_MAX
        found.append(of_row[np.where(index == 0, 0, first + index)])
    return list(known), found[0], found[1], found[2]


def _add_envelope(table: _Table, records: _Records, rows: list[Row]) -> None:
    now_ms = np.array([row.now_ms for row in rows], np.int64)
    boot_ms = np.array([row.boot_ms for row in rows], np.int64)
    first_seq = np.array([row.first_seq for row in rows], np.int64)
    started = _starts(np.array([row.events for row in rows], np.int64))
    table.times("ts", now_ms[records.row])
    table.numbers("mono_ns", ((now_ms - boot_ms) * 1_000_000)[records.row])
    seq = table.spread((first_seq - started)[records.row])
    table.events_of("seq", seq + np.arange(table.events), None)
    for name, numbers, known in (
        ("ev", records.ev, EVENTS),
        ("actor", records.bits(packed.ACTOR_SHIFT, 0xF), ACTORS),
        (
            "stage",
            np.where(records.is_books, records.bits(packed.REASON_SHIFT, 0xFFFF), _NONE),
            STAGES,
        ),
    ):
        order = np.full(max(known) + 2, _NONE, np.int64)  # the last entry is for _NONE
        order[list(known)] = np.arange(len(known))
        table.words(name, order[numbers], list(known.values()))


def _add_names(table: _Table, records: _Records) -> None:
    names, ev = records.names, records.ev
    clients: dict[str, int] = {}
    tenants: dict[str, int] = {}
    client_of = np.full(len(names) + 1, _NONE, np.int64)  # the last entry is for _NONE
    tenant_of = np.full(len(names) + 1, _NONE, np.int64)
    for who in np.unique(records.who).tolist():
        if who != _NONE:
            client_id, _, tenant = names[who].partition("\0")
            tenant_of[who] = tenants.setdefault(tenant, len(tenants))
            if client_id:
                client_of[who] = clients.setdefault(client_id, len(clients))
    table.words("client_id", client_of[records.who], list(clients))
    table.words("tenant", tenant_of[records.who], list(tenants))
    is_subscription = (ev >= packed.SUBSCRIPTION_EVENTS) & (ev < packed.MESSAGE_EVENTS)
    is_message = (ev >= packed.MESSAGE_EVENTS) & (ev < packed.BROKER_EVENTS)
    for name, of in (
        ("tfilter", is_subscription),
        ("topic", is_message),
        ("detail", ~is_subscription & ~is_message),
    ):
        table.words(name, np.where(of, records.text, _NONE), names)
    is_about_store = records.among(*BACKEND_EVENTS)
    table.words("share", np.where(is_about_store, _NONE, records.text2), names)
    table.words("backend", np.where(is_about_store, records.text2, _NONE), names)


def _add_flags(table: _Table, records: _Records) -> None:
    """Add the columns from w0, w1 and w2."""
    is_retained = records.among(RETAINED_SET, RETAINED_CLEARED, RETAINED_EXPIRED)
    is_range = records.among(*packed.RANGES)
    is_event = ~records.is_books
    session, conn = records.words[1], records.words[2]
    has_session = is_event & ~is_retained & ~is_range & (session != 0)
    table.numbers("session", session, has_session)
    table.numbers("conn", conn, has_session | (is_event & (conn != 0)))
    table.numbers("pub", session, (is_retained | records.among(MSG_ACCEPTED)) & (session != 0))
    reason = records.bits(packed.REASON_SHIFT, 0xFFFF)
    table.numbers("reason", reason, records.has(packed.HAS_REASON))
    table.numbers("qos", records.bits(packed.QOS_SHIFT, 3), records.has(packed.HAS_QOS))
    pub_qos = records.bits(packed.PUB_QOS_SHIFT, 3)
    table.numbers("pub_qos", pub_qos, records.has(packed.HAS_PUB_QOS))
    has_flags = records.has(packed.HAS_FLAGS)
    dup = records.bits(packed.DUP_SHIFT, 1)
    table.numbers("attempt", dup + 1, has_flags & records.among(MSG_DELIVERED))
    asks_retained = records.among(SUBSCRIBED) & records.has(1 << packed.RETAIN_SHIFT)
    is_connect = records.among(SESSION_CREATED, SESSION_RESUMED)
    table.numbers("proto", records.bits(packed.PROTO_SHIFT, 0xFF), is_connect)
    for name, shift, present in (
        ("dup", packed.DUP_SHIFT, has_flags),
        ("retain", packed.RETAIN_SHIFT, has_flags | asks_retained),
        ("sp", packed.SP_SHIFT, is_connect),
        ("clean_start", packed.CLEAN_START_SHIFT, is_connect),
        ("no_local", packed.NO_LOCAL_SHIFT, records.among(SUBSCRIBED, SUB_RESTORED)),
    ):
        table.numbers(name, records.has(1 << shift), present)


def _add_session_state(table: _Table, records: _Records) -> None:
    """Add the sizes of a session, and all times except `ts`."""
    has_state = records.has(packed.HAS_SESSION_STATE)
    holders = np.flatnonzero(has_state)
    at = records.extras_at[holders] + ~records.words[7][holders]
    for index, name in enumerate(("subs", "inflight", "subs_check", "rmax")):
        state = np.full(records.size, packed.NULL, np.int64)
        state[holders] = records.extras[at + index]
        table.numbers(name, state, state != packed.NULL)
    has_at = records.has(packed.HAS_AT)
    at_ms = np.where(has_at, records.words[8], 0)
    state_at_ms = records.extras[at + packed.STATE_SIZE - 1]
    at_ms[holders] = np.where(state_at_ms != 0, state_at_ms, at_ms[holders])
    has_at[holders] |= state_at_ms != 0
    table.times("at", at_ms, has_at)


def _add_numbers(table: _Table, records: _Records) -> None:
    """Add the columns from w4 to w9 that are the same for all events of a record."""
    books = records.is_books
    words = records.words
    has_expiry = records.has(packed.HAS_EXPIRY)
    table.numbers("position", words[4], records.has(packed.HAS_POSITION))
    table.numbers("expiry_s", words[8], has_expiry)
    has_last = records.among(MSG_DROPPED) & ~has_expiry & ~records.has(packed.HAS_AT)
    is_range = records.among(*packed.RANGES)
    last = np.where(is_range, words[1], words[8])
    table.numbers("msg_last", last, is_range | (has_last & (words[8] != 0)))
    count = np.where(books, words[6], words[9])
    table.numbers("count", count, books | records.has(packed.HAS_COUNT))
    table.times("bin", np.where(is_range, words[8], words[4]), books | is_range)
    table.numbers("total_bytes", words[7], books)
    table.numbers("check1", np.where(is_range, words[6], words[8]), books | is_range)
    table.numbers("check2", np.where(is_range, words[7], words[9]), books | is_range)


def _add_messages(table: _Table, records: _Records) -> None:
    """Add the columns that differ between events of a record: message, stream, packet id, size."""
    words, extras = records.words, records.extras
    is_accepted = records.among(MSG_ACCEPTED)
    has_msg = records.has(packed.HAS_MSG)
    nth = table.index
    stream = table.spread(words[7])
    if len(records.fans):
        fanout = table.spread(records.fanout)
        fanned = np.flatnonzero(fanout)
        fanout, index = fanout[fanned], nth[fanned]
        filters = table.spread(records.filters_at)[fanned] + index % fanout
        stream = stream.copy()
        stream[fanned] = extras[filters]
        nth = nth.copy()
        nth[fanned] = index // fanout
    if records.has(packed.HAS_STREAM).any():
        table.events_of("stream", stream, table.spread(~records.has(packed.HAS_STREAM)))

    if has_msg.any():
        is_listed = has_msg & ~is_accepted & ~records.has(packed.HAS_COUNT) & (words[9] < 0)
        msg = _listed(table, records, table.spread(words[4]) + nth, is_listed, words[9])
        absent = table.spread(~has_msg) | ((msg == 0) & table.spread(is_listed))
        table.events_of("msg", msg, absent)
        if is_accepted.any():
            table.events_of("order", msg, table.spread(~(is_accepted & has_msg)))
    has_pid = records.has(packed.HAS_PID)
    if has_pid.any():
        first = table.spread(words[6])
        pid = np.where(first > 0, first + table.index, 0)
        if pid.max() > packed.PID_MAX:
            pid = np.where(first > 0, (pid - 1) % packed.PID_MAX + 1, 0)
        pid = _listed(table, records, pid, has_pid & (words[6] < 0), words[6])
        table.events_of("pid", pid.astype(np.int32), table.spread(~has_pid))
    has_bytes = records.has(packed.HAS_BYTES)
    if has_bytes.any():
        size = table.spread(np.where(has_bytes, words[7], 0))
        size = _listed(table, records, size, has_bytes & (words[7] < 0), words[7])
        table.events_of("bytes", size.astype(np.int32), table.spread(~has_bytes))


def _listed(
    table: _Table, records: _Records, values: Numbers, is_listed: Flags, words: Numbers
) -> Numbers:
    """Return `values`, replaced from the extras for records whose word refers to a list there."""
    if not is_listed.any():
        return values
    values = values.copy()
    events = np.flatnonzero(table.spread(is_listed))
    at = table.spread(records.extras_at + ~words)[events] + table.index[events]
    values[events] = records.extras[at]
    return values
