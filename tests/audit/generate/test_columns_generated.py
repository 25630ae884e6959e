"""Columns of rows and stamped traffic."""

import numpy as np

from audit.generate.columns import NULL, Piece, Words, decode, spliced
from audit.generate.state import SLOT_BITS, UNSTORED
from storage.history import events as ev
from storage.history.columns import ARROW_SCHEMA

BEFORE = np.array([0, 10, 30], np.int64)


def test_offsets_are_moved_by_what_was_stamped_before_their_slot() -> None:
    assert decode(1 << SLOT_BITS | 5, BEFORE) == 15
    assert decode(2 << SLOT_BITS | 5, BEFORE) == 35
    assert decode(UNSTORED | 3, BEFORE) == UNSTORED | 3
    assert decode(None, BEFORE) is None


def test_a_piece_becomes_a_table_with_nulls_where_nothing_was_put() -> None:
    rows = [
        {"ev": ev.MSG_ACCEPTED, "actor": 1, "ts": 2000, "topic": "a/b", "tenant": "", "msg": 7},
        {"ev": ev.GC_RUN, "actor": 2, "ts": 3000, "count": 4},
    ]
    piece = Piece(2)
    words = Words()
    words.index("not used")
    piece.put_rows(rows, np.arange(2), words, BEFORE)
    piece.numbers["seq"] = np.array([1, 2])
    table = piece.table("n", 3, 1000, words)
    assert table.schema.equals(ARROW_SCHEMA)
    first, second = table.to_pylist()
    assert (first["topic"], first["tenant"], first["msg"], first["count"]) == ("a/b", "", 7, None)
    assert (second["ev"], second["actor"], second["topic"], second["count"]) == (
        "gc_run",
        "gc",
        None,
        4,
    )
    assert (first["boot"], first["mono_ns"], second["seq"]) == (3, 1_000_000, 2)


def test_rows_are_spliced_in_with_all_columns_of_both() -> None:
    one, other = Piece(2), Piece(1)
    one.put("ts", np.arange(2), np.array([1, 3]))
    other.put("ts", np.arange(1), np.array([2]))
    other.put("count", np.arange(1), np.array([9]))
    whole = spliced(one, 1, other)
    assert whole.column("ts").tolist() == [1, 2, 3]
    assert whole.column("count").tolist() == [NULL, 9, NULL]
