"""Simulate a power cut: take from the files what was not synced.

kill -9 leaves the page cache, so it cannot tell a broker that syncs from one that does not. The
shim in iofault.c (mode=drop) records for each file the length that its last completed fsync or
fdatasync covered, and for each directory the names that were made, changed and removed since it was
synced. After a kill -9, `apply_power_cut` takes back what the kernel may not have written:

    faults = Faults(shim, control, side=side)          # tests/durability/iofault.py
    baseline(data_dir, side)                           # before each start
    process = start(env=faults.environment()); ...; process.kill(); process.wait()
    apply_power_cut(data_dir, side)

`how` says what is left of the end of a file that was not synced: nothing (SHORT), zeros (ZEROS), or
some of its pages or sectors, with zeros between them. With NAMES some of the last changes of names
are undone too: as in a journal, never one without those behind it. Synced bytes are never removed.
It is milder than a real power cut in one way: bytes that overwrite old ones are durable at once.
"""

import contextlib
import os
import random
import select
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SHORT: Final = "short"
ZEROS: Final = "zeros"
PAGES: Final = "pages"
SECTORS: Final = "sectors"
NAMES: Final = "names"
HOW: Final = (SHORT, ZEROS, PAGES, SECTORS, NAMES)

UNIT_BYTES: Final = {PAGES: 4096, SECTORS: 512}


def baseline(directory: Path, side: Path) -> None:
    """Start over: everything now in `directory` counts as durable."""
    lines = [f"{file.stat().st_ino} {file.stat().st_size}\n" for file in _files(directory)]
    side.write_text("".join(lines))
    shutil.rmtree(_graves(side), ignore_errors=True)
    _graves(side).mkdir()


def apply_power_cut(
    directory: Path, side: Path, *, how: str = SHORT, source: random.Random | None = None
) -> int:
    """Take back what was not durable in `directory`; return the bytes and the names taken.

    What still writes there is killed, as all is on a machine without power: a child that has not
    noticed yet that its parent was. The result is the new baseline.
    """
    source = source or random.Random(1)
    _end_writers(side)
    durable: dict[int, int] = {}
    names: list[list[str]] = []
    for line in side.read_text().splitlines():
        if "\t" in line:
            names.append(line.split("\t"))
            continue
        inode, length = line.split()
        # Two syncs may overlap and end in any order; only a new or emptied file starts over.
        durable[int(inode)] = max(durable.get(int(inode), 0), int(length)) if int(length) else 0
    lost = 0
    if how == NAMES:
        lost += _undo_names(names, _graves(side), source)
        how = source.choice((SHORT, ZEROS))
    for file in _files(directory):
        status = file.stat()
        # Nothing is durable in a file that the shim has not seen.
        length = durable.get(status.st_ino, 0)
        if status.st_size > length:
            lost += _take(file, length, how, source)
    baseline(directory, side)
    return lost


def _end_writers(side: Path) -> None:
    """Kill what runs over the shim and writes this `side`, and wait until it is gone."""
    mark = f"HOLDFAST_IOFAULT_SIDE={side}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, PermissionError, ProcessLookupError):
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            process = os.pidfd_open(int(entry.name))
            try:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                select.select([process], [], [])
            finally:
                os.close(process)


def _take(file: Path, length: int, how: str, source: random.Random) -> int:
    """Take from `file` what is behind `length`; return how many bytes."""
    size = file.stat().st_size
    if how == SHORT:
        os.truncate(file, length)
        return size - length
    lost = 0
    content = bytearray(file.read_bytes())
    unit = UNIT_BYTES.get(how, size)
    for start in range(length - length % unit, size, unit):
        low, high = max(start, length), min(start + unit, size)
        if how == ZEROS or source.random() < 0.5:
            content[low:high] = bytes(high - low)
            lost += high - low
    file.write_bytes(content)
    return lost


def _undo_names(names: list[list[str]], graves: Path, source: random.Random) -> int:
    """Undo some of the last changes of names that no sync of their directory covers."""
    pending: list[tuple[int, list[str]]] = []
    begun: dict[str, int] = {}
    for number, change in enumerate(names):
        kind, path = change[0], change[1]
        if kind == "[":
            begun[path] = number
        elif kind == "=":
            covered = begun[path]
            pending = [one for one in pending if one[0] > covered or _directory(one[1]) != path]
        else:
            pending.append((number, change))
    undone = [change for _, change in pending[source.randint(0, len(pending)) :]]
    for kind, path, to, inode in reversed(undone):
        grave = graves / inode
        if kind == "+":
            Path(path).unlink(missing_ok=True)
        elif kind == "-":
            os.link(grave, path)
        else:
            os.rename(to, path)
            if inode != "0":
                os.link(grave, to)
    return len(undone)


def _directory(change: list[str]) -> str:
    return str(Path(change[2] or change[1]).parent)


def _graves(side: Path) -> Path:
    return side.with_name(f"{side.name}.d")


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())
