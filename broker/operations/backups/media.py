"""Where a backup is: a directory, or one file (tar, also compressed).

Both are written under another name, synced, read again, and only then get their own: a backup is
there as a whole or not at all, and never replaces another one. Must never write through a link or
outside of the given place. Read next: `broker.operations.backups.making`,
`broker.operations.backups.restoring`.
"""

import contextlib
import errno
import hashlib
import io
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, Protocol

from broker.operations.backups import contents
from broker.operations.backups.contents import DIGEST_BYTES, NAME, BackupError, Contents
from storage.local.slot_file import sync_directory

UNFINISHED: Final = ".partial"
PIECE: Final = 1 << 20
COMPRESSED: Final = (".tar.gz", ".tgz")
# What people may take for an archive that can be written; it would become a directory.
NO_ARCHIVES: Final = (".zip", ".gz", ".zst", ".xz", ".bz2", ".7z", ".rar")
NO_LINKS: Final = frozenset((errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS))

# What reading an archive that is damaged, or none, may raise.
BROKEN: Final = (OSError, EOFError, ValueError, tarfile.TarError, zlib.error, lzma.LZMAError)


class Medium(Protocol):
    """A backup that is being written."""

    def add(self, name: str, source: Path) -> tuple[int, str]:
        """Copy a file into the backup; return its size and checksum."""
        ...

    def end(self, last: bytes) -> None:
        """Add `backup.json` and make everything durable, still under the other name."""
        ...

    def publish(self) -> None:
        """Give the backup its name, durably; raises OSError if the name is taken."""
        ...

    def abandon(self) -> None:
        """Delete what was written."""
        ...

    @property
    def unfinished(self) -> Path:
        """Where it is until it has its name."""
        ...


def new(path: Path) -> Medium:
    """Begin a backup at `path`. Raises `BackupError`, `OSError`."""
    if path.name.endswith(NO_ARCHIVES) and not path.name.endswith(COMPRESSED):
        raise BackupError(f"{path}: expected a directory, or a name that ends in .tar or .tar.gz")
    is_archive = path.name.endswith((".tar", *COMPRESSED))
    if os.path.lexists(path) and (is_archive or not _is_empty(path)):
        raise BackupError(f"{path}: there is something already; a backup replaces nothing")
    unfinished = path.with_name(path.name + UNFINISHED)
    if os.path.lexists(unfinished):
        raise BackupError(f"{unfinished}: left by a backup that did not end; delete it first")
    return Archive(path, unfinished) if is_archive else Folder(path, unfinished)


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


class Folder:
    """A backup that is a directory."""

    def __init__(self, path: Path, unfinished: Path) -> None:
        self._path: Final = path
        self.unfinished: Path = unfinished
        unfinished.mkdir(mode=0o700)

    def add(self, name: str, source: Path) -> tuple[int, str]:
        """Copy a file into the backup, durably; return its size and checksum."""
        place = self.unfinished / name
        place.parent.mkdir(mode=0o700, exist_ok=True)
        with open(source, "rb") as stream, open(place, "xb") as copy:
            found = _copy(stream, copy)
            _sync(copy)
        return found

    def end(self, last: bytes) -> None:
        """Add `backup.json` and make all names durable."""
        with open(self.unfinished / NAME, "xb") as copy:
            copy.write(last)
            _sync(copy)
        for directory, _, _ in os.walk(self.unfinished):
            sync_directory(Path(directory))

    def publish(self) -> None:
        """Give the backup its name; a directory that is not empty keeps it."""
        os.rename(self.unfinished, self._path)
        sync_directory(self._path.parent)

    def abandon(self) -> None:
        """Delete what was written."""
        shutil.rmtree(self.unfinished, ignore_errors=True)


class Archive:
    """A backup that is one file."""

    def __init__(self, path: Path, unfinished: Path) -> None:
        self._path: Final = path
        self.unfinished: Path = unfinished
        mode: Final = "w:gz" if path.name.endswith(COMPRESSED) else "w"
        with contextlib.ExitStack() as failing:
            self._file: Final = failing.enter_context(open(unfinished, "xb"))
            self._tar: Final = tarfile.open(
                fileobj=self._file, mode=mode, format=tarfile.PAX_FORMAT
            )
            failing.pop_all()

    def add(self, name: str, source: Path) -> tuple[int, str]:
        """Copy a file into the backup; return its size and checksum."""
        with open(source, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            hashing = _Hashing(stream)
            self._tar.addfile(_member(name, size), hashing)
        return size, hashing.digest()

    def end(self, last: bytes) -> None:
        """Add `backup.json` and make the file durable."""
        self._tar.addfile(_member(NAME, len(last)), io.BytesIO(last))
        self._tar.close()
        _sync(self._file)
        self._file.close()

    def publish(self) -> None:
        """Give the backup its name; a file that has it keeps it."""
        try:
            os.link(self.unfinished, self._path)
        except OSError as problem:
            if problem.errno not in NO_LINKS or os.path.lexists(self._path):
                raise
            os.rename(self.unfinished, self._path)
        else:
            os.unlink(self.unfinished)
        sync_directory(self._path.parent)

    def abandon(self) -> None:
        """Delete what was written."""
        self._file.close()
        self.unfinished.unlink(missing_ok=True)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o600
    return member


class _Hashing(io.RawIOBase):
    """A stream whose bytes are added to a checksum as they are read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream: Final = stream
        self._hash: Final = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        return self._hash.hexdigest()


def _copy(stream: IO[bytes], copy: IO[bytes]) -> tuple[int, str]:
    size = 0
    hashing = _Hashing(stream)
    while piece := hashing.read(PIECE):
        copy.write(piece)
        size += len(piece)
    return size, hashing.digest()


def _sync(file: IO[bytes]) -> None:
    """Make a file durable, and let the next reading of it come from the disk."""
    file.flush()
    os.fsync(file.fileno())
    with contextlib.suppress(OSError):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Reading:
    """A backup that is there; every piece that is read of it is checked at its end."""

    def __init__(self, path: Path, stack: contextlib.ExitStack) -> None:
        """Open it; `stack` closes it. Raises `BackupError`."""
        self._path: Final = path
        self._tar: tarfile.TarFile | None = None
        self._members: dict[str, tarfile.TarInfo] = {}
        try:
            if not path.is_dir():
                self._tar = stack.enter_context(_archive(path))
                self._members = {each.name: each for each in self._tar if each.isreg()}
            self.contents: Final[Contents] = contents.decode(self._last())
        except BackupError as problem:
            raise BackupError(f"{path}: {problem}") from None
        except BROKEN as problem:
            raise BackupError(f"{path}: {_words(problem)}") from None

    def _last(self) -> bytes:
        with self._open(NAME) as stream:
            data = stream.read(contents.BYTES_MAX + 1)
        if len(data) > contents.BYTES_MAX:
            raise BackupError(f"{NAME} is larger than {contents.BYTES_MAX} bytes")
        return data

    def _open(self, name: str) -> IO[bytes]:
        if self._tar is None:
            return open(os.open(self._path / name, os.O_RDONLY | os.O_NOFOLLOW), "rb")
        member = self._members.get(name)
        stream = None if member is None else self._tar.extractfile(member)
        if stream is None:
            raise FileNotFoundError(errno.ENOENT, f"{name} is missing")
        return stream

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield a file; after its last piece raise `BackupError` if it is not what it was."""
        size, digest = self.contents.files[name]
        hashing = hashlib.blake2b(digest_size=DIGEST_BYTES)
        found = 0
        try:
            with self._open(name) as stream:
                while piece := stream.read(PIECE):
                    found += len(piece)
                    if found > size:
                        break
                    hashing.update(piece)
                    yield piece
        except BROKEN as problem:
            raise BackupError(f"{self._path}: {name}: {_words(problem)}") from None
        if found != size or hashing.hexdigest() != digest:
            raise BackupError(
                f"{self._path}: {name} is damaged: {found} bytes of {size}, or another checksum"
            )

    def check(self) -> None:
        """Read everything. Raises `BackupError` for the first file that is not what it was."""
        for name in self.contents.files:
            for _ in self.pieces(name):
                pass


def _archive(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path, "r:*")
    except tarfile.ReadError:  # which says why in a line for each kind of archive
        raise BackupError(
            "not a tar archive, or a damaged one: expected what `holdfast db backup` has made"
        ) from None


def _words(problem: Exception) -> str:
    return getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
