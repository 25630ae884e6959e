"""When the newest log may be synced without RocksDB, and what the thread in C does with it."""

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import Unrecoverable, WriteStalled
from storage.local.database_files import log_name, log_numbers
from storage.local.direct_sync import DirectlySynced, DirectSync, open_direct_sync
from storage.local.rocks import RocksStore
from tests.broker.descriptors import no_files_left
from tests.storage.local.patient_syncer import PatientSyncer, with_patience

PATIENCE_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    store = RocksStore(tmp_path / "db", families=["a", "b"])
    yield store
    store.close()


@pytest.fixture
def patient(store: RocksStore) -> Iterator[tuple[PatientSyncer, DirectSync]]:
    syncer, direct = with_patience(store)
    yield syncer, direct
    direct.close()


def _write(store: RocksStore, value: bytes = b"") -> None:
    store.write([("a", b"key", value)])


def _begin(store: RocksStore) -> None:
    """Bring the store to where its newest log may be synced directly."""
    _write(store)
    store.sync()
    _write(store)


def _newest(store: RocksStore) -> Path:
    return store.path / log_name(log_numbers(store.path)[-1])


# --- what RocksDB does ---


def test_every_write_is_in_the_newest_log_when_it_returns(store: RocksStore) -> None:
    """Is the log's growth a sign that can be trusted, for small batches and for large ones?"""
    log = _newest(store)
    for size in (0, 1, 100, 5_000, 40_000, 70_000, 1 << 20, 0):
        before = log.stat().st_size
        _write(store, b"\xa5" * size)
        assert log.stat().st_size >= before + size + 1
    assert _newest(store) == log


def test_a_log_that_was_left_never_grows_again(store: RocksStore) -> None:
    for _ in range(3):
        _write(store)
        log, length = _newest(store), _newest(store).stat().st_size
        holder = os.open(log, os.O_RDONLY)
        store._tables["a"].flush(True)
        assert _newest(store) != log
        assert _newest(store).stat().st_size == 0, "a new log is empty until a batch is in it"
        _write(store)
        store.sync()
        assert os.fstat(holder).st_size == length
        os.close(holder)


def test_families_come_and_go_without_a_byte_in_the_log(store: RocksStore) -> None:
    """Would anything but a batch look like one?"""
    _write(store)
    log, length = _newest(store), _newest(store).stat().st_size
    store.create_family("c")
    store.drop_family("c")
    store.sync()
    assert _newest(store) == log and log.stat().st_size == length


# --- when it may be synced ---


def test_only_rocksdb_syncs_a_log_whose_name_may_not_be_durable(
    store: RocksStore, patient: tuple[PatientSyncer, DirectSync]
) -> None:
    syncer, direct = patient
    _write(store)
    assert not direct.has_log() and not direct.submit(1)
    store.sync()
    assert not direct.submit(1), "the batch was written before anybody looked at the log"
    _write(store)
    assert direct.has_log() and direct.submit(2)
    assert syncer.submitted == [2]


def test_a_log_without_a_batch_is_not_taken(
    store: RocksStore, patient: tuple[PatientSyncer, DirectSync]
) -> None:
    """RocksDB may not know the file yet; then its sync does not cover the file's name."""
    _, direct = patient
    store.sync()
    _write(store)
    assert not direct.has_log()


def test_what_was_written_while_rocksdb_synced_is_not_taken_for_synced(
    store: RocksStore, patient: tuple[PatientSyncer, DirectSync]
) -> None:
    """That batch may be in the log before, which only RocksDB can sync."""
    _, direct = patient
    _write(store)
    found = direct.find()
    _write(store)
    direct.found(found)  # the sync that began before that write has returned
    _write(store)
    assert direct.has_log() and not direct.submit(3)
    store.sync()
    assert direct.submit(3)


def test_a_direct_sync_tells_the_store_what_is_durable(
    store: RocksStore, patient: tuple[PatientSyncer, DirectSync]
) -> None:
    syncer, direct = patient
    _begin(store)
    assert direct.submit(7) and direct.collect() is None
    length = _newest(store).stat().st_size
    _write(store)  # after the request: the sync need not cover it
    syncer.sync()
    assert store.durable_sequence() == 1
    number = log_numbers(store.path)[-1]
    synced = direct.collect()
    assert synced == DirectlySynced(7, 2, number, length)
    direct.note(synced)
    assert store.durable_sequence() == 2
    assert store.synced()[:4] == (2, store.opening_log, number, length)
    assert direct.collect() is None


def test_a_late_note_takes_nothing_back(
    store: RocksStore, patient: tuple[PatientSyncer, DirectSync]
) -> None:
    _, direct = patient
    _begin(store)
    _write(store)
    store.sync()
    before = store.synced()
    direct.note(DirectlySynced(1, 2, 1, 1))
    assert store.synced() == before and before.sequence == 3


def test_a_new_log_is_synced_by_rocksdb_once_and_directly_from_then_on(
    store: RocksStore, patient: tuple[PatientSyncer, DirectSync]
) -> None:
    _, direct = patient
    _begin(store)
    for serial in range(1, 5):
        assert direct.submit(serial)
        store._tables["a"].flush(True)
        _write(store)
        assert not direct.has_log() and not direct.submit(serial)
        store.sync()
        _write(store)
        assert direct.submit(serial)


def test_a_log_that_is_not_the_newest_any_more_is_left_at_the_first_write(
    store: RocksStore, patient: tuple[PatientSyncer, DirectSync]
) -> None:
    """Does it harm that another log is begun between RocksDB's sync and the next write?"""
    _, direct = patient
    _write(store)
    store.sync()
    store._tables["a"].flush(True)
    _write(store)
    assert not direct.has_log() and not direct.submit(1)


def test_a_refused_write_gives_the_log_up(
    store: RocksStore,
    patient: tuple[PatientSyncer, DirectSync],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A part of it may be in the log: its growth proves nothing then."""
    _, direct = patient
    _begin(store)

    class Stalled:
        def write(self, *arguments: Any) -> None:
            raise RuntimeError("Result incomplete: Write stall")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_database", Stalled())
        with pytest.raises(WriteStalled):
            _write(store)
    assert not direct.has_log() and not direct.submit(1)
    _begin(store)
    assert direct.submit(2)


def test_reopening_gives_the_log_up_and_its_sync_is_still_true(
    store: RocksStore, patient: tuple[PatientSyncer, DirectSync]
) -> None:
    syncer, direct = patient
    _begin(store)
    assert direct.submit(1)
    store.reopen()
    reopened = store.synced()
    assert not direct.has_log() and not direct.submit(1)
    syncer.sync()  # its file is still open, though RocksDB has deleted it
    synced = direct.collect()
    assert synced is not None and synced.sequence == 2
    direct.note(synced)
    assert store.synced() == reopened, "all that was in the database when it was opened is durable"
    _begin(store)
    assert direct.submit(2)


def test_a_failed_direct_sync_is_a_failed_sync_of_the_store(
    store: RocksStore, patient: tuple[PatientSyncer, DirectSync]
) -> None:
    syncer, direct = patient
    _begin(store)
    assert direct.submit(1)
    syncer.fail(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        direct.collect()
    assert direct.collect() is None, "told once"
    for _ in range(2):
        with pytest.raises(Unrecoverable, match=r"sync of .*/db failed: .*Input/output error"):
            store.sync()
    with pytest.raises(Unrecoverable):
        _write(store)
    with pytest.raises(Unrecoverable):
        store.reopen()
    assert store.durable_sequence() == 1


def test_without_a_free_descriptor_rocksdb_goes_on_syncing(
    store: RocksStore, patient: tuple[PatientSyncer, DirectSync]
) -> None:
    _, direct = patient
    _write(store)
    store.sync()
    store._tables["a"].flush(True)
    _write(store)
    direct.settle()  # closes the log before
    with no_files_left():
        assert direct.find() is None
        store.sync()
    _write(store)
    assert not direct.has_log()
    store.sync()
    _write(store)
    assert direct.has_log()


def test_no_log_stays_open(store: RocksStore) -> None:
    _, direct = with_patience(store)

    def open_logs() -> int:
        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in _descriptors()]
        return sum(".log" in name and str(store.path) in name for name in held)

    before = open_logs()
    _begin(store)
    for _ in range(5):
        store._tables["a"].flush(True)
        _begin(store)
    store.sync()
    assert open_logs() <= before + 1
    direct.close()
    direct.close()
    assert open_logs() == before
    _begin(store)
    assert not direct.has_log(), "closed for good"


def _descriptors() -> list[str]:
    """Return the open descriptors, without that of this listing."""
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


# --- the thread in C ---


@pytest.fixture
def syncer() -> Iterator[Any]:
    module = pytest.importorskip("storage.local._syncer", reason="the pure build has none")
    syncer = module.Syncer()
    yield syncer
    syncer.close()


def _told(syncer: Any) -> bool:
    """Wait until the eventfd is readable."""
    return bool(select.select([syncer.fileno()], [], [], PATIENCE_S)[0])


def test_the_pure_build_has_no_direct_sync(store: RocksStore) -> None:
    try:
        import storage.local._syncer  # noqa: F401
    except ImportError:
        assert open_direct_sync(store) is None and store.open_direct() is None
    else:
        direct = store.open_direct()
        assert direct is not None and direct.fileno() >= 0
        direct.close()


def test_a_sync_is_told_once_and_names_what_it_covers(syncer: Any, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        for serial in (3, 4, 9):
            file.write(b"x")
            file.flush()
            assert syncer.collect() is None
            syncer.submit(file.fileno(), serial, serial + 1, 17, 1 << 40)
            assert _told(syncer)
            assert syncer.collect() == (serial, serial + 1, 17, 1 << 40)
            assert syncer.collect() is None
            assert not select.select([syncer.fileno()], [], [], 0)[0], "it would be read for ever"


def test_the_last_of_many_requests_is_synced(syncer: Any, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        for serial in range(1, 1001):
            syncer.submit(file.fileno(), serial, 0, 0, 0)
        assert syncer.settle() == 0
        assert _told(syncer)
        assert syncer.collect() == (1000, 0, 0, 0)


def test_a_failed_sync_is_the_last_one(syncer: Any, tmp_path: Path) -> None:
    """What was submitted behind it may be lost as well, though a sync of it would succeed."""
    reader, writer = os.pipe()  # cannot be synced
    syncer.submit(writer, 1, 1, 1, 1)
    assert syncer.settle() == errno.EINVAL
    with (tmp_path / "file").open("wb") as file:
        syncer.submit(file.fileno(), 2, 2, 2, 2)
        assert syncer.settle() == errno.EINVAL
        assert _told(syncer)
        with pytest.raises(OSError, match="Invalid argument") as raised:
            syncer.collect()
        assert raised.value.errno == errno.EINVAL
        assert syncer.collect() is None
        assert not select.select([syncer.fileno()], [], [], 0)[0]
    os.close(reader)
    os.close(writer)


def test_closing_syncs_what_was_submitted(tmp_path: Path, syncer: Any) -> None:
    with (tmp_path / "file").open("wb") as file:
        syncer.submit(file.fileno(), 1, 1, 1, 1)
        syncer.close()
        syncer.close()
        assert syncer.fileno() == -1
        with pytest.raises(ValueError, match="closed"):
            syncer.submit(file.fileno(), 2, 2, 2, 2)


def test_a_syncer_that_is_dropped_leaves_nothing_open(syncer: Any, tmp_path: Path) -> None:
    before = len(_descriptors())
    with (tmp_path / "file").open("wb") as file:
        other = type(syncer)()
        other.submit(file.fileno(), 1, 1, 1, 1)
        del other
    assert len(_descriptors()) == before


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((), TypeError), ((1, 2, 3, 4), TypeError), (("x", 1, 1, 1, 1), TypeError)],
)
def test_what_is_no_request_is_refused(
    syncer: Any, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        syncer.submit(*arguments)
    assert syncer.settle() == 0


def test_the_length_of_an_open_file(syncer: Any, tmp_path: Path) -> None:
    import storage.local._syncer as module

    (tmp_path / "file").write_bytes(b"x" * 12345)
    with (tmp_path / "file").open("rb") as file:
        assert module.length(file.fileno()) == 12345
    with pytest.raises(OSError, match="Bad file descriptor"):
        module.length(-1)
    with pytest.raises(TypeError):
        module.length("x")
