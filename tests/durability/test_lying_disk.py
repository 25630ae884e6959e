"""A disk that loses or misplaces what it said was written: refused or noticed, never believed.

A power cut takes only what was not synced (`powercut`). These faults go further: firmware that
acknowledges a flush and forgets it, a page that is still what it was before, a write that landed
elsewhere, a file whose name or contents are those of another time. None of them can be repaired by
a broker. It must refuse to start, or fail where the damage is read; it must never serve other rows
than those that were acknowledged.

`HOLDFAST_DISK_FAULTS` is the number of faults (66 here, 1,000 before a release).
"""

import contextlib
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from storage.api import Row
from storage.errors import StorageError
from storage.local.data_directory import DataDirectory
from storage.local.opening import open_database
from storage.local.rocks import RocksStore

FAULTS: Final = int(os.environ.get("HOLDFAST_DISK_FAULTS", "66"))
SEED: Final = int(os.environ.get("HOLDFAST_DISK_SEED", "1"))
PAGE: Final = 4096
SECTOR: Final = 512
ROUNDS: Final = 12

Rows = dict[str, list[Row]]


@dataclass
class Disk:
    """What a broker left behind, and what its disk held at earlier times."""

    newest: Path
    earlier: list[Path]
    rows: Rows  # all of them durable


def _all_rows(store: RocksStore) -> Rows:
    return {family: store.scan(family, b"", count=1_000_000) for family in sorted(store.families())}


def _write(place: DataDirectory, at: list[Path], rng: random.Random) -> Rows:
    """Fill a database, with a copy of all files now and then; return what it holds."""
    store, watermark, _ = open_database(place, families=["a", "b"])
    number = 0
    for round_number, copy in enumerate(at):
        for _ in range(rng.randrange(5, 30)):
            number += 1
            value = rng.randbytes(rng.choice((10, 100, 1000, 9000)))
            if rng.random() < 0.3:
                value = bytes(rng.choice((40, 700, 5000))) + value
            key = number.to_bytes(8, "big")
            store.write([("a", key, value), ("b", key, value[:100])])
            if rng.random() < 0.2:
                store.write([("a", rng.randrange(1, number + 1).to_bytes(8, "big"), None)])
            if rng.random() < 0.4:
                store.sync()
        if round_number % 3 == 1:
            store._tables[rng.choice("ab")].flush(True)
        if round_number % 4 == 2:
            store.create_family(f"x{round_number}")
            store.write([(f"x{round_number}", b"k", rng.randbytes(50))])
        if round_number == 7:
            store.drop_family("x2")
        if round_number == 8:  # started again
            store.sync()
            watermark.advance(store.synced())
            watermark.close()
            store.close()
            store, watermark, _ = open_database(place)
        store.sync()
        watermark.advance(store.synced())
        shutil.copytree(place.path, copy)
    rows = _all_rows(store)
    watermark.close()
    store.close()
    return rows


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    directory = tmp_path_factory.mktemp("disk")
    copies = [directory / f"at{number}" for number in range(ROUNDS)]
    with contextlib.closing(DataDirectory(directory / "data")) as place:
        rows = _write(place, copies, random.Random(SEED))
    return Disk(copies[-1], copies[:-1], rows)


def _files(directory: Path) -> list[Path]:
    """Return the files that hold state, as the database names them."""
    return sorted(
        file.relative_to(directory)
        for file in directory.rglob("*")
        if file.is_file()
        and file.stat().st_size
        and file.name not in ("LOCK", "IDENTITY", "LOG", "lock")
        and not file.name.startswith(("LOG", "OPTIONS", "rocksdict"))
    )


def _units(data: bytes, unit: int) -> int:
    return (len(data) + unit - 1) // unit


def _put(data: bytes, number: int, unit: int, content: bytes) -> bytes:
    """Return `data` with one unit of it replaced, as long as it was."""
    start = number * unit
    stop = min(len(data), start + unit)
    content = content[: stop - start].ljust(stop - start, b"\0")
    return data[:start] + content + data[stop:]


def _page_is_from_before(disk: Disk, target: Path, rng: random.Random) -> str:
    name = rng.choice(_files(target))
    data = (target / name).read_bytes()
    unit = rng.choice((PAGE, SECTOR))
    number = rng.randrange(_units(data, unit))
    before = rng.choice(disk.earlier) / name
    old = before.read_bytes() if before.exists() else b""
    old = old[number * unit : (number + 1) * unit]
    (target / name).write_bytes(_put(data, number, unit, old))
    return f"{name}: unit {number} of {unit} is {len(old)} bytes of {before.parent.parent.name}"


def _page_is_from_another_file(disk: Disk, target: Path, rng: random.Random) -> str:
    name = rng.choice(_files(target))
    data = (target / name).read_bytes()
    directory = rng.choice(disk.earlier)
    kind = [file for file in _files(directory) if file.suffix == name.suffix and file != name]
    other = rng.choice(kind or _files(directory))
    unit = rng.choice((PAGE, SECTOR))
    number = rng.randrange(_units(data, unit))
    old = (directory / other).read_bytes()[number * unit : (number + 1) * unit]
    (target / name).write_bytes(_put(data, number, unit, old))
    return f"{name}: unit {number} of {unit} is {len(old)} bytes of {other}"


def _write_landed_elsewhere(disk: Disk, target: Path, rng: random.Random) -> str:
    name = rng.choice(_files(target))
    data = (target / name).read_bytes()
    unit = rng.choice((PAGE, SECTOR))
    source, place = (rng.randrange(_units(data, unit)) for _ in range(2))
    content = data[source * unit : (source + 1) * unit]
    (target / name).write_bytes(_put(data, place, unit, content))
    return f"{name}: unit {source} of {unit} is also at {place}"


def _page_is_zero(disk: Disk, target: Path, rng: random.Random) -> str:
    name = rng.choice(_files(target))
    data = (target / name).read_bytes()
    unit = rng.choice((PAGE, SECTOR))
    number = rng.randrange(_units(data, unit))
    (target / name).write_bytes(_put(data, number, unit, b""))
    return f"{name}: unit {number} of {unit} is zero"


def _bit_is_flipped(disk: Disk, target: Path, rng: random.Random) -> str:
    name = rng.choice(_files(target))
    data = bytearray((target / name).read_bytes())
    place = rng.randrange(len(data))
    data[place] ^= 1 << rng.randrange(8)
    (target / name).write_bytes(data)
    return f"{name}: a bit of byte {place} of {len(data)}"


def _file_is_missing(disk: Disk, target: Path, rng: random.Random) -> str:
    name = rng.choice(_files(target))
    (target / name).unlink()
    return f"{name} is missing"


def _file_is_from_before(disk: Disk, target: Path, rng: random.Random) -> str:
    name = rng.choice(_files(target))
    before = rng.choice(disk.earlier)
    if not (before / name).exists():
        (target / name).write_bytes(b"")
        return f"{name} is empty"
    shutil.copy(before / name, target / name)
    return f"{name} is that of {before.name}"


def _end_is_missing(disk: Disk, target: Path, rng: random.Random) -> str:
    name = rng.choice(_files(target))
    size = (target / name).stat().st_size
    length = rng.randrange(size)
    os.truncate(target / name, length)
    return f"{name} has {length} of {size} bytes"


def _database_is_from_before(disk: Disk, target: Path, rng: random.Random) -> str:
    before = rng.choice(disk.earlier)
    shutil.rmtree(target / "db")
    shutil.copytree(before / "db", target / "db")
    return f"the database is that of {before.name}"


def _names_are_from_before(disk: Disk, target: Path, rng: random.Random) -> str:
    """CURRENT and MANIFEST of another time, beside the newest logs and tables."""
    before = rng.choice(disk.earlier)
    for file in (before / "db").iterdir():
        if file.name.startswith(("MANIFEST", "CURRENT")):
            shutil.copy(file, target / "db" / file.name)
    return f"CURRENT and MANIFEST are those of {before.name}"


def _new_files_are_missing(disk: Disk, target: Path, rng: random.Random) -> str:
    """The MANIFEST is newer than the tables and logs that it lists."""
    before = rng.choice(disk.earlier)
    suffix = rng.choice((".sst", ".log"))
    gone = [
        file
        for file in (target / "db").glob(f"*{suffix}")
        if not (before / "db" / file.name).exists()
    ]
    for file in gone:
        file.unlink()
    return f"missing since {before.name}: {[file.name for file in gone]}"


WAYS: Final[tuple[Callable[[Disk, Path, random.Random], str], ...]] = (
    _page_is_from_before,
    _page_is_from_another_file,
    _write_landed_elsewhere,
    _page_is_zero,
    _bit_is_flipped,
    _file_is_missing,
    _file_is_from_before,
    _end_is_missing,
    _database_is_from_before,
    _names_are_from_before,
    _new_files_are_missing,
)


def _outcome(disk: Disk, target: Path) -> str:
    """Return what a broker makes of the directory: refused, noticed, whole or WRONG."""
    with contextlib.ExitStack() as opened:
        place = DataDirectory(target)
        opened.callback(place.close)
        try:
            store, watermark, notes = open_database(place)
        except StorageError as refusal:
            assert str(target) in str(refusal), "names no file"
            assert "\n" not in str(refusal)
            return "refused"
        opened.callback(store.close)
        opened.callback(watermark.close)
        try:
            rows = _all_rows(store)
        except StorageError:
            return "noticed when read"
        if rows == disk.rows:
            return "whole"
        lost = sum(len(each) for each in disk.rows.values()) - sum(map(len, rows.values()))
        return f"WRONG: {lost} rows lost, told {[note.text for note in notes]}"


def test_other_rows_than_the_durable_ones_are_never_served(disk: Disk, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    counts: Counter[tuple[str, str]] = Counter()
    wrong = []
    for number in range(FAULTS):
        fault = WAYS[number % len(WAYS)]
        target = tmp_path / "data"
        shutil.copytree(disk.newest, target)
        story = fault(disk, target, rng)
        outcome = _outcome(disk, target)
        counts[fault.__name__[1:], outcome.partition(":")[0]] += 1
        if outcome.startswith("WRONG"):
            wrong.append(f"{story}: {outcome}")
        shutil.rmtree(target)
    for (way, outcome), count in sorted(counts.items()):
        print(f"{way}: {count} {outcome}")
    assert not wrong, "\n".join(wrong)
    assert {outcome for _, outcome in counts} == {"refused", "noticed when read", "whole"}
