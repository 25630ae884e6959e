"""The witness: what a history must hold, in a small file that may lie on another volume.

A disk that lies may lose the end of the database and of the exported segments; then both agree, and
a chain whose end is cut off, or that was written anew, is a chain. So a running broker writes down
now and then, for each of its last starts: an event up to which its history was durable in the
database, and where the newest segment ended, with the head of the chain there. The file may be
behind by that time, but never ahead. It accuses nobody of what it does not know.

Two slots of one page each, written in turn and synced: a torn write leaves the other one. A slot
is: magic, write count, length and CRC32 of what follows, then JSON. Read next:
`broker.history.witness_thread`, which writes it, `storage.history.chain`.
"""

import errno
import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from storage.history.chain import NONE, Piece, Place

SLOT_BYTES: Final = 4096
HEAD: Final = struct.Struct(">8sQII")  # magic, write count, length, crc32 of count and JSON
MAGIC: Final = b"HFWITN01"
MARKS_MAX: Final = 20  # the last starts: all of them fit into a slot
EVENT_MAX: Final = 1 << 63


class WitnessError(Exception):
    """A witness cannot be read or written; the text is one line that names the file."""


@dataclass(frozen=True)
class Mark:
    """What is known of one start of the broker."""

    boot: int
    seq: int  # this event, and all before it, were durable in the database
    exported: int = 0  # the last event of the newest segment, 0 = there was none
    head: str = NONE  # of the chain there
    at_ms: int = 0  # broker time when it was written


@dataclass(frozen=True)
class Witness:
    """The contents of a file: the last starts of one node, the newest last."""

    place: str
    node: str
    marks: tuple[Mark, ...] = ()

    @property
    def newest(self) -> Mark | None:
        """Return the mark of the last start."""
        return self.marks[-1] if self.marks else None


@dataclass(frozen=True)
class Difference:
    """Events that a witness knows, and what is wrong with them."""

    boot: int
    from_seq: int
    to_seq: int
    what: str
    is_proven: bool = True  # False: they may still be in the database, or it cannot be compared


# File


class WitnessFile:
    """The file of a running broker."""

    def __init__(self, path: str | Path, node: str) -> None:
        """Open or create the file, and lock it.

        Raises `WitnessError`, also if it is another node's, or another process writes it.

        A file that is damaged is taken for a new one, and `damage` says so.
        """
        self.damage: str = ""
        self._count = 0
        self._file = -1
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._lock(path)
            if os.fstat(self._file).st_size == 0:
                os.pwrite(self._file, bytes(2 * SLOT_BYTES), 0)
                os.fsync(self._file)
                _sync_folder(Path(path).parent)
            slots = [os.pread(self._file, SLOT_BYTES, at) for at in (0, SLOT_BYTES)]
        except OSError as problem:
            self.close()
            raise WitnessError(f"{path}: {problem.strerror}") from None
        self.witness = Witness(str(path), node)
        try:
            found = _newest(str(path), slots)
        except WitnessError as problem:
            self.damage = str(problem)
            return
        if found is None:
            return
        self._count, witness = found
        if witness.node != node:
            self.close()
            raise WitnessError(f"{path}: the witness of node {witness.node!r}, expected {node!r}")
        self.witness = witness

    def _lock(self, path: str | Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise WitnessError(
                f"{path}: another broker writes it: each one needs a witness of its own"
            ) from None
        except OSError as problem:
            if problem.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                raise  # else its file system has no locks

    def write(self, marks: Sequence[Mark]) -> None:
        """Write the marks of the last starts, the newest last. Syncs; durable on return.

        Raises `WitnessError`; then the file has the marks from before.
        """
        witness = replace(self.witness, marks=tuple(marks[-MARKS_MAX:]))
        at = SLOT_BYTES * ((self._count + 1) % 2)
        try:
            os.pwrite(self._file, encode(self._count + 1, witness), at)
            os.fdatasync(self._file)
        except OSError as problem:
            raise WitnessError(f"{witness.place}: {problem.strerror}") from None
        self._count += 1
        self.witness = witness

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read(path: str | Path) -> Witness:
    """Return the contents of a file. Raises `WitnessError` if there are none, or damaged ones."""
    try:
        with open(path, "rb") as file:
            slots = [file.read(SLOT_BYTES), file.read(SLOT_BYTES)]
    except OSError as problem:
        raise WitnessError(f"{path}: {problem.strerror}") from None
    found = _newest(str(path), slots)
    if found is None:
        raise WitnessError(f"{path}: no broker has written to it yet")
    return found[1]


def encode(count: int, witness: Witness) -> bytes:
    """Return a slot, the `count`th that is written."""
    marks = [[m.boot, m.seq, m.exported, m.head, m.at_ms] for m in witness.marks]
    body = json.dumps({"node": witness.node, "marks": marks}, separators=(",", ":")).encode()
    checksum = zlib.crc32(count.to_bytes(8, "big") + body)
    slot = HEAD.pack(MAGIC, count, len(body), checksum) + body
    assert len(slot) <= SLOT_BYTES
    return slot.ljust(SLOT_BYTES, b"\0")


def decode(slot: bytes, place: str) -> tuple[int, Witness] | None:
    """Return write count and contents of a slot, None if it is not valid."""
    if len(slot) < HEAD.size or not slot.startswith(MAGIC):
        return None
    _, count, length, checksum = HEAD.unpack_from(slot)
    body = slot[HEAD.size : HEAD.size + length]
    if len(body) < length or zlib.crc32(count.to_bytes(8, "big") + body) != checksum:
        return None
    try:
        told = json.loads(body)
        marks = tuple(_mark(*mark) for mark in told["marks"])
        node = told["node"]
    except (ValueError, TypeError, KeyError):
        return None
    return (count, Witness(place, node, marks)) if isinstance(node, str) else None


def _mark(boot: int, seq: int, exported: int, head: str, at_ms: int) -> Mark:
    """Return a mark. Raises `ValueError` if it cannot be one."""
    numbers = boot, seq, exported, at_ms
    if not all(type(number) is int and 0 <= number < EVENT_MAX for number in numbers):
        raise ValueError(f"numbers {numbers}")
    if not isinstance(head, str):
        raise ValueError(f"head {head!r}")
    return Mark(boot, seq, exported, head, at_ms)


def _newest(place: str, slots: Sequence[bytes]) -> tuple[int, Witness] | None:
    """Return the newer valid slot, None if nothing was written. Raises `WitnessError`."""
    valid = [found for slot in slots if (found := decode(slot, place)) is not None]
    if valid:
        return max(valid, key=lambda found: found[0])
    if any(slot.strip(b"\0") for slot in slots) or len(b"".join(slots)) < 2 * SLOT_BYTES:
        raise WitnessError(f"{place}: damaged, or not a witness of a history")
    return None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Comparison


def lost(witness: Witness, boot: int, seq: int) -> list[Difference]:
    """Return the events that a database has lost whose history ends with `seq` of `boot`.

    `boot` is its last start, 0 if there was none.
    """
    found = []
    for mark in witness.marks:
        last = seq if mark.boot == boot else 0
        if mark.boot >= boot and mark.seq > last:
            what = "they were durable, and the database does not have them"
            found.append(Difference(mark.boot, last + 1, mark.seq, what))
    return found


def compare(
    witness: Witness,
    spans: Mapping[int, tuple[int, int]],
    heads: Mapping[Place, str],
    pieces: Sequence[Piece],
) -> list[Difference]:
    """Return what a history lacks, or has otherwise.

    `spans` are the first and last known event of each start of the node, `heads` where segments
    end, `pieces` the segments of the node that can be looked at. What lies before the oldest start
    was removed in time.
    """
    found = []
    oldest = min(spans, default=0)
    for mark in witness.marks:
        first, last = spans.get(mark.boot, (1, 0))
        if mark.boot < oldest:
            continue
        if mark.exported > last:
            what = "they were exported, and the history does not have them"
            found.append(Difference(mark.boot, last + 1, mark.exported, what))
        elif mark.exported >= first:
            found += _of_head(mark, heads, pieces)
        end = max(last, mark.exported)
        if mark.seq > end:
            if any(boot > mark.boot for boot in spans):
                what = "they were durable, and a later start has begun without them"
                found.append(Difference(mark.boot, end + 1, mark.seq, what))
            else:
                what = "they were not exported when the witness was written"
                found.append(Difference(mark.boot, end + 1, mark.seq, what, is_proven=False))
    return found


def compare_pieces(witness: Witness, pieces: Iterable[Piece]) -> list[Difference]:
    """Return what segments lack that a witness knows, if nothing else is known of the history."""
    mine = [piece for piece in pieces if piece.node == witness.node]
    spans: dict[int, tuple[int, int]] = {}
    for piece in mine:
        first, last = spans.get(piece.boot, (piece.first_seq, piece.last_seq))
        spans[piece.boot] = min(first, piece.first_seq), max(last, piece.last_seq)
    heads = {piece.place: piece.head for piece in mine if piece.is_readable and piece.head}
    return compare(witness, spans, heads, mine)


def _of_head(
    mark: Mark, heads: Mapping[Place, str], pieces: Sequence[Piece]
) -> Iterator[Difference]:
    """Yield if another chain ends where that of the witness did."""
    head = heads.get((mark.boot, mark.exported))
    if head == mark.head:
        return
    there = [
        piece
        for piece in pieces
        if piece.boot == mark.boot and piece.first_seq <= mark.exported <= piece.last_seq
    ]
    if head is None and not there:
        return  # an earlier run has read it
    first = min((piece.first_seq for piece in there), default=mark.exported)
    if any(not piece.is_readable or (piece.link and piece.link.is_copy) for piece in there):
        what = "the segment that the witness knows is damaged, or a copy has taken its place"
        yield Difference(mark.boot, first, mark.exported, what, is_proven=False)
    else:
        what = "the chain that ends there is not the one that the witness knows"
        yield Difference(mark.boot, first, mark.exported, what)
