"""Is every record of a tail synced, and told so?"""

import threading
from pathlib import Path

from broker.cluster.synced_tail import SyncedTail
from storage.errors import StorageError


def test_what_was_appended_is_synced_and_there_after_a_restart(tmp_path: Path) -> None:
    told = threading.Event()
    failures: list[StorageError] = []
    tail = SyncedTail(tmp_path / "tail", told.set, failures.append)
    tail.append(5, b"five")
    while tail.synced < 5:
        assert told.wait(60)
        told.clear()
    tail.append(6, b"six")
    tail.drop_from(6)
    tail.close()
    tail.close()
    again = SyncedTail(tmp_path / "tail", told.set, failures.append)
    assert list(again.read_from(0)) == [(5, b"five")]
    again.close()
    assert not failures
