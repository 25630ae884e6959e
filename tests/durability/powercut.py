"""Takes from files what a power cut would take: everything that was not synced.

kill -9 leaves the page cache, so it cannot tell a broker that syncs from one that does not. The
shim in iofault.c (mode=drop) writes down, for each file, the length its last completed fsync or
fdatasync covered. After a kill -9, `apply_power_cut` cuts every file to that length:

    faults = Faults(shim, control, side=side)          # tests/durability/iofault.py
    baseline(data_dir, side)                           # before each start
    process = start(env=faults.environment()); ...; process.kill(); process.wait()
    apply_power_cut(data_dir, side)

It is kinder than a real one in two ways: a file's name is durable when it has been made (and
renamed) and bytes written over old ones are durable at once. Nothing that is synced is ever taken.
"""

import os
from collections.abc import Iterator
from pathlib import Path


def baseline(directory: Path, side: Path) -> None:
    """Begin anew: all that is in `directory` now is durable."""
    lines = [f"{file.stat().st_ino} {file.stat().st_size}\n" for file in _files(directory)]
    side.write_text("".join(lines))


def apply_power_cut(directory: Path, side: Path) -> int:
    """Cut the files of `directory` to what was durable; return how many bytes that took.

    The process that wrote them must have ended. What is left is the new baseline.
    """
    durable: dict[int, int] = {}
    for line in side.read_text().splitlines():
        inode, length = line.split()
        # Two syncs may overlap and end in either order; only a new or emptied file starts again.
        durable[int(inode)] = max(durable.get(int(inode), 0), int(length)) if int(length) else 0
    lost = 0
    for file in _files(directory):
        status = file.stat()
        # A file the shim has not seen was made by nobody it watches: nothing of it is durable.
        length = durable.get(status.st_ino, 0)
        if status.st_size > length:
            lost += status.st_size - length
            os.truncate(file, length)
    baseline(directory, side)
    return lost


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())
