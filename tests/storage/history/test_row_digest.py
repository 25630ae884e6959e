"""Is the digest that of the rows, and of nothing else?"""

import hashlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.history.columns import ARROW_SCHEMA, expand_table
from storage.history.row_digest import digest_of
from tests.storage.history.history_cases import NODE, everything_else, run_of_messages


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """A value of every kind, and nulls."""
    first = run_of_messages().row(1)
    later = everything_else().row(first.first_seq + first.events)
    return expand_table([first, later], NODE, 1)


def test_the_digest_is_written_down_here(table: pa.Table) -> None:
    """A change is a new version of the chain."""
    assert digest_of(table) == "0ef39cb682737d1faac104f68887f2b269180536195df3b04103b1b9f828f693"


def test_it_is_made_as_described() -> None:
    names = pa.array(["b", None, "a", "b"]).dictionary_encode()
    columns: dict[str, Any] = {
        "number": pa.array([1, -1, None, 3], pa.int16()),
        "flag": pa.array([True, None, False, True]),
        "text": pa.array(["é", "", None, "x"]),
        "name": names,
        "at": pa.array([None, None, 5, None], pa.timestamp("us", tz="UTC")),
    }
    expected = hashlib.sha256(
        b"\4\0\0\0\0\0\0\0"
        b"number\0int16\0\x0b\1\0\xff\xff\3\0"
        b"flag\0bool\0\x0d\1\0\1"
        b"text\0string\0\x0b\2\0\0\0\0\0\0\0\1\0\0\0\xc3\xa9x"
        b"name\0dict\0\x0d\2\0\0\0\1\0\0\0\1\0\0\0ba\0\0\0\0\1\0\0\0\0\0\0\0"
        b"at\0time\0\x04\5\0\0\0\0\0\0\0"
    )
    assert digest_of(pa.table(columns)) == expected.hexdigest()


def test_it_does_not_matter_how_the_rows_are_stored(table: pa.Table, tmp_path: Any) -> None:
    digest = digest_of(table)
    pieces = [table.slice(0, 7), table.slice(7, 1), table.slice(8)]
    assert digest_of(pa.concat_tables(pieces)) == digest
    assert digest_of(pa.concat_tables([table, table]).slice(table.num_rows)) == digest
    assert digest_of(pa.Table.from_pylist(table.to_pylist(), ARROW_SCHEMA)) == digest
    for name, options in (("small", {"row_group_size": 3}), ("plain", {"use_dictionary": False})):
        pq.write_table(table, tmp_path / name, **options)
        assert digest_of(pq.read_table(tmp_path / name)) == digest


def test_a_dictionary_may_have_a_name_twice_and_one_that_nobody_uses() -> None:
    plain = pa.array(["b", "a", None, "b"]).dictionary_encode()
    indices = pa.array([3, 2, None, 1], pa.int32())
    odd = pa.DictionaryArray.from_arrays(indices, pa.array(["unused", "b", "a", "b"]))
    assert digest_of(pa.table({"name": odd})) == digest_of(pa.table({"name": plain}))


def test_every_value_and_every_null_counts(table: pa.Table) -> None:
    rows = table.to_pylist()
    seen = {digest_of(table)}
    for name in ARROW_SCHEMA.names:
        kind = ARROW_SCHEMA.field(name).type
        changed = [dict(row) for row in rows]
        if changed[3][name] is not None:
            changed[3][name] = None
        elif pa.types.is_dictionary(kind) or kind == pa.string():
            changed[3][name] = "other"
        else:
            changed[3][name] = pa.scalar(1).cast(kind).as_py()
        seen.add(digest_of(pa.Table.from_pylist(changed, ARROW_SCHEMA)))
    swapped = [*rows[:3], rows[4], rows[3], *rows[5:]]
    seen.add(digest_of(pa.Table.from_pylist(swapped, ARROW_SCHEMA)))
    seen.add(digest_of(pa.Table.from_pylist([], ARROW_SCHEMA)))
    assert len(seen) == len(ARROW_SCHEMA.names) + 3


def test_a_kind_that_no_history_has_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid, match="column f: double is no kind of the history"):
        digest_of(pa.table({"f": [1.5]}))
