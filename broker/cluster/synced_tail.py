"""A node's tail with the thread that syncs it, and whether it is the one that the node always had.

A file beside the tail says that it is not: the node began with an empty database, or with a copy of
another one's, and may have acknowledged before what it does not know now. It is there before the
tail is made, and until the node knows what a leader has. Read next:
`storage.replicated.tail_syncer`.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from storage.errors import StorageError, Unrecoverable
from storage.local.slot_file import sync_directory
from storage.replicated.tail import Tail
from storage.replicated.tail_syncer import TailSyncer

NEW: Final = ".new"  # behind the name of the tail


class SyncedTail:
    """A tail whose every record is synced soon."""

    def __init__(
        self, path: Path, on_synced: Callable[[], None], on_failure: Callable[[StorageError], None]
    ) -> None:
        """Open it; raises `StorageError`. Both are called on the thread."""
        self._mark: Final = path.with_name(path.name + NEW)
        self.is_new: bool = self._find_out(path)
        self._tail: Final = Tail(path)
        self._syncer: Final = TailSyncer(self._tail, on_synced, on_failure)
        self._is_closed: bool = False

    def _find_out(self, path: Path) -> bool:
        try:
            if not path.exists():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.close(os.open(self._mark, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
                sync_directory(path.parent)
            return self._mark.exists()
        except OSError as problem:
            raise Unrecoverable(f"{self._mark}: {problem.strerror}") from None

    def remember(self) -> None:
        """The node knows what a leader has, and keeps that: durable on return."""
        try:
            self._mark.unlink(missing_ok=True)
            sync_directory(self._mark.parent)
        except OSError as problem:
            raise Unrecoverable(f"{self._mark}: {problem.strerror}") from None
        self.is_new = False

    @property
    def synced(self) -> int:
        """Return the greatest index that is synced, and still there."""
        return self._tail.synced

    @property
    def syncs(self) -> int:
        """Return how many syncs have ended."""
        return self._syncer.syncs

    @property
    def sync_seconds(self) -> float:
        """Return how long these took together."""
        return self._syncer.sync_seconds

    def append(self, index: int, data: bytes) -> None:
        """Keep a record, and have it synced. Raises `Recoverable` where there is no room."""
        self._tail.append(index, data)
        self._syncer.request()

    def drop_from(self, index: int) -> None:
        """Forget the records from `index` on. Durable on return."""
        self._tail.drop_from(index)

    def read_from(self, index: int) -> Iterator[tuple[int, bytes]]:
        """Return the records from `index` on, or from the first one that is still kept."""
        return self._tail.read_from(index)

    def truncate_before(self, index: int) -> None:
        """Delete files with nothing but records before `index`."""
        self._tail.truncate_before(index)

    def close(self) -> None:
        """Sync everything and end the thread. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._syncer.close()
            self._tail.close()
