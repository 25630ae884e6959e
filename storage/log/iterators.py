"""The values of the public storage API: streams of stored messages, and positions in them.

They hold numbers and text, no handle, so they can be stored, sent and used after a restart. Read
next: `storage.log.message_log`, which returns and accepts them.
"""

import struct
import zlib
from enum import Enum
from typing import Final, Literal

ITERATOR_VERSION: Final = 1

_ITERATOR: Final = struct.Struct(">BHIQQQH")
_CRC: Final = struct.Struct(">I")


class EndOfStream(Enum):
    """The answer of `MessageLog.next` once a closed generation has no more messages."""

    END_OF_STREAM = "end of stream"


END_OF_STREAM: Final[Literal[EndOfStream.END_OF_STREAM]] = EndOfStream.END_OF_STREAM


class StoredStream:
    """A part of the log to read in order: one filter's rows in one generation of one shard.

    Read streams of one shard in the order of `generation`. Streams of different shards have no
    order among each other.
    """

    __slots__ = ("filter_id", "generation", "shard", "start_offset", "start_time", "topic_filter")

    def __init__(
        self,
        shard: int,
        generation: int,
        filter_id: int,
        topic_filter: str,
        start_offset: int,
        start_time: int,
    ) -> None:
        self.shard: int = shard
        self.generation: int = generation
        self.filter_id: int = filter_id  # 0: no index, reading looks at all messages
        self.topic_filter: str = topic_filter
        self.start_offset: int = start_offset  # first offset of the stream
        self.start_time: int = start_time  # broker time, ms: only messages accepted since

    @property
    def rank(self) -> tuple[int, int]:
        """Return (shard, generation), the order of the streams of one shard."""
        return self.shard, self.generation

    def __repr__(self) -> str:
        return (
            f"StoredStream(shard {self.shard}, generation {self.generation}, "
            f"filter {self.filter_id} {self.topic_filter!r}, "
            f"from {self.start_offset} / {self.start_time} ms)"
        )


class StreamIterator:
    """A position in a stream. Immutable: reading returns a new one."""

    __slots__ = ("filter_id", "generation", "position", "shard", "start_time", "topic_filter")

    def __init__(
        self,
        shard: int,
        generation: int,
        filter_id: int,
        topic_filter: str,
        position: int,
        start_time: int,
    ) -> None:
        self.shard: Final = shard
        self.generation: Final = generation
        self.filter_id: Final = filter_id
        self.topic_filter: Final = topic_filter
        self.position: Final = position  # offset; everything up to it was read
        self.start_time: Final = start_time

    def moved(self, position: int) -> "StreamIterator":
        """Return an iterator at `position`, this one if it is already there."""
        if position == self.position:
            return self
        return StreamIterator(
            self.shard,
            self.generation,
            self.filter_id,
            self.topic_filter,
            position,
            self.start_time,
        )

    def to_bytes(self) -> bytes:
        """Return this iterator as bytes, which later versions can read, too."""
        topic_filter = self.topic_filter.encode()
        body = (
            _ITERATOR.pack(
                ITERATOR_VERSION,
                self.shard,
                self.generation,
                self.filter_id,
                self.position,
                self.start_time,
                len(topic_filter),
            )
            + topic_filter
        )
        return body + _CRC.pack(zlib.crc32(body))

    @staticmethod
    def from_bytes(data: bytes) -> "StreamIterator":
        """Return the iterator that `to_bytes` wrote; raises `ValueError` for anything else."""
        body, checksum = data[: -_CRC.size], data[-_CRC.size :]
        if len(body) < _ITERATOR.size or checksum != _CRC.pack(zlib.crc32(body)):
            raise ValueError(f"iterator of {len(data)} bytes: checksum does not match")
        version, shard, generation, filter_id, position, start_time, size = _ITERATOR.unpack_from(
            body
        )
        topic_filter = body[_ITERATOR.size :]
        if version != ITERATOR_VERSION or size != len(topic_filter):
            raise ValueError(f"iterator version {version}, expected {ITERATOR_VERSION}")
        return StreamIterator(
            shard, generation, filter_id, topic_filter.decode(), position, start_time
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamIterator) and self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __repr__(self) -> str:
        return (
            f"StreamIterator(shard {self.shard}, generation {self.generation}, "
            f"filter {self.filter_id} {self.topic_filter!r}, at {self.position})"
        )
