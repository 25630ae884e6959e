"""The hazards of rocksdict 0.3.29, one by one, and that the adapter is not caught by them.

A test named `..._still` shows a hazard in rocksdict itself. When one of those fails after an
upgrade, the hazard is gone: look whether what the adapter does about it can go, too. All others
test the adapter. Numbers are those of the list the adapter was written against.
"""

import ast
import contextlib
import gc
import random
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from rocksdict import DbClosedError, Options, Rdict, ReadOptions

import storage.local.rocks
from storage.errors import DamagedRows, StorageError, WriteStalled
from storage.local.rocks import RocksStore
from tests.storage.scenarios import run

ROWS = [(number.to_bytes(4, "big"), b"value %d" % number) for number in range(100)]


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[Rdict]:
    """rocksdict itself, with 100 rows."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(tmp_path / "raw"), options)
    for key, value in ROWS:
        database.put(key, value)
    yield database
    with contextlib.suppress(DbClosedError):
        database.close()
    del database
    gc.collect()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    store = RocksStore(tmp_path / "db", families=["a", "b"])
    store.write([("a", key, value) for key, value in ROWS])
    yield store
    store.close()


def _names_used() -> set[str]:
    """Return every attribute in the adapter's code, and every name it imports."""
    tree = ast.parse(Path(storage.local.rocks.__file__).read_text())
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return names | {alias.name for node in imports for alias in node.names}


# 1. Snapshots


def test_1_iterating_a_snapshot_still_shows_later_changes(raw: Rdict) -> None:
    snapshot = raw.snapshot()
    for key, _ in ROWS[10:]:
        raw.delete(key)
    assert len(list(snapshot.keys())) == 10, "a snapshot should show 100"
    assert snapshot[ROWS[50][0]] == ROWS[50][1], "by key it does"
    del snapshot


def test_1_a_scan_is_one_point_in_time(store: RocksStore) -> None:
    rows = store.scan("a", b"", count=1000)
    store.write([("a", key, None) for key, _ in ROWS])
    assert rows == ROWS


# 2. and 3. Bounds of iterators


def test_2_a_lower_bound_is_still_an_upper_bound(raw: Rdict) -> None:
    options = ReadOptions()
    bound = ROWS[30][0]
    options.set_iterate_lower_bound(bound)
    iterator = raw.iter(options)
    iterator.seek_to_first()
    assert iterator.key() == ROWS[0][0], "the first row should be row 30"
    iterator.seek_to_last()
    assert iterator.key() == ROWS[29][0], "the last row should be row 99"


def test_2_and_3_scans_keep_to_their_bounds(store: RocksStore) -> None:
    for start, stop in ((0, 100), (30, 31), (30, 30), (31, 30), (99, 100)):
        low, high = start.to_bytes(4, "big"), stop.to_bytes(4, "big")
        assert store.scan("a", low, high, count=1000) == ROWS[start:stop]


# 4. Iterators and damage


def _damage(table: Path) -> None:
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)


def test_4_items_still_end_silently_at_damage(tmp_path: Path) -> None:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(tmp_path / "raw"), options)
    for number in range(20_000):
        database.put(number.to_bytes(4, "big"), random.randbytes(50))
    database.flush(True)
    database.close()
    del database
    gc.collect()
    (table,) = (tmp_path / "raw").glob("*.sst")
    _damage(table)
    database = Rdict(str(tmp_path / "raw"), options)
    count = len(list(database.items()))
    assert 0 < count < 20_000, "and no exception"
    iterator = database.iter()
    iterator.seek_to_first()
    while iterator.valid():
        iterator.next()
    with pytest.raises(Exception, match="Corruption: block checksum mismatch"):
        iterator.status()
    del iterator
    database.close()


def test_4_a_scan_that_meets_damage_raises(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", families=["a"])
    rows = [(number.to_bytes(4, "big"), random.randbytes(50)) for number in range(20_000)]
    store.write([("a", *pair) for pair in rows])
    store.flush()
    store.close()
    _damage(max((tmp_path / "db").glob("*.sst"), key=lambda table: table.stat().st_size))
    store = RocksStore(tmp_path / "db")
    assert store.scan("a", b"", count=10) == rows[:10], "before the damage all is well"
    with pytest.raises(DamagedRows, match="Corruption"):
        store.scan("a", b"", count=20_000)
    store.close()


# 1. to 5., 10., 11. and 14. What the adapter does not touch at all. Options of a read are harmless
# if they have no bounds and are given to `get`, not set (5). An upper bound (3) points into
# the bytes it was made of, even when they are gone; to show that would be to read freed memory.


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (1, "snapshot"),
        (2, "set_iterate_lower_bound"),
        (3, "set_iterate_upper_bound"),
        (4, "items"),
        (4, "keys"),
        (4, "values"),
        (5, "set_read_options"),
        (10, "sync_write"),
        (10, "disable_wal"),
        (10, "set_manual_wal_flush"),
        (11, "delete_range"),
        (14, "cancel_all_background"),
    ],
)
def test_the_adapter_does_not_use(number: int, name: str) -> None:
    assert name not in _names_used()


def test_10_a_stalled_write_is_refused_at_once_and_nothing_of_it_is_kept(tmp_path: Path) -> None:
    """Waiting for room holds the GIL, so the whole broker: without `no_slowdown` this hangs."""
    store = RocksStore(tmp_path / "db", families=["a"])
    table = store._tables["a"]
    triggers = ("level0_slowdown_writes_trigger", "level0_stop_writes_trigger")
    table.set_options({"level0_file_num_compaction_trigger": "100", **dict.fromkeys(triggers, "2")})
    for key in (b"1", b"2"):
        store.write([("a", key, b"v")])
        store.flush()
    with pytest.raises(WriteStalled):
        store.write([("a", b"3", b"v"), ("a", b"4", b"v")])
    assert store.get("a", b"2") == b"v"
    assert store.get("a", b"3") is None
    table.set_options(dict.fromkeys(triggers, "100"))
    store.write([("a", b"3", b"v")])
    assert store.get("a", b"3") == b"v"
    store.close()


def test_10_a_write_syncs_nothing_and_a_sync_syncs_once(shim: Path, tmp_path: Path) -> None:
    counts = run(shim, tmp_path, "sync_counts")
    assert set(counts.values()) == {"fewer than two", "True"}


# 6. Errors without a type


def test_6_errors_are_still_bare_exceptions(tmp_path: Path, raw: Rdict) -> None:
    options = Options(raw_mode=True)
    with pytest.raises(Exception, match="lock hold by current process") as refusal:
        Rdict(str(tmp_path / "raw"), options)
    assert type(refusal.value) is Exception


# 7. Handles


def test_7_a_live_iterator_still_keeps_the_lock_after_close(tmp_path: Path, raw: Rdict) -> None:
    iterator = raw.iter()
    raw.close()
    with pytest.raises(Exception, match="lock hold by current process"):
        Rdict(str(tmp_path / "raw"), Options(raw_mode=True))
    del iterator


def test_7_closing_releases_the_lock_even_with_failures_kept(tmp_path: Path) -> None:
    """Does an exception somebody keeps (a log, a future) keep the database open?"""
    store = RocksStore(tmp_path / "db", families=["a"])
    rows = [(number.to_bytes(4, "big"), random.randbytes(50)) for number in range(20_000)]
    store.write([("a", *pair) for pair in rows])
    store.flush()
    store.close()
    _damage(max((tmp_path / "db").glob("*.sst"), key=lambda table: table.stat().st_size))
    store = RocksStore(tmp_path / "db")
    kept = []
    for call in (
        lambda: store.scan("a", b"", count=20_000),
        lambda: store.checkpoint("/dev/null/no"),
        lambda: RocksStore(tmp_path / "db"),
        lambda: store.write([("a", "no bytes", b"")]),  # type: ignore[list-item]
        lambda: store.get_many("a", [key for key, _ in rows]),
    ):
        with pytest.raises((StorageError, KeyError)) as failure:
            call()
        kept.append(failure)
    store.close()
    reopened = RocksStore(tmp_path / "db")
    reopened.close()
    assert len(kept) == 5


def test_7_closing_waits_for_a_sync_in_another_thread(shim: Path, tmp_path: Path) -> None:
    """rocksdict itself says "Already borrowed" and stays open."""
    assert run(shim, tmp_path, "close_during_sync") == {"held": 2}


# 8. Pickling


def test_8_the_default_mode_still_pickles(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path / "pickling"))
    database["key"] = {"any": "object"}
    database.close()
    del database
    gc.collect()
    assert '"raw_mode":false' in (tmp_path / "pickling" / "rocksdict-config.json").read_text()


def test_8_what_the_adapter_writes_are_the_bytes_it_was_given(
    store: RocksStore, tmp_path: Path
) -> None:
    store.write([("a", b"\x00key\xff", b"\x80\x04value")])
    (log,) = (tmp_path / "db").glob("*.log")
    assert b"\x00key\xff\x07\x80\x04value" in log.read_bytes()
    assert '"raw_mode":true' in (tmp_path / "db" / "rocksdict-config.json").read_text()
    with pytest.raises(KeyError, match="only support bytes"):
        store.write([("a", "text", b"")])  # type: ignore[list-item]


# 9. rocksdict's own file


@pytest.mark.parametrize("content", [b"", b"{", b'{"raw_mode":false,"prefix_extractors":{}}', None])
def test_9_the_file_rocksdict_rewrites_without_a_sync_does_not_matter(
    tmp_path: Path, content: bytes | None
) -> None:
    store = RocksStore(tmp_path / "db", families=["a"])
    store.write([("a", b"k", b"v")])
    store.close()
    config = tmp_path / "db" / "rocksdict-config.json"
    config.unlink()
    if content is not None:
        config.write_bytes(content)
    store = RocksStore(tmp_path / "db")
    assert store.get("a", b"k") == b"v"
    store.close()


@pytest.mark.parametrize("name", ["OPTIONS-000001", "rocksdict-config.json"])
def test_9_neither_does_a_torn_copy_of_our_options(tmp_path: Path, name: str) -> None:
    RocksStore(tmp_path / "db", families=["a"]).close()
    file = tmp_path / "db" / "bootstrap" / name
    whole = file.read_bytes()
    for content in (b"", whole[: len(whole) // 2]):
        file.write_bytes(content)
        RocksStore(tmp_path / "db").close()
        assert file.read_bytes() == whole


# 12. Queues


def test_12_tombstones_at_the_head_of_a_queue_are_compacted_away(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", families=["a"])
    keys = [number.to_bytes(8, "big") for number in range(20_000)]
    store.write([("a", key, b"x" * 50) for key in keys])
    store.flush()
    store.write([("a", key, None) for key in keys[:-1]])
    store.flush()
    deadline = time.monotonic() + 20
    while store.property_int("rocksdb.num-deletes-active-mem-table") or _entries(store) > 100:
        assert time.monotonic() < deadline, "the tombstones are still there"
        time.sleep(0.02)
    assert store.scan("a", b"", count=9) == [(keys[-1], b"x" * 50)]
    store.close()


def _entries(store: RocksStore) -> int:
    """Return how much is left in the tables, in keys of 50 bytes (with their overhead)."""
    return store.property_int("rocksdb.total-sst-files-size", "a") // 60


# 13. Logs pinned by idle families: test_rocks.py, ..._stay_bounded_while_much_is_written


def test_the_version_is_the_one_all_this_was_found_in() -> None:
    assert version("rocksdict") == "0.3.29", "look through this file before upgrading"
