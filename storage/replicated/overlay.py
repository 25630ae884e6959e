"""A store whose writes reach its database only once the replicated log has committed them.

A batch goes to the log first. Until it is committed its rows lie over those of the database, in
memory, so reads see it at once. A leader that is deposed has nothing to undo: its database never
had what did not count. Creating and dropping a family are batches of their own. Memory grows with
the batches that are not committed. One thread owns it, but for `sync`. Pure. Read next:
`storage.replicated.applied`, `storage.replicated.replica`.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from storage.api import Batch, Row, Store
from storage.errors import DamagedRows
from storage.replicated.applied import Reached, apply, load_reached
from storage.replicated.batch_codec import CREATE, DROP, Operation
from storage.replicated.record import Position

# Rows of the database per page, after the first page had too many that pending batches delete.
PAGE_MIN: Final = 64
PAGE_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Pending:
    """A batch that is not committed."""

    index: int
    operations: Sequence[Operation]
    size: int  # bytes of its keys and values


class Layer:
    """What pending batches change in one family: the newest change of each key, in order."""

    __slots__ = ("_gone", "_keys", "changed", "exists", "hides", "values")

    def __init__(self, changed: int = 0, *, exists: bool = True) -> None:
        self.changed: Final = changed  # the batch that created or dropped the family, 0 = none
        self.exists: Final = exists
        self.hides = changed != 0  # the database still has another family of this name, or none
        self.values: dict[bytes, tuple[int, bytes | None]] = {}  # (index of the batch, value)
        self._keys: list[bytes] = []  # those of `values`, and of `_gone`
        self._gone: set[bytes] = set()  # committed; they leave `_keys` many at a time

    def put(self, index: int, key: bytes, value: bytes | None) -> None:
        """Take a change of batch `index`; a value of None deletes."""
        if key not in self.values:
            keys = self._keys
            if key in self._gone:
                self._gone.remove(key)
            elif not keys or key > keys[-1]:
                keys.append(key)
            else:
                insort(keys, key)
        self.values[key] = (index, value)

    def commit(self, index: int, key: bytes) -> None:
        """The database has the change of batch `index`: forget it if none came later."""
        found = self.values.get(key)
        if found is None or found[0] != index:
            return
        del self.values[key]
        gone = self._gone
        gone.add(key)
        if len(gone) > len(self.values):
            self._keys = [key for key in self._keys if key in self.values]
            gone.clear()

    def is_clear(self, start: bytes, stop: bytes | None) -> bool:
        """Return whether nothing is pending for start <= key < stop."""
        first, end = self._range(start, stop)
        return first >= end

    def last(self, start: bytes, stop: bytes) -> Row | None:
        """Return the pending row with the greatest key in start <= key < stop."""
        first, at = self._range(start, stop)
        while at > first:
            at -= 1
            key = self._keys[at]
            found = self.values.get(key)
            if found is not None and found[1] is not None:
                return key, found[1]
        return None

    def merge(
        self, page: Sequence[Row], start: bytes, stop: bytes | None, rows: list[Row], count: int
    ) -> None:
        """Add to `rows`, until it has `count`, all rows with start <= key < stop.

        `page` has those of the database.
        """
        keys, values = self._keys, self.values
        at, end = self._range(start, stop)
        for row in page:
            key = row[0]
            while at < end and keys[at] < key:
                self._add(keys[at], rows)
                at += 1
            if at < end and keys[at] == key:
                at += 1
                if key in values:
                    self._add(key, rows)
                else:
                    rows.append(row)
            else:
                rows.append(row)
            if len(rows) >= count:
                break
        while at < end and len(rows) < count:
            self._add(keys[at], rows)
            at += 1
        del rows[count:]

    def _add(self, key: bytes, rows: list[Row]) -> None:
        found = self.values.get(key)
        if found is not None and found[1] is not None:
            rows.append((key, found[1]))

    def _range(self, start: bytes, stop: bytes | None) -> tuple[int, int]:
        keys = self._keys
        return bisect_left(keys, start), len(keys) if stop is None else bisect_left(keys, stop)


class ReplicatedStore:
    """A `Store` over `base`, the database of this node, and the batches not committed yet."""

    def __init__(self, base: Store, appended: Callable[[Sequence[Operation]], int]) -> None:
        """`appended` gives a batch to the log and returns its index; they grow.

        If it raises, nothing has changed. It must not call this store. Raises `DamagedRows` when
        the row cannot be read that says how far `base` has come.
        """
        self._base: Final = base
        self._appended: Final = appended
        self._reached: Reached = load_reached(base)
        self._families: Final = set(base.families())  # of the base
        self._layers: Final[dict[str, Layer]] = {}
        self._batches: Final[deque[Pending]] = deque()
        self.pending_bytes = 0  # keys and values of the batches that are not committed

    # --- reading ---

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        layer = self._layers.get(family)
        if layer is not None:
            found = self._layer(family, layer).values.get(key)
            if found is not None:
                return found[1]
            if layer.hides:
                return None
        return self._base.get(family, key)

    def get_uncached(self, family: str, key: bytes) -> bytes | None:
        """Return the value of `key` as `get`; the database does not cache it."""
        layer = self._layers.get(family)
        if layer is not None:
            found = self._layer(family, layer).values.get(key)
            if found is not None:
                return found[1]
            if layer.hides:
                return None
        return self._base.get_uncached(family, key)

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, None where there is none."""
        layer = self._layers.get(family)
        if layer is None:
            return self._base.get_many(family, keys)
        values = self._layer(family, layer).values
        found = [values.get(key) for key in keys]
        missing = [key for key, each in zip(keys, found, strict=True) if each is None]
        if not missing or layer.hides:
            return [None if each is None else each[1] for each in found]
        read = iter(self._base.get_many(family, missing))
        return [next(read) if each is None else each[1] for each in found]

    def scan(
        self, family: str, start: bytes, stop: bytes | None = None, *, count: int
    ) -> list[Row]:
        """Return at most `count` rows with start <= key < stop in ascending key order."""
        layer = self._layers.get(family)
        if layer is None:
            return self._base.scan(family, start, stop, count=count)
        self._layer(family, layer)
        rows: list[Row] = []
        if layer.hides:
            layer.merge((), start, stop, rows, count)
            return rows
        if layer.is_clear(start, stop):
            return self._base.scan(family, start, stop, count=count)
        asked = count
        while len(rows) < count:
            try:
                page = self._base.scan(family, start, stop, count=asked)
            except DamagedRows as damage:
                start = _past(damage, layer, start, stop, rows, count)
                continue
            if len(page) < asked:
                layer.merge(page, start, stop, rows, count)
                break
            end = page[-1][0] + b"\0"
            layer.merge(page, start, end, rows, count)
            start = end
            asked = min(max(2 * asked, PAGE_MIN), PAGE_MAX)
        return rows

    def last(self, family: str, start: bytes, stop: bytes) -> Row | None:
        """Return the row with the greatest key in start <= key < stop, or None."""
        layer = self._layers.get(family)
        if layer is None:
            return self._base.last(family, start, stop)
        found = self._layer(family, layer).last(start, stop)
        if layer.hides:
            return found
        if found is not None:
            start = found[0] + b"\0"
        while start < stop:
            row = self._base.last(family, start, stop)
            if row is None:
                break
            if row[0] not in layer.values:
                return row
            stop = row[0]  # a pending batch deletes it
        return found

    def families(self) -> list[str]:
        """Return the names of all column families."""
        layers = self._layers
        names = [name for name in self._base.families() if name not in layers]
        return names + [name for name, layer in layers.items() if layer.exists]

    # --- writing ---

    def write(self, batch: Batch) -> None:
        """Hand `batch` to the log; visible on return, committed when `committed` is told so."""
        for family in {change[0] for change in batch}:
            if not self._has(family):
                raise KeyError(family)
        operations = list(batch)  # the caller may clear and reuse its list
        index = self._append(operations)
        size = 0
        layers = self._layers
        for family, key, value in operations:
            layer = layers.get(family)
            if layer is None:
                layer = layers[family] = Layer()
            layer.put(index, key, value)
            size += len(key) if value is None else len(key) + len(value)
        self._batches.append(Pending(index, operations, size))
        self.pending_bytes += size

    def create_family(self, family: str) -> None:
        """Create an empty column family, by a batch of its own."""
        assert not self._has(family), f"column family {family!r} exists"
        self._change(CREATE, family)

    def drop_family(self, family: str) -> None:
        """Drop a column family with all its rows, by a batch of its own."""
        assert self._has(family), f"no column family {family!r}"
        self._change(DROP, family)

    def sync(self) -> None:
        """Make what was committed durable in the database too. The log can always repeat it."""
        self._base.sync()

    def close(self) -> None:
        """Close the database. What is pending is the log's. Idempotent."""
        self._base.close()

    # --- the log ---

    @property
    def pending(self) -> int:
        """Return how many batches are not committed."""
        return len(self._batches)

    def position(self) -> Reached:
        """Return how far the database has come: applying goes on behind it."""
        return self._reached

    def committed(self, position: Position, place: int) -> None:
        """Apply every pending batch up to `position` to the database, one write for each.

        The last one says that the database has come so far; a crash before it has all of them
        applied again. Raises what the database raises: then call it again, with this position or a
        later one.
        """
        if position.index <= self._reached.position.index:
            return
        reached = Reached(position, place)
        batches = self._batches
        done: list[Pending] = []
        try:
            while batches and batches[0].index <= position.index:
                is_last = len(batches) == 1 or batches[1].index > position.index
                operations = batches[0].operations
                apply(self._base, self._families, operations, reached if is_last else None)
                done.append(batches.popleft())
        finally:
            self._forget(done)
        if not done:
            apply(self._base, self._families, (), reached)
        self._reached = reached

    def apply(self, operations: Sequence[Operation], position: Position, place: int) -> None:
        """Apply a batch that was read from the log. Nothing may be pending up to its position."""
        assert not self._batches or self._batches[0].index > position.index
        reached = Reached(position, place)
        apply(self._base, self._families, operations, reached)
        self._reached = reached

    # --- inside ---

    @staticmethod
    def _layer(family: str, layer: Layer) -> Layer:
        if not layer.exists:
            raise KeyError(family)
        return layer

    def _has(self, family: str) -> bool:
        layer = self._layers.get(family)
        return family in self._families if layer is None else layer.exists

    def _append(self, operations: Sequence[Operation]) -> int:
        index = self._appended(operations)
        assert index > (self._batches[-1].index if self._batches else self._reached.position.index)
        return index

    def _change(self, what: int, family: str) -> None:
        operations: list[Operation] = [(what, family)]
        index = self._append(operations)
        self._layers[family] = Layer(index, exists=what == CREATE)
        self._batches.append(Pending(index, operations, 0))

    def _forget(self, done: Sequence[Pending]) -> None:
        """The database has these batches: keep of them what a later one has changed again."""
        self.pending_bytes -= sum(batch.size for batch in done)
        if not self._batches:
            self._layers.clear()
            return
        for batch in done:
            self._forget_one(batch)

    def _forget_one(self, batch: Pending) -> None:
        layers = self._layers
        touched: set[str] = set()
        for operation in batch.operations:
            family = operation[0] if len(operation) == 3 else operation[1]
            layer = layers.get(family)
            if layer is None:
                continue
            touched.add(family)
            if len(operation) == 3:
                layer.commit(batch.index, operation[1])
            elif layer.changed == batch.index:
                layer.hides = False
        for family in touched:
            layer = layers[family]
            if not layer.hides and not layer.values:
                del layers[family]


def _past(
    damage: DamagedRows,
    layer: Layer,
    start: bytes,
    stop: bytes | None,
    rows: list[Row],
    count: int,
) -> bytes:
    """Take what was read before damage in the database, and return where to go on.

    Of the damaged stretch the pending rows can be read. Raises `damage` with them, unless `count`
    rows were found before it, or the one row that is damaged has a pending change.
    """
    begin = max(start, damage.start)
    layer.merge(damage.rows, start, begin, rows, count)
    if len(rows) >= count:
        return begin
    end = damage.resume
    if end is None or (stop is not None and end > stop):
        end = stop
    layer.merge((), begin, end, rows, count)
    if end == begin + b"\0" and begin in layer.values:
        return end
    if len(rows) >= count:
        damage.resume = rows[-1][0] + b"\0"
    damage.rows = rows
    raise damage
