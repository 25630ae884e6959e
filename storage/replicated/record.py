"""The records of a replicated log: how they are written, and which of them count.

A record that changes the state continues a chain: it names the index after the last one that
counted, the digest of that one, and an epoch that is not older. Every reader applies this rule in
the order of the log, so all agree which records count, whoever wrote the others and however often:
a leader that does not know yet that it was deposed, a record sent twice, a candidate that had not
read everything. Appending a record is therefore a compare-and-swap on the end of the log. Pure.
Read next: `storage.replicated.batch_codec` (what is in a batch), `storage.replicated.replica`.

Layout, big-endian: magic (2), version (1), kind (1), epoch (8), index (8), digest of the record
before (16), length of the node's name (1), the name, the body, CRC-32 of all before it (4).
"""

import struct
import zlib
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

MAGIC: Final = b"HR"
VERSION: Final = 1
HEAD: Final = struct.Struct(">2sBBQQ16sB")
CRC: Final = struct.Struct(">I")
DIGEST_BYTES: Final = 16
NODE_BYTES_MAX: Final = 255
ORIGIN: Final = bytes(DIGEST_BYTES)  # the digest before the first record

# Kinds that continue the chain: the beginning of an epoch; a batch, or the last part of one; a part
# of a batch that goes on.
CLAIM: Final = 1
BATCH: Final = 2
PART: Final = 3
# Kinds that do not, and may be lost: the leader is alive; where a node is.
HEARTBEAT: Final = 8
PRESENCE: Final = 9
CHAINED: Final = frozenset((CLAIM, BATCH, PART))
KINDS: Final = CHAINED | {HEARTBEAT, PRESENCE}


class NotARecord(ValueError):
    """These bytes are no record: foreign, torn, damaged, or of a later version."""


@dataclass(frozen=True, slots=True)
class Position:
    """The end of a chain, which the next record must continue; by default of an empty log."""

    epoch: int = 0
    index: int = 0
    digest: bytes = ORIGIN


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the log."""

    kind: int
    epoch: int
    index: int  # HEARTBEAT, PRESENCE: the index of the last record that counts for the sender
    before: bytes  # digest of the record before; HEARTBEAT, PRESENCE: of the record `index`
    node: str  # who wrote it first
    body: bytes = b""

    def encode(self) -> bytes:
        """Return the record as bytes. Raises `ValueError` if the node's name is too long."""
        name = self.node.encode()
        if len(name) > NODE_BYTES_MAX:
            raise ValueError(f"node {self.node!r}: expected at most {NODE_BYTES_MAX} bytes")
        head = HEAD.pack(MAGIC, VERSION, self.kind, self.epoch, self.index, self.before, len(name))
        text = b"".join((head, name, self.body))
        return text + CRC.pack(zlib.crc32(text))


def decode(data: bytes) -> Record:
    """Return the record that `data` is. Raises `NotARecord`."""
    if len(data) < HEAD.size + CRC.size:
        raise NotARecord(f"{len(data)} bytes: a record has at least {HEAD.size + CRC.size}")
    magic, version, kind, epoch, index, before, length = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise NotARecord(f"begins with {magic!r}, expected {MAGIC!r}")
    if version != VERSION:
        raise NotARecord(f"version {version}: this Holdfast reads version {VERSION}")
    end = len(data) - CRC.size
    if zlib.crc32(memoryview(data)[:end]) != CRC.unpack_from(data, end)[0]:
        raise NotARecord("wrong checksum")
    start = HEAD.size + length
    if kind not in KINDS or start > end:
        raise NotARecord(f"kind {kind}, a name of {length} bytes in {len(data)}")
    try:
        node = data[HEAD.size : start].decode()
    except UnicodeDecodeError:
        raise NotARecord("the node's name is not UTF-8") from None
    return Record(kind, epoch, index, before, node, data[start:end])


def digest(data: bytes) -> bytes:
    """Return the digest that the record after `data` names."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def counts(record: Record, end: Position) -> bool:
    """Return whether a chained record continues the chain that ends at `end`."""
    if record.index != end.index + 1 or record.before != end.digest:
        return False
    return record.epoch > end.epoch if record.kind == CLAIM else record.epoch == end.epoch


def after(record: Record, data: bytes) -> Position:
    """Return the end of the chain once `record`, whose bytes are `data`, has counted."""
    return Position(record.epoch, record.index, digest(data))
