"""Is every row read that can be read, however the damage lies, and does reading end?"""

import os
from collections.abc import Sequence

import pytest

from storage.api import Row
from storage.errors import DamagedRows
from storage.local.memory import MemoryStore
from storage.local.salvage.around_damage import PAGE_MAX, RowsAround


class WholeStore(MemoryStore):
    """A store that can read all rows."""

    def scan_blindly(
        self, family: str, start: bytes, stop: bytes | None = None, *, count: int
    ) -> list[Row]:
        return self.scan(family, start, stop, count=count)


class DamagedStore(WholeStore):
    """A store that cannot read some stretches of keys, as RocksDB cannot read a block."""

    def __init__(self, keys: Sequence[bytes], damaged: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.create_family("f")
        self.write([("f", key, b"v") for key in keys])
        # A block begins behind the last key before it.
        self.bad = [(keys[a - 1] + b"\0" if a else b"", keys[b]) for a, b in damaged]
        self.scans = 0

    def scan_blindly(
        self, family: str, start: bytes, stop: bytes | None = None, *, count: int
    ) -> list[Row]:
        self.scans += 1
        rows: list[Row] = []
        while len(rows) < count:
            if any(low <= start <= high for low, high in self.bad):
                raise DamagedRows("Corruption: block checksum mismatch in /x/000007.sst")
            found = self.scan(family, start, stop, count=1)
            if not found:
                break
            rows += found
            start = found[0][0] + b"\0"
        return rows


NUMBERS = [number.to_bytes(8) for number in range(1, 3001)]
NAMES = sorted(f"client-{number}".encode() for number in range(3000))


@pytest.mark.parametrize("keys", [NUMBERS, NAMES], ids=["numbers", "names"])
@pytest.mark.parametrize(
    "damaged",
    [
        [],
        [(0, 10)],
        [(990, 1010)],
        [(2900, len(NUMBERS) - 1)],
        [(0, len(NUMBERS) - 1)],
        [(5, 5), (7, 7), (9, 20)],
        [(100, 130), (160, 190), (1000, 1030), (2000, 2100)],
        [(100, 130), (131, 160)],
    ],
)
def test_every_row_outside_the_damage_is_read(
    keys: list[bytes], damaged: list[tuple[int, int]]
) -> None:
    store = DamagedStore(keys, damaged)
    reading = RowsAround(store, "f")
    found = [key for key, _ in reading.rows()]
    lost = {number for first, last in damaged for number in range(first, last + 1)}
    wanted = [key for number, key in enumerate(keys) if number not in lost]
    assert set(wanted) == set(found) and found == sorted(found)
    assert bool(reading.gaps) is bool(damaged) and store.scans < 30_000
    if len(damaged) == 1 and damaged != [(0, len(NUMBERS) - 1)]:
        (gap,) = reading.gaps
        assert gap.problem.startswith("Corruption") and gap.family == "f"
        assert gap.after == (keys[damaged[0][0] - 1] if damaged[0][0] else b"")


def test_pages_of_large_rows_are_small() -> None:
    store = MemoryStore()
    store.create_family("f")
    store.write([("f", bytes([number]), os.urandom(1 << 19)) for number in range(20)])
    asked: list[int] = []

    class Watched(MemoryStore):
        def scan_blindly(
            self, family: str, start: bytes, stop: bytes | None = None, *, count: int
        ) -> list[Row]:
            asked.append(count)
            return store.scan(family, start, stop, count=count)

    assert len(list(RowsAround(Watched(), "f").rows())) == 20
    assert max(asked) <= 8 and asked[-1] <= 2 and max(asked) < PAGE_MAX


def test_rows_of_a_newer_table_in_the_stretch_of_a_damaged_block_are_read() -> None:
    keys = [b"%03d" % number for number in range(100)]
    store = DamagedStore(keys, [(40, 60)])
    second = WholeStore()
    second.create_family("f")
    second.write([("f", keys[number], b"old") for number in range(0, 100, 5)])
    store.write([("f", keys[50], None)])  # deleted since
    reading = RowsAround(store, "f", lambda: second)
    found = dict(reading.rows())
    assert sorted(found) == [*keys[:40], keys[40], keys[45], keys[55], keys[60], *keys[61:]]
    assert set(found.values()) == {b"v"}, "never an older version"
    assert len(reading.gaps) == 1


def test_a_stop_is_kept_to_behind_damage() -> None:
    keys = [b"%03d" % number for number in range(100)]
    reading = RowsAround(DamagedStore(keys, [(40, 60)]), "f")
    assert [key for key, _ in reading.rows(b"030", b"070")] == [*keys[30:40], *keys[61:70]]
    reading = RowsAround(DamagedStore(keys, [(40, 60)]), "f")
    assert [key for key, _ in reading.rows(b"030", b"050")] == keys[30:40]
