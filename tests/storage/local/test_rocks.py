"""The RocksDB store: damage is found, full disks are survived, failures have the right kind."""

import contextlib
import errno
import os
import random
import resource
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from storage import limits
from storage.errors import (
    CorruptRecord,
    DamagedRows,
    DataLoss,
    Recoverable,
    StorageError,
    StoreBusy,
    Unrecoverable,
    WriteStalled,
)
from storage.local import rocks
from storage.local.data_directory import DataDirectory
from storage.local.disk_space import Space, is_full
from storage.local.log_format import SEQUENCE_KEY
from storage.local.opening import OpenDatabase, open_database
from storage.local.rocks import RocksStore, is_unread
from storage.local.watermark import Watermark
from tests.stand_in import replace_in
from tests.storage.scenarios import held, row, run

BATCHES = 100


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database whose 100 batches are all in its live write-ahead log, and its watermark."""
    running, directory = tmp_path_factory.mktemp("running"), tmp_path_factory.mktemp("template")
    with opened(running, families=["a", "b"]) as database:
        for number in range(1, BATCHES + 1):
            database.store.write(row(number))
        database.store.sync()
        database.watermark.advance(database.store.synced())
        # Closing would empty the log into tables.
        shutil.copytree(running, directory, dirs_exist_ok=True)
    return directory


@contextlib.contextmanager
def opened(
    directory: Path, *, families: Sequence[str] = (), accept_data_loss: bool = False
) -> Iterator[OpenDatabase]:
    """Do what a broker does at start."""
    with contextlib.closing(DataDirectory(directory)) as place:
        database = open_database(place, families=families, accept_data_loss=accept_data_loss)
        with contextlib.closing(database.watermark), contextlib.closing(database.store):
            yield database


def _log_of(database: Path) -> Path:
    (log,) = [log for log in database.glob("*.log") if log.stat().st_size > 0]
    return log


def _damaged(template: Path, directory: Path, content: bytes) -> Path:
    """Return a copy of the template whose log has other bytes."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(template, directory)
    _log_of(directory / "db").write_bytes(content)
    return directory


def _start(directory: Path, *, accept_data_loss: bool = False) -> tuple[int, int]:
    """Do what a broker does at start; return how many batches there are and how many are not."""
    durable = Watermark(directory / "watermark")
    durable.close()
    with opened(directory, accept_data_loss=accept_data_loss) as database:
        count = held(database.store)
        assert count == database.store.sequence() == database.watermark.sequence
        return count, durable.sequence - count


# --- the log, cut and flipped ---


def _cut_everywhere(template: Path, directory: Path, offsets: list[int]) -> None:
    whole = _log_of(template / "db").read_bytes()
    counts = []
    for index, offset in enumerate(offsets):
        cut = _damaged(template, directory, whole[:offset])
        store = RocksStore(cut / "db")
        counts.append(held(store))  # a prefix, without a hole, whole across both families
        assert store.sequence() == counts[-1]
        store.close()
        if counts[-1] < BATCHES and index % 8 == 0:
            with pytest.raises(DataLoss, match=f"{BATCHES - counts[-1]} are lost"):
                _start(cut)
            assert _start(cut, accept_data_loss=True) == (counts[-1], BATCHES - counts[-1])
    assert counts == sorted(counts), "a longer log never holds less"
    assert counts[-1] == BATCHES


@pytest.mark.full
def test_a_log_cut_anywhere_holds_a_prefix_of_whole_batches(template: Path, tmp_path: Path) -> None:
    size = _log_of(template / "db").stat().st_size
    offsets = sorted([0, 1, 6, 7, size - 1, size, *random.Random(1).sample(range(size), 14)])
    _cut_everywhere(template, tmp_path / "cut", offsets)


@pytest.mark.slow
def test_a_log_cut_at_every_7th_byte_holds_a_prefix_of_whole_batches(
    template: Path, tmp_path: Path
) -> None:
    size = _log_of(template / "db").stat().st_size
    _cut_everywhere(template, tmp_path / "cut", [*range(0, size, 7), size])


def _flip_everywhere(template: Path, directory: Path, positions: list[int]) -> None:
    """Flip one bit at each position: every one is noticed, and the log is named."""
    log = _log_of(template / "db")
    whole = log.read_bytes()
    for position in positions:
        content = bytearray(whole)
        content[position] ^= 1 << (position % 8)
        flipped = _damaged(template, directory, bytes(content))
        with pytest.raises(DataLoss, match=f"{log.name}: .* start with --accept-data-loss"):
            _start(flipped)
        count, lost = _start(flipped, accept_data_loss=True)
        assert lost == BATCHES - count > 0
        assert _start(flipped) == (count, 0), "an accepted loss is accepted"


@pytest.mark.full
def test_a_flipped_bit_in_the_live_log_is_refused_unless_the_loss_is_accepted(
    template: Path, tmp_path: Path
) -> None:
    size = _log_of(template / "db").stat().st_size
    positions = [*random.Random(2).sample(range(size), 12), 4, size - 3]
    _flip_everywhere(template, tmp_path / "flip", positions)


@pytest.mark.slow
def test_flipped_bits_all_over_the_live_log_are_refused(template: Path, tmp_path: Path) -> None:
    size = _log_of(template / "db").stat().st_size
    positions = random.Random(3).sample(range(size), min(size, 1000))
    _flip_everywhere(template, tmp_path / "flip", positions)


def test_a_zeroed_stretch_of_the_log_is_refused(template: Path, tmp_path: Path) -> None:
    """RocksDB may take zeros for the end of the log. Does one of us notice?"""
    whole = _log_of(template / "db").read_bytes()
    damaged = _damaged(template, tmp_path / "zero", whole[:2000] + bytes(512) + whole[2512:])
    with pytest.raises(DataLoss, match="zeros in place of data"):
        _start(damaged)


def test_a_log_older_than_the_live_one_must_be_there(tmp_path: Path) -> None:
    """Without WAL tracking RocksDB opens with a hole: the newest batches and not those before."""
    store = RocksStore(tmp_path / "db", families=["a", "b"])
    for number in range(1, 51):
        store.write(row(number))
    store._tables["a"].flush(True)  # a new log begins, and "b" still needs the old one
    for number in range(51, 61):
        store.write(row(number))
    store.sync()
    for name, damage in {"lost": lambda log: log.unlink(), "cut": lambda log: _cut(log)}.items():
        copy = shutil.copytree(tmp_path / "db", tmp_path / name)
        logs = sorted(log for log in copy.glob("*.log") if log.stat().st_size > 0)
        assert len(logs) == 2
        damage(logs[0])
        for keep_prefix in (False, True):  # it would have a hole: no state to go on from
            with pytest.raises(Unrecoverable, match="Corruption"):
                RocksStore(copy, keep_prefix=keep_prefix)
    store.close()


def _cut(log: Path) -> None:
    os.truncate(log, log.stat().st_size - 500)


def test_a_damaged_table_is_an_error_and_not_an_end_of_rows(tmp_path: Path) -> None:
    database = tmp_path / "db"
    store = RocksStore(database, families=["a"])
    rows = [(number.to_bytes(4, "big"), os.urandom(50)) for number in range(5000)]
    store.write([("a", *pair) for pair in rows])
    store.flush()
    store.close()
    (table,) = sorted(database.glob("*.sst"), key=lambda file: file.stat().st_size)[-1:]
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)

    store = RocksStore(database)
    with pytest.raises(DamagedRows, match="Corruption") as raised:
        store.scan("a", b"", count=10_000)
    before, resume = raised.value.rows, raised.value.resume
    assert resume is not None
    after = store.scan("a", resume, count=10_000)
    assert (before, after) == (rows[: len(before)], rows[-len(after) :])
    assert 0 < len(rows) - len(before) - len(after) < 100, "what is not damaged can still be read"
    failed = []
    for key, value in rows[::50]:
        try:
            assert store.get("a", key) == value
        except DamagedRows:
            failed.append(key)
    assert failed and before[-1][0] < failed[0] and failed[-1] < after[0][0]
    with pytest.raises(DamagedRows):
        store.get_many("a", failed)
    with pytest.raises(DamagedRows):
        store.get_uncached("a", failed[0])
    with pytest.raises(DamagedRows):
        store.last("a", b"", after[0][0])
    assert store.last("a", b"", b"\xff") == rows[-1]
    store.close()
    RocksStore(database).close()  # and the failures left no handle behind


@pytest.mark.parametrize("read_only", [False, True])
def test_damage_to_the_number_of_batches_is_an_error_of_the_store(
    tmp_path: Path, read_only: bool
) -> None:
    """It is in RocksDB's own family, which is read while the database is opened."""
    database = tmp_path / "db"
    store = RocksStore(database, families=["a"])
    store.write([("a", b"key", b"value")])
    store.flush()
    store.close()
    (table,) = (file for file in database.glob("*.sst") if SEQUENCE_KEY in file.read_bytes()[:64])
    content = bytearray(table.read_bytes())
    content[content.index(SEQUENCE_KEY)] ^= 1
    table.write_bytes(content)
    failures = []
    for _ in range(2):  # and no handle is left behind, though what a failure knows is kept
        with pytest.raises(Unrecoverable, match=r"reading .* failed: Corruption") as raised:
            RocksStore(database, read_only=read_only)
        failures.append(raised)


def test_a_number_of_batches_that_says_nothing_is_an_error_of_the_store(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, families=["a"])
    store.write([("a", b"key", b"value")])
    store._open_database()[SEQUENCE_KEY] = b"not a number"
    store.close()
    failures = []
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="number") as raised:
            RocksStore(tmp_path)
        failures.append(raised)


def test_without_file_descriptors_a_sync_is_a_sync(tmp_path: Path) -> None:
    """A client can open connections until there are none: that must not end the broker."""
    store = RocksStore(tmp_path / "db", families=["a"])
    store.write([("a", b"1", b"")])
    store.sync()
    place = store.synced()[1:]
    fillers: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    (tmp_path / "db" / "new").touch()  # so that the directory has changed since the last look
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                fillers.append(os.open(os.devnull, os.O_RDONLY))
        store.write([("a", b"2", b"")])
        store.sync()
        synced = store.synced()
    finally:
        for filler in fillers:
            os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    # Another thread may have closed a file in the meantime, so the look may have succeeded.
    assert synced.sequence == 2
    assert synced[1:] in (place, store.synced()[1:]), "an older place is a safe one"
    store.write([("a", b"3", b"")])
    store.sync()
    assert store.synced().length > synced.length
    store.close()


# --- opening and closing ---


def test_a_second_opening_is_refused_while_the_first_is_open(tmp_path: Path) -> None:
    first = RocksStore(tmp_path / "db", families=["a"])
    with pytest.raises(StoreBusy, match="in use"):
        RocksStore(tmp_path / "db")
    first.close()
    RocksStore(tmp_path / "db").close()


def test_a_tool_may_read_while_the_broker_writes(tmp_path: Path) -> None:
    broker = RocksStore(tmp_path / "db", families=["a"])
    broker.write([("a", b"k", b"v")])
    before = sorted(file.name for file in (tmp_path / "db").iterdir())
    tool = RocksStore(tmp_path / "db", read_only=True)
    assert tool.get("a", b"k") == b"v"
    with pytest.raises(StorageError):
        tool.write([("a", b"k", b"w")])
    tool.close()
    assert sorted(file.name for file in (tmp_path / "db").iterdir()) == before
    broker.write([("a", b"k", b"w")])
    broker.close()


def test_a_tool_goes_on_reading_what_the_broker_deletes(tmp_path: Path) -> None:
    names = [f"f{number:02}" for number in range(40)]  # RocksDB opens only a few tables at once
    broker = RocksStore(tmp_path / "db", families=names)
    for name in names:
        broker.write([(name, b"k", name.encode())])
    broker.flush()
    tool = RocksStore(tmp_path / "db", read_only=True)
    for name in names:
        broker.drop_family(name)
    assert len(list((tmp_path / "db").glob("*.sst"))) < len(names)
    assert [tool.get(name, b"k") for name in names] == [name.encode() for name in names]
    tool.close()
    broker.close()


@pytest.mark.parametrize("waits", [True, False])
def test_a_flush_frees_what_the_log_keeps_of_a_dropped_family(tmp_path: Path, waits: bool) -> None:
    store = RocksStore(tmp_path / "db", families=["kept", "dropped"])
    for number in range(1000):
        store.write([("dropped", b"%d" % number, b"x" * 4096), ("kept", b"k", b"%d" % number)])
    store.sync()
    assert store.wal_bytes() > 3 << 20
    store.drop_family("dropped")
    assert store.wal_bytes() > 3 << 20
    store.flush(waits=waits)
    deadline = time.monotonic() + 10
    while store.wal_bytes() > 1 << 20:
        assert time.monotonic() < deadline, store.wal_bytes()
        time.sleep(0.01)
    assert store.get("kept", b"k") == b"999"
    store.close()
    store = RocksStore(tmp_path / "db")
    assert store.get("kept", b"k") == b"999" and store.sequence() == 1000
    store.close()


def test_a_tool_reads_a_directory_in_which_it_may_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = RocksStore(tmp_path / "db", families=["a"])
    broker.write([("a", b"k", b"in a table")])
    broker.flush()
    broker.write([("a", b"l", b"in the log")])

    def times() -> dict[str, int]:
        return {file.name: file.stat().st_mtime_ns for file in (tmp_path / "db").iterdir()}

    before = times()
    (tmp_path / "links").mkdir()
    links = partial(tempfile.TemporaryDirectory, dir=tmp_path / "links")
    replace_in(monkeypatch, rocks, "tempfile", TemporaryDirectory=links)
    # Root may write everywhere.
    replace_in(monkeypatch, rocks, "os", access=lambda path, mode: False)
    tool = RocksStore(tmp_path / "db", read_only=True)
    assert tool.get_many("a", [b"k", b"l"]) == [b"in a table", b"in the log"]
    tool.close()
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "CURRENT").write_text("nothing")
    with pytest.raises(StorageError, match="opening"):
        RocksStore(tmp_path / "none", read_only=True)
    assert times() == before
    assert not list((tmp_path / "links").iterdir())
    broker.close()


def test_every_family_has_the_options_that_durability_needs(tmp_path: Path) -> None:
    """Did the options without a setter take effect, for families made at run time, too?"""
    store = RocksStore(tmp_path / "db", families=["a"])
    store.create_family("msg.1")
    store.close()
    text = max((tmp_path / "db").glob("OPTIONS-*")).read_text()
    assert "track_and_verify_wals_in_manifest=true" in text
    assert "wal_recovery_mode=kTolerateCorruptedTailRecords" in text
    assert "avoid_flush_during_recovery=false" in text
    assert f"max_total_wal_size={limits.WAL_BYTES_MAX}" in text
    assert f"db_write_buffer_size={limits.WRITE_BUFFER_BYTES}" in text
    assert f"max_open_files={limits.OPEN_FILES_MAX}" in text
    for never in ("manual_wal_flush", "unordered_write", "allow_mmap_writes", "use_fsync"):
        assert f"  {never}=false" in text
    families = text.count("[CFOptions")
    assert families == 3
    assert text.count("memtable_protection_bytes_per_key=8") == families
    assert text.count("comparator=leveldb.BytewiseComparator") == families
    assert text.count("compression=kLZ4Compression") == families


def test_a_checkpoint_is_a_store_of_its_own(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", families=["a", "b"])
    store.write(row(1))
    store.checkpoint(tmp_path / "copy")
    store.write(row(2))
    copy = RocksStore(tmp_path / "copy")
    assert (held(copy), held(store)) == (1, 2)
    with pytest.raises(StorageError):
        store.checkpoint(tmp_path / "copy")
    store.close()
    copy.close()


@pytest.mark.parametrize("where", ["missing/deeper/copy", "file/copy", "\udcff", "copy"])
def test_a_checkpoint_that_cannot_be_made_does_not_end_the_database(
    tmp_path: Path, where: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "copy").mkdir()
    store = RocksStore(tmp_path / "db", families=["a", "b"])
    store.write(row(1))
    with pytest.raises(Recoverable, match=r"checkpoint of .*db failed"):
        store.checkpoint(tmp_path / where)
    store.write(row(2))
    store.sync()
    assert held(store) == 2
    assert not store.needs_reopen
    store.close()


@pytest.mark.parametrize(
    ("told", "is_of_copy"),
    [
        ("While fsync: {mnt}{copy}/000012.log: Input/output error", False),
        ("While fsync: {copy}.live/000012.log: Input/output error", False),
        ("While fsync: {copy}-2/000012.log: Input/output error", False),
        ("While fsync: {copy}.tmp/000012.log: Input/output error", True),
        ("While link file to {copy}.tmp/000012.sst: {mnt}/000012.sst: Input/output error", True),
        ("No space left on device: While appending to file: {copy}.tmp/CURRENT: No space", True),
        ("While rename a file to {copy}: {copy}.tmp: Input/output error", True),
        ("While open a file: '{copy}'", True),
    ],
)
def test_a_failed_checkpoint_is_blamed_on_the_copy_only_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, is_of_copy: bool
) -> None:
    """Does the broker go on over a log that could not be synced, for the likeness of two names?"""
    copy = Path("/lib/holdfast/db")

    class Failing:
        def __init__(self, database: object) -> None:
            pass

        def create_checkpoint(self, path: str) -> None:
            raise Exception("IO error: " + told.format(copy=path, mnt="/mnt"))

    store = RocksStore(tmp_path / "db", families=["a", "b"])
    monkeypatch.setattr(rocks, "Checkpoint", Failing)
    with pytest.raises(Recoverable if is_of_copy else Unrecoverable):
        store.checkpoint(copy)
    if is_of_copy:
        store.write(row(1))
    else:
        with pytest.raises(Unrecoverable):
            store.write(row(1))
    store.close()


def test_sizes_are_what_the_files_are(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", families=["a", "b"])
    assert store.sizes()["tables"] == 0
    store.write([("a", os.urandom(16), os.urandom(1000)) for _ in range(100)])
    sizes = store.sizes()
    assert 100_000 < sizes["wal"] < 130_000
    assert sizes["memtables"] > 100_000
    store.flush()
    assert store.sizes()["tables"] > 100_000
    assert store.property_int("rocksdb.estimate-num-keys") == 100
    assert store.property_int("rocksdb.estimate-num-keys", "b") == 0
    assert store.property_int("rocksdb.is-write-stopped", "default") == 0
    store.close()


def test_what_is_read_uncached_is_not_kept_in_memory(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", families=["a"])
    rows = [(number.to_bytes(4, "big"), os.urandom(4096)) for number in range(1000)]
    store.write([("a", *row) for row in rows])
    store.flush()
    assert store.get_uncached("a", rows[0][0]) == rows[0][1]  # the list of its blocks is kept
    before = store.sizes()["cache"]
    for key, value in rows:
        assert store.get_uncached("a", key) == value
    assert store.sizes()["cache"] < before + 100_000
    for key, value in rows:
        assert store.get("a", key) == value
    assert store.sizes()["cache"] > before + 4_000_000
    store.close()


def test_the_number_of_batches_survives_what_rocksdb_forgets(tmp_path: Path) -> None:
    """A dropped family takes RocksDB's own sequence numbers with it. Ours stays."""
    store = RocksStore(tmp_path / "db", families=["a"])
    store.create_family("gone")
    store.write([("a", b"k", b"v")])
    store.write([("gone", b"k", b"v")])
    store.write([("gone", b"k", None)])
    store.sync()
    assert store.durable_sequence() == 3
    store.drop_family("gone")
    store.close()
    store = RocksStore(tmp_path / "db")
    assert store.sequence() == 3
    assert store.families() == ["a"]
    store.close()


def test_memory_and_log_stay_bounded_while_much_is_written(tmp_path: Path) -> None:
    """A family with little in it must not pin the logs of a busy one."""
    store = RocksStore(tmp_path / "db", families=["busy", "idle"])
    store.write([("idle", b"k", b"v")])
    value = os.urandom(64 * 1024)
    wal = memtables = 0
    for number in range(1600):  # 100 MiB
        try:
            store.write([("busy", number.to_bytes(8, "big"), value)])
        except WriteStalled:
            store.flush()
        if number % 100 == 0:
            wal = max(wal, store.wal_bytes())
            memtables = max(memtables, store.sizes()["memtables"])
    store.close()
    assert wal < limits.WAL_BYTES_MAX + 2 * limits.MEMTABLE_BYTES
    assert memtables < 2 * limits.WRITE_BUFFER_BYTES


# --- failing I/O, in a process of its own ---


def test_a_write_is_not_synced_and_a_sync_is_one_call(shim: Path, tmp_path: Path) -> None:
    counts = run(shim, tmp_path, "sync_counts")
    assert counts == {
        "writes": "fewer than two",
        "sync": "fewer than two",
        "sync_took_the_delay": "True",
    }


def test_closing_and_reopening_wait_for_a_sync_under_way(shim: Path, tmp_path: Path) -> None:
    assert run(shim, tmp_path, "close_during_sync") == {"held": 2}


def test_a_full_log_is_refused_and_written_again_after_reopening(
    shim: Path, tmp_path: Path
) -> None:
    end = run(shim, tmp_path, "full_log")
    assert len(end["refused"]) == 3
    assert end["needs_reopen"] == [True, True, False]
    assert end["still_full"] == "refused"
    assert end["durable_meanwhile"] == [], "nothing is durable before there is space"
    assert end["durable"] in ([3, 4], [4])  # 4 covers 3
    assert end["failures"] == []
    assert end["held"] == end["sequence"] == 4


@pytest.mark.parametrize("mode", ["eio", "enospc"])
@pytest.mark.parametrize("times", [1, 0], ids=["once", "for ever"])
def test_no_failed_call_makes_a_report_untrue(
    shim: Path, tmp_path: Path, mode: str, times: int
) -> None:
    outcomes = run(shim, tmp_path, "fail_nth_call", mode, times, 3, 140, 23)
    assert sum(outcomes.values()) == len(range(3, 140, 23))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eio", "enospc"])
@pytest.mark.parametrize("times", [1, 0], ids=["once", "for ever"])
def test_no_failed_call_of_all_makes_a_report_untrue(
    shim: Path, tmp_path: Path, mode: str, times: int
) -> None:
    outcomes = run(shim, tmp_path, "fail_nth_call", mode, times, 1, 160, 1)
    assert outcomes["lived"] < 80


# --- a disk that is really full ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_survived_without_a_restart(small_disk: Path) -> None:
    store = RocksStore(small_disk / "db", families=["a", "b"])
    space = Space(small_disk / "ballast", ballast_bytes=8 * limits.MIB, low_water_bytes=0)
    assert space.create_ballast()
    (small_disk / "hog").write_bytes(bytes(20 * limits.MIB))
    number = 0
    refusals: list[Recoverable] = []
    padding = os.urandom(100_000)
    while len(refusals) < 2:
        assert number < 2000, "the disk did not fill up"
        try:
            store.write([*row(number + 1), ("b", b"\xff" + number.to_bytes(8, "big"), padding)])
            number += 1
        except Recoverable as error:
            if is_full(error):
                refusals.append(error)
    assert store.get("a", (1).to_bytes(8, "big")) == b"a1", "reads go on"
    if store.needs_reopen:
        with pytest.raises(Recoverable):
            store.reopen()
        assert len(store.scan("a", b"", count=10_000)) == number, "and still do"

    assert space.release_ballast()
    (small_disk / "hog").unlink()
    resumed_after = _write_until_accepted(store, row(number + 1))
    assert resumed_after < 10
    store.sync()
    assert len(store.scan("a", b"", count=10_000)) == number + 1
    store.close()
    store = RocksStore(small_disk / "db")
    assert len(store.scan("a", b"", count=10_000)) == number + 1
    assert store.sequence() == number + 1
    store.close()


def _write_until_accepted(store: RocksStore, batch: list[tuple[str, bytes, bytes | None]]) -> float:
    """Write `batch` as the broker's loop does, with pauses; return the seconds it took."""

    began = time.monotonic()
    while True:
        try:
            if store.needs_reopen:
                store.reopen()
            store.write(batch)
            return time.monotonic() - began
        except Recoverable:
            assert time.monotonic() - began < 30
            time.sleep(0.2)


# --- which kind a failure is ---

# What rocksdict said, and what it is to us.
TEXTS = {
    "IO error: No space left on device: While appending to file: /d/000004.log: No space left": (
        Recoverable
    ),
    "No space left on device (os error 28)": Recoverable,
    "Result incomplete: Write stall": WriteStalled,
    "IO error: While fdatasync: /d/000004.log: Input/output error": Unrecoverable,
    "IO error: Input/output error: While appending to file: /d/000004.log": Unrecoverable,
    "Corruption: block checksum mismatch: stored = 1, computed = 2": Unrecoverable,
    "IO error: Writer has previous error.": Unrecoverable,
    "IO error: lock hold by current process, acquire time 1 acquiring thread 2: /d/LOCK: No locks "
    "available": StoreBusy,
    "IO error: While lock file: /d/LOCK: Resource temporarily unavailable": StoreBusy,
    "something new": Unrecoverable,
}


@pytest.mark.parametrize(("text", "kind"), TEXTS.items())
def test_a_failure_is_told_by_its_text(tmp_path: Path, text: str, kind: type[StorageError]) -> None:
    store = RocksStore(tmp_path / "db", families=["a"])
    assert type(store._failure("write", Exception(text))) is kind
    store.close()


def test_an_error_of_the_system_while_opening_has_a_kind(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert type(store._failure("opening", full)) is Recoverable
    denied = OSError(errno.EACCES, os.strerror(errno.EACCES))
    assert type(store._failure("opening", denied)) is Unrecoverable
    store.close()
    with pytest.raises(Unrecoverable):
        RocksStore("/dev/null/db")


@pytest.mark.full
def test_another_thread_may_read_and_a_full_disk_does_not_mind(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", families=["a"])
    store.write([("a", bytes([number]), b"x") for number in range(10)])
    found: list[list[bytes]] = []

    def read() -> None:
        while True:
            try:
                rows = store.scan_aside("a", b"\x02", b"\x09", count=3)
            except StorageError:
                return
            found.append([key for key, _ in rows])

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(20):
        store.write([("a", b"\xff", b"y")])
        store.sync()
        store.reopen()
    store.close()
    thread.join(30)
    assert found and all(keys == [b"\x02", b"\x03", b"\x04"] for keys in found)


def test_a_batch_written_during_a_sync_is_not_covered_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RocksStore(tmp_path / "db", families=["a"])
    store.write([("a", b"before", b"")])
    database = store._open_database()

    class Slow:
        """A database whose sync takes so long that a batch is written meanwhile."""

        def flush_wal(self, sync: bool) -> None:
            database.flush_wal(sync)
            store.write([("a", b"meanwhile", b"")])

    with monkeypatch.context() as patch:
        patch.setattr(store, "_open_database", Slow)
        store.sync()
    assert (store.sequence(), store.durable_sequence()) == (2, 1)
    store.sync()
    assert store.durable_sequence() == 2
    store.close()


@pytest.mark.parametrize(
    ("text", "is_damage"),
    [
        ("IO error: While pread offset 1 len 2: /d/db/000022.sst: Input/output error", True),
        ("IO error: While pread offset 1 len 2: /d/db/000022.sst: Structure needs cleaning", True),
        ("IO error: While pread offset 1 len 2: /d/db/000022.sst: Permission denied", False),
        ("IO error: While pread offset 1 len 2: /d/db/000022.log: Input/output error", False),
        ("IO error: While fdatasync: /d/db/000022.sst: Input/output error", False),
    ],
)
def test_a_place_that_the_disk_does_not_read_is_damage(text: str, is_damage: bool) -> None:
    assert is_unread(text) is is_damage
