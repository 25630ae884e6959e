"""A small file of secrets in the data directory: for its owner alone, replaced as a whole.

After a crash at any moment it is the old file or the new one. A lock beside it lets two commands
change it one after the other. Must never be opened by the broker. Read next:
`broker.admin.access.tokens`, `broker.admin.access.users`.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

FORMAT: Final = 1
BYTES_MAX: Final = 4 << 20  # a few thousand entries
LOCK: Final = "admin.lock"


class AccessFileError(Exception):
    """A file of tokens or users that cannot be used; one line for the operator."""


class EntryRefused(AccessFileError):
    """A change that the other entries are against; the file is as it was."""


class BadEntry(EntryRefused):
    """An entry that cannot be one."""


class NoEntry(EntryRefused):
    """An entry that is not there."""


class PrivateFile:
    """One file with a list of entries, each a JSON object."""

    def __init__(self, data_dir: str | Path, name: str) -> None:
        self.path: Final = Path(data_dir) / name
        self._seen: tuple[int, int, int] | None = None
        self._entries: list[dict[str, Any]] = []

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries as they are on disk now; a missing file has none.

        What was read before is used again as long as the file is the same. Raises
        `AccessFileError`.
        """
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            self._seen, self._entries = None, []
            return self._entries
        except OSError as problem:
            raise AccessFileError(f"{self.path}: {problem.strerror}") from None
        seen = found.st_ino, found.st_mtime_ns, found.st_size
        if seen != self._seen:
            self._entries = self._read()
            self._seen = seen
        return self._entries

    def _read(self) -> list[dict[str, Any]]:
        try:
            with open(self.path, "rb") as stream:
                data = stream.read(BYTES_MAX + 1)
            if len(data) > BYTES_MAX:
                raise ValueError
            document = json.loads(data)
            if document["format"] != FORMAT:
                raise ValueError
            entries = document["entries"]
            if not all(isinstance(each["name"], str) for each in entries):
                raise ValueError
        except OSError as problem:
            raise AccessFileError(f"{self.path}: {problem.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise AccessFileError(
                f"{self.path}: it cannot be read as a file of this program: remove it and add "
                "the entries again"
            ) from None
        return list(entries)

    @contextlib.contextmanager
    def change(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the entries to be changed; they are on disk, durable, when this ends.

        Raises `AccessFileError`; then the file is as it was.
        """
        try:
            with open(self.path.parent / LOCK, "ab") as lock:
                os.fchmod(lock.fileno(), 0o600)
                _give(lock.fileno(), self.path.parent)
                fcntl.flock(lock, fcntl.LOCK_EX)
                entries = [dict(each) for each in self._read_or_nothing()]
                yield entries
                self._write(entries)
        except OSError as problem:
            raise AccessFileError(f"{self.path}: {problem.strerror}") from None

    def _read_or_nothing(self) -> list[dict[str, Any]]:
        return self._read() if self.path.exists() else []

    def _write(self, entries: list[dict[str, Any]]) -> None:
        text = json.dumps({"format": FORMAT, "entries": entries}, indent=1) + "\n"
        if len(text) > BYTES_MAX:
            raise AccessFileError(f"{self.path}: too many entries")
        new = self.path.with_name(f"{self.path.name}.new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            _give(descriptor, self.path.parent)
            view = memoryview(text.encode())
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(new, self.path)
        sync_directory(self.path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _give(descriptor: int, directory: Path) -> None:
    """Give a file that root has made to the owner of the data directory, who is to read it."""
    owner = os.stat(directory)
    if os.geteuid() == 0 and owner.st_uid != os.fstat(descriptor).st_uid:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
