"""The files of a database that Holdfast itself names, reads or writes: its logs and its options.

RocksDB does not tell where its newest log ends, nor how much of its MANIFEST is on the disk. The
watermark needs both, so they are looked up in the directory. Must never change a file of RocksDB.
Read next: `storage.local.rocks`, which opens the database; `storage.local.watermark`.
"""

import errno
import os
import re
from pathlib import Path
from typing import Final

from storage import limits
from storage.local.slot_file import sync_directory

# rocksdict has no setter for some of these (track_and_verify_wals_in_manifest,
# memtable_protection_bytes_per_key), but reads RocksDB's options file. So all options are written
# in the form of that file and loaded from it. Options not named have RocksDB's default. Those that
# matter for durability:
# - kTolerateCorruptedTailRecords: a crash leaves a torn tail, which is accepted; a flipped bit
#   before it makes opening fail. The default (point in time) would silently drop what follows.
# - track_and_verify_wals_in_manifest: a log that is missing or short makes opening fail.
# - avoid_flush_during_recovery stays false: un-synced log contents become a synced table at open,
#   so that no power cut can take back what a restarted broker has read.
# - memtable_protection: a bit flipped in memory is detected before it reaches the disk.
# Stopped writes are an error here (`no_slowdown`), so the slow-down mark is close to the stop mark.
OPTIONS: Final = f"""\
[Version]
  rocksdb_version=9.8.4
  options_file_version=1.1
[DBOptions]
  create_if_missing=true
  create_missing_column_families=true
  wal_recovery_mode=kTolerateCorruptedTailRecords
  track_and_verify_wals_in_manifest=true
  avoid_flush_during_recovery=false
  paranoid_checks=true
  max_total_wal_size={limits.WAL_BYTES_MAX}
  db_write_buffer_size={limits.WRITE_BUFFER_BYTES}
  max_open_files={limits.OPEN_FILES_MAX}
  max_background_jobs=3
  bytes_per_sync=1048576
  max_manifest_file_size=16777216
  keep_log_file_num=4
  max_log_file_size=4194304
  stats_dump_period_sec=0
  stats_persist_period_sec=0
[CFOptions "default"]
  write_buffer_size={limits.MEMTABLE_BYTES}
  max_write_buffer_number=4
  memtable_protection_bytes_per_key=8
  level0_file_num_compaction_trigger=4
  level0_slowdown_writes_trigger=40
  level0_stop_writes_trigger=48
  max_bytes_for_level_base=67108864
  target_file_size_base=33554432
  compression=kLZ4Compression
  force_consistency_checks=true
  table_factory=BlockBasedTable
[TableOptions/BlockBasedTable "default"]
  format_version=6
  filter_policy=bloomfilter:10:false
  cache_index_and_filter_blocks=true
  pin_l0_filter_and_index_blocks_in_cache=true
"""
# To keep the batches before a place at which a log stops being whole, and none behind it. A log
# that is missing or short before the live one is still refused: newer batches are already in
# tables, so the result would have a hole and be a state the broker was never in.
PREFIX_OPTIONS: Final = OPTIONS.replace(
    "wal_recovery_mode=kTolerateCorruptedTailRecords", "wal_recovery_mode=kPointInTimeRecovery"
)
# Without this file rocksdict would load the options in pickling mode.
CONFIG_FILE: Final = "rocksdict-config.json"
BOOTSTRAP: Final = "OPTIONS-000001"
RAW_MODE: Final = '{"raw_mode":true,"prefix_extractors":{}}'

WAL_SUFFIX: Final = ".log"
LOG_NAME: Final = re.compile(r"(\d+)\.log")
MANIFEST_NAME: Final = re.compile(r"MANIFEST-(\d+)\n?")
# The process, or the system, has too many open files.
NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)


class NewestLog:
    """Finds the newest write-ahead log of a database that is open."""

    def __init__(self, database: Path) -> None:
        self._database: Final = database
        self._directory: Final = str(database)
        self._listed_ns = -1  # when the directory changed before `_file` was looked up in it
        self._file = ""
        self._number = 0

    def forget(self) -> None:
        """Look the log up again: the database was opened."""
        self._listed_ns = -1

    def end(self) -> tuple[int, int] | None:
        """Return the number and the length of the newest log.

        Every byte of it, and of the logs before it, was written before this call. None while the
        process has no free file descriptor to look. Raises `OSError`.
        """
        # Of plain strings: a `Path` takes longer than the calls.
        listed_ns = os.stat(self._directory).st_mtime_ns
        while True:
            if listed_ns != self._listed_ns:
                try:
                    self._number = log_numbers(self._database)[-1]
                except OSError as error:
                    if error.errno not in NO_DESCRIPTOR:
                        raise
                    return None
                self._file = f"{self._directory}/{log_name(self._number)}"
                self._listed_ns = listed_ns
            try:
                return self._number, os.stat(self._file).st_size
            except FileNotFoundError:  # deleted meanwhile, so there is a newer one
                self._listed_ns = -1


class ManifestSync:
    """Syncs the MANIFEST of a database, so that its length may be told to the watermark."""

    def __init__(self, database: Path) -> None:
        self._database: Final = database
        self._synced = (0, 0)

    def sync(self) -> tuple[int, int]:
        """Return the number and the length that are durable, after a sync if it has grown.

        While the process has no free file descriptor, those of before. Raises `OSError`.
        """
        try:
            self._sync()
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                raise
        return self._synced

    def _sync(self) -> None:
        number = current_manifest(self._database)
        try:
            file = os.open(self._database / manifest_name(number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # replaced meanwhile: next time
            return
        try:
            found = (number, os.fstat(file).st_size)
            if found != self._synced:
                os.fdatasync(file)
                if os.fstat(file).st_size != found[1]:
                    return  # written meanwhile: the length may be within a record
            if number != self._synced[0]:
                # Or else a power cut could bring back the CURRENT that names the one before.
                sync_directory(self._database)
        finally:
            os.close(file)
        self._synced = found


def write_options(directory: Path, *, keeps_prefix: bool) -> None:
    """Write the files that rocksdict loads the options from, and remove all others like them.

    `keeps_prefix` is for a database whose log is damaged.
    """
    text = PREFIX_OPTIONS if keeps_prefix else OPTIONS
    # Written only when it differs, so that a full disk does not keep a broker from starting.
    for name, wanted in ((BOOTSTRAP, text), (CONFIG_FILE, RAW_MODE)):
        file = directory / name
        if not file.exists() or file.read_bytes() != wanted.encode():
            file.write_bytes(wanted.encode())
    for file in directory.glob("OPTIONS-*"):  # rocksdict takes the one with the greatest number
        if file.name != BOOTSTRAP:
            file.unlink()


def log_name(number: int) -> str:
    """Return the name of a write-ahead log."""
    return f"{number:06}.log"


def manifest_name(number: int) -> str:
    """Return the name of a MANIFEST."""
    return f"MANIFEST-{number:06}"


def log_numbers(path: Path) -> list[int]:
    """Return the numbers of all write-ahead logs in a database, oldest first."""
    return sorted(int(name[1]) for file in os.listdir(path) if (name := LOG_NAME.fullmatch(file)))


def current_manifest(path: Path) -> int:
    """Return the number of the MANIFEST that CURRENT names, 0 if it names none.

    Raises `OSError` when there is no CURRENT.
    """
    name = MANIFEST_NAME.fullmatch((path / "CURRENT").read_text("latin-1"))
    return int(name[1]) if name else 0
