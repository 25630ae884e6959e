"""`holdfast db backup`: a copy of a database that shares no file with it, checked as a whole.

First a checkpoint in the data directory (hard links, milliseconds), of which every row is read;
then its files are copied, synced, and read again. Must never leave a checkpoint behind, which would
keep files of the database on the disk: one that a killed command has left is deleted by the next.
Read next: `broker.operations.checkpoint`, `broker.operations.backups.media`.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from broker.operations import checkpoint
from broker.operations.backups import media
from broker.operations.backups.contents import BackupError, Contents
from broker.operations.checkpoint import CheckpointError
from broker.version import VERSION
from storage.time.machine_clocks import wall_ms

PREFIX: Final = "backup-"  # of the checkpoint's directory, beside the database
LOCK: Final = "lock"
COPY: Final = "copy"


def make(data_dir: str, target: str) -> tuple[Contents, str]:
    """Make a backup at `target`, its broker running or not; return what is in it, and who made it.

    Everything that was acknowledged when this was called is in it. Durable on return, under its
    name; on failure nothing is left. Raises `BackupError`.
    """
    path = Path(target).absolute()
    try:
        _check_place(Path(data_dir), path)
        with _place(Path(data_dir)) as place:
            copied = place / COPY
            maker = checkpoint.make(data_dir, str(copied))
            contents = Contents(_now(), VERSION, checkpoint.count_rows(str(copied)))
            _write(copied, path, contents)
    except CheckpointError as problem:
        raise BackupError(str(problem)) from None
    except OSError as problem:
        place_of = problem.filename or path
        raise BackupError(f"{place_of}: {problem.strerror} (user {os.geteuid()})") from None
    return contents, maker


def _check_place(data_dir: Path, path: Path) -> None:
    """Refuse a place in the data directory: it would be lost with it."""
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(data_dir)):
        raise BackupError(f"{path}: in the data directory itself; expected a place elsewhere")
    if not path.parent.is_dir():
        raise BackupError(f"{path}: no directory {path.parent}")


def _write(copied: Path, path: Path, contents: Contents) -> None:
    with contextlib.ExitStack() as failing:
        medium = media.new(path)
        failing.callback(medium.abandon)
        for file in _files(copied):
            name = file.relative_to(copied).as_posix()
            contents.files[name] = medium.add(name, file)
        medium.end(contents.encode())
        with contextlib.ExitStack() as stack:
            media.Reading(medium.unfinished, stack).check()
        medium.publish()
        failing.pop_all()


def _files(copied: Path) -> Iterator[Path]:
    """Yield the files of a checkpoint that are of the state, in the order of a restore."""
    yield copied / checkpoint.WATERMARK
    for file in sorted((copied / checkpoint.DATABASE).iterdir()):
        if file.is_file() and file.name not in ("LOCK", "LOG") and "LOG.old" not in file.name:
            yield file


@contextlib.contextmanager
def _place(data_dir: Path) -> Iterator[Path]:
    """Yield a new directory in the data directory, which is deleted in any case."""
    if not (data_dir / checkpoint.DATABASE).is_dir():
        raise BackupError(f"data directory {data_dir}: no database in it")
    for left in data_dir.glob(PREFIX + "*"):
        _delete_if_left(left)
    place = Path(tempfile.mkdtemp(prefix=PREFIX, dir=data_dir))
    try:
        if os.geteuid() == 0:  # the broker, perhaps of another user, writes into it
            owner = data_dir.stat()
            os.chown(place, owner.st_uid, owner.st_gid)
        with open(place / LOCK, "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _delete_if_left(place: Path) -> None:
    """Delete the directory of a command that was killed; one that runs holds its lock."""
    try:
        with open(place / LOCK, "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(place, ignore_errors=True)
    except OSError:
        return


def _now() -> str:
    when = datetime.fromtimestamp(wall_ms() / 1000, UTC)
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")
