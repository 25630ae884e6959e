"""`holdfast db checkpoint DIR`: a consistent copy of a data directory, its broker running or not.

A running broker makes the copy itself, between two ticks, when asked over its control socket:
everything that was written is in it, acknowledged or not. Another process could only open the
database read-only and would miss what is only in the write-ahead log. The copy is made of hard
links and takes milliseconds, so DIR must be on the file system of the data directory.

DIR is a data directory itself: `holdfast session list --data-dir DIR` and `holdfast serve` work on
it. Must never write into a directory that is not empty.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.operations import control_socket
from broker.operations.control_socket import ControlError, Request
from storage.errors import StorageError
from storage.local.data_directory import DataDirectory, is_in_use
from storage.local.opening import open_database
from storage.local.rocks import RocksStore
from storage.local.watermark import Synced, Watermark
from storage.tables.tables import scan_all

DATABASE: Final = "db"
WATERMARK: Final = "watermark"
UNFINISHED: Final = "db.tmp"  # what RocksDB writes first, and renames


class CheckpointError(Exception):
    """A copy that could not be made; one line for the operator."""


def make(data_dir: str, directory: str) -> str:
    """Copy the database of `data_dir` into the new or empty `directory`; return who made the copy.

    Raises `CheckpointError`.
    """
    target = Path(directory).absolute()
    if not (Path(data_dir) / DATABASE).is_dir():
        raise CheckpointError(f"data directory {data_dir}: no database in it")
    if is_in_use(data_dir):
        try:
            done = control_socket.ask(data_dir, {"do": "checkpoint", "directory": str(target)})
        except ControlError as problem:
            raise CheckpointError(str(problem)) from None
        return f"the running broker, in {done['milliseconds']} ms"
    try:
        with contextlib.ExitStack() as opened:
            place = DataDirectory(data_dir)
            opened.callback(place.close)
            database = open_database(place)
            opened.callback(database.watermark.close)
            opened.callback(database.store.close)
            copy(database.store, target)
    except StorageError as problem:
        raise CheckpointError(str(problem)) from None
    return "this command"


def read_whole(directory: str) -> int:
    """Read every row of a finished copy, with its checksums; return how many there are.

    Raises `CheckpointError` as `count_rows` does.
    """
    return sum(count_rows(directory).values())


def count_rows(directory: str) -> dict[str, int]:
    """Read every row of a finished copy, with its checksums; return their number by family.

    Copying reads nothing: the copy is of hard links, so damage in the database is in it, too.
    Raises `CheckpointError` with every family that cannot be read whole; the copy stays as it is.
    """
    rows: dict[str, int] = {}
    damaged: list[str] = []
    try:
        store = RocksStore(Path(directory) / DATABASE, read_only=True)
    except StorageError as problem:
        raise CheckpointError(
            f"{directory}: the copy is made but cannot be read: {problem}"
        ) from None
    try:
        for family in store.families():
            try:
                rows[family] = sum(1 for _ in scan_all(store, family, b"", None))
            except StorageError as problem:
                damaged.append(f"family {family}: {problem}")
    finally:
        store.close()
    if damaged:
        raise CheckpointError(
            f"{directory}: the copy is made but cannot be read whole: " + "; ".join(damaged)
        )
    return rows


def answer(store: RocksStore, request: Request) -> Request:
    """Answer a request to a running broker, on the thread that owns `store`.

    Raises `ControlError`.
    """
    do = request.get("do", "")
    if do != "checkpoint":
        raise ControlError(
            f"the running broker does not know the request {do[:40]!r}: is it an older version?"
        )
    if not os.path.isabs(request.get("directory", "")):
        raise ControlError("expected a checkpoint into an absolute path")
    began = time.monotonic()
    try:
        copy(store, Path(request["directory"]))
    except CheckpointError as problem:
        raise ControlError(str(problem)) from None
    return {"milliseconds": str(round((time.monotonic() - began) * 1000))}


def copy(store: RocksStore, target: Path) -> None:
    """Make the copy, from the thread that owns `store`. Raises `CheckpointError`."""
    with _new_directory(target, store.path):
        try:
            store.checkpoint(target / DATABASE)
            # A database without a watermark is refused: somebody may have lost it.
            with contextlib.closing(Watermark(target / WATERMARK)) as watermark:
                watermark.begin(Synced(store.sequence()))
        except StorageError as problem:
            raise CheckpointError(str(problem)) from None


@contextlib.contextmanager
def _new_directory(target: Path, database: Path) -> Iterator[None]:
    """Ensure that `target` is empty and on the file system of `database`; clean up on failure."""
    if not _is_utf8(target):
        raise CheckpointError(f"{str(target)!r}: the database takes no name that is not UTF-8")
    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(database)):
        raise CheckpointError(f"{target}: in the database itself; make the copy beside it")
    try:
        is_new = not target.exists()
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise CheckpointError(f"{target}: not empty; expected a new directory")
        if target.stat().st_dev != database.stat().st_dev:
            if is_new:
                target.rmdir()
            raise CheckpointError(
                f"{target}: on another file system; make the copy beside {database.parent}, where "
                "it takes milliseconds, then copy that"
            )
    except OSError as problem:
        reason = "not a directory" if isinstance(problem, FileExistsError) else problem.strerror
        raise CheckpointError(f"{target}: {reason} (user {os.geteuid()})") from None
    try:
        yield
    except CheckpointError:
        for left in (DATABASE, UNFINISHED):
            shutil.rmtree(target / left, ignore_errors=True)
        (target / WATERMARK).unlink(missing_ok=True)
        if is_new:
            with contextlib.suppress(OSError):
                target.rmdir()
        raise


def _is_utf8(path: Path) -> bool:
    try:
        return b"\0" not in str(path).encode()
    except UnicodeEncodeError:
        return False
