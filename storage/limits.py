"""Memory and disk limits of the store.

Read next: `storage.local.rocks`, `storage.local.disk_space`.
"""

from typing import Final

MIB: Final = 1024 * 1024

# Measured, 1 GB written to six families: 46 MiB resident while writing, 68 MiB after a full scan.
CACHE_BYTES: Final = 32 * MIB  # blocks, indexes and filters of all families
WRITE_BUFFER_BYTES: Final = 32 * MIB  # all memtables together
MEMTABLE_BYTES: Final = 8 * MIB  # one memtable
# Without a limit one idle family keeps every write-ahead log: 979 MiB of log for 1 GB written.
WAL_BYTES_MAX: Final = 64 * MIB
OPEN_FILES_MAX: Final = 256

# Disk space that RocksDB may still need after the broker stopped accepting messages: every memtable
# flushed while its compaction keeps the old files, and a full write-ahead log.
RESERVE_BYTES: Final = 2 * WRITE_BUFFER_BYTES + WAL_BYTES_MAX
