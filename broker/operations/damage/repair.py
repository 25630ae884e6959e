"""`holdfast db repair SRC NEW`: saves what can be read of a damaged database into a new directory.

SRC is only read. NEW is built under another name and renamed at the end, when it was checked. Rows
are copied as they are; those that name lost rows are left out or mended, so that a broker finds
nothing wrong in NEW. A session that lost its own row or a subscription ends: its client gets
Session Present 0 and subscribes again, and never waits for messages that nobody stores. Read next:
`broker.operations.damage.copying`, which copies; `broker.operations.damage.check`.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

from broker.operations.damage.check import Checker, CheckError, check
from broker.operations.damage.copying import Copying
from broker.operations.damage.report import Findings
from storage.errors import Recoverable, StorageError
from storage.local.data_directory import DataDirectory, is_in_use
from storage.local.opening import open_database
from storage.local.salvage.source import Source
from storage.local.slot_file import sync_directory
from storage.tables.tables import FAMILIES

UNFINISHED: Final = ".unfinished"  # what the directory is called until it is whole
ALONG: Final = (
    "auth-key",
    "history.node",
    "pulse",
)  # files of a data directory that belong to its database
ROOM_MORE: Final = 16 << 20  # bytes, besides those of the tables and the logs


class RepairError(Exception):
    """A repair that could not be made; one line for the operator."""


class Repaired:
    """What a repair found, kept and gave up."""

    def __init__(self, found: Findings, kept: dict[str, int], ended: dict[str, str]) -> None:
        self.found: Final = found  # what was damaged
        self.kept: Final = kept  # rows, by family
        self.ended: Final = ended  # client id -> why its session is not in the new database
        self.notes: list[str] = []


def repair(source: str, new: str) -> Repaired:
    """Save what can be read of the data directory `source` in the new directory `new`.

    Raises `RepairError`; then there is no `new`, or it is as empty as it was.
    """
    place, target = Path(source).absolute(), Path(new).absolute()
    work = target.with_name(target.name + UNFINISHED)
    _check_places(place, target, work)
    try:
        work.mkdir(mode=0o700, parents=True)
        (work / "source").mkdir(mode=0o700)
        _require_room(place / "db", work)
        repaired = _copy(place, work)
        if is_in_use(place):
            raise RepairError(f"{source}: a broker has started meanwhile; stop it, and try again")
        after = check(str(work / "data"))
        if not after.is_whole:
            raise RepairError(f"what could be saved is not whole: {after.problems[0]}")
        for name in ALONG:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(place / name, work / "data" / name)
        if target.exists():
            target.rmdir()
        os.rename(work / "data", target)
        sync_directory(target.parent)
        repaired.kept.update(after.rows)
        return repaired
    except (StorageError, CheckError) as problem:
        text = " ".join(str(problem).split())
        if isinstance(problem, Recoverable) or "No space left" in text:
            text = f"{target}: no space left on the device; {text}"
        raise RepairError(text) from None
    except OSError as error:
        raise RepairError(f"{error.filename or target}: {error.strerror}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _copy(place: Path, work: Path) -> Repaired:
    with contextlib.ExitStack() as opened:
        source = opened.enter_context(Source(place, work / "source"))
        found = Checker(source).run()
        directory = DataDirectory(work / "data")
        opened.callback(directory.close)
        store, watermark, _ = open_database(directory, families=FAMILIES)
        opened.callback(watermark.close)
        opened.callback(store.close)
        copying = Copying(source, store)
        copying.run()
        store.sync()
        store.flush()
        watermark.advance(store.synced())
        repaired = Repaired(found, {}, copying.ended)
        repaired.notes = copying.notes
        if source.is_rebuilt:
            repaired.notes.append(
                "the list of tables was made anew: rows that were deleted lately may be back"
            )
        return repaired


def _check_places(place: Path, target: Path, work: Path) -> None:
    if not (place / "db").is_dir():
        raise RepairError(f"data directory {place}: no database in it")
    if is_in_use(place):
        raise RepairError(f"data directory {place}: in use; stop the broker first")
    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(place / "db")):
        raise RepairError(f"{target}: in the database itself; name a directory beside it")
    try:
        if target.exists() and any(target.iterdir()):
            raise RepairError(f"{target}: not empty; expected a new directory")
    except OSError as error:
        raise RepairError(f"{target}: {error.strerror}") from None
    if work.exists():
        raise RepairError(f"{work}: left by a repair that did not finish; delete it")


def _require_room(database: Path, work: Path) -> None:
    needed = ROOM_MORE + sum(
        file.stat().st_size for file in database.iterdir() if file.suffix in (".sst", ".log")
    )
    disk = os.statvfs(work)
    free = disk.f_bavail * disk.f_frsize
    if free < needed:
        raise RepairError(f"{work.parent}: {free} bytes free, expected {needed}")


def report_lines(source: str, new: str, repaired: Repaired) -> list[str]:
    """Return the report for a person."""
    found, kept = repaired.found, repaired.kept
    lines = [
        f"{new}: saved from {source}; a broker can start on it",
        f"kept: {kept.get('sessions', 0)} sessions, {kept.get('subscriptions', 0)} subscriptions, "
        f"{kept.get('retained', 0)} retained messages, {sum(kept.values())} rows in all",
    ]
    if found.is_whole:
        return [*lines, "nothing was damaged, nothing is lost"]
    lines += ["damaged:", *found.lines()]
    if repaired.ended:
        lines.append(
            f"sessions that are lost, with all that waited for them: {len(repaired.ended)}"
        )
        lines += [f"  {name!r}: {why}" for name, why in sorted(repaired.ended.items())]
    lines += repaired.notes
    return lines


def report_object(source: str, new: str, repaired: Repaired) -> dict[str, object]:
    """Return the report for JSON."""
    return {
        "source": source,
        "new": new,
        "kept": repaired.kept,
        "damage": repaired.found.as_object(),
        "sessions_lost": [
            {"client_id": name, "reason": why} for name, why in sorted(repaired.ended.items())
        ],
        "notes": repaired.notes,
    }
