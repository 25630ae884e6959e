"""The bytes of a block of consecutive messages, and of the index row that points into blocks.

Never changed incompatibly: a change is a new version byte beside the old one, with a golden file.
A block of versions 1 and 2, integers big-endian but for the checksum:

    u8 version | u16 messages | u16 runs | for each run: u16 messages before it, u16 its place,
    counted from the end of this list | runs | u32 CRC-32 of all of the above, little-endian

A run is a sequence of messages that differ only in their payload:

    u8 flags (bits 0-1 QoS, bit 2 RETAIN, bit 3 payloads differ in size, bit 4 in version 2 only:
    the publisher's user name is there, others zero)
    u16 publisher size | u16 topic size | u32 properties size
    u64 accepted_at_ms | u64 expires_at_ms (0 = never) | u16 messages | u32 size of all payloads
    publisher | topic | properties | with bit 4: u16 size, user name |
    with bit 3: u32 payload size, once per message | payloads

Only a block with a user name in it is of version 2.
The key of a block is the offset of its LAST message, so a seek to an offset finds the block that
holds it. Must never return anything from a block whose checksum fails. Read next:
`storage.log.layouts.blocks` (writes blocks), `storage.log.layouts.block_reader` (reads them).
"""

import struct
import zlib
from bisect import bisect_right
from typing import Final

from mqtt.message import Message
from storage.errors import CorruptRecord
from storage.tables.message_record import NAME_SIZE, QOS_MASK, RETAIN_FLAG

VERSION: Final = 1
NAMED_VERSION: Final = 2  # with a user name in some run
INDEX_VERSION: Final = 1
VARIED_FLAG: Final = 0x08
NAMED_FLAG: Final = 0x10
FLAGS_KNOWN: Final = QOS_MASK | RETAIN_FLAG | VARIED_FLAG
# A block is closed at this size; each message counts its payload and SIZE_SIZE bytes. So reading a
# message of a sparse stream costs as much as one page of a table, and a block has at most 1,024
# messages. A larger message gets a block of its own.
BLOCK_BYTES: Final = 4096
SIZE_SIZE: Final = 4
KEY_SIZE: Final = 8
INDEX_KEY_SIZE: Final = 18
# Limits of one index row: the number of ranges, and the distance from first to last offset.
RANGES_MAX: Final = 64
SPAN_MAX: Final = 0xFFFF
# An index entry is one number: an offset, and in the low bits the distance to its block's end.
BACK_BITS: Final = 16
BACK_MASK: Final = 0xFFFF

# Memory of objects beside their bytes: a `Message` with its payload, a block with its lists.
MESSAGE_SIZE: Final = 160
OBJECT_SIZE: Final = 600
_QOS_MAX: Final = 2
_HEAD: Final = struct.Struct(">BHH")
HEAD_SIZE: Final = 5
_PLACE_SIZE: Final = 4
_RUN: Final = struct.Struct(">BHHIQQHI")
RUN_SIZE: Final = 31
RUNS_MAX: Final = BLOCK_BYTES // (RUN_SIZE + SIZE_SIZE) + 1
_PLACES: Final = [struct.Struct(f">{2 * n}H") for n in range(RUNS_MAX + 1)]
_CRC: Final = struct.Struct("<I")
_CRC_SIZE: Final = 4
_CRC_RESIDUE: Final = 0x2144DF1C  # CRC-32 of any data followed by its own little-endian CRC-32
# The key of an index row: filter_id, its last offset, the distance from there to the block's end.
_INDEX_KEY: Final = struct.Struct(">QQH")
_INDEX_START: Final = struct.Struct(">QQ")
# One range: its first and last offset, counted back from that in the key, and the distance from the
# last one to its block's end.
_RANGE: Final = struct.Struct(">HHH")
_RANGES: Final = [struct.Struct(f">B{3 * n}H") for n in range(RANGES_MAX + 1)]
_RANGE_SIZE: Final = 6

_pack_head: Final = _HEAD.pack
_pack_run: Final = _RUN.pack
_unpack_run: Final = _RUN.unpack_from
_pack_crc: Final = _CRC.pack
_pack_index_key: Final = _INDEX_KEY.pack
_unpack_index_key: Final = _INDEX_KEY.unpack
_pack_index_start: Final = _INDEX_START.pack
_crc32: Final = zlib.crc32

# Up to this size, copying a block to append its checksum is cheaper than a checksum per piece.
_JOIN_MAX: Final = 16 << 10


def encode_one(
    message: Message, publisher: bytes, topic: bytes, named: bytes, pieces: list[bytes]
) -> None:
    """Add a run of one message to the `pieces` of a block; as `encode_run`, but returns nothing."""
    properties = message.properties
    payload = message.payload
    flags = message.qos | RETAIN_FLAG if message.retain else message.qos
    if named:
        flags |= NAMED_FLAG
    pieces.append(
        _pack_run(
            flags,
            len(publisher),
            len(topic),
            len(properties),
            message.accepted_at_ms,
            message.expires_at_ms,
            1,
            len(payload),
        )
    )
    pieces.append(publisher)
    pieces.append(topic)
    if properties:
        pieces.append(properties)
    if named:
        pieces.append(named)
    pieces.append(payload)


def encode_run(
    message: Message,
    publisher: bytes,
    topic: bytes,
    named: bytes,
    payloads: list[bytes],
    pieces: list[bytes],
) -> int:
    """Add a run with the fields of `message` to the `pieces` of a block; return its size in bytes.

    `publisher` and `topic` are those of the message, encoded; `named` is its user name as
    `encode_username` gives it, b"" if it has none.
    """
    count = len(payloads)
    size = len(payloads[0])
    flags = message.qos | RETAIN_FLAG if message.retain else message.qos
    sizes = [len(payload) for payload in payloads]
    if sizes.count(size) == count:
        size *= count
        sizes = []
    else:
        size = sum(sizes)
        flags |= VARIED_FLAG
    if named:
        flags |= NAMED_FLAG
    properties = message.properties
    pieces.append(
        _pack_run(
            flags,
            len(publisher),
            len(topic),
            len(properties),
            message.accepted_at_ms,
            message.expires_at_ms,
            count,
            size,
        )
    )
    pieces.append(publisher)
    pieces.append(topic)
    if properties:
        pieces.append(properties)
    if named:
        pieces.append(named)
    if sizes:
        pieces.append(struct.pack(f">{count}I", *sizes))
    pieces += payloads
    head = RUN_SIZE + len(publisher) + len(topic) + len(properties) + len(named)
    return head + size + SIZE_SIZE * len(sizes)


def encode_block(
    count: int, places: list[int], pieces: list[bytes], size: int, *, is_named: bool
) -> bytes:
    """Return the block of `count` messages whose runs are `pieces`, `size` bytes in all.

    `places` has, for each run, the number of messages and of bytes before it. `is_named`: a run has
    a user name.
    """
    runs = len(places) // 2
    version = NAMED_VERSION if is_named else VERSION
    head = _pack_head(version, count, runs) + _PLACES[runs].pack(*places)
    if size <= _JOIN_MAX:
        body = b"".join((head, *pieces))
        return body + _pack_crc(_crc32(body))
    checksum = _crc32(head)
    for piece in pieces:
        checksum = _crc32(piece, checksum)
    return b"".join((head, *pieces, _pack_crc(checksum)))


class Block:
    """A block being read. The messages of a run are decoded when one of them is first needed."""

    __slots__ = (
        "_body",
        "_data",
        "_flags_known",
        "_left",
        "_messages",
        "_places",
        "_starts",
        "cost",
        "count",
        "family",
        "first",
        "last",
        "size",
    )

    def __init__(self, data: bytes, last: int, family: str = "") -> None:
        """Check the block whose last message has the offset `last`; raises `CorruptRecord`."""
        size = len(data)
        if _crc32(data) != _CRC_RESIDUE or size < HEAD_SIZE + _CRC_SIZE:
            raise CorruptRecord(
                f"block of messages to {last}: checksum does not match its {size} bytes"
            )
        count = data[1] << 8 | data[2]
        runs = data[3] << 8 | data[4]
        body = HEAD_SIZE + _PLACE_SIZE * runs
        self.family: Final = family  # of the store, where it was read
        self.last: Final = last
        self.count: Final = count
        self.first: Final = last - count + 1
        self.size: Final = size
        # Bytes of memory: its data counts twice, because payloads are copied.
        self.cost: Final = OBJECT_SIZE + 2 * size + MESSAGE_SIZE * count
        if data[0] != VERSION and data[0] != NAMED_VERSION:
            raise CorruptRecord(
                f"messages {self.first} to {last}: block version {data[0]}, "
                f"expected {VERSION} or {NAMED_VERSION}"
            )
        if not count or not 0 < runs <= RUNS_MAX or body + _CRC_SIZE > size:
            raise CorruptRecord(f"messages {self.first} to {last}: {runs} runs in {size} bytes")
        places = _PLACES[runs].unpack_from(data, HEAD_SIZE)
        self._data: bytes = data
        self._body: Final = body  # where the runs begin
        self._messages: Final[list[Message | None]] = [None] * count
        self._starts: Final = places[::2]  # number of the first message of each run
        self._places: Final = places[1::2]
        self._flags_known: Final = _flags_known(data)
        self._left: int = runs  # not decoded yet
        if self._starts[0]:
            raise CorruptRecord(f"messages {self.first} to {last}: the first is in no run")

    def get(self, offset: int) -> Message | None:
        """Return the message at `offset`, None if it is not in this block."""
        number = offset - self.first
        if number < 0 or number >= self.count:
            return None
        message = self._messages[number]
        if message is None:
            self._decode(bisect_right(self._starts, number) - 1)
            message = self._messages[number]
            if message is None:
                raise CorruptRecord(f"message {offset} is in no run of its block to {self.last}")
        return message

    def sizes(self) -> list[int]:
        """Return the bytes of topic and payload of each message, in order, without decoding them.

        0 = its run is not where it can be.
        """
        data, limit = self._data, self.size - _CRC_SIZE
        found = [0] * self.count
        for run, number in enumerate(self._starts):
            at = self._body + self._places[run]
            if at + RUN_SIZE > limit:
                continue
            flags, publisher, topic, properties, _, _, count, payloads = _unpack_run(data, at)
            if not 0 < count <= self.count - number:
                continue
            if not flags & VARIED_FLAG:
                found[number : number + count] = [topic + payloads // count] * count
                continue
            at += RUN_SIZE + publisher + topic + properties
            if flags & NAMED_FLAG:
                _, at = _name_place(data, at, limit)
            if at + SIZE_SIZE * count > limit:
                continue
            sizes = struct.unpack_from(f">{count}I", data, at)
            found[number : number + count] = [topic + size for size in sizes]
        return found

    def run_end(self, offset: int) -> int:
        """Return the last offset of the run that contains `offset`."""
        run = bisect_right(self._starts, offset - self.first)
        return self.first + self._starts[run] - 1 if run < len(self._starts) else self.last

    def _decode(self, run: int) -> None:
        """Decode the messages of a run; raises `CorruptRecord` if its place or size is wrong."""
        data = self._data
        at = self._body + self._places[run]
        number = self._starts[run]
        is_last = run + 1 == len(self._starts)
        expected = (self.count if is_last else self._starts[run + 1]) - number
        end = len(data) - _CRC_SIZE if is_last else self._body + self._places[run + 1]
        offset = self.first + number
        what = f"messages {offset} to {offset + expected - 1}"
        is_inside = self._body <= at <= end - RUN_SIZE and end <= len(data) - _CRC_SIZE
        if not is_inside or expected < 1 or number + expected > self.count:
            raise CorruptRecord(f"{what}: their run is not where it can be")
        (
            flags,
            publisher_size,
            topic_size,
            properties_size,
            accepted_at_ms,
            expires_at_ms,
            count,
            payloads_size,
        ) = _unpack_run(data, at)
        topic_at = at + RUN_SIZE + publisher_size
        properties_at = topic_at + topic_size
        at = properties_at + properties_size
        name_at, at = _name_place(data, at, end) if flags & NAMED_FLAG else (at, at)
        name_end = at
        varied = flags & VARIED_FLAG != 0
        sizes_size = SIZE_SIZE * count if varied else 0
        qos = flags & QOS_MASK
        if (
            flags & ~self._flags_known
            or qos > _QOS_MAX
            or count != expected
            or at + sizes_size + payloads_size != end
        ):
            raise CorruptRecord(f"{what}: a run of {count} messages, flags {flags:#04x}")
        size = payloads_size // count
        sizes = struct.unpack_from(f">{count}I", data, at) if varied else ()
        at += sizes_size
        if (sum(sizes) if varied else size * count) != payloads_size:
            raise CorruptRecord(f"{what}: payloads of other sizes than {payloads_size} bytes")
        try:
            publisher = data[topic_at - publisher_size : topic_at].decode()
            topic = data[topic_at:properties_at].decode()
            username = data[name_at:name_end].decode()
        except UnicodeDecodeError as error:
            raise CorruptRecord(f"{what}: a name in it is not UTF-8") from error
        properties = data[properties_at : properties_at + properties_size]
        messages = self._messages
        for index in range(count):
            if varied:
                size = sizes[index]
            messages[number + index] = Message(
                topic,
                data[at : at + size],
                qos,
                flags & RETAIN_FLAG != 0,
                properties,
                publisher,
                accepted_at_ms,
                expires_at_ms,
                offset + index,
                username,
            )
            at += size
        self._left -= 1
        if not self._left:
            self._data = b""  # all payloads are copied


def decode_single(data: bytes, last: int, offset: int, is_sound: bool = False) -> Message | None:
    """Return the message at `offset` of a block without decoding the others.

    A third of the work of `Block`, for callers that want one message, or two. None for a damaged
    block: decode it with `Block` for the error. With `is_sound` the checksum is not compared again.
    """
    size = len(data)
    if (not is_sound and _crc32(data) != _CRC_RESIDUE) or size < HEAD_SIZE + _CRC_SIZE:
        return None
    count = data[1] << 8 | data[2]
    runs = data[3] << 8 | data[4]
    number = offset - last + count - 1
    body = HEAD_SIZE + _PLACE_SIZE * runs
    limit = size - _CRC_SIZE
    if not VERSION <= data[0] <= NAMED_VERSION or body > limit:
        return None
    if not 0 <= number < count or not runs:
        return None
    low = number
    if runs != count:
        low, high = 0, runs
        while high - low > 1:
            middle = (low + high) >> 1
            place = HEAD_SIZE + _PLACE_SIZE * middle
            if data[place] << 8 | data[place + 1] <= number:
                low = middle
            else:
                high = middle
    place = HEAD_SIZE + _PLACE_SIZE * low
    index = number - (data[place] << 8 | data[place + 1])
    at = body + (data[place + 2] << 8 | data[place + 3])
    end = limit
    following = count
    if low + 1 < runs:
        following = data[place + 4] << 8 | data[place + 5]
        end = body + (data[place + 6] << 8 | data[place + 7])
    if index < 0 or end > limit or at + RUN_SIZE > end:
        return None
    return _decode_member(data, at, end, offset, index, following - number + index)


def _decode_member(
    data: bytes, at: int, end: int, offset: int, index: int, expected: int
) -> Message | None:
    """Return message number `index` of the run between `at` and `end`; None if it is damaged."""
    flags, publisher, topic, properties, accepted_at_ms, expires_at_ms, messages, payloads = (
        _unpack_run(data, at)
    )
    qos = flags & QOS_MASK
    topic_at = at + RUN_SIZE + publisher
    properties_at = topic_at + topic
    name_at = sizes_at = properties_at + properties
    if flags & NAMED_FLAG:
        name_at, sizes_at = _name_place(data, sizes_at, end)
    payload_at = sizes_at
    if flags & ~_flags_known(data) or qos > _QOS_MAX or messages != expected or index >= messages:
        return None
    if flags & VARIED_FLAG:
        payload_at += SIZE_SIZE * messages
        if payload_at > end:
            return None
        sizes = struct.unpack_from(f">{messages}I", data, sizes_at)
        if sum(sizes) != payloads:
            return None
        begin = payload_at + sum(sizes[:index])
        stop = begin + sizes[index]
    else:
        size = payloads // messages
        if size * messages != payloads:
            return None
        begin = payload_at + size * index
        stop = begin + size
    if payload_at + payloads != end:
        return None
    try:
        return Message(
            data[topic_at:properties_at].decode(),
            data[begin:stop],
            qos,
            flags & RETAIN_FLAG != 0,
            data[properties_at : properties_at + properties],
            data[at + RUN_SIZE : topic_at].decode(),
            accepted_at_ms,
            expires_at_ms,
            offset,
            data[name_at:sizes_at].decode(),
        )
    except UnicodeDecodeError:
        return None


def _flags_known(data: bytes) -> int:
    """Return the flags that a run of this block may have."""
    return FLAGS_KNOWN | NAMED_FLAG if data[0] == NAMED_VERSION else FLAGS_KNOWN


def _name_place(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return where the user name is whose size is at `at`; beyond `end` if there can be none."""
    start = at + NAME_SIZE.size
    size = data[at] << 8 | data[at + 1] if start <= end else 0
    return (start, start + size) if size else (end, end + 1)


def index_start(filter_id: int, offset: int) -> bytes:
    """Return a key at or before every index row of a filter that has `offset` or a later one."""
    return _pack_index_start(filter_id, offset)


def index_key(filter_id: int, last: int, back: int) -> bytes:
    """Return the key of an index row; `back` is the distance from `last` to its block's end."""
    return _pack_index_key(filter_id, last, back)


def encode_index(ranges: list[int], start: int, stop: int) -> bytes:
    """Return the value of the index row with the ranges from `start` to `stop`.

    `ranges` has, for each range, its first offset, its last offset and its block's last offset.
    """
    count = (stop - start) // 3
    last = ranges[stop - 2]
    if count == 1:
        if ranges[start] == last:
            return b""
        body = _RANGES[1].pack(INDEX_VERSION, last - ranges[start], 0, ranges[start + 2] - last)
    else:
        numbers: list[int] = []
        for at in range(start, stop, 3):
            numbers.append(last - ranges[at])
            numbers.append(last - ranges[at + 1])
            numbers.append(ranges[at + 2] - ranges[at + 1])
        body = _RANGES[count].pack(INDEX_VERSION, *numbers)
    return body + _pack_crc(_crc32(body))


def decode_index(key: bytes, value: bytes, after: int, count: int, entries: list[int]) -> None:
    """Add the entries of an index row after `after` to `entries`, until those are `count`.

    An entry is an offset and the distance to its block's end: see `BACK_BITS`. Raises
    `CorruptRecord`.
    """
    filter_id, last, back = _unpack_index_key(key)
    if not value:
        if last > after:
            entries.append(last << BACK_BITS | back)
        return
    ranges = (len(value) - 1 - _CRC_SIZE) // _RANGE_SIZE
    if (
        _crc32(value) != _CRC_RESIDUE
        or value[0] != INDEX_VERSION
        or not 0 < ranges <= RANGES_MAX
        or len(value) != 1 + ranges * _RANGE_SIZE + _CRC_SIZE
    ):
        raise CorruptRecord(
            f"index of filter {filter_id} to message {last}: {len(value)} bytes are no sound row"
        )
    before = -1
    for first_back, last_back, block_back in _RANGE.iter_unpack(value[1:-_CRC_SIZE]):
        first = last - first_back
        end = last - last_back
        if first <= before or end < first:
            raise CorruptRecord(f"index of filter {filter_id}: ranges to {last} are not in order")
        before = end
        if end <= after:
            continue
        if first <= after:
            first = after + 1
        room = count - len(entries)
        if end - first >= room:
            end_taken = first + room - 1
        else:
            end_taken = end
        block = end + block_back
        for offset in range(first, end_taken + 1):
            entries.append(offset << BACK_BITS | (block - offset))
        if len(entries) >= count:
            return
    if before != last:
        raise CorruptRecord(f"index of filter {filter_id}: ranges end at {before}, not at {last}")
