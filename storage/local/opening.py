"""Opens the database of a data directory and holds it against its watermark.

Decides what a broker may start with. A power cut may leave the end of a log unwritten: that was
never acknowledged, and the broker starts without it. Everything else that is missing or damaged is
refused in one line that names the file, what is missing as far as that is known, and what to do.
With `accept_data_loss` as much is kept as can be: every batch before the damage, never one behind
it, so that the result is a state which the broker once had. Read next: `storage.local.torn_log`.
"""

import errno
import os
import re
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from storage.errors import DataLoss, Recoverable, StorageError, Unrecoverable
from storage.local import torn_log
from storage.local.data_directory import DataDirectory
from storage.local.database_files import (
    MANIFEST_NAME,
    current_manifest,
    log_name,
    log_numbers,
    manifest_name,
)
from storage.local.log_format import CUT_MARK
from storage.local.rocks import RocksStore, is_unread
from storage.local.slot_file import sync_directory
from storage.local.torn_log import Finding
from storage.local.watermark import Watermark

ACCEPT: Final = "start with --accept-data-loss"
SAVE: Final = "restore a backup, or save what can be read with `holdfast db repair`"
NO_HELP: Final = (
    f"{SAVE}; --accept-data-loss does not help, because what is left was never a state of the "
    "broker"
)
TABLE: Final = re.compile(r"/(\d+\.sst)\b")
MANIFEST: Final = re.compile(r"/(MANIFEST-\d+)\b")
LOG: Final = re.compile(r"\blog number: (\d+)|/(\d+)\.log\b")
NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
MISSING: Final = "No such file or directory"


class Note(NamedTuple):
    """What the operator is to know about an opening that went well."""

    event: str
    text: str
    is_loss: bool  # something durable is given up, or may be
    fields: dict[str, int | str]


class OpenDatabase(NamedTuple):
    """A database and its watermark, both open."""

    store: RocksStore
    watermark: Watermark
    notes: list[Note]


def open_database(
    directory: DataDirectory, *, families: Iterable[str] = (), accept_data_loss: bool = False
) -> OpenDatabase:
    """Open the database, creating it if there is none, and ensure that it is what it must be.

    Raises `DataLoss` when something durable is missing, otherwise as `RocksStore`. Everything that
    was found in the database is durable on return, and the watermark says so.
    """
    try:
        return _open(directory, families, accept_data_loss)
    except OSError as error:  # of the files that this module itself reads and writes
        if error.errno == errno.EIO and error.filename:
            raise DataLoss(f"{error.filename}: cannot be read: {error.strerror}; {SAVE}") from None
        kind = Recoverable if error.errno in NO_ROOM else Unrecoverable
        raise kind(f"{error.filename or directory.database}: {error.strerror}") from None


def _open(directory: DataDirectory, families: Iterable[str], accept: bool) -> OpenDatabase:
    with ExitStack() as stack:
        watermark = Watermark(directory.watermark)
        stack.callback(watermark.close)
        opening = _Opening(directory.database, watermark, accept=accept)
        store = opening.open(families)
        stack.callback(store.close)
        opening.hold_against_watermark(store)
        watermark.begin(store.synced())
        stack.pop_all()
        return OpenDatabase(store, watermark, opening.notes)


class _Opening:
    """One opening of a database, step by step."""

    def __init__(self, path: Path, watermark: Watermark, *, accept: bool) -> None:
        self._path: Final = path
        self._watermark: Final = watermark
        self._synced: Final = watermark.synced
        self._accept: Final = accept
        self._keep_prefix = False
        self._logs_before: dict[int, int] = {}  # number and length of the logs, as found
        self._finding: Finding | None = None
        self.notes: Final[list[Note]] = []

    def open(self, families: Iterable[str]) -> RocksStore:
        """Return the database, opened at the end of what is whole."""
        if self._exists():
            self._check_current()
            self._check_manifest()
            self._check_logs()
        else:
            self._prepare_new()
        try:
            return RocksStore(self._path, families=families, keep_prefix=self._keep_prefix)
        except Unrecoverable as error:
            raise self._explained(error) from None

    def hold_against_watermark(self, store: RocksStore) -> None:
        """Refuse a database that lacks durable batches, or whose watermark is lost."""
        watermark, held = self._watermark, store.sequence()
        if not watermark.is_valid:
            self._settle_lost_watermark(store)
            return
        finding = self._finding
        if finding is not None and finding.is_torn and held < finding.batches:
            raise Unrecoverable(
                f"{self._path}: {held} batches found, expected {finding.batches} before the torn "
                f"tail of {log_name(finding.log)}"
            )
        lost = watermark.check(held, accept_data_loss=self._accept, found=self._missing_log())
        if lost:
            self._tell("data_loss_accepted", "starting without it as told", batches=lost)

    # --- the database ---

    def _exists(self) -> bool:
        """Return whether there is a database, or what is left of one."""
        try:
            files = list(os.scandir(self._path))
        except FileNotFoundError:
            return False
        # Making one begins with a MANIFEST, and CURRENT comes before the first log or table.
        return any(
            file.name == "CURRENT"
            or file.name.endswith(".sst")
            or (file.name.endswith(".log") and file.stat().st_size > 0)
            for file in files
        )

    def _prepare_new(self) -> None:
        """Make a database's place and its watermark durable before the database is made."""
        lost = self._synced.sequence
        if lost and not self._accept:
            raise DataLoss(
                f"{self._path}: no database, but {lost} batches were durable; restore a backup, or "
                f"{ACCEPT}, which begins a new one"
            )
        if not self._watermark.is_valid:
            self._watermark.begin(self._synced)
        try:
            self._path.mkdir(mode=0o700, exist_ok=True)
            sync_directory(self._path.parent)
        except OSError as error:
            raise Unrecoverable(f"{self._path}: {error.strerror}") from None

    def _check_current(self) -> None:
        """Refuse a database whose CURRENT does not name its MANIFEST, or make a new CURRENT."""
        current = self._path / "CURRENT"
        durable = self._synced.manifest
        try:
            number = current_manifest(self._path)
            problem = "" if number else "damaged: it names no MANIFEST"
        except OSError as error:
            number, problem = 0, "missing" if MISSING in str(error) else str(error.strerror)
        if number and not (self._path / manifest_name(number)).exists():
            raise DataLoss(
                f"{self._path / manifest_name(number)}: missing; it lists all files of the "
                f"database; {NO_HELP}"
            )
        if 0 < number < durable and (self._path / manifest_name(durable)).exists():
            problem = f"it names {manifest_name(number)}, but {manifest_name(durable)} was durable"
        if not problem:
            return
        names = map(MANIFEST_NAME.fullmatch, os.listdir(self._path))
        found = sorted(int(name[1]) for name in names if name)
        if not found:
            raise DataLoss(f"{current}: {problem}, and there is no MANIFEST; {NO_HELP}")
        newest = found[-1]
        if not self._accept:
            raise DataLoss(
                f"{current}: {problem}; it should name the newest of {len(found)} MANIFEST files, "
                f"{manifest_name(newest)}; restore a backup, or {ACCEPT}, which makes a new one"
            )
        temporary = self._path / "CURRENT.new"
        self._write(temporary, 0, f"{manifest_name(newest)}\n".encode())
        os.replace(temporary, current)
        sync_directory(self._path)
        self._tell(
            "data_loss_accepted",
            "CURRENT was made anew, as told",
            file=str(current),
            problem=problem,
            names=manifest_name(newest),
        )

    def _check_manifest(self) -> None:
        """Refuse a MANIFEST of another time; cut off an end that a power cut left unwritten."""
        number = current_manifest(self._path)
        file = self._path / manifest_name(number)
        if number < self._synced.manifest:
            self._check_manifest_from_before(file)
        length = self._synced.manifest_length if number == self._synced.manifest else 0
        data = _read(file)
        found = torn_log.examine_manifest(data, length)
        if found is None:
            return
        if not found.is_torn:
            raise DataLoss(
                f"{file}: whole up to byte {found.offset} of {len(data)}, but {length} bytes were "
                f"durable; it lists all files of the database; {NO_HELP}"
            )
        os.truncate(file, found.offset)
        self._sync(file)
        self._tell(
            "torn_log",
            "the end of the MANIFEST was never written; starting without it",
            is_loss=False,
            file=str(file),
            offset=found.offset,
        )

    def _check_manifest_from_before(self, found: Path) -> None:
        """Refuse a MANIFEST older than the durable one, unless the whole database is as old.

        It does not list the tables since then. The newest log begins behind those, so the number of
        the last batch would be right, and the batches between missing.
        """
        durable = self._path / manifest_name(self._synced.manifest)
        problem = f"{durable}: missing; it was durable, and {found.name} is older"
        logs = log_numbers(self._path)
        if logs and logs[-1] >= self._synced.opening_log:
            raise DataLoss(f"{problem}; it lists all files of the database; {NO_HELP}")
        if not self._accept:
            raise DataLoss(f"{problem}; restore a backup, or {ACCEPT}")

    # --- the logs ---

    def _check_logs(self) -> None:
        """Find the end of what is whole, and mark it where RocksDB might not stop by itself."""
        self._logs_before = {
            number: (self._path / log_name(number)).stat().st_size
            for number in log_numbers(self._path)
        }
        if not self._synced.opening_log:  # an earlier version's watermark, or a copy
            self._keep_prefix = self._accept
            return
        found = self._finding = self._examine("all" if self._accept else "torn")
        if found is None:
            return
        if not found.is_torn and not self._accept:
            raise self._damaged_log(found)
        file = self._path / log_name(found.log)
        self._write(file, found.offset, CUT_MARK)
        self._keep_prefix = True
        if found.is_torn:
            self._tell(
                "torn_log",
                "the end of the log was never written; starting without it",
                is_loss=False,
                file=str(file),
                offset=found.offset,
                problem=found.problem,
                last=found.batches,
            )
        else:
            self._tell(
                "data_loss_accepted",
                "starting without what is behind the damage, as told",
                file=str(file),
                offset=found.offset,
                problem=found.problem,
                last=found.batches,
            )

    def _examine(self, check: str) -> Finding | None:
        return torn_log.examine(list(self._logs_before), self._read_log, self._synced, check=check)

    def _read_log(self, number: int) -> bytes:
        return _read(self._path / log_name(number))

    def _damaged_log(self, found: Finding) -> DataLoss:
        if found.is_loss:
            lost = found.durable - found.batches
            missing = f"at least {lost} are lost" if found.batches else "some of them are lost"
            known = f"{found.durable} were durable, so {missing}"
        else:
            known = (
                f"none behind that is known to have been durable ({found.durable} are), but no "
                "power cut leaves such bytes"
            )
        return DataLoss(
            f"{self._path / log_name(found.log)}: {found.problem} at byte {found.offset}, behind "
            f"{_number(found)}; {known}; restore a backup, or {ACCEPT}, which keeps what is before "
            "the damage"
        )

    def _missing_log(self) -> str:
        """Return what is wrong with the log that the watermark names, "" if nothing is."""
        log, length = self._synced.log, self._synced.length
        found = self._logs_before.get(log, -1)
        if not log or found >= length:
            return ""
        file = self._path / log_name(log)
        return f"{file} is missing" if found < 0 else f"{file} had {length} bytes, found {found}"

    # --- the watermark ---

    def _settle_lost_watermark(self, store: RocksStore) -> None:
        path = self._watermark.path
        if store.is_numbered_by_older:
            # An earlier version did not write one at once, and none beside a checkpoint.
            self._tell(
                "watermark_missing",
                "no watermark beside a database of an earlier version: it begins now",
                is_loss=False,
                file=str(path),
                batches=store.sequence(),
            )
        elif not self._accept:
            raise DataLoss(
                f"{path}: missing or damaged, so how much the database must hold is not known; it "
                f"holds {store.sequence()} batches; restore the file or a backup, or {ACCEPT}, "
                "which takes them for all"
            )
        else:
            self._tell(
                "data_loss_accepted",
                "the watermark is missing or damaged: what is found is taken for all, as told",
                file=str(path),
                found=store.sequence(),
            )

    # --- what RocksDB refused ---

    def _explained(self, error: Unrecoverable) -> StorageError:
        """Return the refusal for an error of RocksDB: the file, what is missing, what to do."""
        told = " ".join(str(error).split())
        if "Corruption" not in told and MISSING not in told and not is_unread(told):
            return error
        if self._finding is None and self._synced.opening_log:
            found = self._examine("all")
            if found is not None:
                return self._damaged_log(found)
        if table := TABLE.search(told):
            return DataLoss(f"{self._path / table[1]}: {_reason(told)}; it holds rows; {NO_HELP}")
        if manifest := MANIFEST.search(told):
            return DataLoss(
                f"{self._path / manifest[1]}: {_reason(told)}; it lists all files of the database; "
                f"{NO_HELP}"
            )
        if log := LOG.search(told):
            file = self._path / log_name(int(log[1] or log[2]))
            return DataLoss(f"{file}: {_reason(told)}; newer batches are in tables; {NO_HELP}")
        if self._keep_prefix:
            return DataLoss(f"{self._path}: {_reason(told)}; {NO_HELP}")
        return DataLoss(
            f"{self._path}: {_reason(told)}; restore a backup, or {ACCEPT}, which keeps what is "
            "before the damage"
        )

    # --- inside ---

    def _tell(self, event: str, text: str, *, is_loss: bool = True, **fields: int | str) -> None:
        self.notes.append(Note(event, text, is_loss, fields))

    def _write(self, file: Path, offset: int, data: bytes) -> None:
        with open(file, "r+b" if file.exists() else "wb") as opened:
            opened.seek(offset)
            opened.write(data)
        self._sync(file)

    def _sync(self, file: Path) -> None:
        opened = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _read(file: Path) -> bytes:
    """Return what a file holds; an error names it."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None


def _number(found: Finding) -> str:
    return f"batch {found.batches}" if found.batches else "the batches in tables"


def _reason(told: str) -> str:
    """Return what is wrong, from the text of RocksDB."""
    if MISSING in told:
        return "missing"
    if is_unread(told):
        return "cannot be read: " + told.rsplit(": ", 1)[-1]
    reason = told.split("Corruption: ")[-1]
    return "damaged: " + re.sub(r"\s*The file \S+ may be corrupted\.?", "", reason).strip()
