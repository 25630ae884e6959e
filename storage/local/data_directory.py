"""The data directory: its lock against a second broker, its mode, and the paths in it.

Every problem with it raises one `StorageError` whose text an operator can act on. The lock must be
held from before the database is opened until after it is closed.
"""

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from storage.errors import StorageError, StoreBusy
from storage.local.slot_file import sync_directory


class DataDirectory:
    """A locked data directory."""

    def __init__(self, path: str | Path) -> None:
        """Create the directory (mode 0700) if it is missing and lock it.

        Raises `StoreBusy` when another process holds it, `StorageError` when it cannot be used.
        """
        self.path: Final = Path(path)
        self.database: Final = self.path / "db"
        self.watermark: Final = self.path / "watermark"
        self.pulse: Final = self.path / "pulse"
        self.ballast: Final = self.path / "ballast"
        self.lock: Final = self.path / "lock"
        self.tail: Final = self.path / "tail"  # records of a member of a cluster
        self.mosquitto: Final = self.path / "mosquitto.db"  # another broker's, which may be here
        self._file = -1
        try:
            _make_durably(self.path)
            self._file = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            self.close()
            raise StorageError(f"data directory {self.path}: {_reason(error)}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._file, 32, 0).decode("ascii", "replace").strip()
            self.close()
            if error.errno != errno.EWOULDBLOCK:
                raise StorageError(f"data directory {self.path}: {_reason(error)}") from error
            by = f"process {holder}" if holder else "another process"
            raise StoreBusy(f"data directory {self.path}: in use by {by}") from error
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode("ascii"), 0)
        except OSError:
            pass  # disk full: the process id serves only the message above

    def close(self) -> None:
        """Unlock. Idempotent. The lock file stays: deleting it would race with the next holder."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def is_in_use(path: str | Path) -> bool:
    """Return whether a process holds the data directory now; creates nothing."""
    try:
        file = os.open(Path(path) / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _make_durably(path: Path) -> None:
    """Make a directory and its parents, so that no power cut takes it with all that is in it."""
    if path.is_dir():
        return
    if path.parent != path:
        _make_durably(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_directory(path.parent)


def _reason(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"permission denied: expected to be readable and writable by user {os.geteuid()}"
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return "not a directory"
    return error.strerror or str(error)
