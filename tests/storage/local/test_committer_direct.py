"""The committer with direct syncs: which thread syncs what, and that it is reported once it may be.

The direct syncs are made by a stand-in that waits for the test, those of RocksDB by the
committer's thread on a real database.
"""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.errors import Unrecoverable
from storage.local import failpoint
from storage.local.committer import Committer
from storage.local.database_files import log_numbers
from storage.local.rocks import RocksStore
from storage.local.watermark import Synced, Watermark
from tests.storage.local.patient_syncer import PatientSyncer, with_patience
from tests.storage.scenarios import Log

PATIENCE_S = 60.0


class Rocks(RocksStore):
    """A store whose sync can be held up."""

    def __init__(self, path: Path) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.syncing = threading.Semaphore(0)  # released when a sync begins
        self.rocks_syncs = 0
        super().__init__(path, families=["a"])

    def sync(self) -> None:
        self.rocks_syncs += 1
        self.syncing.release()
        assert self.gate.wait(PATIENCE_S)
        super().sync()


class Desk:
    """A store, its committer, and what a loop does with them."""

    def __init__(self, path: Path, watermark: Watermark | None = None) -> None:
        self.store = Rocks(path)
        self.syncer: PatientSyncer
        self.syncer, direct = with_patience(self.store)
        self.log = Log()
        self.committer = Committer(
            self.store,
            self.log.on_durable,
            self.log.on_failure,
            watermark=watermark,
            source=None if watermark is None else self.store,
            direct=direct,
        )
        self.serial = 0

    def commit(self) -> int:
        """Write a batch and ask for it."""
        self.serial += 1
        self.store.write([("a", self.serial.to_bytes(8, "big"), b"")])
        self.committer.request(self.serial)
        return self.serial

    def begin(self) -> None:
        """Bring the committer to where it syncs directly."""
        assert self.log.wait(self.commit(), PATIENCE_S)
        self.committer.resume()
        serial = self.commit()
        assert self.syncer.submitted == [serial]
        self.syncer.sync()
        assert self.committer.collect() == serial
        self.committer.resume()

    def begin_log(self) -> None:
        """Have RocksDB begin another log."""
        self.store._tables["a"].flush(True)

    def close(self) -> None:
        self.store.gate.set()
        self.committer.close()
        self.store.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "db")
    yield desk
    desk.close()


def test_rocksdb_syncs_first_and_the_log_is_synced_directly_from_then_on(desk: Desk) -> None:
    desk.begin()
    syncs = desk.store.rocks_syncs
    for _ in range(10):
        serial = desk.commit()
        assert desk.committer.collect() == 0, "nothing is durable before its sync has returned"
        desk.syncer.sync()
        assert desk.committer.collect() == serial == desk.store.durable_sequence()
        assert desk.committer.collect() == 0
    assert desk.store.rocks_syncs == syncs == 1
    assert desk.log.durable == [1], "what is collected is not reported as well"


def test_one_direct_sync_covers_all_that_was_requested_before_it(desk: Desk) -> None:
    desk.begin()
    first = desk.commit()
    desk.syncer.sync()
    desk.commit()
    last = desk.commit()
    assert desk.committer.collect() == first, "the sync began before the others"
    assert desk.store.durable_sequence() == first
    desk.syncer.sync()
    assert desk.committer.collect() == last
    assert desk.committer.syncs == 4


def test_a_new_log_is_synced_by_rocksdb_with_the_one_before(desk: Desk) -> None:
    """What is in the old log and was not synced must not be reported by a sync of the new one."""
    desk.begin()
    old = desk.commit()
    desk.begin_log()
    new = desk.commit()
    assert desk.log.wait(new, PATIENCE_S)
    assert desk.store.durable_sequence() == new and desk.store.rocks_syncs == 2
    assert desk.committer.collect() in (0, old)
    desk.committer.resume()
    serial = desk.commit()
    desk.syncer.sync()
    assert desk.committer.collect() == serial
    assert desk.store.rocks_syncs == 2
    assert desk.store.synced().log == log_numbers(desk.store.path)[-1]


def test_no_direct_sync_is_submitted_while_rocksdb_syncs(desk: Desk) -> None:
    desk.begin()
    submitted = list(desk.syncer.submitted)
    desk.store.gate.clear()
    desk.begin_log()
    first = desk.commit()
    second = desk.commit()  # in the new log, which nobody may sync directly yet
    assert desk.syncer.submitted == submitted
    desk.store.gate.set()
    assert desk.log.wait(second, PATIENCE_S)
    assert desk.syncer.submitted == submitted
    assert desk.log.durable[1:] in ([first, second], [second])


def test_what_is_written_while_rocksdb_syncs_again_is_held_until_then(desk: Desk) -> None:
    """The loop must come back to direct syncs though it writes during every sync of RocksDB."""
    desk.begin()
    desk.begin_log()
    assert desk.log.wait(desk.commit(), PATIENCE_S)  # the new log is known from now on
    submitted = list(desk.syncer.submitted)
    # A second sync of RocksDB, as for a batch that was written during the first one.
    assert desk.store.syncing.acquire(timeout=PATIENCE_S)
    assert desk.store.syncing.acquire(timeout=PATIENCE_S)
    desk.store.gate.clear()
    desk.committer._give(desk.serial)
    assert desk.store.syncing.acquire(timeout=PATIENCE_S)
    desk.commit()
    held = desk.commit()
    desk.committer.resume()
    assert desk.syncer.submitted == submitted, "RocksDB still syncs"
    reported = len(desk.log.durable)
    desk.store.gate.set()
    with desk.log.changed:
        assert desk.log.changed.wait_for(lambda: len(desk.log.durable) > reported, PATIENCE_S)
    assert max(desk.log.durable) < held, "its sync began before these were written"
    desk.committer.resume()
    assert desk.syncer.submitted == [*submitted, held]
    desk.committer.resume()
    assert desk.syncer.submitted == [*submitted, held], "once"
    desk.syncer.sync()
    assert desk.committer.collect() == held


def test_what_is_held_goes_to_rocksdb_if_the_log_is_left_meanwhile(desk: Desk) -> None:
    desk.begin()
    desk.store.gate.clear()
    desk.committer._give(desk.serial)
    held = desk.commit()
    desk.begin_log()
    desk.store.write([("a", b"another", b"")])  # not asked for yet
    desk.store.gate.set()
    with desk.log.changed:
        assert desk.log.changed.wait_for(lambda: len(desk.log.durable) > 1, PATIENCE_S)
    desk.committer.resume()
    assert desk.log.wait(held, PATIENCE_S)
    assert held not in desk.syncer.submitted


def test_a_direct_sync_that_ends_while_rocksdb_syncs_is_left_to_that(desk: Desk) -> None:
    """Nobody reads what is durable while two threads note it."""
    desk.begin()
    first = desk.commit()
    desk.store.gate.clear()
    desk.begin_log()
    second = desk.commit()
    desk.syncer.sync()
    assert desk.committer.collect() == 0
    assert desk.store.durable_sequence() < first
    desk.store.gate.set()
    assert desk.log.wait(second, PATIENCE_S)
    assert first < second == desk.store.durable_sequence()


@pytest.mark.parametrize("failure", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_nothing_is_reported_after_a_failed_direct_sync(desk: Desk, failure: int) -> None:
    desk.begin()
    failed = desk.commit()
    desk.syncer.fail(failure)
    desk.commit()
    assert desk.committer.collect() == 0
    assert not desk.log.wait(failed, PATIENCE_S)
    for _ in range(2):
        with pytest.raises(Unrecoverable):
            desk.store.write([("a", b"x", b"")])
        desk.committer.request(desk.serial + 1)
        desk.committer.resume()
        assert desk.committer.collect() == 0
    assert isinstance(desk.committer.failure, Unrecoverable)
    desk.committer.close()
    assert len(desk.log.failures) == 1 and "Unrecoverable: sync of " in desk.log.failures[0]
    assert max(desk.log.durable) < failed
    assert desk.store.durable_sequence() < failed
    assert desk.store.rocks_syncs >= 2 and desk.committer.syncs == 2, "RocksDB did not try either"


def test_a_failed_direct_sync_is_found_before_rocksdb_syncs_the_next_log(desk: Desk) -> None:
    """A sync of RocksDB could succeed for what the failed one has lost, and report it."""
    desk.begin()
    failed = desk.commit()
    desk.begin_log()
    desk.syncer.fail(errno.EIO)
    later = desk.commit()
    assert not desk.log.wait(later, PATIENCE_S)
    assert desk.committer.collect() == 0
    assert max(desk.log.durable) < failed and len(desk.log.failures) == 1


def test_the_watermark_follows_direct_syncs_with_nothing_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes it sleeps while the loop syncs directly."""
    monkeypatch.setattr("storage.local.committer.WATERMARK_INTERVAL_S", 0.01)
    watermark = Watermark(tmp_path / "watermark")
    wanted = 0
    advanced = threading.Semaphore(0)
    advance = watermark.advance

    def observe(synced: Synced) -> None:
        advance(synced)
        if synced.sequence == wanted:
            advanced.release()

    monkeypatch.setattr(watermark, "advance", observe)
    desk = Desk(tmp_path / "db", watermark)
    desk.begin()
    for _ in range(5):
        wanted = desk.commit()
        assert watermark.sequence < wanted
        desk.syncer.sync()
        assert desk.committer.collect() == wanted
        assert advanced.acquire(timeout=PATIENCE_S)
    assert desk.store.rocks_syncs == 1
    desk.close()
    watermark.close()


def test_closing_syncs_and_reports_what_was_not_collected(desk: Desk) -> None:
    desk.begin()
    serial = desk.commit()
    desk.committer.close()
    assert desk.log.durable[-1] == serial == desk.store.durable_sequence()
    assert desk.syncer.is_closed
    assert desk.committer.collect() == 0
    desk.committer.close()


def test_closing_after_a_direct_sync_failed_reports_the_failure(desk: Desk) -> None:
    desk.begin()
    failed = desk.commit()
    desk.syncer.fail(errno.EIO)
    desk.committer.close()
    assert len(desk.log.failures) == 1
    assert failed not in desk.log.durable


def test_direct_syncs_pass_the_failpoints(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.begin()
    reached: list[str] = []
    monkeypatch.setattr(failpoint, "hook", reached.append)
    desk.commit()
    assert reached == [failpoint.BEFORE_WRITE, failpoint.AFTER_WRITE_BEFORE_SYNC]
    desk.syncer.sync()
    desk.committer.collect()
    assert reached[2:] == [failpoint.AFTER_SYNC_BEFORE_REPLY]


def test_reopening_after_a_full_disk_goes_through_rocksdb(desk: Desk) -> None:
    desk.begin()
    before = desk.commit()
    desk.store.reopen()
    desk.syncer.sync()
    assert desk.committer.collect() == before, "it was in the log, and is in a table"
    serial = desk.commit()
    assert desk.log.wait(serial, PATIENCE_S)
    desk.committer.resume()
    serial = desk.commit()
    desk.syncer.sync()
    assert desk.committer.collect() == serial


def test_only_fsync_syncs_directly(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", families=["a"])
    log = Log()
    committer = Committer(store, log.on_durable, log.on_failure, durability="os")
    assert committer.fileno() == -1
    committer.resume()
    committer.close()
    _, direct = with_patience(store)
    with pytest.raises(AssertionError):
        Committer(store, log.on_durable, log.on_failure, durability="os", direct=direct)
    direct.close()
    store.close()
