"""`holdfast db restore`: a data directory from a backup, checked before and after.

All of the backup is read before anything is written. The watermark is written first and the
database gets its name last, so that a broker refuses to start on what a crash leaves, and never
begins an empty database there. Read next: `broker.operations.backups.media`.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from broker.operations import checkpoint
from broker.operations.backups.contents import BackupError, Contents
from broker.operations.backups.media import Reading
from broker.operations.checkpoint import CheckpointError
from storage.errors import StorageError, StoreBusy
from storage.local.data_directory import DataDirectory
from storage.local.slot_file import sync_directory

UNFINISHED: Final = "db.restoring"
MAY_BE_THERE: Final = frozenset(("lock", "lost+found"))


def inspect(backup: str) -> Contents:
    """Read all of a backup; return what is in it. Raises `BackupError`."""
    with contextlib.ExitStack() as stack:
        reading = Reading(Path(backup), stack)
        reading.check()
        return reading.contents


def restore(backup: str, data_dir: str) -> Contents:
    """Make the data directory of a backup; return what is in it. Durable on return.

    `data_dir` is new or empty, and no broker runs on it. If root restores into a directory of
    another user, the files are for that user. Raises `BackupError`.
    """
    with contextlib.ExitStack() as stack:
        reading = Reading(Path(backup), stack)
        if os.path.lexists(data_dir):
            _check_empty(Path(data_dir))  # before the long reading; and again with the lock
        reading.check()
        try:
            place = stack.enter_context(contextlib.closing(DataDirectory(data_dir)))
            _check_empty(place.path)
            _write(reading, place)
        except StoreBusy as problem:
            raise BackupError(f"{problem}; stop the broker first") from None
        except StorageError as problem:
            raise BackupError(str(problem)) from None
        except OSError as problem:
            raise BackupError(
                f"{problem.filename or data_dir}: {problem.strerror}; what was written is "
                "incomplete: delete it"
            ) from None
        _count_again(reading.contents, data_dir)
        return reading.contents


def _check_empty(path: Path) -> None:
    try:
        found = sorted({entry.name for entry in os.scandir(path)} - MAY_BE_THERE)
    except OSError as problem:
        raise BackupError(f"data directory {path}: {problem.strerror}") from None
    if found:
        raise BackupError(
            f"data directory {path}: not empty ({found[0]}); expected a new one: move the old one "
            "away"
        )


def _write(reading: Reading, place: DataDirectory) -> None:
    owner = place.path.stat()
    unfinished = place.path / UNFINISHED
    for name in sorted(reading.contents.files, key=lambda name: name != "watermark"):
        path = place.watermark if name == "watermark" else unfinished / Path(name).name
        if not unfinished.exists() and path is not place.watermark:
            sync_directory(place.path)  # the watermark is there before the database
            unfinished.mkdir(mode=0o700)
            _give(unfinished, owner)
        with open(path, "xb") as file:
            os.fchmod(file.fileno(), 0o600)
            for piece in reading.pieces(name):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        _give(path, owner)
    _give(place.lock, owner)
    sync_directory(unfinished)
    os.rename(unfinished, place.database)
    sync_directory(place.path)


def _give(path: Path, owner: os.stat_result) -> None:
    """Let a file belong to the owner of the data directory, where that is not who restores."""
    if os.geteuid() == 0:
        os.chown(path, owner.st_uid, owner.st_gid)


def _count_again(contents: Contents, data_dir: str) -> None:
    """Read every row of what was restored. Raises `BackupError`."""
    try:
        rows = checkpoint.count_rows(data_dir)
    except CheckpointError as problem:
        raise BackupError(str(problem)) from None
    if rows != contents.rows:
        raise BackupError(f"{data_dir}: {rows} rows were restored, expected {contents.rows}")
