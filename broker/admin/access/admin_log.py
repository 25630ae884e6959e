"""The admin log: a line of JSON for each change that is asked for, and one for what became of it.

A line is on disk before the broker is asked, so no change goes without one. Only ever appended to;
a full file is put aside, and of many the oldest goes. Lines about failed log-ins are limited, since
anybody can cause them. Read next: `broker.admin.web.gate`, docs/admin.md.
"""

import fcntl
import json
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from broker.admin.access.private_file import LOCK, sync_directory

NAME_OF_FILE: Final = "admin.log"
ASIDE: Final = re.compile(r"admin\.log\.([1-9][0-9]{0,17})")  # a file that was full
FILE_BYTES: Final = 16 << 20
FILES: Final = 16  # with the one that is written
LINE_BYTES_MAX: Final = 16 << 10
BLOCK_BYTES: Final = 64 << 10
FAILURES_MAX: Final = 30  # lines about failed log-ins in FAILURES_S
FAILURES_S: Final = 600.0
TEXT_CHARACTERS_MAX: Final = 300

Place: TypeAlias = tuple[int, int]  # of a line: the number of its file, and where it begins there


class AdminLogError(Exception):
    """The log cannot be written or read; one line."""


class AdminLog:
    """The admin log of one data directory. May be used from any thread."""

    def __init__(
        self,
        data_dir: str | Path,
        wall_ms: Callable[[], int],
        clock: Callable[[], float],
        *,
        file_bytes: int = FILE_BYTES,
        files: int = FILES,
    ) -> None:
        """`clock` is monotonic, s. There are at most so many files of at most so many bytes."""
        self._path: Final = Path(data_dir) / NAME_OF_FILE
        self._file_bytes: Final = file_bytes
        assert files > 1
        self._files: Final = files
        self._wall_ms: Final = wall_ms
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._number = 0
        self._boot: Final = f"{wall_ms():x}"
        self._failures = (0.0, 0, 0)  # since when, lines, left out

    def asked(self, who: dict[str, Any], what: str, details: dict[str, Any]) -> str:
        """Note that a change is asked for; durable on return, with the key of `ended`.

        Raises `AdminLogError`: then the change must not be asked for.
        """
        with self._lock:
            self._number += 1
            key = f"{self._boot}-{self._number}"
            self._append({"change": key, **who, "what": what, **details, "outcome": "asked"})
        return key

    def ended(self, key: str, who: dict[str, Any], what: str, outcome: str) -> None:
        """Note what became of a change; durable on return. Raises `AdminLogError`."""
        with self._lock:
            self._append({"change": key, **who, "what": what, "outcome": outcome})

    def noted(self, who: dict[str, Any], what: str, outcome: str) -> None:
        """Note something that changes nothing in the broker: a log-in, a log-out."""
        with self._lock:
            self._append({**who, "what": what, "outcome": outcome})

    def failed(self, what: str, name: str, address: str, outcome: str) -> None:
        """Note a wrong password, unless there were many; then the next line says how many."""
        with self._lock:
            since, lines, left_out = self._failures
            now = self._clock()
            if now - since > FAILURES_S or not since:
                since, lines = now, 0
            if lines >= FAILURES_MAX:
                self._failures = since, lines, left_out + 1
                return
            self._failures = since, lines + 1, 0
            line: dict[str, Any] = {"name": name, "from": address, "what": what}
            if left_out:
                line["left_out"] = left_out
            self._append({**line, "outcome": outcome})

    def _append(self, fields: dict[str, Any]) -> None:
        moment = datetime.fromtimestamp(self._wall_ms() / 1000, UTC)
        at = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        cut = {name: _cut(value) for name, value in fields.items()}
        line = json.dumps({"at": at, **cut}).encode() + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise AdminLogError(f"{self._path}: a line of {len(line)} bytes is too long")
        try:
            self._make_room(len(line) + 1)
            is_new = not self._path.exists()
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line  # a crash or a full disk has cut the last line
                written = os.write(descriptor, line)
                if written != len(line):
                    raise AdminLogError(f"{self._path}: the disk is full")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if is_new:
                sync_directory(self._path.parent)
        except OSError as problem:
            raise AdminLogError(f"{self._path}: {problem.strerror}") from None

    # A full file gets the next number as its name, and the next line begins a new one. Lines are
    # only ever renamed with their file, so a crash at any moment loses none of them.

    def _make_room(self, bytes_wanted: int) -> None:
        """Put a full file aside, and remove the oldest ones."""
        if self._size() + bytes_wanted <= self._file_bytes or not self._size():
            return
        with open(self._path.parent / LOCK, "ab") as lock:
            os.fchmod(lock.fileno(), 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process may do the same
            if self._size() + bytes_wanted <= self._file_bytes:
                return
            numbers = self._numbers()
            number = numbers[-1] + 1 if numbers else 1
            os.rename(self._path, self._aside(number))
            sync_directory(self._path.parent)
            for old in [*numbers, number][: -(self._files - 1)]:
                self._aside(old).unlink(missing_ok=True)

    def _size(self) -> int:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    def _aside(self, number: int) -> Path:
        return self._path.with_name(f"{NAME_OF_FILE}.{number}")

    def _numbers(self) -> list[int]:
        """Return the numbers of the files that were put aside, the oldest first."""
        found = [ASIDE.fullmatch(name) for name in os.listdir(self._path.parent)]
        return sorted(int(each[1]) for each in found if each is not None)

    def newest(self, before: Place | None = None) -> Iterator[tuple[Place, dict[str, Any]]]:
        """Yield the lines from the newest on, each with its place, those before a place only.

        A place stays the same when its file is put aside. Lines that cannot be read are passed
        over. Raises `AdminLogError`.
        """
        for number, stream in self._streams():
            with stream:
                if before is not None and number > before[0]:
                    continue
                end = before[1] if before is not None and number == before[0] else None
                try:
                    for offset, line in _lines(stream, end):
                        yield (number, offset), line
                except OSError as problem:
                    raise AdminLogError(f"{stream.name}: {problem.strerror}") from None

    def _streams(self) -> Iterator[tuple[int, BinaryIO]]:
        """Yield the files from the newest on, open, each with its number."""
        try:
            with self._lock:  # none is put aside meanwhile
                numbers = self._numbers() if self._path.parent.exists() else []
                newest = open(self._path, "rb") if self._path.exists() else None
            if newest is not None:
                yield numbers[-1] + 1 if numbers else 1, newest
            for number in reversed(numbers):
                path = self._aside(number)
                if path.exists():  # the oldest goes when another one is put aside
                    yield number, open(path, "rb")
        except OSError as problem:
            raise AdminLogError(f"{self._path}: {problem.strerror}") from None


def _lines(stream: BinaryIO, before: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of one file from the newest on, each with where it begins."""
    end = stream.seek(0, os.SEEK_END)
    place = end if before is None else min(before, end)
    rest = b""
    while place > 0:
        size = min(BLOCK_BYTES, place)
        place -= size
        stream.seek(place)
        block = stream.read(size) + rest
        first, *lines = block.split(b"\n")
        if place and len(first) > LINE_BYTES_MAX:
            first = b""  # no line of ours
        offset = place + len(block)
        for line in reversed(lines):
            offset -= len(line)
            yield from _read(offset, line)
            offset -= 1
        rest = first
    yield from _read(0, rest)


def _read(place: int, line: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        found = json.loads(line) if line else None
    except (ValueError, RecursionError):
        return
    if isinstance(found, dict) and isinstance(found.get("at"), str):
        yield place, found


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_CHARACTERS_MAX:
        return value[:TEXT_CHARACTERS_MAX] + "..."
    return value
