"""Simulate a power cut: remove everything from files that was not synced.

kill -9 leaves the page cache, so it cannot tell a broker that syncs from one that does not. The
shim in iofault.c (mode=drop) records for each file the length that its last completed fsync or
fdatasync covered. After a kill -9, `apply_power_cut` truncates every file to that length:

    faults = Faults(shim, control, side=side)          # tests/durability/iofault.py
    baseline(data_dir, side)                           # before each start
    process = start(env=faults.environment()); ...; process.kill(); process.wait()
    apply_power_cut(data_dir, side)

It is milder than a real power cut in two ways: creating or renaming a file is durable at once, and
so are bytes that overwrite old ones. Synced bytes are never removed.
"""

import os
from collections.abc import Iterator
from pathlib import Path


def baseline(directory: Path, side: Path) -> None:
    """Start over: everything now in `directory` counts as durable."""
    lines = [f"{file.stat().st_ino} {file.stat().st_size}\n" for file in _files(directory)]
    side.write_text("".join(lines))


def apply_power_cut(directory: Path, side: Path) -> int:
    """Truncate the files of `directory` to their durable length; return the bytes removed.

    The process that wrote them must have ended. The result is the new baseline.
    """
    durable: dict[int, int] = {}
    for line in side.read_text().splitlines():
        inode, length = line.split()
        # Two syncs may overlap and end in any order; only a new or emptied file starts over.
        durable[int(inode)] = max(durable.get(int(inode), 0), int(length)) if int(length) else 0
    lost = 0
    for file in _files(directory):
        status = file.stat()
        # Nothing is durable in a file that the shim has not seen.
        length = durable.get(status.st_ino, 0)
        if status.st_size > length:
            lost += status.st_size - length
            os.truncate(file, length)
    baseline(directory, side)
    return lost


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())
