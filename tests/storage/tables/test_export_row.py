"""The row that says how far the history was exported keeps its format."""

import pytest

from storage.errors import CorruptRecord
from storage.local.memory import MemoryStore
from storage.tables.export_row import EXPORT_KEY, ExportProgress, load_progress
from storage.tables.tables import META, seal
from tests.storage.log_cases import golden

HEAD = bytes(range(32)).hex()
CASES = {
    "nothing in a segment": ExportProgress(begun=(1, 500)),
    "all of it": ExportProgress((70_000, 2**40), (70_000, 2**33), (70_000, 2**33 + 3), HEAD),
}


def stored(value: bytes) -> MemoryStore:
    store = MemoryStore([META])
    store.write([(META, EXPORT_KEY, value)])
    return store


@pytest.mark.parametrize("case", CASES)
def test_the_row_is_the_golden_one_and_comes_back(case: str) -> None:
    value = CASES[case].encode()
    assert value.hex() == golden("export-row-v1.hex")[case].hex()
    assert load_progress(stored(value)) == CASES[case]


def test_nothing_was_exported_from_a_store_without_the_row() -> None:
    assert load_progress(MemoryStore([META])) == ExportProgress()


@pytest.mark.parametrize("body", [b"", b"\1" + 35 * b"\0", b"\1" + 37 * b"\0", b"\2" + 36 * b"\0"])
def test_a_row_that_is_not_ours_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptRecord, match="export: version"):
        load_progress(stored(seal(body)))
