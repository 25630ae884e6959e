"""The digest of the rows of a segment: the same for the same rows, however they are stored.

SHA-256 of the number of rows (8 bytes; all numbers are little-endian), and then of each column in
the order of the file: its name and its kind, each followed by a zero byte; one bit per row, the
lowest bit first, whether there is a value; and the values that are there:

- numbers in their own width, times as microseconds in 8 bytes, booleans as one byte;
- texts: the length of each in UTF-8 (4 bytes), then all of them;
- names (texts of a dictionary): how many different ones there are (4 bytes) and these, as texts, in
  the order of their first use, then for each row the index of its name in them (4 bytes).

Needs the extra `history`. Read next: `storage.history.chain`.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa

_BYTE_ORDER: Final = "<"
_KINDS: Final = {
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.bool_(): "bool",
    pa.timestamp("us", tz="UTC"): "time",
    pa.string(): "string",
}
_NAMES: Final = "dict"


def digest_of(table: pa.Table) -> str:
    """Return the digest of the rows, hexadecimal. Raises `pyarrow.ArrowInvalid` for other kinds."""
    return digest_of_columns(table.num_rows, zip(table.schema, table.columns, strict=True))


def digest_of_columns(rows: int, columns: Iterable[tuple[pa.Field, pa.ChunkedArray]]) -> str:
    """Return the digest of so many rows, whose columns may be read one after the other."""
    digest = hashlib.sha256(rows.to_bytes(8, "little"))
    for field, column in columns:
        is_names = pa.types.is_dictionary(field.type)
        kind = _NAMES if is_names else _KINDS.get(field.type)
        if kind is None:
            raise pa.ArrowInvalid(f"column {field.name}: {field.type} is no kind of the history")
        digest.update(f"{field.name}\0{kind}\0".encode())
        there = column.is_valid().combine_chunks().to_numpy(zero_copy_only=False)
        digest.update(np.packbits(there, bitorder="little").tobytes())
        if is_names:
            _add_names(digest, column)
        elif kind == "string":
            _add_texts(digest, column.drop_null().combine_chunks())
        else:
            _add_numbers(digest, column.drop_null(), kind)
    return digest.hexdigest()


def _add_numbers(digest: Any, column: pa.ChunkedArray, kind: str) -> None:
    if kind == "time":
        column = column.cast(pa.int64())
    for chunk in column.chunks:
        values = chunk.to_numpy(zero_copy_only=False)
        if kind == "bool":
            values = values.astype(np.uint8)
        digest.update(values.astype(values.dtype.newbyteorder(_BYTE_ORDER), copy=False).tobytes())


def _add_texts(digest: Any, texts: pa.Array) -> None:
    """Add texts without a null among them."""
    encoded = [text.encode() for text in texts.to_pylist()]
    lengths = np.fromiter(map(len, encoded), "<u4", len(encoded))
    digest.update(lengths.tobytes())
    digest.update(b"".join(encoded))


def _add_names(digest: Any, column: pa.ChunkedArray) -> None:
    used = column.unify_dictionaries().drop_null().combine_chunks()
    if not len(used):
        digest.update(bytes(4))
        return
    # A dictionary may have a name twice, and names that no row has.
    single = used.dictionary.dictionary_encode()
    indices = single.indices.to_numpy()[used.indices.to_numpy()]
    count = len(single.dictionary)
    first_use = np.full(count, len(indices), np.int64)
    first_use[indices[::-1]] = np.arange(len(indices) - 1, -1, -1)  # of many writes the last holds
    order = np.argsort(first_use, kind="stable")[: int((first_use < len(indices)).sum())]
    rank = np.zeros(count, "<u4")
    rank[order] = np.arange(len(order))
    digest.update(len(order).to_bytes(4, "little"))
    _add_texts(digest, single.dictionary.take(pa.array(order)))
    digest.update(rank[indices].tobytes())
