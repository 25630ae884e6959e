"""A replicated store whose batches are committed later, at random points or when a test says so."""

from collections.abc import Sequence
from random import Random

from storage.api import Batch, Store
from storage.errors import StorageError
from storage.local.memory import MemoryStore
from storage.replicated.batch_codec import Operation
from storage.replicated.overlay import ReplicatedStore
from storage.replicated.record import DIGEST_BYTES, Position


def position(index: int) -> Position:
    """Return where the chain of these tests is behind record `index`."""
    return Position(1, index, index.to_bytes(DIGEST_BYTES)) if index else Position()


def place(index: int) -> int:
    """Return where its log goes on behind record `index`."""
    return index and 10 * index + 3


class Log:
    """The batches of a log, the first one at index 1."""

    def __init__(self) -> None:
        self.batches: list[list[Operation]] = []
        self.refuses: StorageError | None = None

    def append(self, operations: Sequence[Operation]) -> int:
        """Take a batch and return its index."""
        if self.refuses is not None:
            raise self.refuses
        self.batches.append(list(operations))
        return len(self.batches)

    def repeat(self, store: ReplicatedStore) -> None:
        """Apply what the database of `store` lacks."""
        for index in range(store.position().position.index + 1, len(self.batches) + 1):
            store.apply(self.batches[index - 1], position(index), place(index))


class LateStore(ReplicatedStore):
    """Commits some of what is pending after each write, if `random` is given."""

    def __init__(self, base: Store, log: Log, random: Random | None = None) -> None:
        super().__init__(base, log.append)
        self.base = base
        self.log = log
        self.random = random

    def commit(self, count: int = 1) -> None:
        """Commit the next `count` batches as one group."""
        index = len(self.log.batches) - self.pending + min(count, self.pending)
        self.committed(position(index), place(index))

    def write(self, batch: Batch) -> None:
        super().write(batch)
        self._commit_some()

    def create_family(self, family: str) -> None:
        super().create_family(family)
        self._commit_some()

    def drop_family(self, family: str) -> None:
        super().drop_family(family)
        self._commit_some()

    def _commit_some(self) -> None:
        if self.random is not None and self.random.random() < 0.4:
            self.commit(self.random.randint(1, 4))

    @property
    def unsynced(self) -> int:
        """Return how many writes of the database a power cut may take."""
        assert isinstance(self.base, MemoryStore)
        return self.base.unsynced

    def restart(self, keep: int | None = 0) -> "LateStore":
        """Return what a power cut leaves of a store in memory, brought up to date by the log."""
        assert isinstance(self.base, MemoryStore)
        store = LateStore(self.base.crash(keep), self.log, self.random)
        self.log.repeat(store)
        return store
