"""The port between Holdfast's pure code and a key-value store.

A store holds column families of ordered byte keys. The broker writes one atomic batch per tick and
never syncs itself: the committer (`storage.local.committer`, or the simulation) syncs and reports
what is durable. Implementations: `storage.local.rocks` (RocksDB) and `storage.local.memory` (loses
at a crash what was not synced). Read next: `storage.log.message_log` (the message log),
`storage.tables.tables` (the keys of everything else).
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

# One change: (family, key, value); a value of None deletes the key.
Change: TypeAlias = tuple[str, bytes, bytes | None]
# The changes of one tick, in order. A later change of the same key wins.
Batch: TypeAlias = list[Change]
Row: TypeAlias = tuple[bytes, bytes]


class Committing(Protocol):
    """Tells what is durable: the committer of a local store, or of a replicated one.

    Serials count the batches that were written. Read next: `storage.local.committer`.
    """

    @property
    def mode(self) -> str:
        """The durability: "fsync" if reports come later, on any thread."""
        ...

    def request(self, serial: int) -> None:
        """Report `serial` when everything written to the store before this call is durable."""
        ...

    def fileno(self) -> int:
        """Return the descriptor to watch for `collect`, -1 if there is none."""
        ...

    def collect(self) -> int:
        """Return the newest serial that became durable without a report, 0 if there is no news."""
        ...

    def resume(self) -> None:
        """Go on with what was held until a report."""
        ...

    def alive(self, broker_ms: int) -> None:
        """Note that the broker lives, while the store takes no heartbeat."""
        ...

    def close(self) -> None:
        """End. Idempotent; never raises."""
        ...


class Store(Protocol):
    """Column families of ordered keys with atomic, un-synced writes."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of `key`, or None. Sees every completed `write`.

        Every method that reads raises `DamagedRows` if it needs a row that cannot be read.
        """
        ...

    def get_uncached(self, family: str, key: bytes) -> bytes | None:
        """Return the value of `key` as `get`, for a caller that keeps it in a cache of its own.

        The store does not cache what it has to read from the disk for this.
        """
        ...

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, None where there is none."""
        ...

    def scan(
        self, family: str, start: bytes, stop: bytes | None = None, *, count: int
    ) -> list[Row]:
        """Return at most `count` rows with start <= key < stop in ascending key order."""
        ...

    def last(self, family: str, start: bytes, stop: bytes) -> Row | None:
        """Return the row with the greatest key in start <= key < stop, or None."""
        ...

    def write(self, batch: Batch) -> None:
        """Apply `batch` atomically; it is visible on return and durable only after a later sync.

        Raises `Recoverable` when the store refused it for now: nothing of it was applied, and it
        may be written again. Raises `Unrecoverable` when the process must end.
        """
        ...

    def sync(self) -> None:
        """Make every `write` that returned before this call durable. Blocks. For the committer."""
        ...

    def families(self) -> list[str]:
        """Return the names of all column families."""
        ...

    def create_family(self, family: str) -> None:
        """Create an empty column family. Durable on return."""
        ...

    def drop_family(self, family: str) -> None:
        """Drop a column family with all its rows. Durable on return."""
        ...

    def close(self) -> None:
        """Release every handle. Idempotent."""
        ...
