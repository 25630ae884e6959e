"""Is a database read that RocksDB refuses to open, and is it left as it is?"""

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from storage.local.data_directory import DataDirectory
from storage.local.opening import open_database
from storage.local.rocks import RocksStore
from storage.local.salvage.source import Source

ROWS = {b"%05d" % number: os.urandom(40) for number in range(2000)}


def data_dir(path: Path, *, flush: bool = True) -> Path:
    """Make a data directory with ROWS in two families, in tables or in the log only."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(contextlib.closing(DataDirectory(path)))
        store, watermark, _ = open_database(place, families=("a", "b"))
        stack.callback(watermark.close)
        for family in ("a", "b"):
            for key, value in ROWS.items():
                store.write([(family, key, value)])
        store.sync()
        watermark.advance(store.synced())
        if flush:
            store.flush()
        else:  # as kill -9 leaves it: what closing writes goes to a copy
            copy = path.with_name("killed")
            shutil.copytree(path, copy)
            path = copy
        store.close()
    return path


def state(path: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(file): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in path.rglob("*")
        if file.is_file()
    }


def read(path: Path, work: Path) -> tuple[dict[str, int], list[str], bool]:
    """Return how many rows can be read, the problems, and whether the list was made anew."""
    work.mkdir()
    before = state(path)
    with Source(path, work) as source:
        found = {family: dict(source.rows(family)) for family in ("a", "b")}
        for rows in found.values():
            assert rows.items() <= ROWS.items()
        counts = {family: len(rows) for family, rows in found.items()}
        problems = source.problems + [gap.problem for gap in source.gaps]
        result = counts, problems, source.is_rebuilt
    assert state(path) == before, "nothing in it is changed"
    return result


def test_a_whole_database_is_read_where_it_is(tmp_path: Path) -> None:
    path = data_dir(tmp_path / "data")
    assert read(path, tmp_path / "work") == ({"a": 2000, "b": 2000}, [], False)


def test_what_is_only_in_the_log_is_read(tmp_path: Path) -> None:
    path = data_dir(tmp_path / "data", flush=False)
    assert read(path, tmp_path / "work") == ({"a": 2000, "b": 2000}, [], False)


def test_a_missing_table_costs_its_rows_alone(tmp_path: Path) -> None:
    path = data_dir(tmp_path / "data")
    (table,) = [
        file for file in (path / "db").glob("*.sst") if ROWS[b"00000"] in file.read_bytes()
    ][:1]
    table.unlink()
    counts, problems, is_rebuilt = read(path, tmp_path / "work")
    assert sorted(counts.values()) == [0, 2000] and is_rebuilt
    assert problems == [f"{table}: missing"]


@pytest.mark.parametrize("name", ["MANIFEST-*", "CURRENT"])
def test_without_the_list_of_tables_all_of_them_are_read(tmp_path: Path, name: str) -> None:
    path = data_dir(tmp_path / "data")
    (file,) = (path / "db").glob(name)
    for content in (b"", b"torn" * 20):
        file.write_bytes(content)
        counts, problems, is_rebuilt = read(path, tmp_path / f"work{len(content)}")
        assert counts == {"a": 2000, "b": 2000} and is_rebuilt and problems
    file.unlink()
    counts, _, is_rebuilt = read(path, tmp_path / "work")
    assert counts == {"a": 2000, "b": 2000}


def test_a_damaged_log_is_read_up_to_the_damage(tmp_path: Path) -> None:
    path = data_dir(tmp_path / "data", flush=False)
    log = max((path / "db").glob("*.log"), key=lambda file: file.stat().st_size)
    content = bytearray(log.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    log.write_bytes(content)
    counts, problems, is_rebuilt = read(path, tmp_path / "work")
    assert counts["a"] == 2000 and 0 < counts["b"] < 2000 and not is_rebuilt
    assert "checksum mismatch" in problems[0] and "were durable" in problems[1]


def test_a_tail_of_the_log_that_was_never_written_is_no_damage(tmp_path: Path) -> None:
    path = data_dir(tmp_path / "data", flush=False)
    log = max((path / "db").glob("*.log"), key=lambda file: file.stat().st_size)
    log.write_bytes(log.read_bytes() + bytes(4096))
    assert read(path, tmp_path / "work") == ({"a": 2000, "b": 2000}, [], False)


def test_rows_in_the_stretch_of_a_damaged_block_are_read_from_other_tables(tmp_path: Path) -> None:
    path = data_dir(tmp_path / "data")
    store = RocksStore(path / "db")
    newer = (b"00010", b"01000", b"01990")
    store.write([("a", key, ROWS[key]) for key in newer])
    store.flush()
    store.close()
    needle = ROWS[newer[1]]
    holding = [file for file in (path / "db").glob("*.sst") if needle in file.read_bytes()]
    table = min(holding, key=lambda file: file.stat().st_size)
    content = bytearray(table.read_bytes())
    content[content.index(needle)] ^= 1
    table.write_bytes(content)
    counts, problems, _ = read(path, tmp_path / "work")
    assert 1950 <= counts["a"] <= 2000 - len(newer) and counts["b"] == 2000
    assert [each for each in problems if "block checksum mismatch" in each]


def test_no_table_at_all_is_a_database_without_rows(tmp_path: Path) -> None:
    (tmp_path / "data" / "db").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    with Source(tmp_path / "data", tmp_path / "work") as source:
        assert source.is_rebuilt and source.problems and list(source.rows("a")) == []
