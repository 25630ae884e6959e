"""What the committer reports, when, and that it reports nothing after a failed sync."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.api import Store
from storage.errors import Recoverable, StorageError, Unrecoverable
from storage.local.committer import Committer, parse_durability
from storage.local.heartbeat_file import Pulse
from storage.local.memory import MemoryStore
from storage.local.rocks import RocksStore
from storage.local.watermark import Synced, Watermark
from tests.storage.scenarios import Log, run

ROOT = Path(__file__).parents[3]


class GatedStore(MemoryStore):
    """The fake disk with a sync that takes until the test says so."""

    def __init__(self) -> None:
        super().__init__(["a"])
        self.syncing = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def sync(self) -> None:
        token = self.sync_begin()
        self.syncing.release()
        assert self.gate.acquire(timeout=60)
        self.sync_end(token)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def gated(log: Log) -> Iterator[tuple[GatedStore, Committer]]:
    store = GatedStore()
    committer = Committer(store, log.on_durable, log.on_failure)
    yield store, committer
    store.gate.release(1000)
    committer.close()


def _write(store: Store, number: int) -> None:
    store.write([("a", bytes([number]), b"")])


def test_a_serial_is_reported_after_the_sync_that_covers_it(
    gated: tuple[GatedStore, Committer], log: Log
) -> None:
    store, committer = gated
    _write(store, 1)
    committer.request(1)
    assert store.syncing.acquire(timeout=60)
    assert log.durable == []
    store.gate.release()
    assert log.wait(1)
    assert store.crash().get("a", b"\x01") == b""


def test_what_is_requested_during_a_sync_waits_for_the_next_one_and_shares_it(
    gated: tuple[GatedStore, Committer], log: Log
) -> None:
    store, committer = gated
    for serial in (1, 2, 3, 4):
        _write(store, serial)
        committer.request(serial)
        if serial == 1:
            assert store.syncing.acquire(timeout=60)
    store.gate.release()
    assert log.wait(1)
    assert store.syncing.acquire(timeout=60)
    assert log.durable == [1], "the first sync began before 2, 3 and 4 were written"
    store.gate.release()
    assert log.wait(4)
    assert log.durable == [1, 4]
    assert committer.syncs == 2


def test_nothing_is_reported_after_a_failed_sync(log: Log) -> None:
    store = MemoryStore(["a"])
    committer = Committer(store, log.on_durable, log.on_failure)
    store.fail_next_sync = Unrecoverable("EIO")
    committer.request(1)
    assert not log.wait(1)
    committer.request(2)
    committer.close()
    assert log.durable == []
    assert log.failures == ["Unrecoverable: EIO"]
    assert isinstance(committer.failure, Unrecoverable)


def test_a_full_disk_is_waited_for_and_what_it_held_up_is_reported(log: Log) -> None:
    store = MemoryStore(["a"])
    committer = Committer(store, log.on_durable, log.on_failure)
    store.fail_next_sync = Recoverable("no space")
    _write(store, 1)
    committer.request(1)
    committer.request(2)
    assert log.wait(2)
    assert log.failures == []
    assert store.crash().get("a", b"\x01") == b""
    committer.close()


class FullOnce(MemoryStore):
    """A disk that is full at its first sync, while one more batch is written and requested."""

    committer: Committer

    def sync(self) -> None:
        if self.get("a", b"\x02") is None:
            _write(self, 2)
            self.committer.request(2)
            raise Recoverable("no space")
        super().sync()


def test_what_was_requested_while_the_disk_was_full_does_not_wait_for_another_commit(
    log: Log,
) -> None:
    store = FullOnce(["a"])
    store.committer = Committer(store, log.on_durable, log.on_failure)
    _write(store, 1)
    store.committer.request(1)
    assert log.wait(2)
    assert log.durable == [2] and store.committer.syncs == 1
    store.committer.close()


def test_a_write_that_failed_for_good_ends_all_reports(
    gated: tuple[GatedStore, Committer], log: Log
) -> None:
    store, committer = gated
    _write(store, 1)
    committer.request(1)
    assert store.syncing.acquire(timeout=60)
    committer.fail(Unrecoverable("write"))
    store.gate.release()
    committer.request(2)
    committer.close()
    assert log.durable == []
    assert log.failures == [], "whoever calls fail knows"


def test_a_bug_in_the_report_is_a_failure_and_not_a_silent_end(log: Log) -> None:
    def report(serial: int) -> None:
        raise RuntimeError(f"loop is closed, {serial}")

    committer = Committer(MemoryStore(), report, log.on_failure)
    committer.request(1)
    assert not log.wait(1)
    committer.close()
    assert log.failures == ["Unrecoverable: committer: RuntimeError('loop is closed, 1')"]


def test_closing_makes_the_last_requests_durable_and_reports_them(log: Log) -> None:
    store = MemoryStore(["a"])
    committer = Committer(store, log.on_durable, log.on_failure)
    _write(store, 1)
    committer.request(1)
    committer.close()
    committer.close()
    assert log.durable == [1]
    assert store.unsynced == 0


def test_os_reports_at_once_and_syncs_at_the_end_only(log: Log) -> None:
    store = MemoryStore(["a"])
    committer = Committer(store, log.on_durable, log.on_failure, durability="os")
    _write(store, 1)
    committer.request(1)
    assert log.durable == [1], "on the caller's thread"
    assert store.unsynced == 1
    committer.close()
    assert store.unsynced == 0


def test_interval_reports_at_once_and_syncs_soon(log: Log) -> None:
    store = GatedStore()
    committer = Committer(store, log.on_durable, log.on_failure, durability="interval:5")
    _write(store, 1)
    committer.request(1)
    assert log.durable == [1]
    assert store.syncing.acquire(timeout=60)
    for serial in range(2, 100):
        committer.request(serial)
    assert log.durable == list(range(1, 100))
    store.gate.release(3)
    assert store.syncing.acquire(timeout=60), "98 requests share the next sync"
    committer.close()
    assert committer.syncs <= 3


def test_interval_stops_reporting_when_its_sync_has_failed(log: Log) -> None:
    store = MemoryStore(["a"])
    store.fail_next_sync = Unrecoverable("EIO")
    committer = Committer(store, log.on_durable, log.on_failure, durability="interval:1")
    committer.request(1)
    assert log.durable == [1]
    with log.changed:
        assert log.changed.wait_for(lambda: log.failures, 10)
    committer.request(2)
    assert log.durable == [1]
    committer.close()


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("fsync", ("fsync", 0)),
        ("os", ("os", 0)),
        ("interval:1", ("interval", 1)),
        ("interval:60000", ("interval", 60_000)),
    ],
)
def test_durability_settings(text: str, parsed: tuple[str, int]) -> None:
    assert parse_durability(text) == parsed


@pytest.mark.parametrize(
    "text", ["", "fsync:1", "interval", "interval:", "interval:0", "interval:-5", "interval:60001"]
)
def test_a_durability_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"durability '{text}': expected 'fsync'"):
        parse_durability(text)


def test_the_watermark_follows_the_syncs_and_never_leads(tmp_path: Path, log: Log) -> None:
    store = RocksStore(tmp_path / "db", families=["a"])
    watermark = Watermark(tmp_path / "watermark")
    committer = Committer(
        store,
        log.on_durable,
        log.on_failure,
        watermark=watermark,
        source=store,
    )
    for serial in range(1, 40):
        _write(store, serial)
        committer.request(serial)
        assert watermark.sequence <= store.durable_sequence() <= store.sequence()
    committer.close()
    assert watermark.sequence == store.sequence() == 39, "a clean end leaves nothing out"
    watermark.close()
    store.close()


def test_an_idle_broker_brings_its_watermark_up_to_date(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is the last sync before an idle hour covered, or only those with another one after them?"""
    monkeypatch.setattr("storage.local.committer.WATERMARK_INTERVAL_S", 0.05)
    store = RocksStore(tmp_path / "db", families=["a"])
    watermark = Watermark(tmp_path / "watermark")
    advanced = threading.Event()
    advance = watermark.advance

    def observe(synced: Synced) -> None:
        advance(synced)
        if synced.sequence == 2:
            advanced.set()

    monkeypatch.setattr(watermark, "advance", observe)
    committer = Committer(
        store,
        log.on_durable,
        log.on_failure,
        watermark=watermark,
        source=store,
    )
    for serial in (1, 2):
        _write(store, serial)
        committer.request(serial)
    assert advanced.wait(10)
    committer.close()
    watermark.close()
    store.close()


def test_os_leaves_the_watermark_where_it_is_until_the_end(tmp_path: Path, log: Log) -> None:
    store = RocksStore(tmp_path / "db", families=["a"])
    watermark = Watermark(tmp_path / "watermark")
    committer = Committer(
        store,
        log.on_durable,
        log.on_failure,
        durability="os",
        watermark=watermark,
        source=store,
    )
    _write(store, 1)
    committer.request(1)
    assert watermark.sequence == 0
    committer.close()
    assert watermark.sequence == 1
    watermark.close()
    store.close()


# --- failing and slow disks, in a process of their own ---


def test_after_one_eio_nothing_is_ever_reported_durable_again(shim: Path, tmp_path: Path) -> None:
    """One failed fdatasync, then a disk that works again: fsyncgate."""
    end = run(shim, tmp_path, "failed_sync", "mode=eio ops=fdatasync path=.log times=1")
    assert end["durable"] == [1]
    assert len(end["failures"]) == 1
    assert "Input/output error" in end["failures"][0]
    assert end["refused"] == 3, "two writes and a reopening"
    assert end["reads"], "what needs no disk goes on"
    assert end["after_restart"] in (1, 2), "acknowledged batches are there, others may be"


def test_a_sync_that_finds_no_space_is_never_retried_on_the_same_handle(
    shim: Path, tmp_path: Path
) -> None:
    end = run(shim, tmp_path, "failed_sync", "mode=enospc ops=fdatasync path=.log times=1")
    assert end["durable"] == [1]
    assert end["failures"][0].startswith("Unrecoverable")


def test_a_slow_disk_does_not_block_writes_and_reads(shim: Path, tmp_path: Path) -> None:
    """If a sync blocked the loop's thread, one write or two would be all that it lets through."""
    end = run(shim, tmp_path, "slow_sync")
    assert end["failures"] == []
    assert end["written"] > 100
    assert end["syncs"] <= 4, "everything written during a sync shares the next"


def test_an_eio_of_the_watermark_ends_the_process(shim: Path, tmp_path: Path) -> None:
    end = run(shim, tmp_path, "failing_watermark")
    assert end["durable"] == [1]
    assert len(end["failures"]) == 1
    assert "watermark" in end["failures"][0]


def test_a_committer_closed_while_the_disk_is_full_ends(shim: Path, tmp_path: Path) -> None:
    assert run(shim, tmp_path, "close_while_full") == {"durable": [], "failures": []}


# --- failpoints ---

FAILPOINT = """
import sys, threading
from storage.local.heartbeat_file import Pulse
from storage.local.rocks import RocksStore
from storage.local.committer import Committer
store = RocksStore(sys.argv[1], families=["a"])
reported = threading.Event()
def report(serial):
    print(serial, flush=True)
    reported.set()
committer = Committer(store, report, print)
for serial in range(1, 6):
    store.write([("a", bytes([serial]), b"")])
    reported.clear()
    committer.request(serial)
    reported.wait()
"""


@pytest.mark.parametrize(
    ("name", "held"),
    [("before_write", 2), ("after_write_before_sync", 3), ("after_sync_before_reply", 3)],
)
def test_the_process_is_killed_where_the_failpoint_says(
    tmp_path: Path, name: str, held: int
) -> None:
    environment = {"HOLDFAST_FAILPOINT": f"{name}:3", "PYTHONPATH": str(ROOT)}
    child = subprocess.run(
        [sys.executable, "-c", FAILPOINT, str(tmp_path / "db")],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert child.stdout.split() == ["1", "2"], "the third reply is the one that never leaves"
    store = RocksStore(tmp_path / "db")
    assert len(store.scan("a", b"", count=9)) == held
    store.close()


def test_errors_of_the_store_are_passed_on_as_they_are(log: Log) -> None:
    seen: list[StorageError] = []
    store = MemoryStore()
    store.fail_next_sync = error = Unrecoverable("EIO")
    committer = Committer(store, log.on_durable, seen.append)
    committer.request(1)
    committer.close()
    assert seen == [error]


# Signs of life beside the store


class FullStore(MemoryStore):
    """A store whose sync says that a write before it found the disk full."""

    def sync(self) -> None:
        raise Recoverable("no space left on device")


@pytest.mark.parametrize("durability", ["fsync", "os", "interval:5"])
def test_a_sign_of_life_is_durable_although_nothing_is_committed(
    tmp_path: Path, log: Log, durability: str
) -> None:
    pulse = Pulse(tmp_path / "pulse")
    committer = Committer(
        MemoryStore(["a"]), log.on_durable, log.on_failure, durability=durability, pulse=pulse
    )
    for broker_ms in (1000, 1500):
        committer.alive(broker_ms)
    committer.close()
    assert pulse.broker_ms == 1500
    assert not log.durable
    pulse.close()


def test_the_sign_of_life_of_an_earlier_start_stays_until_there_is_a_new_one(
    tmp_path: Path, log: Log
) -> None:
    pulse = Pulse(tmp_path / "pulse")
    pulse.write(5000)
    store = MemoryStore(["a"])
    committer = Committer(store, log.on_durable, log.on_failure, pulse=pulse)
    _write(store, 1)
    committer.request(1)
    committer.close()
    assert log.durable and pulse.broker_ms == 5000
    pulse.close()


def test_a_sign_of_life_does_not_wait_for_room(tmp_path: Path, log: Log) -> None:
    """Is it written while a commit is tried again and again?"""
    pulse = Pulse(tmp_path / "pulse")
    written = threading.Event()
    write = pulse.write

    def observe(broker_ms: int) -> None:
        write(broker_ms)
        written.set()

    pulse.write = observe  # type: ignore[method-assign]
    committer = Committer(FullStore(["a"]), log.on_durable, log.on_failure, pulse=pulse)
    committer.request(1)
    committer.alive(1000)
    assert written.wait(10)
    committer.close()
    assert not log.durable
    assert not log.failures
    pulse.close()


def test_a_sign_of_life_that_finds_no_room_is_no_failure(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse = Pulse(tmp_path / "pulse")
    refused = threading.Event()

    def refuse(broker_ms: int) -> None:
        refused.set()
        raise Recoverable("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pulse, "write", refuse)
        committer = Committer(MemoryStore(["a"]), log.on_durable, log.on_failure, pulse=pulse)
        committer.alive(1000)
        assert refused.wait(10)
    committer.alive(2000)
    committer.close()
    assert pulse.broker_ms == 2000
    assert not log.failures
    pulse.close()


def test_a_sign_of_life_on_a_failing_disk_ends_the_process(tmp_path: Path, log: Log) -> None:
    pulse = Pulse(tmp_path / "pulse")
    pulse.close()
    committer = Committer(MemoryStore(["a"]), log.on_durable, log.on_failure, pulse=pulse)
    committer.alive(1000)
    committer.request(1)
    with log.changed:
        assert log.changed.wait_for(lambda: log.failures, 10)
    assert "Bad file descriptor" in str(log.failures[0])
    assert not log.durable
    committer.close()
