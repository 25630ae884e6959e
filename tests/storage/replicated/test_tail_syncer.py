"""What the thread that syncs the tail reports, when, and that a failed sync is the last."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from storage.errors import StorageError, Unrecoverable
from storage.local.slot_file import Slots
from storage.replicated import tail as module
from storage.replicated import tail_syncer
from storage.replicated.tail import MARK, MARK_FILE, MARK_MAGIC, Tail
from storage.replicated.tail_syncer import TailSyncer
from tests.stand_in import replace_in

PATIENCE_S = 60


class Disk:
    """Syncs when the test says so."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.fails = False

    def fdatasync(self, _: int) -> None:
        self.begun.release()
        assert self.gate.acquire(timeout=PATIENCE_S)
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class Scene:
    """A tail, its syncer, and what was reported: an index, or an error."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.disk = disk
        self.tail = Tail(path)
        self.reports: SimpleQueue[int | StorageError] = SimpleQueue()
        self.syncer = TailSyncer(self.tail, self._on_synced, self.reports.put)

    def _on_synced(self) -> None:
        self.reports.put(self.tail.synced)

    def append(self, *indexes: int) -> None:
        for index in indexes:
            self.tail.append(index, b"record")
            self.syncer.request()

    def report(self) -> int | StorageError:
        return self.reports.get(timeout=PATIENCE_S)

    def await_sync(self) -> None:
        assert self.disk.begun.acquire(timeout=PATIENCE_S)

    def end(self) -> None:
        self.disk.gate.release(1000)
        self.syncer.close()
        self.tail.close()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    disk = Disk()
    replace_in(monkeypatch, module, "os", fdatasync=disk.fdatasync)
    scene = Scene(tmp_path / "tail", disk)
    yield scene
    scene.end()


def _marked(scene: Scene) -> int:
    slots = Slots(scene.tail.directory / MARK_FILE, MARK, MARK_MAGIC)
    slots.close()
    return (slots.numbers or (0,))[0]


def test_a_record_is_reported_after_its_sync(scene: Scene) -> None:
    scene.append(1)
    scene.await_sync()
    assert scene.reports.empty() and scene.tail.synced == 0
    scene.disk.gate.release()
    assert scene.report() == 1
    assert scene.syncer.syncs == 1
    assert 0 < scene.syncer.sync_seconds == scene.syncer.sync_seconds_last


def test_the_next_sync_covers_all_that_came_meanwhile(scene: Scene) -> None:
    scene.append(1)
    scene.await_sync()
    scene.append(2, 3, 4)
    scene.disk.gate.release()
    assert scene.report() == 1
    scene.await_sync()
    scene.disk.gate.release()
    assert scene.report() == 4
    assert scene.syncer.syncs == 2


def test_nothing_is_reported_after_a_failed_sync(scene: Scene) -> None:
    scene.append(1)
    scene.await_sync()
    scene.append(2)
    scene.disk.fails = True
    scene.disk.gate.release()
    error = scene.report()
    assert isinstance(error, Unrecoverable) and "Input/output error" in str(error)
    scene.disk.fails = False
    scene.syncer.request()
    scene.end()
    assert scene.reports.empty() and scene.tail.synced == 0
    assert scene.syncer.failure is error


def test_what_was_dropped_during_a_sync_is_not_reported(scene: Scene) -> None:
    scene.append(1, 2)
    scene.await_sync()
    scene.tail.drop_from(2)
    scene.append(2)
    scene.disk.gate.release()
    assert scene.report() == 1
    scene.await_sync()
    scene.disk.gate.release(9)
    assert scene.report() == 2


def test_closing_syncs_and_marks_what_was_appended(scene: Scene) -> None:
    scene.disk.gate.release(9)
    scene.tail.append(7, b"record")
    scene.syncer.close()
    scene.syncer.close()
    assert (scene.tail.synced, _marked(scene)) == (7, 7)
    assert scene.report() == 7


def test_the_mark_is_written_when_nothing_else_is_to_do(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_syncer, "MARK_INTERVAL_S", 0.01)
    written = threading.Event()
    write = Slots.write

    def told(slots: Slots, *numbers: int) -> None:
        write(slots, *numbers)
        written.set()

    monkeypatch.setattr(Slots, "write", told)
    scene.disk.gate.release(9)
    scene.append(3)
    assert written.wait(PATIENCE_S)
    assert _marked(scene) == 3


def test_a_failure_of_the_mark_is_reported(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(slots: Slots, *numbers: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Slots, "write", write)
    scene.disk.gate.release(9)
    scene.append(1)
    assert scene.report() == 1
    scene.syncer.close()
    error = scene.report()
    assert isinstance(error, Unrecoverable) and "Input/output error" in str(error)


def test_a_bug_is_reported_and_ends_the_thread(scene: Scene) -> None:
    def broken() -> None:
        raise ValueError("a bug of the caller")

    scene.syncer._on_synced = broken  # type: ignore[misc]
    scene.disk.gate.release(9)
    scene.append(1)
    error = scene.report()
    assert isinstance(error, Unrecoverable) and "a bug of the caller" in str(error)
