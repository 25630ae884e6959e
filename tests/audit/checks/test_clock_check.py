"""The time of a broker goes back only if somebody changed its history."""

from collections.abc import Iterator

import pyarrow as pa

from audit.checks.clock_check import compare
from audit.checks.log_checks import check
from audit.input.events import gseq
from tests.audit.conftest import History, Views

Rows = list[tuple[str, int, int]]


def batches(*parts: Rows) -> Iterator[pa.RecordBatch]:
    for part in parts:
        columns = [list(column) for column in zip(*part, strict=True)] or [[], [], []]
        types = (pa.string(), pa.int64(), pa.int64())
        arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, ["node", "gseq", "us"])


def found(*parts: Rows) -> list[tuple[object, ...]]:
    tables = [batch.to_pydict() for batch in compare(batches(*parts))]
    return [row for table in tables for row in zip(*table.values(), strict=True)]


def test_a_row_is_compared_with_the_one_before_it_also_in_another_batch() -> None:
    one, two, three, four = (gseq(1, seq) for seq in (1, 2, 3, 4))
    assert found([("a", one, 5), ("a", two, 5)], [], [("a", three, 4), ("a", four, 9)]) == [
        ("a", three, 1)
    ]
    assert found([("a", one, 7), ("a", two, 5), ("a", three, 4)]) == [
        ("a", two, 2),
        ("a", three, 1),
    ]


def test_nodes_boots_and_rows_out_of_order_are_not_compared() -> None:
    rows = [("a", gseq(1, 9), 5), ("b", gseq(1, 10), 4), ("b", gseq(2, 1), 3), ("b", gseq(1, 1), 2)]
    assert found(rows) == []
    assert found() == []


def test_a_row_whose_clock_was_moved_is_named(history: History, view: Views) -> None:
    history.boot()
    for _ in range(3):
        history.row("gc_run")
    history.rows[2]["ts"] = history.time(-300)
    (outcome,) = check(view(history))
    (witness,) = outcome.witnesses
    assert (outcome.violated, witness["what"]) == (1, "the time goes back")
    assert (witness["node"], witness["to"]) == ("n1", {"boot": 1, "seq": 3})
    assert (witness["from"], witness["back_us"]) == ({"boot": 1, "seq": 2}, 300_002_000)
    assert witness["files"] == ["n1-00000001-0000000000000001-0000000000000004.parquet"]
