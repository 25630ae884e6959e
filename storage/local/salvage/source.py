"""A damaged database, opened for reading as far as that is possible; nothing in it is changed.

RocksDB opens a directory of symbolic links to the database's tables, with copies of the other
files. If it refuses, the logs are read up to their damage; if it still refuses, because a table is
missing or the list of tables is damaged, the list is made anew in the copy. Read next:
`storage.local.salvage.around_damage`, `storage.local.opening`, which opens a whole database.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from storage.errors import Recoverable, StorageError, Unrecoverable
from storage.local import torn_log
from storage.local.database_files import CONFIG_FILE, log_name, log_numbers
from storage.local.rocks import RocksStore, rebuild_lists
from storage.local.salvage.around_damage import Gap, RowsAround
from storage.local.watermark import Watermark

PIECE_BYTES: Final = 1 << 20
SECTOR_BYTES: Final = 4096  # what a disk fails to read at once, at least
TABLE_NAME: Final = re.compile(r"(\d+\.sst)\b")
OWN_FILES: Final = ("LOCK", CONFIG_FILE)


class Source:
    """A database that may be damaged. Close it, or use it in a `with`."""

    def __init__(self, data_dir: Path, work: Path) -> None:
        """Open the database of `data_dir`; links and copies are made in the empty `work`.

        Raises `StorageError` when nothing of it can be read, `OSError` when the files cannot.
        """
        self._data_dir: Final = data_dir
        self._database: Final = data_dir / "db"
        self._work: Final = work
        self._opened: Final = ExitStack()
        self._second: RocksStore | None = None
        self._second_lacks: frozenset[str] = frozenset()
        self._damaged_tables: set[str] = set()
        self._unread: set[str] = set()  # names of files of which a part cannot be read
        self.problems: Final[list[str]] = []  # of the files, as opening found them
        self.gaps: Final[list[Gap]] = []
        self.is_rebuilt = False  # the list of its tables was made anew
        self.store: Final = self._open()
        if not self.is_rebuilt:
            self._compare_watermark()

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._opened.close()

    def rows(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield every row of a family that can be read; what cannot is added to `gaps`."""
        if family not in self.store.families():
            return
        reading = RowsAround(self.store, family, None if self.is_rebuilt else self._without_damaged)
        seen = 0
        for row in reading.rows():
            if len(reading.gaps) > seen:
                self._note(reading.gaps[seen:])
                seen = len(reading.gaps)
            yield row
        self._note(reading.gaps[seen:])

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of `key`, or None. Raises `DamagedRows` when it cannot be read."""
        return self.store.get(family, key) if family in self.store.families() else None

    def rows_between(self, family: str, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a part of a family again; notes nothing."""
        yield from RowsAround(self.store, family).rows(start, stop)

    def _note(self, gaps: list[Gap]) -> None:
        for gap in gaps:
            self._damaged_tables.update(TABLE_NAME.findall(gap.problem))
            self.gaps.append(gap._replace(problem=self.plain(gap.problem)))

    # --- opening ---

    def _open(self) -> RocksStore:
        links = self._links("links", frozenset())
        problem = ""
        for keep_prefix in (False, True):
            try:
                store = RocksStore(links, read_only=True, keep_prefix=keep_prefix)
            except Unrecoverable as error:
                problem = problem or self.plain(str(error))
                continue
            if problem and not self._is_torn():
                self.problems.append(problem)
            self._opened.callback(store.close)
            return store
        self.problems.append(problem)
        self.is_rebuilt = True
        return self._rebuild("rebuilt", frozenset())

    def _rebuild(self, name: str, lacks: frozenset[str]) -> RocksStore:
        """Open a copy whose list of tables is made anew, without the tables in `lacks`.

        A table that makes opening fail is left out at the next attempt.
        """
        attempt = 0
        while True:
            links = self._links(f"{name}-{attempt}", lacks)
            attempt += 1
            try:
                rebuild_lists(links)
                store = RocksStore(links, read_only=True, keep_prefix=True)
            except Unrecoverable as error:
                more = frozenset(TABLE_NAME.findall(str(error))) - lacks
                if not any((self._database / table).exists() for table in more):
                    raise
                lacks |= more
                continue
            self._opened.callback(store.close)
            return store

    def _without_damaged(self) -> RocksStore | None:
        """Return a copy without the tables that are known to be damaged, None if there is none."""
        lacks = frozenset(self._damaged_tables)
        if self._second is None or lacks != self._second_lacks:
            name = "without-" + "-".join(sorted(table[:-4] for table in lacks))
            self._second_lacks = lacks
            try:
                self._second = self._rebuild(name[:200], lacks)
            except Recoverable:
                raise
            except StorageError:
                self._second = None  # then only what the damaged database itself shows is read
        return self._second

    def _links(self, name: str, lacks: frozenset[str]) -> Path:
        """Make a directory with links to the tables, and copies of the other files."""
        place = self._work / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        for file in self._database.absolute().iterdir():
            if file.name in OWN_FILES or file.name.startswith("LOG") or not file.is_file():
                continue
            if file.suffix != ".sst":
                self._copy(file, place / file.name)
            elif file.name not in lacks:
                (place / file.name).symlink_to(file)
        return place

    # --- the log and the watermark ---

    def _watermark(self) -> Watermark | None:
        """Return a copy of the watermark, None if the data directory has none."""
        file, place = self._data_dir / "watermark", self._work / "watermark"
        try:
            self._copy(file, place)
        except FileNotFoundError:
            return None
        return Watermark(place)

    def _copy(self, file: Path, place: Path) -> None:
        """Copy what can be read of a file; the rest is zeros, and told once."""
        unread = copy_readable(file, place)
        if unread and file.name not in self._unread:
            self._unread.add(file.name)
            self.problems.append(f"{file}: {unread} bytes cannot be read")

    def _is_torn(self) -> bool:
        """Return whether the log only lacks what was never synced: then a start goes on."""
        watermark = self._watermark()
        if watermark is None:
            return False
        synced = watermark.synced
        watermark.close()
        if not synced.opening_log:
            return False
        found = torn_log.examine(
            log_numbers(self._database),
            lambda number: (self._work / "links" / log_name(number)).read_bytes(),
            synced,
        )
        return found is not None and found.is_torn

    def _compare_watermark(self) -> None:
        watermark = self._watermark()
        if watermark is None:
            if self.store.is_numbered_by_older:
                return  # its version wrote none beside a copy
            self.problems.append(f"{self._data_dir / 'watermark'}: missing")
            return
        held, durable = self.store.sequence(), watermark.sequence
        if not watermark.is_valid:
            self.problems.append(f"{self._data_dir / 'watermark'}: damaged")
        elif held < durable:
            self.problems.append(f"{self._database}: {held} batches found, {durable} were durable")
        watermark.close()

    def plain(self, problem: str) -> str:
        """Return the text of an error of RocksDB: our file, and what is wrong with it."""
        text = " ".join(problem.split())
        reason = text.split("Corruption: ")[-1]
        reason = re.sub(r"\s*The file \S+ may be corrupted\.?", "", reason)
        reason = re.split(r": stored|, found| in /", reason)[0].strip()
        if table := TABLE_NAME.search(text):
            missing = "No such file" in text
            return f"{self._database / table[1]}: {'missing' if missing else f'damaged: {reason}'}"
        return re.sub(rf"{re.escape(str(self._work))}/[^/\s]+", str(self._database), reason)


def copy_readable(source: Path, target: Path) -> int:
    """Copy a file with zeros where the disk does not read it; return how many bytes these are."""
    unread = at = 0
    size = PIECE_BYTES
    with open(source, "rb") as opened, open(target, "wb") as copy:
        while True:
            try:
                piece = os.pread(opened.fileno(), size, at)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise OSError(error.errno, error.strerror, str(source)) from None
                if size > SECTOR_BYTES:
                    size = SECTOR_BYTES
                    continue
                left = os.fstat(opened.fileno()).st_size - at
                piece = bytes(max(0, min(size, left)))
                unread += len(piece)
            if not piece:
                return unread
            copy.write(piece)
            at += len(piece)
            if size < PIECE_BYTES and at % PIECE_BYTES == 0:
                size = PIECE_BYTES
