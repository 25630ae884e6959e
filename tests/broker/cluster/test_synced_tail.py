"""Is every record of a tail synced, and told so? Does it know that it is not the first one?"""

import threading
from pathlib import Path

import pytest

from broker.cluster.synced_tail import SyncedTail
from storage.errors import StorageError, Unrecoverable


def test_what_was_appended_is_synced_and_there_after_a_restart(tmp_path: Path) -> None:
    told = threading.Event()
    failures: list[StorageError] = []
    tail = SyncedTail(tmp_path / "tail", told.set, failures.append)
    tail.append(5, b"five")
    while tail.synced < 5:
        assert told.wait(60)
        told.clear()
    assert tail.syncs >= 1 and tail.sync_seconds > 0
    tail.append(6, b"six")
    tail.drop_from(6)
    tail.close()
    tail.close()
    again = SyncedTail(tmp_path / "tail", told.set, failures.append)
    assert list(again.read_from(0)) == [(5, b"five")]
    again.close()
    assert not failures


def _open(path: Path) -> SyncedTail:
    return SyncedTail(path, lambda: None, lambda error: None)


def test_a_tail_is_new_until_its_node_knows_what_a_leader_has(tmp_path: Path) -> None:
    tail = _open(tmp_path / "tail")
    assert tail.is_new
    tail.append(1, b"one")
    tail.close()
    tail = _open(tmp_path / "tail")
    assert tail.is_new  # a crash does not make it remember
    tail.remember()
    assert not tail.is_new
    tail.close()
    tail = _open(tmp_path / "tail")
    assert not tail.is_new
    tail.close()
    assert [each.name for each in tmp_path.iterdir()] == ["tail"]


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unrecoverable, match=r"tail\.new: "):
        _open(tmp_path / "file" / "tail")
