"""RocksDB as the broker's store: the only module that knows rocksdict.

rocksdict 0.3.29 has hazards (`tests/storage/local/test_rocks_hazards.py` shows each one), so this
module uses a small part of it: raw mode, explicit options for every family, un-synced `write` with
`no_slowdown`, `flush_wal(True)` as the only sync, `RdictIter` with `status()` as the only iterator,
options of a read only for a `get`, which has no bounds.
It must never use a synced write (holds the GIL for the whole fdatasync), snapshots, iterator
bounds, or `items`, `keys` and `values` (end silently at corruption). It must never hand out a
rocksdict object: one live handle keeps the database and its LOCK open.

One thread owns a store and makes all calls, except `sync` and `durable_sequence`: those are the
committer's and may run while the owner reads and writes. Other threads may call only `scan_aside`.
"""

import contextlib
import errno
import gc
import os
import re
import resource
import tempfile
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, cast

from rocksdict import (
    AccessType,
    Cache,
    Checkpoint,
    ColumnFamily,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from storage import limits
from storage.api import Batch, Row
from storage.errors import (
    CorruptRecord,
    DamagedRows,
    Recoverable,
    StorageError,
    StoreBusy,
    Unrecoverable,
    WriteStalled,
)
from storage.local import failpoint
from storage.local.database_files import (
    CONFIG_FILE,
    WAL_SUFFIX,
    ManifestSync,
    NewestLog,
    write_options,
)
from storage.local.direct_sync import DirectSync, open_direct_sync
from storage.local.key_search import first_behind, last_before
from storage.local.log_format import SEQUENCE_KEY, decode_number, encode_number
from storage.local.watermark import Synced

# RocksDB's own family, which cannot be dropped. It holds one row of ours: the number of batches,
# which every batch increments. RocksDB's sequence number cannot serve: once a family is dropped,
# recovery forgets the numbers of changes that were only in it. Its row must be the last of a batch:
# `storage.local.log_format` looks for it there.
DEFAULT: Final = "default"

# A table in which half of 4,096 neighbouring entries are tombstones is compacted soon: a queue
# leaves its tombstones where the next scan starts (a seek over 200,000 of them took 154 ms).
TOMBSTONE_WINDOW: Final = 4096
TOMBSTONES: Final = 2048

TABLE_SUFFIX: Final = ".sst"
LOG_FILE: Final = re.compile(r"/\d+\.log\b")  # a write-ahead log named in an error text

SPARE_FILES: Final = 256  # descriptors of a tool that are not for tables

# Reopening writes the logs' contents out as tables and needs this much space besides.
REOPEN_BYTES: Final = 4 * limits.MIB
PROBE_BYTES: Final = 64 * 1024

# rocksdict raises bare exceptions: only their text tells them apart.
NO_SPACE: Final = "No space left on device"
WRITE_STALL: Final = "Result incomplete: Write stall"
PREVIOUS_ERROR: Final = "Writer has previous error"
COPY_EXISTS: Final = "Directory exists"  # of a checkpoint's target
DAMAGED: Final = "Corruption"  # of a table: its checksum, or what it names, is wrong
# A disk with a sector that cannot be read, and file systems with checksums of their own, do not
# hand out wrong bytes: they refuse to read them (EIO, EUCLEAN, EBADMSG).
UNREADABLE: Final = tuple(
    os.strerror(number) for number in (errno.EIO, errno.EUCLEAN, errno.EBADMSG)
)

# Exists beside the tables once one of them was found damaged. A compaction that meets damage lets
# all later writes fail, at every start; so a damaged database is not compacted any more.
DAMAGE_FILE: Final = "damaged"


class RocksStore:
    """A `Store` in one RocksDB directory.

    Opening recovers: everything in the write-ahead log is durable when the constructor returns.
    Raises `StoreBusy` when another handle holds it, `Unrecoverable` when it is damaged,
    `Recoverable` when there is no space to open it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        families: Iterable[str] = (),
        read_only: bool = False,
        keep_prefix: bool = False,
    ) -> None:
        """Open `path`, creating it and the required `families` if they are missing.

        `read_only` is for tools: it takes no LOCK and changes nothing in `path`. `keep_prefix`
        opens a database with a damaged log at the last batch before the damage, unless a newer
        batch is already in a table. `storage.local.opening` decides that.
        """
        self.path: Final = Path(path)
        self.read_only: Final = read_only
        self._keeps_prefix = keep_prefix
        self._required = set(families)
        self._cache: Final = Cache(limits.CACHE_BYTES)
        self._uncached: Final = ReadOptions()
        self._uncached.fill_cache(False)  # type: ignore[call-arg]  # its stub lacks the argument
        self._write_options: Final = WriteOptions()
        self._write_options.no_slowdown = True
        # Held while flushing the log or replacing the handle: rocksdict refuses to close while
        # another thread is in `flush_wal` ("Already borrowed").
        self._lock: Final = threading.Lock()
        self._database: Rdict | None = None
        self._links: tempfile.TemporaryDirectory[str] | None = None  # see `_place_to_open`
        self._tables: dict[str, Rdict] = {}
        self._handles: dict[str, ColumnFamily] = {}
        self.is_numbered_by_older = False  # the newest batch was written by an earlier version
        self._is_compacted = True  # False: a table is damaged, see `DAMAGE_FILE`
        self._sequence = 0
        self._synced = Synced(0)  # set by the thread that syncs, always as a whole
        self._newest_log: Final = NewestLog(self.path)
        self._manifest: Final = ManifestSync(self.path)
        self._space_error: Recoverable | None = None  # the last write met a full disk
        self._write_dead: StorageError | None = None  # why no write can succeed any more
        self._direct: DirectSync | None = None  # syncs the newest log beside `sync`
        with self._lock:
            self._open()
            self._take_stock()

    # --- reading ---

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of `key`, or None. Raises `DamagedRows` when it cannot be read."""
        try:
            value: bytes | None = self._tables[family].get(key)
        except Exception as error:
            raise self._read_failure(error, family, key) from None
        return value

    def get_uncached(self, family: str, key: bytes) -> bytes | None:
        """Return the value of `key` as `get`, without keeping the block of its table in memory."""
        try:
            value: bytes | None = self._tables[family].get(key, None, self._uncached)
        except Exception as error:
            raise self._read_failure(error, family, key) from None
        return value

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, None where there is none."""
        if not keys:
            return []
        try:
            # One key costs 0.2 us alone and 0.56 us in a list, but a list releases the GIL.
            values = self._tables[family].get(list(keys))
        except Exception as error:
            raise self._read_failure(error, family, min(keys)) from None
        return cast(list[bytes | None], values)

    def scan(
        self, family: str, start: bytes, stop: bytes | None = None, *, count: int
    ) -> list[Row]:
        """Return at most `count` rows with start <= key < stop in ascending key order.

        A point-in-time view: it does not contain writes made during the scan. Raises `DamagedRows`,
        with the rows that it has read and the end of the damage, when one of these rows cannot be
        read.
        """
        try:
            return self.scan_blindly(family, start, stop, count=count)
        except DamagedRows as damage:
            damage.resume = first_behind(partial(self._seek, family), damage.start, stop)
            raise

    def scan_blindly(
        self, family: str, start: bytes, stop: bytes | None = None, *, count: int
    ) -> list[Row]:
        """Scan as `scan`, but do not look for the end of the damage: `resume` is None."""
        rows: list[Row] = []
        iterator = None
        try:
            iterator = self._tables[family].iter()
            valid, key_of, value_of, step = (
                iterator.valid,
                iterator.key,
                iterator.value,
                iterator.next,
            )
            iterator.seek(start)
            while count > 0 and valid():
                key = key_of()
                if stop is not None and key >= stop:
                    break
                rows.append((key, value_of()))
                count -= 1
                if count:  # the next row may be damaged, and is not wanted
                    step()
            # At damage an iterator only becomes invalid; status() raises the reason.
            iterator.status()
        except Exception as error:
            begin = rows[-1][0] + b"\0" if rows else start
            failure = self._read_failure(error, family, begin)
            if isinstance(failure, DamagedRows):
                failure.rows = rows
            raise failure from None
        finally:
            # A traceback keeps these locals, and a live iterator keeps the database open.
            iterator = valid = key_of = value_of = step = None  # type: ignore[assignment]
        return rows

    def scan_aside(self, family: str, start: bytes, stop: bytes, *, count: int) -> list[Row]:
        """Scan from a thread that does not own the store; otherwise as `scan`.

        It and `sync` wait for each other, so ask for few rows at a time. Raises `StorageError` when
        the store is closed.
        """
        with self._lock:
            return self.scan(family, start, stop, count=count)

    def last(self, family: str, start: bytes, stop: bytes) -> Row | None:
        """Return the row with the greatest key in start <= key < stop, or None.

        Raises `DamagedRows` when it cannot be read; `resume` is then the first key after all rows
        of the range.
        """
        iterator = None
        try:
            iterator = self._tables[family].iter()
            iterator.seek_for_prev(stop)
            if iterator.valid() and iterator.key() == stop:
                iterator.prev()
            row: Row | None = None
            if iterator.valid():
                key = iterator.key()
                if start <= key:
                    row = (key, iterator.value())
            iterator.status()
        except Exception as error:
            failure = self._read_failure(error, family, start)
        else:
            return row
        finally:
            iterator = None
        if not isinstance(failure, DamagedRows):
            raise failure
        return last_before(partial(self._seek, family), start, stop)

    # --- writing ---

    def write(self, batch: Batch) -> None:
        """Apply `batch` atomically; visible on return, durable after a later `sync`.

        On return the operating system has it: it survives the end of this process, not a power cut.
        Raises `Recoverable` (no space, or RocksDB cannot keep up): nothing of it is visible and the
        same batch may be written again, after `reopen` if `needs_reopen` is true.
        """
        if failpoint.hook is not None:
            failpoint.hook(failpoint.BEFORE_WRITE)
        if self._write_dead is not None or self._database is None:
            raise self._closed_or_dead()
        writes = WriteBatch(raw_mode=True)
        put = writes.put
        delete = writes.delete
        handles = self._handles
        for family, key, value in batch:
            if value is None:
                delete(key, handles[family])
            else:
                put(key, value, handles[family])
        sequence = self._sequence + 1
        put(SEQUENCE_KEY, encode_number(sequence, self._synced.sequence))
        direct = self._direct
        if direct is not None:
            direct.begin_write(sequence - 1)
        try:
            self._database.write(writes, self._write_options)
        except Exception as error:
            if direct is not None:
                direct.leave()
            raise self._write_failure("write", error) from None
        self._sequence = sequence
        self._space_error = None
        if direct is not None:
            direct.end_write(sequence)

    def sync(self) -> None:
        """Make every `write` that returned before this call durable. Releases the GIL.

        Raises `Unrecoverable` when it failed: never sync again on the same handle, because the
        kernel may have dropped the data. Raises `Recoverable` only when an earlier write met a full
        disk; then call `reopen`, which keeps what was not synced or raises.
        """
        with self._lock:
            if self._write_dead is not None:
                raise _again(self._write_dead)
            direct, found = self._direct, None
            try:
                if direct is not None:
                    direct.settle()
                    found = direct.find()
                # Taken before the sync: a write that comes meanwhile need not be in it.
                sequence = self._sequence
                end = self._newest_log.end()
                self._open_database().flush_wal(True)
            except Exception as error:
                if PREVIOUS_ERROR in str(error) and self._space_error is not None:
                    self._write_dead = self._space_error
                else:
                    self._write_dead = Unrecoverable(f"sync of {self.path} failed: {error}")
                raise _again(self._write_dead) from None
            log, length = end or (self._synced.log, self._synced.length)
            self._synced = self._synced._replace(sequence=sequence, log=log, length=length)
            if direct is not None:
                direct.found(found)

    def open_direct(self) -> DirectSync | None:
        """Return what syncs the newest log beside `sync`, None in the pure build. At most once.

        For a committer, which closes it before the store is closed.
        """
        assert self._direct is None
        self._direct = open_direct_sync(self)
        return self._direct

    def note_synced(self, sequence: int, log: int, length: int) -> None:
        """Take what a direct sync covers; not while `sync` runs."""
        if sequence > self._synced.sequence:
            self._synced = self._synced._replace(sequence=sequence, log=log, length=length)

    def sequence(self) -> int:
        """Return the number of batches written since the database was created."""
        return self._sequence

    def durable_sequence(self) -> int:
        """Return the `sequence` covered by the last completed `sync`, or by opening."""
        return self._synced.sequence

    @property
    def opening_log(self) -> int:
        """Return the log that was made when the store was opened, or reopened."""
        return self._synced.opening_log

    def synced(self) -> Synced:
        """Return all that the last completed `sync` covers. For the watermark, once a second.

        Syncs the MANIFEST if it has grown. Raises `Unrecoverable`.
        """
        synced = self._synced
        try:
            manifest, length = self._manifest.sync()
        except OSError as error:
            raise Unrecoverable(f"MANIFEST of {self.path}: {error.strerror}") from error
        return synced._replace(manifest=manifest, manifest_length=length)

    # --- families ---

    def families(self) -> list[str]:
        """Return the names of all column families."""
        return list(self._tables)

    def create_family(self, family: str) -> None:
        """Create an empty column family. Durable on return; takes a few ms, mostly synced I/O."""
        assert family not in self._tables, f"column family {family!r} exists"
        try:
            table = self._open_database().create_column_family(family, self._family_options)
        except Exception as error:
            raise self._write_failure(f"creating column family {family!r}", error) from None
        self._tables[family] = table
        self._handles[family] = self._open_database().get_column_family_handle(family)

    def drop_family(self, family: str) -> None:
        """Drop a column family with all its rows, without tombstones. Durable on return.

        Its table files are deleted at once; its rows in the write-ahead logs stay until `flush`.
        """
        assert family in self._tables, f"no column family {family!r}"
        try:
            self._open_database().drop_column_family(family)
        except Exception as error:
            raise self._write_failure(f"dropping column family {family!r}", error) from None
        del self._handles[family]
        del self._tables[family]

    # --- maintenance ---

    def property_int(self, name: str, family: str | None = None) -> int:
        """Return RocksDB's integer property `name` of `family`, or its sum over all families.

        For a property of the whole database use `family=DEFAULT`. 0 if there is none.
        """
        if family == DEFAULT:
            return self._open_database().property_int_value(name) or 0
        families = self._tables if family is None else [family]
        return sum(self._tables[each].property_int_value(name) or 0 for each in families)

    def sizes(self) -> dict[str, int]:
        """Return the bytes that the store uses now, by kind, for the metrics."""
        return {
            "memtables": self.property_int("rocksdb.cur-size-all-mem-tables"),
            "tables": self.property_int("rocksdb.total-sst-files-size"),
            "pending_compaction": self.property_int("rocksdb.estimate-pending-compaction-bytes"),
            "wal": self.wal_bytes(),
            "cache": self._cache.get_usage(),
        }

    def wal_bytes(self) -> int:
        """Return the size of all write-ahead logs (RocksDB has no property for it)."""
        total = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith(WAL_SUFFIX):
                    try:
                        total += entry.stat().st_size
                    except FileNotFoundError:  # RocksDB deleted it meanwhile
                        pass
        return total

    def checkpoint(self, path: str | Path) -> None:
        """Make a consistent copy in the new directory `path` (hard links on one file system).

        Holds the GIL and syncs: 17 ms for 131 MiB. For maintenance, not for every minute. Raises
        `Recoverable` when only the copy failed.
        """
        try:
            Checkpoint(self._open_database()).create_checkpoint(str(path))
        except Exception as error:
            # RocksDB names the file that failed. If it is in the copy, the database goes on; if it
            # is the database's own, a log that could not be synced must not be trusted any more.
            # Compare the whole path: the copy's name may be the end of the database's.
            told = str(error)
            names_copy = re.search(
                rf"(?:^|[\s'\"]){re.escape(str(path))}(\.tmp)?([/:\s'\"]|$)", told
            )
            if isinstance(error, UnicodeEncodeError) or names_copy or COPY_EXISTS in told:
                raise Recoverable(f"checkpoint of {self.path} failed: {error}") from None
            raise self._write_failure(f"checkpoint {path}", error) from None

    def compact(self, family: str) -> None:
        """Compact all of `family` now. Blocks, releases the GIL; for tools and tests."""
        try:
            self._tables[family].compact_range(None, None)
        except Exception as error:
            raise self._write_failure(f"compacting {family!r}", error) from None

    def flush(self, *, waits: bool = True) -> None:
        """Write all memtables out to tables, synced; the logs they were in are deleted then.

        A log is kept while any family has a change in it that is in no table, and so is what it
        holds of families that were dropped. Without `waits` RocksDB does it in the background.
        """
        try:
            for family in self._tables:
                self._tables[family].flush(waits)
            self._open_database().flush(waits)  # its own family is not among the tables
        except Exception as error:
            raise self._write_failure("flush", error) from None

    @property
    def needs_reopen(self) -> bool:
        """Return whether a full disk broke the log writer: no write succeeds before `reopen`.

        If writing a table found no space, RocksDB recovers by itself seconds after space returned.
        After a failed append to the log only closing and opening helps.
        """
        return isinstance(self._write_dead, Recoverable)

    def reopen(self) -> None:
        """Close and open, to write again after a full disk. Keeps every write that returned.

        Raises `Recoverable` while there is still no space: the store can still be read, call it
        again. Raises `Unrecoverable` when the reopened database lacks a write that had returned:
        memory is then ahead of the disk and only a restart helps.
        """
        with self._lock:
            if isinstance(self._write_dead, Unrecoverable):
                raise _again(self._write_dead)
            self._require_space()
            expected = self._sequence
            self._close()
            self._open()
            self._take_stock()
            if self._sequence < expected:
                self._write_dead = Unrecoverable(
                    f"{self.path} came back from a full disk with {self._sequence} batches, "
                    f"expected at least {expected}"
                )
                raise _again(self._write_dead)
            self._write_dead = None
            self._space_error = None

    def close(self) -> None:
        """Release every handle and the LOCK. Idempotent.

        RocksDB writes its memtables out as tables if it can, so that the next opening is quick. It
        does not report whether it could: sync before what must be durable.
        """
        with self._lock:
            self._close()

    # --- inside ---

    def _require_space(self) -> None:
        """Raise `Recoverable` unless there is space to reopen. Call it before closing.

        Opening writes the logs' contents out as tables.
        """
        disk = os.statvfs(self.path)
        free, needed = disk.f_bavail * disk.f_frsize, self.wal_bytes() + REOPEN_BYTES
        if free < needed:
            raise Recoverable(f"{NO_SPACE}: {free} bytes free, expected {needed} to open again")
        probe = self.path / "probe"
        try:  # a quota shows only in a write
            probe.write_bytes(bytes(PROBE_BYTES))
        except OSError as error:
            raise self._failure("probing", error) from None
        finally:
            probe.unlink(missing_ok=True)

    # No method that may raise keeps a rocksdict object in a local variable: a kept exception holds
    # its traceback, which holds the local variables, which keep the database open.

    def _open_database(self) -> Rdict:
        if self._database is None:
            raise self._closed_or_dead()
        return self._database

    def _closed_or_dead(self) -> StorageError:
        return _again(self._write_dead or Unrecoverable(f"{self.path} is closed"))

    def _open(self) -> None:
        """Open the database with its families and the required ones. The caller holds the lock."""
        try:
            exists = (self.path / "CURRENT").exists()
            place = str(self._place_to_open())
            if not self.read_only:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            options, self._family_options = self._load_options()
            if self.read_only:
                options.set_max_open_files(self._open_files_max())
            names = set(Rdict.list_cf(place, options) if exists else ())
            names.add(DEFAULT)
            if not self.read_only:
                names.update(self._required)
            access = AccessType.read_only(False) if self.read_only else AccessType.read_write()
            database = Rdict(place, options, {name: self._family_options for name in names}, access)
        except Exception as error:
            failure = self._failure("opening", error)
            self._remove_links()
            if isinstance(failure, Recoverable):
                self._write_dead = failure
            raise failure from None
        names.discard(DEFAULT)
        self._required = set()  # reopening must not create families that were dropped since
        self._database = database
        self._tables = {name: database.get_column_family(name) for name in sorted(names)}
        self._handles = {name: database.get_column_family_handle(name) for name in names}
        self._keeps_prefix = False  # at the next opening: what this one gave up is gone

    def _take_stock(self) -> None:
        """Note what the database holds that was just opened: all of it is durable."""
        try:
            value = self._open_database().get(SEQUENCE_KEY) or b""
        except Exception as error:
            failure = self._failure("reading", error)
            self._close()
            raise failure from None
        if value:
            try:
                self._sequence = decode_number(value).sequence
            except ValueError as error:
                self._close()
                raise CorruptRecord(f"{self.path}: {error}") from None
        self.is_numbered_by_older = len(value) == 8
        self._synced = Synced(self._sequence)
        if not self.read_only:
            self._newest_log.forget()
            log, _ = self._newest_log.end() or (0, 0)
            self._synced = Synced(self._sequence, log, log, 0)

    def _place_to_open(self) -> Path:
        """Return the directory for rocksdict to open: ours, or one with links to all its files.

        rocksdict always writes its configuration file into the directory it opens, even unchanged.
        A tool may lack the permission, or the file system may be mounted read-only.
        """
        config = self.path / CONFIG_FILE
        written = config if config.exists() else self.path
        if not self.read_only or os.access(written, os.W_OK):
            return self.path
        self._links = tempfile.TemporaryDirectory(prefix="holdfast-")
        links = Path(self._links.name)
        for file in self.path.absolute().iterdir():
            if file.is_file() and file.name != CONFIG_FILE:
                (links / file.name).symlink_to(file)
        return links

    def _open_files_max(self) -> int:
        """Return how many files a tool keeps open: all of them if the system lets it, which is -1.

        The broker may delete a table that the tool has not opened yet.
        """
        needed = sum(1 for _ in self.path.glob(f"*{TABLE_SUFFIX}")) + SPARE_FILES
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < needed:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return -1 if soft >= needed else limits.OPEN_FILES_MAX

    def _load_options(self) -> tuple[Options, Options]:
        """Return the options of the database and of a family, loaded from the options text."""
        if self.read_only:  # a tool may lack the permission to write there
            with tempfile.TemporaryDirectory() as directory:
                return self._load_options_in(Path(directory))
        return self._load_options_in(self.path / "bootstrap")

    def _load_options_in(self, directory: Path) -> tuple[Options, Options]:
        directory.mkdir(mode=0o700, exist_ok=True)
        write_options(directory, keeps_prefix=self._keeps_prefix)
        options, families = Options.load_latest(str(directory), cache=self._cache)
        family_options = families[DEFAULT]
        if (self.path / DAMAGE_FILE).exists():
            self._is_compacted = False
            family_options.set_disable_auto_compactions(True)
        family_options.add_compact_on_deletion_collector_factory(TOMBSTONE_WINDOW, TOMBSTONES, 0.0)
        return options, family_options

    def _close(self) -> None:
        """Drop every rocksdict object, the database last. The caller holds the lock.

        rocksdict's own `close` is not used: after a failed write it fails and leaves the database
        open. Dropping does the same work and always closes.
        """
        if self._direct is not None:
            self._direct.forget()
        self._handles.clear()
        self._tables.clear()
        self._database = None
        gc.collect()  # an iterator or a batch in a cycle would keep the database and its LOCK
        self._remove_links()

    def _remove_links(self) -> None:
        if self._links is not None:
            self._links.cleanup()
            self._links = None

    def _read_failure(self, error: Exception, family: str, key: bytes) -> StorageError:
        """Return the error for a failed read: `DamagedRows` if others may succeed."""
        failure = self._failure("reading", error)
        text = " ".join(str(error).split())
        if isinstance(failure, Unrecoverable) and (text.startswith(DAMAGED) or is_unread(text)):
            return DamagedRows(f"family {family}: {text}", family, key)
        return failure

    def _stop_compaction(self) -> None:
        """Compact nothing from now on, at the next starts neither: a table is damaged."""
        if not self._is_compacted or self.read_only or self._database is None:
            return
        self._is_compacted = False
        self._family_options.set_disable_auto_compactions(True)  # of families to come
        with contextlib.suppress(OSError):  # then the next start finds the damage again
            (self.path / DAMAGE_FILE).touch(mode=0o600)
        with contextlib.suppress(Exception):  # refused after a failed write: the file counts
            for family in self._tables:
                self._tables[family].set_options({"disable_auto_compactions": "true"})

    def _seek(self, family: str, key: bytes) -> Row | None:
        """Return the first row at or after `key`, None if there is none."""
        rows = self.scan_blindly(family, key, count=1)
        return rows[0] if rows else None

    def _write_failure(self, doing: str, error: Exception) -> StorageError:
        """Return the error for a failed write; remember it if no later write can succeed."""
        failure = self._failure(doing, error)
        text = str(error)
        if PREVIOUS_ERROR in text and self._space_error is not None:
            failure = self._write_dead = self._space_error
        elif isinstance(failure, Unrecoverable):
            self._write_dead = failure
        elif isinstance(failure, Recoverable) and NO_SPACE in text:
            self._space_error = failure
            if LOG_FILE.search(text):
                self._write_dead = failure
        return failure

    def _failure(self, doing: str, error: Exception) -> StorageError:
        """Return the storage error for an exception of rocksdict, chosen by its text."""
        if isinstance(error, KeyError) and self._database is None:
            return self._closed_or_dead()
        if isinstance(error, (StorageError, KeyError, TypeError)):
            raise error  # ours, or the caller's mistake: an unknown family, a key not of bytes
        text = str(error)
        if (text.startswith(DAMAGED) and TABLE_SUFFIX in text) or is_unread(text):
            self._stop_compaction()
        message = f"{doing} {self.path} failed: {text}"
        if "lock hold by current process" in text or (
            "While lock file" in text and "temporarily unavailable" in text
        ):
            return StoreBusy(f"{self.path} is in use by another process")
        if text.startswith(WRITE_STALL):
            return WriteStalled(message)
        if NO_SPACE in text:
            return Recoverable(message)
        return Unrecoverable(message)


def is_unread(text: str) -> bool:
    """Is this text of RocksDB about a place in a table that the disk does not read?"""
    return TABLE_SUFFIX in text and "pread" in text and text.endswith(UNREADABLE)


def rebuild_lists(path: Path) -> None:
    """Make the MANIFEST of the database in `path` anew, from the table files that can be read.

    RocksDB writes the logs out as tables and moves away what it cannot read, so `path` must be a
    copy, its logs too; its tables may be symbolic links. Rows deleted lately may come back. Raises
    `Unrecoverable` when it fails, `Recoverable` when there is no space.
    """
    write_options(path, keeps_prefix=True)
    options, _ = Options.load_latest(str(path))
    try:
        Rdict.repair(str(path), options)
    except Exception as error:
        kind = Recoverable if NO_SPACE in str(error) else Unrecoverable
        raise kind(f"listing the tables of {path} failed: {error}") from None
    write_options(path, keeps_prefix=False)


def _again(error: StorageError) -> StorageError:
    """Return a copy of `error`: raising the same object repeatedly grows its traceback."""
    return type(error)(*error.args)
