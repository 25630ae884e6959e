"""The tail: the records that a node keeps itself, in files that are only appended to.

A leader may release a batch only when it is synced here too. The owner appends and never waits for
the disk; `sync_begin`, `sync_run` and `sync_end` may be called by another thread. After a crash the
tail ends behind the last record that is whole, if none is missing that was once synced: each record
says how far the tail was synced when it was written, and the file `synced` says it now and then.
What was synced and cannot be read is told, never passed over. Read next:
`storage.replicated.tail_syncer`, `storage.replicated.replica`.

Files are named after their first record. Layout, big-endian: a file begins with magic (8), index of
its first record (8), index of the last record of the file before (8, 0 = there was none), CRC-32 of
these (4). For each record: magic (4), length of its bytes (4), index (8), the greatest index that
was synced when it was written (8), CRC-32 of these three and the bytes (4), the bytes. Zeros follow
up to the end of the file: it grows in large steps, because a sync is several times cheaper while
the size stays. Indexes grow, and may leave some out.
"""

import errno
import os
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from storage.errors import Recoverable, StorageError, Unrecoverable
from storage.local.slot_file import Slots, sync_directory

SEGMENT_BYTES: Final = 16 << 20
GROWTH_BYTES: Final = 4 << 20
READ_BYTES: Final = 1 << 20

SEGMENT_MAGIC: Final = b"HFTAIL01"
SEGMENT_HEAD: Final = struct.Struct(">8sQQ")
RECORD_MAGIC: Final = b"HFtr"
RECORD_HEAD: Final = struct.Struct(">4sIQQ")
CRC: Final = struct.Struct(">I")
SEGMENT_START: Final = SEGMENT_HEAD.size + CRC.size
RECORD_START: Final = RECORD_HEAD.size + CRC.size
SEGMENT_NAME: Final = re.compile(r"(\d{20})\.records")

MARK_FILE: Final = "synced"
MARK: Final = struct.Struct(">8sQ")
MARK_MAGIC: Final = b"HFTAILS1"

NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
NO_GROWTH: Final = frozenset((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS))


class Frame(NamedTuple):
    """A record in the bytes of a file, which begin with its place there."""

    begin: int
    end: int
    number: int  # the index of the record
    synced: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of the tail."""

    path: Path
    first: int  # index of its first record
    before: int  # index of the last record of the file before, 0 = there was none


@dataclass(slots=True)
class Sync:
    """What one sync covers: the thread that runs it owns the descriptors."""

    index: int  # the greatest index; less after `drop_from`
    files: list[int]
    has_new_names: bool


@dataclass(slots=True)
class Walk:
    """What was found in the bytes of a file."""

    frames: list[Frame] = field(default_factory=list)
    end: int = SEGMENT_START
    problem: str = ""  # why there is no record at `end`; "" = only zeros follow


def encode_segment_head(first: int, before: int) -> bytes:
    """Return how a file begins."""
    head = SEGMENT_HEAD.pack(SEGMENT_MAGIC, first, before)
    return head + CRC.pack(zlib.crc32(head))


def encode_record_head(index: int, synced: int, data: bytes) -> bytes:
    """Return what is before the bytes of a record."""
    head = RECORD_HEAD.pack(RECORD_MAGIC, len(data), index, synced)
    return head + CRC.pack(zlib.crc32(data, zlib.crc32(head[len(RECORD_MAGIC) :])))


def decode_segment_head(data: bytes) -> tuple[int, int] | None:
    """Return (first, before) as `encode_segment_head` wrote them, None if they are not whole."""
    if len(data) < SEGMENT_START:
        return None
    magic, first, before = SEGMENT_HEAD.unpack_from(data)
    if magic != SEGMENT_MAGIC or (
        CRC.unpack_from(data, SEGMENT_HEAD.size)[0] != zlib.crc32(data[: SEGMENT_HEAD.size])
    ):
        return None
    return first, before


def decode_record(data: bytes, at: int) -> Frame | str:
    """Return the record at byte `at` of a file, or what is wrong with it."""
    begin = at + RECORD_START
    if begin > len(data):
        return "the file ends within a record"
    magic, length, index, synced = RECORD_HEAD.unpack_from(data, at)
    if magic != RECORD_MAGIC:
        return f"begins with {magic!r}, expected {RECORD_MAGIC!r}"
    end = begin + length
    if end > len(data):
        return f"a record of {length} bytes, of which the file has {len(data) - begin}"
    view = memoryview(data)
    head = view[at + len(RECORD_MAGIC) : at + RECORD_HEAD.size]
    if CRC.unpack_from(data, at + RECORD_HEAD.size)[0] != zlib.crc32(
        view[begin:end], zlib.crc32(head)
    ):
        return "wrong checksum"
    return Frame(begin, end, index, synced)


def walk(data: bytes) -> Walk:
    """Return the records of a file, and where they end."""
    found = Walk()
    last = 0
    while found.end < len(data):
        frame = decode_record(data, found.end)
        if isinstance(frame, str):
            if data.count(0, found.end) < len(data) - found.end:
                found.problem = frame
            return found
        if frame.number <= last:
            found.problem = f"record {frame.number} behind record {last}"
            return found
        last = frame.number
        found.frames.append(frame)
        found.end = frame.end
    return found


def proof_behind(data: bytes, at: int) -> int:
    """Return up to which index the tail was synced, as records from byte `at` on say."""
    proof = 0
    while (at := data.find(RECORD_MAGIC, at)) >= 0:
        frame = decode_record(data, at)
        if isinstance(frame, str):
            at += 1
        else:
            proof = max(proof, frame.synced)
            at = frame.end
    return proof


class Tail:
    """The tail in one directory.

    One thread owns it. Another one may call `sync_begin`, `sync_run`, `sync_end` and `mark`. After
    a failed write, sync or drop nothing is done any more, and nothing is reported synced.
    """

    def __init__(self, directory: str | Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Open or create it; all that it has is synced then.

        Raises `Recoverable` when there is no space for that, `Unrecoverable` when the disk is
        failing or a record is gone that was once synced.
        """
        self.directory: Final = Path(directory)
        self.failure: StorageError | None = None
        self._segment_bytes: Final = segment_bytes
        self._segments: list[Segment] = []
        self._file = -1  # the last segment
        self._end = 0  # where its records end
        self._size = 0  # of the file
        self._grows_ahead = True
        self._drops = 0
        # What both threads use is changed only with the lock.
        self._lock: Final = threading.Lock()
        self._last = 0
        self._synced = 0
        self._is_dirty = False
        self._has_new_names = False
        self._retired: list[int] = []  # descriptors of segments that are full and not synced
        self._syncs: list[Sync] = []  # in flight
        self._mark_lock: Final = threading.Lock()  # held while the mark is written
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_directory(self.directory.parent)
            self._slots: Final = Slots(self.directory / MARK_FILE, MARK, MARK_MAGIC)
        except OSError as error:
            raise _failure(self.directory, error) from error
        try:
            if self._slots.unread:
                raise Unrecoverable(f"{self._slots.path}: cannot be read: {self._slots.unread}")
            self._marked: int = (self._slots.numbers or (0,))[0]
            self._recover()
        except OSError as error:
            self.close()
            raise _failure(self.directory, error) from error
        except StorageError:
            self.close()
            raise

    @property
    def last(self) -> int:
        """Return the index of the last record, 0 = there is none."""
        return self._last

    @property
    def synced(self) -> int:
        """Return the index up to which it is synced. To be asked by the owner."""
        return self._synced

    # --- the owner ---

    def append(self, index: int, data: bytes) -> None:
        """Keep a record. It replaces one of this index, and all behind it.

        Raises `Recoverable` when there is no space, then nothing has changed but what is replaced;
        `Unrecoverable` when the disk is failing.
        """
        self._check()
        if index <= self._last:
            self.drop_from(index)
        size = RECORD_START + len(data)
        is_full = self._end + size > self._segment_bytes and self._end > SEGMENT_START
        if self._file < 0 or is_full:
            self._begin_segment(index)
        try:
            self._grow(size)
            pieces = encode_record_head(index, self._synced, data) + data
            written = 0
            while written < size:
                written += os.pwrite(self._file, pieces[written:], self._end + written)
        except OSError as error:
            raise self._refusal(error) from error
        with self._lock:
            self._end += size
            self._last = index
            self._is_dirty = True

    def drop_from(self, index: int) -> None:
        """Forget the records from `index` on. Durable on return. Raises `Unrecoverable`."""
        self._check()
        if index > self._last:
            return
        self._drops += 1
        try:
            kept, last, end = self._before(index)
            with self._mark_lock:
                with self._lock:
                    self._last = last
                    self._synced = min(self._synced, last)
                    for sync in self._syncs:
                        sync.index = min(sync.index, last)
                # First the mark: the records behind it may go then.
                self._lower_mark(last)
            self._cut(kept, end)
        except OSError as error:
            raise self._die(error) from error

    def truncate_before(self, index: int) -> None:
        """Delete the files that have no record from `index` on. Raises `Unrecoverable`."""
        self._check()
        is_changed = False
        try:
            while len(self._segments) > 1 and self._segments[1].before < index:
                self._segments[0].path.unlink()
                del self._segments[0]
                is_changed = True
            if is_changed:
                sync_directory(self.directory)
        except OSError as error:
            raise self._die(error) from error

    def read_from(self, index: int) -> Iterator[tuple[int, bytes]]:
        """Yield (index, bytes) of the records from `index` on that are still kept.

        Files may be deleted meanwhile by `truncate_before`, but nothing may be dropped. Raises
        `Unrecoverable` at what cannot be read any more.
        """
        drops = self._drops
        segments = self._segments[self._segment_of(index) :]
        last = 0
        for segment in segments:
            try:
                data = _read(segment.path)
            except FileNotFoundError:
                if segment in self._segments:
                    raise Unrecoverable(f"{segment.path}: is missing") from None
                last = 0
                continue
            if decode_segment_head(data) != (segment.first, segment.before):
                raise Unrecoverable(f"{segment.path}: byte 0: it was synced and is damaged")
            if last not in (0, segment.before):
                raise Unrecoverable(
                    f"{segment.path}: byte 0: expected record {segment.before} in the file before, "
                    f"which ends with {last}"
                )
            found = walk(data)
            for begin, end, number, _ in found.frames:
                last = number
                if number >= index:
                    yield number, data[begin:end]
                    assert drops == self._drops, "records were dropped while they were read"
            if found.problem:
                raise Unrecoverable(
                    f"{segment.path}: byte {found.end}: record behind {last}: {found.problem}"
                )

    def close(self) -> None:
        """Close the files. Syncs nothing. Idempotent."""
        with self._lock:
            for file in (*self._retired, self._file):
                if file >= 0:
                    os.close(file)
            self._retired.clear()
            self._file = -1
        self._slots.close()
        self.failure = self.failure or Unrecoverable(f"{self.directory} is closed")

    # --- syncing, on any one thread ---

    def sync_begin(self) -> Sync | None:
        """Return a sync that covers all that was appended, None if all is synced."""
        self._check()
        with self._lock:
            if not self._is_dirty:
                return None
            files, self._retired = self._retired, []
            try:
                if self._file >= 0:
                    files.append(os.dup(self._file))
            except OSError as error:
                self._retired = files
                raise self._die(error) from error
            sync = Sync(self._last, files, self._has_new_names)
            self._syncs.append(sync)
            self._is_dirty = self._has_new_names = False
            return sync

    def sync_run(self, sync: Sync) -> None:
        """Wait for the disk. Raises `Unrecoverable`; then nothing is ever reported synced."""
        try:
            for file in sync.files:
                os.fdatasync(file)
            if sync.has_new_names:
                sync_directory(self.directory)
        except OSError as error:
            raise self._die(error) from error
        finally:
            for file in sync.files:
                os.close(file)
            sync.files.clear()

    def sync_end(self, sync: Sync) -> int:
        """Take a sync that has run; return the index up to which the tail is synced."""
        self._check()
        with self._lock:
            self._syncs.remove(sync)
            self._synced = max(self._synced, sync.index)
            return self._synced

    def sync(self) -> int:
        """Sync all that was appended; return its last index."""
        sync = self.sync_begin()
        if sync is not None:
            self.sync_run(sync)
            self.sync_end(sync)
        return self._synced

    @property
    def is_marked(self) -> bool:
        """Return whether the mark says how far the tail is synced."""
        return self._marked == self._synced

    def mark(self) -> None:
        """Write down how far the tail is synced. Syncs. Raises `Unrecoverable`.

        A crash before it may hide that the last records were synced.
        """
        self._check()
        with self._mark_lock:
            index = self._synced
            if index == self._marked:
                return
            try:
                self._slots.write(index)
            except OSError as error:
                if error.errno in NO_ROOM:
                    return  # this file system needs space even for this
                raise self._die(error) from error
            self._marked = index

    # --- inside ---

    def _check(self) -> None:
        if self.failure is not None:
            raise type(self.failure)(str(self.failure))

    def _die(self, error: OSError) -> StorageError:
        """Do nothing any more; return why."""
        path = self._segments[-1].path if self._segments else self.directory
        failure = Unrecoverable(f"{error.filename or path}: {error.strerror}")
        self.failure = self.failure or failure
        return failure

    def _refusal(self, error: OSError) -> StorageError:
        """Return the error for a failed append; after a full disk all is as before."""
        if error.errno not in NO_ROOM:
            return self._die(error)
        try:
            os.ftruncate(self._file, self._end)
        except OSError as another:
            return self._die(another)
        self._size = self._end
        return Recoverable(f"{self._segments[-1].path}: {error.strerror}")

    def _grow(self, size: int) -> None:
        """Make the file large enough for `size` bytes more, and for what comes then."""
        if self._end + size <= self._size or not self._grows_ahead:
            return
        length = max(min(GROWTH_BYTES, self._segment_bytes), self._end + size - self._size)
        try:
            os.posix_fallocate(self._file, self._size, length)
        except OSError as error:
            if error.errno not in NO_GROWTH:
                raise
            self._grows_ahead = False
        else:
            self._size += length

    def _begin_segment(self, index: int) -> None:
        """Append to a new file from now on. Raises `Recoverable` when there is no space."""
        path = self.directory / f"{index:020d}.records"
        file = -1
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            os.pwrite(file, encode_segment_head(index, self._last), 0)
            if self._file >= 0:
                os.ftruncate(self._file, self._end)
        except OSError as error:
            if file >= 0:
                os.close(file)
                path.unlink(missing_ok=True)
            if error.errno in NO_ROOM:
                raise Recoverable(f"{path}: {error.strerror}") from error
            raise self._die(error) from error
        with self._lock:
            if self._file >= 0:
                self._retired.append(self._file)
            self._file = file
            self._end = self._size = SEGMENT_START
            self._has_new_names = self._is_dirty = True
        self._segments.append(Segment(path, index, self._last))

    def _segment_of(self, index: int) -> int:
        """Return the place in the list of the segment that has `index`, or would have it."""
        place = 0
        for number, segment in enumerate(self._segments):
            if segment.first <= index:
                place = number
        return place

    def _before(self, index: int) -> tuple[int, int, int]:
        """Return how many files have records before `index`, the last one, and where it ends."""
        for kept in range(len(self._segments), 0, -1):
            segment = self._segments[kept - 1]
            if segment.first < index:
                frames = [each for each in walk(_read(segment.path)).frames if each.number < index]
                if frames:
                    return kept, frames[-1].number, frames[-1].end
        return 0, 0, 0

    def _lower_mark(self, index: int) -> None:
        if self._marked > index:
            self._slots.write(index)
            self._marked = index

    def _cut(self, kept: int, end: int) -> None:
        """Keep the first `kept` files, the last one up to byte `end`. Raises `OSError`."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
        while len(self._segments) > kept:
            self._segments.pop().path.unlink()  # the newest first
        sync_directory(self.directory)
        if self._segments:
            self._continue(self._segments[-1], end)

    def _continue(self, segment: Segment, end: int) -> None:
        """Append to `segment` from now on, behind byte `end`; what is there is gone, durably."""
        file = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
        with self._lock:
            self._file = file
            self._end = self._size = end
        os.ftruncate(file, end)
        os.fsync(file)

    # --- opening ---

    def _recover(self) -> None:
        """Find the end of the tail, and sync what it has."""
        self._find_segments()
        begin = self._segment_of(self._marked)
        contents: list[bytes] = []
        walks: list[Walk] = []
        durable = self._marked
        last = self._segments[begin].before if self._segments else 0
        bad: tuple[Path, int, str] | None = None
        for number in range(begin, len(self._segments)):
            segment = self._segments[number]
            data = _read(segment.path)
            problem = "" if bad else self._problem(segment, data, last)
            if bad or problem:
                bad = bad or (segment.path, 0, problem)
                durable = max(durable, proof_behind(data, 0))
                continue
            found = walk(data)
            if not found.frames:
                found.problem = found.problem or "no record"
            else:
                last = found.frames[-1].number
                contents.append(data)
                walks.append(found)
            if found.problem:
                bad = (segment.path, found.end, found.problem)
                durable = max(durable, proof_behind(data, found.end))
            elif number == len(self._segments) - 1 and last < durable:
                bad = (segment.path, found.end, "the records end")
        if last < durable:
            path, place, problem = bad or (self.directory, 0, "no file with records")
            raise Unrecoverable(
                f"{path}: byte {place}: {problem}; the tail was synced up to record {durable}, "
                f"and record {last} is the last before this place"
            )
        kept = begin + len(walks)
        if kept == 0:  # what the mark tells of was deleted on purpose
            last = 0
            self._lower_mark(last)
        while len(self._segments) > kept:
            self._segments.pop().path.unlink()  # the newest first
        self._rewrite(begin, contents, walks)
        sync_directory(self.directory)
        self._last = self._synced = last
        self.mark()

    def _find_segments(self) -> None:
        """Load the list of files."""
        for path in sorted(self.directory.iterdir()):
            named = SEGMENT_NAME.fullmatch(path.name)
            if named:
                head = decode_segment_head(_read(path, SEGMENT_START))
                first = int(named[1])
                before = head[1] if head else max(first - 1, 0)  # more it cannot be
                self._segments.append(Segment(path, first, before))

    @staticmethod
    def _problem(segment: Segment, data: bytes, last: int) -> str:
        """Return what is wrong with the beginning of a file behind record `last`, "" = nothing."""
        head = decode_segment_head(data)
        if head is None or head[0] != segment.first:
            return "the file does not begin as one of the tail"
        if head[1] != last:
            return f"the file before ends with record {last}, expected {head[1]}"
        return ""

    def _rewrite(self, begin: int, contents: list[bytes], walks: list[Walk]) -> None:
        """Write what the mark does not cover once more, and sync it.

        A sync may have failed before: then the kernel takes pages for written that are not.
        """
        for segment, data, found in zip(self._segments[begin:], contents, walks, strict=True):
            place = SEGMENT_START
            for frame in found.frames:
                if frame.number <= self._marked:
                    place = frame.end
            self._continue(segment, found.end)
            if place == SEGMENT_START:
                place = 0
            if place < found.end:
                os.pwrite(self._file, data[place : found.end], place)
            os.fsync(self._file)
            if segment is not self._segments[-1]:
                os.close(self._file)
                self._file = -1


def _read(path: Path, size: int = -1) -> bytes:
    """Return the bytes of a file. Raises `FileNotFoundError`, and `Unrecoverable` with the byte."""
    pieces: list[bytes] = []
    place = 0
    with open(path, "rb", buffering=0) as file:
        while size < 0 or place < size:
            try:
                piece = os.pread(file.fileno(), READ_BYTES if size < 0 else size - place, place)
            except OSError as error:
                raise Unrecoverable(f"{path}: byte {place}: {error.strerror}") from error
            if not piece:
                break
            pieces.append(piece)
            place += len(piece)
    return b"".join(pieces)


def _failure(path: Path, error: OSError) -> StorageError:
    kind = Recoverable if error.errno in NO_ROOM else Unrecoverable
    return kind(f"{error.filename or path}: {error.strerror}")
