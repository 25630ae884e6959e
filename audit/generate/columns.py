"""Rows of the model and stamped traffic as Arrow columns, in their common order.

A piece is about a minute of one boot. Here rows get their final offsets and sequence numbers; rows
hidden by a gap are only counted in the books.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from audit.generate.state import SLOT_BITS, SLOT_MASK, UNSTORED, Row
from audit.generate.steady import Ints
from storage.history.columns import ARROW_SCHEMA
from storage.history.events import ACTORS, COLUMNS, EVENTS, SCHEMA_VERSION

Flags = npt.NDArray[np.bool_]

OFFSETS: Final = ("msg", "msg_last", "position", "order")
WORDS: Final = ("tenant", "client_id", "topic", "tfilter", "share", "detail", "stage")
FLAGS: Final = ("dup", "retain", "sp", "clean_start", "no_local")
NUMBERS: Final = tuple(
    name
    for name, kind in COLUMNS
    if name not in (*WORDS, *FLAGS, "v", "boot", "seq", "mono_ns") and kind != "dict"
)
# Columns that are not in the history: whether the row is hidden by a lowered level (`hidden`) or
# deleted (`gone`), how its count is filled (FILL_...), its number in the manifest (`mark`), and the
# bytes of the retained message that is sent (`weight`).
PRIVATE: Final = ("slot", "hidden", "gone", "fill", "mark", "weight")
FILL_HIDDEN: Final = 1
FILL_GONE: Final = 2
NULL: Final = np.iinfo(np.int64).min


class Words:
    """The distinct strings of a history; columns hold indexes into it, -1 = null."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def index(self, word: str | None) -> int:
        """Return the index of a word."""
        if word is None:
            return -1
        return self._index.setdefault(word, len(self._index))

    def array(self) -> pa.Array:
        """Return all words by index."""
        return pa.array(list(self._index), pa.string())


def decode(number: int | None, stamped_before: Ints) -> int | None:
    """Return the offset for the slot and number that the model wrote."""
    if number is None or number >= UNSTORED:
        return number
    return (number & SLOT_MASK) + int(stamped_before[number >> SLOT_BITS])


class Piece:
    """Columns being built: numbers as int64, NULL for null."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.numbers: dict[str, Ints] = {}

    def column(self, name: str) -> Ints:
        """Return a column, created full of NULL if it does not exist."""
        known = self.numbers.get(name)
        if known is None:
            known = self.numbers[name] = np.full(self.size, NULL, np.int64)
        return known

    def put(self, name: str, places: Ints, values: Ints) -> None:
        """Set the values at these places; NULL means null."""
        self.column(name)[places] = values

    def put_rows(self, rows: Sequence[Row], places: Ints, words: Words, before: Ints) -> None:
        """Set the rows of the model at these places."""
        names = {name for row in rows for name in row}
        for name in ("ev", "actor", *NUMBERS, *FLAGS, *PRIVATE):
            if name in names:
                values = [row.get(name) for row in rows]
                if name in OFFSETS:
                    values = [decode(value, before) for value in values]
                self.put(name, places, _filled(values))
        for name in WORDS:
            if name in names:
                indexes = [words.index(row.get(name)) for row in rows]
                self.column(name)[places] = indexes

    def kept(self, keep: Flags) -> "Piece":
        """Return the rows where `keep` is true."""
        piece = Piece(int(keep.sum()))
        piece.numbers = {name: column[keep] for name, column in self.numbers.items()}
        return piece

    def table(self, node: str, boot: int, booted_at: int, words: Words) -> pa.Table:
        """Return the finished rows with the columns of the history."""
        self.numbers["v"] = np.full(self.size, SCHEMA_VERSION, np.int64)
        self.numbers["boot"] = np.full(self.size, boot, np.int64)
        self.numbers["mono_ns"] = (self.column("ts") - booted_at) * 1000
        pool = words.array()
        arrays = [self._arrow(field, node, pool) for field in ARROW_SCHEMA]
        return pa.Table.from_arrays(arrays, schema=ARROW_SCHEMA)

    def _arrow(self, field: pa.Field, node: str, pool: pa.Array) -> pa.Array:
        name = field.name
        if name == "node":
            return pa.DictionaryArray.from_arrays(np.zeros(self.size, np.int32), pa.array([node]))
        if name in ("ev", "actor"):
            return _coded(self.column(name), EVENTS if name == "ev" else ACTORS)
        values = self.numbers.get(name)
        if values is None:
            return pa.nulls(self.size, field.type)
        absent = values < 0 if name in WORDS else values == NULL
        if name in WORDS:
            used, indexes = _used(values, absent, len(pool))
            coded = pa.DictionaryArray.from_arrays(pa.array(indexes, mask=absent), pool.take(used))
            return coded if pa.types.is_dictionary(field.type) else coded.dictionary_decode()
        return pa.array(np.where(absent, 0, values), mask=absent).cast(field.type)


def _used(values: Ints, absent: Flags, words: int) -> tuple[Ints, npt.NDArray[np.int32]]:
    """Return the words in use, and the values as indexes into them."""
    occurs = np.zeros(words + 1, np.bool_)
    occurs[np.where(absent, words, values)] = True
    occurs[words] = False
    places = np.cumsum(occurs) - 1
    return np.flatnonzero(occurs), places[np.where(absent, words, values)].astype(np.int32)


def spliced(piece: Piece, at: int, extra: Piece) -> Piece:
    """Return the rows of `piece` with those of `extra` before its row `at`."""
    whole = Piece(piece.size + extra.size)
    for name in {*piece.numbers, *extra.numbers}:
        parts = piece.column(name)[:at], extra.column(name), piece.column(name)[at:]
        whole.numbers[name] = np.concatenate(parts)
    return whole


def _filled(values: Sequence[Any]) -> Ints:
    return np.array([NULL if value is None else value for value in values], np.int64)


def _coded(values: Ints, names: dict[int, str]) -> pa.Array:
    codes = np.zeros(max(names) + 1, np.int32)
    for index, code in enumerate(names):
        codes[code] = index
    return pa.DictionaryArray.from_arrays(codes[values], pa.array(list(names.values())))
