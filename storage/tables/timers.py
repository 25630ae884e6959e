"""Timers in the store: session expiry, delayed wills, retained expiry, ordered by time.

There is no timer per session: the rows of the family `due` are sorted by time, and the broker asks
for those that are due. A removed entry is treated as gone at once, although the store has its row
until the batch is written. Does not know what an entry means. Read next:
`session.lifetime.housekeeping`.
"""

import struct
from typing import Final

from storage.api import Batch, Row, Store
from storage.errors import DamagedRows
from storage.tables.tables import DUE, scan_readable, seal, unseal

# Kinds, in the order in which entries of the same millisecond are handled: a will that is due when
# its session ends is published before the session is removed.
WILL: Final = 1
SESSION: Final = 2
RETAINED: Final = 3

# How far ahead `come` looks for the next entry. Until compaction, removed entries cost a scan as
# much as live ones, and most are removed: sessions resume long before they expire. So a scan covers
# only one second of entries, once a second.
LOOKAHEAD_MS: Final = 1000

_TIME: Final = struct.Struct(">QB")


class Entry:
    """One row of `due`."""

    __slots__ = ("at_ms", "key", "kind", "name", "value")

    def __init__(self, key: bytes, at_ms: int, kind: int, name: bytes, value: bytes) -> None:
        self.key = key
        self.at_ms = at_ms  # broker time
        self.kind = kind
        self.name = name
        self.value = value


def due_key(at_ms: int, kind: int, name: bytes) -> bytes:
    """Return the key of an entry."""
    return _TIME.pack(at_ms, kind) + name


class Due:
    """The time-ordered entries of one store, with the removals of the unwritten batch applied."""

    def __init__(self, store: Store) -> None:
        self._store: Final = store
        self._removed: set[bytes] = set()
        # When to call `come` next, in broker ms; None = there is no entry.
        self.next_ms: int | None = None
        self._floor_ms = 0  # no entry is earlier; scans start here
        # Entries that cannot be read: they stay in the store. The owner empties the list.
        self.damages: list[DamagedRows] = []

    def open(self) -> None:
        """Read the earliest entry. Call it once, before anything is added."""
        rows = self._scan(b"", None, 1)
        self.next_ms = _TIME.unpack_from(rows[0][0])[0] if rows else None

    def add(self, batch: Batch, at_ms: int, kind: int, name: bytes, value: bytes = b"") -> None:
        """Add an entry to the batch."""
        key = due_key(at_ms, kind, name)
        self._removed.discard(key)
        batch.append((DUE, key, seal(value)))
        if self.next_ms is None or at_ms < self.next_ms:
            self.next_ms = at_ms
        if at_ms < self._floor_ms:
            self._floor_ms = at_ms

    def remove(self, batch: Batch, at_ms: int, kind: int, name: bytes) -> None:
        """Remove an entry; does nothing if it does not exist."""
        key = due_key(at_ms, kind, name)
        self._removed.add(key)
        batch.append((DUE, key, None))

    def get(self, at_ms: int, kind: int, name: bytes) -> bytes | None:
        """Return the value of a written entry, None if there is none or it was removed.

        Raises `DamagedRows`.
        """
        key = due_key(at_ms, kind, name)
        if key in self._removed:
            return None
        value = self._store.get(DUE, key)
        return None if value is None else unseal(value, "due entry")

    def is_removed(self, key: bytes) -> bool:
        """Return whether this entry was removed since the last write of the batch."""
        return key in self._removed

    def written(self) -> None:
        """Forget the removals. Call it when the batch with all changes so far was written."""
        self._removed.clear()

    def come_again(self, now: int) -> None:
        """Let `come` be called again at once: the caller has left some of its entries."""
        self.next_ms = now

    def come(self, now: int, count: int) -> list[Entry]:
        """Return at most `count` written entries that are due, earliest first.

        Also updates `next_ms`. Write the batch before calling, remove the entries that were
        handled, and call again after a full `count`.
        """
        past = (now + 1).to_bytes(8, "big")
        start = self._floor_ms.to_bytes(8, "big")
        entries: list[Entry] = []
        while True:
            rows = self._scan(start, past, count)
            for key, value in rows:
                at_ms, kind = _TIME.unpack_from(key)
                try:
                    body = unseal(value, "due entry")
                except DamagedRows as damage:
                    self.damages.append(damage)
                    continue
                entries.append(Entry(key, at_ms, kind, key[_TIME.size :], body))
            if len(rows) < count:
                break
            if entries:
                self.next_ms = now
                return entries
            start = rows[-1][0] + b"\0"  # all of them are damaged
        self._floor_ms = entries[0].at_ms if entries else now + 1
        horizon = now + LOOKAHEAD_MS
        later = self._scan(past, horizon.to_bytes(8, "big"), 1)
        self.next_ms = _TIME.unpack_from(later[0][0])[0] if later else horizon
        return entries

    def _scan(self, start: bytes, stop: bytes | None, count: int) -> list[Row]:
        return scan_readable(self._store, DUE, start, stop, self.damages, count=count)
