"""Read a database as tables: sessions, subscriptions, queues, messages, and the history.

A table is read in parts: ranges of keys that do not overlap, each read by one process that opens
the database. Memory is bounded by a batch of rows. Payloads are not in the tables, only their
sizes. Does not use Spark (`audit.database.spark_source` does). docs/forensics.md defines the
columns. Read next: `audit.database.reader`.
"""

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Final

import pyarrow as pa

from audit.database.reader import Database, SourceError
from audit.database.table_columns import MESSAGES, QUEUES, TABLES, Columns, Part, Values, rows_of
from storage.errors import StorageError
from storage.history.columns import expand_table
from storage.history.events import COLUMNS
from storage.history.packed_rows import Row as Tick
from storage.history.packed_rows import split_history_key, unpack
from storage.log.layouts.message_rows import message_family
from storage.tables.tables import SESSIONS, unseal

HISTORY: Final = "history"  # the family, and its table
DAMAGE: Final = "damage"  # the damaged rows of all other tables

# Rows per batch: 2,048 of the widest table are about 1 MB.
BATCH_ROWS: Final = 2048
# Keys per part. A row of the history is a whole tick, of up to thousands of events.
PART_KEYS: Final = 50_000
HISTORY_PART_KEYS: Final = 2_000
PARTS_MAX: Final = 64
# Messages per part.
MESSAGES_PART: Final = 100_000
# Events of the history that are expanded into columns at once.
EVENTS_BATCH: Final = 20_000
INTERPOLATED_BYTES: Final = 8  # of a key, after the common prefix of the first and last key
KEY_AFTER_ALL: Final = b"\xff" * 16

_ARROW: Final[dict[str, pa.DataType]] = {
    "dict": pa.string(),
    "string": pa.string(),
    "time": pa.timestamp("us", tz="UTC"),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
}
# The tables that are checked for damage: together they read every row once.
CHECKED: Final = (HISTORY, "in_flight", "subscriptions", QUEUES, "retained", MESSAGES, "wills")


def plan(database: Database, name: str) -> list[Part]:
    """Return the parts that make up a table, at most about PARTS_MAX per family."""
    if name == DAMAGE:
        parts = [part for table in CHECKED for part in plan(database, table)]
        # The queues table reads session rows, which another table checks already.
        return [p for p in parts if (p.table, p.family) != (QUEUES, SESSIONS)]
    if name == MESSAGES:
        return _cut_messages(database)
    families = (HISTORY,) if name == HISTORY else TABLES[name].families
    if not families:
        return [Part(name, "", b"", None)]
    present = [family for family in families if family in database.families]
    return [part for family in present for part in _cut(database, name, family)]


def read(database: Database, name: str, part: Part) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one part of a table, as `arrow_schema` says; raises `SourceError`."""
    schema = arrow_schema(name)
    try:
        if name == HISTORY:
            yield from _read_history(database, part, schema)
            return
        rows = _read_damage(database, part) if name == DAMAGE else TABLES[name].read(database, part)
        while batch := list(islice(rows, BATCH_ROWS)):
            columns = [
                pa.array(values, field.type)
                for values, field in zip(zip(*batch, strict=True), schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
    except StorageError as error:
        raise SourceError(f"{database.path}: {error}") from error


def _cut(database: Database, name: str, family: str) -> list[Part]:
    """Return the parts of a family, which divide its range of keys about evenly."""
    store = database.store
    first = store.scan(family, b"", count=1)
    last = store.last(family, b"", KEY_AFTER_ALL)
    if not first or last is None:
        return []
    keys = store.property_int("rocksdb.estimate-num-keys", family)
    size = HISTORY_PART_KEYS if family == HISTORY else PART_KEYS
    count = max(1, min(PARTS_MAX, -(-keys // size)))
    edges = [b"", *_between(first[0][0], last[0], count - 1), None]
    return [
        Part(name, family, start, stop)
        for start, stop in pairwise(edges)
        if start is not None and start != stop
    ]


def _between(first: bytes, last: bytes, count: int) -> list[bytes]:
    """Return at most `count` keys between two keys, ascending and about evenly spaced."""
    common = 0
    while common < min(len(first), len(last)) and first[common] == last[common]:
        common += 1
    low, high = (
        int.from_bytes(key[common : common + INTERPOLATED_BYTES].ljust(INTERPOLATED_BYTES, b"\0"))
        for key in (first, last)
    )
    numbers = [low + (high - low) * i // (count + 1) for i in range(1, count + 1)]
    return [first[:common] + n.to_bytes(INTERPOLATED_BYTES) for n in dict.fromkeys(numbers)]


def _cut_messages(database: Database) -> list[Part]:
    parts = []
    for generation in database.generations:
        first, last = generation.first_offset, generation.last_offset
        # Consecutive messages, as many per part as keep the number of parts within PARTS_MAX.
        size = max(MESSAGES_PART, -(-(last - first + 1) // PARTS_MAX))
        for start in range(first, last + 1, size):
            stop = min(start + size, last + 1)
            family = message_family(generation.number)
            parts.append(Part(MESSAGES, family, start.to_bytes(8), stop.to_bytes(8)))
    return parts


def columns_of(name: str) -> Columns:
    """Return the columns of a table, as (name, type); raises `SourceError` if there is none."""
    fixed = {HISTORY: COLUMNS, DAMAGE: DAMAGE_COLUMNS}
    columns = fixed.get(name) or (TABLES[name].columns if name in TABLES else None)
    if columns is None:
        raise SourceError(f"table {name!r}: expected one of {', '.join((*fixed, *TABLES))}")
    return columns


def arrow_schema(name: str) -> pa.Schema:
    """Return the Arrow schema of a table; no dictionaries, because Spark does not accept them."""
    return pa.schema([(column, _ARROW[kind]) for column, kind in columns_of(name)])


# The history


def _read_history(database: Database, part: Part, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the events of the ticks in a part, expanded into columns."""
    ticks: list[Tick] = []
    boot = events = 0
    for key, value in rows_of(database, part):
        found = database.decoded(f"history row {key.hex()}", _tick, key, value)
        if found is None:
            continue
        if ticks and (found[0] != boot or events >= EVENTS_BATCH):
            yield from _spread(database, ticks, boot, schema)
            ticks, events = [], 0
        boot = found[0]
        ticks.append(found[1])
        events += found[1].events
    if ticks:
        yield from _spread(database, ticks, boot, schema)


def _spread(
    database: Database, ticks: list[Tick], boot: int, schema: pa.Schema
) -> list[pa.RecordBatch]:
    table: pa.Table = expand_table(ticks, database.node, boot)
    batches: list[pa.RecordBatch] = table.cast(schema).to_batches(max_chunksize=EVENTS_BATCH)
    return batches


def _tick(key: bytes, value: bytes) -> tuple[int, Tick]:
    boot, first_seq = split_history_key(key)
    tick = unpack(unseal(value, "value"))
    if tick.first_seq != first_seq:
        raise ValueError(f"it begins at {tick.first_seq}, expected {first_seq}")
    return boot, tick


# Damaged rows


def _read_damage(database: Database, part: Part) -> Iterator[Values]:
    """Yield the damaged rows in a part of another table. The database must be opened with SKIP."""
    problems: list[str] = []
    database.on_damage = problems.append
    if part.table == HISTORY:
        rows: Iterator[object] = _read_history(database, part, arrow_schema(HISTORY))
    else:
        rows = TABLES[part.table].read(database, part)
    for _ in rows:
        yield from ((part.table, problem) for problem in problems)
        problems.clear()
    yield from ((part.table, problem) for problem in problems)


DAMAGE_COLUMNS: Final[Columns] = (
    ("table", "string"),
    ("problem", "string"),  # the row and its error
)
