"""The admin log: a line of JSON for each change that is asked for, and one for what became of it.

A line is on disk before the broker is asked, so no change goes without one. Only ever appended to.
Lines about failed log-ins are limited, since anybody can cause them. Read next:
`broker.admin.web.gate`, docs/admin.md.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from broker.admin.access.private_file import sync_directory

NAME_OF_FILE: Final = "admin.log"
LINE_BYTES_MAX: Final = 16 << 10
BLOCK_BYTES: Final = 64 << 10
FAILURES_MAX: Final = 30  # lines about failed log-ins in FAILURES_S
FAILURES_S: Final = 600.0
TEXT_CHARACTERS_MAX: Final = 300


class AdminLogError(Exception):
    """The log cannot be written or read; one line."""


class AdminLog:
    """The admin log of one data directory. May be used from any thread."""

    def __init__(
        self, data_dir: str | Path, wall_ms: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        """`clock` is monotonic, s."""
        self._path: Final = Path(data_dir) / NAME_OF_FILE
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

    def newest(self, before: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the lines from the newest on, each with its place, those before a place only.

        Lines that cannot be read are passed over. Raises `AdminLogError`.
        """
        try:
            with open(self._path, "rb") as stream:
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
        except FileNotFoundError:
            return
        except OSError as problem:
            raise AdminLogError(f"{self._path}: {problem.strerror}") from None


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
