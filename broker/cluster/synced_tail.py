"""A node's tail with the thread that syncs it. Read next: `storage.replicated.tail_syncer`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from storage.errors import StorageError
from storage.replicated.tail import Tail
from storage.replicated.tail_syncer import TailSyncer


class SyncedTail:
    """A tail whose every record is synced soon."""

    def __init__(
        self, path: Path, on_synced: Callable[[], None], on_failure: Callable[[StorageError], None]
    ) -> None:
        """Open it; raises `StorageError`. Both are called on the thread."""
        self._tail: Final = Tail(path)
        self._syncer: Final = TailSyncer(self._tail, on_synced, on_failure)
        self._is_closed: bool = False

    @property
    def synced(self) -> int:
        """Return the greatest index that is synced, and still there."""
        return self._tail.synced

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
