"""A store in memory that loses at a crash what was not synced: the disk of the simulation.

It keeps the contract of RocksDB and nothing more: a batch is atomic; a crash keeps a prefix of the
batches, at least up to the last completed sync; creating or dropping a family is durable at once,
even when batches written before it are lost. Must never do I/O. Read next: `storage.local.rocks`;
`tests/storage/test_stores.py` runs the same calls on both.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from storage.api import Batch, Change, Row
from storage.errors import DamagedRows, Recoverable, StorageError, Unrecoverable

# Synced entries kept in the log before they are folded into the durable image. Bounds the memory of
# a long run; simulated worlds are far shorter and never fold.
LOG_MAX: Final = 20_000

CREATE: Final = 0
DROP: Final = 1

# The log holds batches (lists of changes) and family events (what happened, family), in order.
Entry: TypeAlias = list[Change] | tuple[int, str]


class Rows:
    """The rows of one family: a dict, and its keys in order."""

    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []

    def copy(self) -> "Rows":
        """Return rows that share nothing mutable with these."""
        rows = Rows()
        rows.values = self.values.copy()
        rows.keys = self.keys.copy()
        return rows


class MemoryStore:
    """A `Store` in memory with a log of what a crash may lose, and knobs to make it fail."""

    __slots__ = (
        "_base",
        "_base_durable",
        "_damaged",
        "_dead",
        "_durable",
        "_families",
        "_fault",
        "_fault_call",
        "_log",
        "fail_next_sync",
        "fail_next_write",
        "fail_writes",
        "full",
        "io_calls",
        "sequence_number",
    )

    def __init__(self, families: Iterable[str] = ()) -> None:
        names = list(families)
        self._families: dict[str, Rows] = {family: Rows() for family in names}
        # The folded durable image, and the log since then. Only `crash` reads them.
        self._base: dict[str, Rows] = {family: Rows() for family in names}
        self._log: list[Entry] = []
        self._durable = 0  # entries of the log that a completed sync covers
        self._base_durable = 0  # entries folded so far; tokens count these too
        self._damaged: dict[str, set[bytes]] = {}  # keys that cannot be read; see `damage`
        self._dead: StorageError | None = None
        self._fault: StorageError | None = None
        self._fault_call = 0
        # Knobs. The first two disarm themselves; an `Unrecoverable` one leaves the store
        # write-dead, as RocksDB is after a failed write or sync.
        self.fail_next_write: StorageError | None = None
        self.fail_next_sync: StorageError | None = None
        self.fail_writes: StorageError | None = None
        self.full = False  # no space left: writes are refused, recoverably, until it is False again
        self.io_calls = 0  # calls of every kind so far; see `fail_at_call`
        self.sequence_number = 0  # batches accepted so far

    # --- reading ---

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        self.io_calls += 1
        if self.io_calls == self._fault_call:
            self._raise_fault(write=False)
        if self._damaged and key in self._damaged.get(family, ()):
            raise _damaged(family, key)
        return self._families[family].values.get(key)

    def get_uncached(self, family: str, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        return self.get(family, key)

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, None where there is none."""
        self.io_calls += 1
        if self.io_calls == self._fault_call:
            self._raise_fault(write=False)
        if self._damaged:
            damaged = self._damaged.get(family, set())
            for key in keys:
                if key in damaged:
                    raise _damaged(family, key)
        value = self._families[family].values.get
        return [value(key) for key in keys]

    def scan(
        self, family: str, start: bytes, stop: bytes | None = None, *, count: int
    ) -> list[Row]:
        """Return at most `count` rows with start <= key < stop in ascending key order."""
        self.io_calls += 1
        if self.io_calls == self._fault_call:
            self._raise_fault(write=False)
        rows = self._families[family]
        keys = rows.keys
        first = bisect_left(keys, start)
        end = min(len(keys) if stop is None else bisect_left(keys, stop), first + count)
        values = rows.values
        if self._damaged and family in self._damaged:
            self._check_scanned(family, keys, first, end)
        return [(key, values[key]) for key in keys[first:end]]

    def last(self, family: str, start: bytes, stop: bytes) -> Row | None:
        """Return the row with the greatest key in start <= key < stop, or None."""
        self.io_calls += 1
        if self.io_calls == self._fault_call:
            self._raise_fault(write=False)
        rows = self._families[family]
        end = bisect_left(rows.keys, stop)
        if end == 0:
            return None
        key = rows.keys[end - 1]
        if self._damaged and key >= start and key in self._damaged.get(family, ()):
            error = _damaged(family, key)
            error.resume = (int.from_bytes(key, "big") + 1).to_bytes(len(key), "big")
            raise error
        return (key, rows.values[key]) if key >= start else None

    def _check_scanned(self, family: str, keys: list[bytes], first: int, end: int) -> None:
        """Raise `DamagedRows` if one of these rows cannot be read."""
        damaged = self._damaged[family]
        at = first
        while at < end and keys[at] not in damaged:
            at += 1
        if at == end:
            return
        values = self._families[family].values
        error = _damaged(family, keys[at])
        error.rows = [(key, values[key]) for key in keys[first:at]]
        while at < len(keys) and keys[at] in damaged:
            error.resume = keys[at] + b"\0"
            at += 1
        raise error

    # --- writing ---

    def write(self, batch: Batch) -> None:
        """Apply `batch` atomically; a crash loses it unless a later sync completes.

        Raises the error that a knob sets; then nothing of the batch was applied.
        """
        self.io_calls += 1
        if (
            self._dead is not None
            or self.full
            or self.fail_writes is not None
            or self.fail_next_write is not None
            or self.io_calls == self._fault_call
        ):
            self._refuse_write()
        changes = list(batch)  # the caller may clear and reuse its list
        _apply(self._families, changes)
        if self._damaged:
            for family, key, _ in changes:
                self._damaged.get(family, set()).discard(key)
        self._log.append(changes)
        self.sequence_number += 1

    def sync_begin(self) -> int:
        """Start a sync that covers every write up to now, and return its token."""
        self.io_calls += 1
        if self._dead is not None:
            raise self._dead
        if self.io_calls == self._fault_call:
            self._raise_fault(write=True)
        if self.fail_next_sync is not None:
            error, self.fail_next_sync = self.fail_next_sync, None
            self._die_of(error)
            raise error
        return self._base_durable + len(self._log)

    def sync_end(self, token: int) -> None:
        """Complete the sync with this token: what it covers survives every crash."""
        assert token <= self._base_durable + len(self._log), "token of another store"
        self._durable = max(self._durable, token - self._base_durable)
        if self._durable > LOG_MAX:
            self._fold()

    def sync(self) -> None:
        """Make every write that returned before this call survive a crash."""
        self.sync_end(self.sync_begin())

    def families(self) -> list[str]:
        """Return the names of all column families."""
        return list(self._families)

    def create_family(self, family: str) -> None:
        """Create an empty column family. Survives every crash from now on."""
        assert family not in self._families, f"column family {family!r} exists"
        self._count_write()
        self._families[family] = Rows()
        self._log.append((CREATE, family))

    def drop_family(self, family: str) -> None:
        """Drop a column family with all its rows. Survives every crash from now on."""
        assert family in self._families, f"no column family {family!r}"
        self._count_write()
        del self._families[family]
        self._damaged.pop(family, None)
        self._log.append((DROP, family))

    def sequence(self) -> int:
        """Return the number of batches written since the store was created."""
        return self.sequence_number

    def close(self) -> None:
        """Do nothing: there is no handle."""

    # --- crashing and failing ---

    @property
    def unsynced(self) -> int:
        """Return how many batches a crash may lose; `keep` of `crash` is at most this."""
        return sum(type(entry) is list for entry in self._log[self._durable :])

    def crash(self, keep: int | None = None) -> "MemoryStore":
        """Return the store that a restart would find; this one does not change.

        It has every batch up to the last completed sync and the first `keep` batches after that
        (None: none of them, as after a power cut; `unsynced`: all of them, as after kill -9).
        Families are as now, because creating and dropping one is durable at once. All knobs are
        reset.
        """
        families = {name: rows.copy() for name, rows in self._base.items()}
        left = keep or 0
        lost = 0
        for index, entry in enumerate(self._log):
            if isinstance(entry, tuple):
                _change_family(families, entry)
            elif index < self._durable:
                _apply(families, entry)
            elif left > 0:
                left -= 1
                _apply(families, entry)
            else:
                lost += 1
        store = MemoryStore()
        store._families = families
        store._base = {name: rows.copy() for name, rows in families.items()}
        store.sequence_number = self.sequence_number - lost
        store._damaged = {
            family: {key for key in keys if key in families[family].values}
            for family, keys in self._damaged.items()
            if family in families
        }
        return store

    def damage(self, family: str, keys: Iterable[bytes]) -> None:
        """Let rows be unreadable until they are written or deleted; a crash does not mend them."""
        self._damaged.setdefault(family, set()).update(keys)

    def fail_at_call(self, call: int, error: StorageError) -> None:
        """Raise `error` from whichever call makes `io_calls` equal to `call`."""
        self._fault_call = call
        self._fault = error

    def _count_write(self) -> None:
        self.io_calls += 1
        if self._dead is not None or self.full or self.io_calls == self._fault_call:
            self._refuse_write()

    def _refuse_write(self) -> None:
        if self._dead is not None:
            raise self._dead
        if self.io_calls == self._fault_call:
            self._raise_fault(write=True)
        if self.fail_next_write is not None:
            error, self.fail_next_write = self.fail_next_write, None
            self._die_of(error)
            raise error
        if self.fail_writes is not None:
            raise self.fail_writes
        if self.full:
            raise Recoverable("no space left on device")

    def _raise_fault(self, *, write: bool) -> None:
        error = self._fault
        assert error is not None
        if write:
            self._die_of(error)
        raise error

    def _die_of(self, error: StorageError) -> None:
        if isinstance(error, Unrecoverable):
            self._dead = error

    def _fold(self) -> None:
        """Move the durable part of the log into the base image, so that the log stays bounded."""
        for entry in self._log[: self._durable]:
            if isinstance(entry, tuple):
                _change_family(self._base, entry)
            else:
                _apply(self._base, entry)
        del self._log[: self._durable]
        self._base_durable += self._durable
        self._durable = 0


def _damaged(family: str, key: bytes) -> DamagedRows:
    return DamagedRows(f"family {family}: row {key.hex()} is damaged", family, key)


def _apply(families: dict[str, Rows], changes: list[Change]) -> None:
    for family, key, value in changes:
        rows = families[family]
        values = rows.values
        if value is not None:
            if key not in values:
                keys = rows.keys
                if not keys or key > keys[-1]:
                    keys.append(key)
                else:
                    insort(keys, key)
            values[key] = value
        elif key in values:
            del values[key]
            keys = rows.keys
            del keys[bisect_left(keys, key)]


def _change_family(families: dict[str, Rows], event: tuple[int, str]) -> None:
    what, family = event
    if what == CREATE:
        families[family] = Rows()
    else:
        del families[family]
