"""The record of one stored message: the value of a row in `msg.G`, a retained row, a mailbox row.

Never changed incompatibly: a change of the format is a new version byte beside the old one, with a
golden file. Layout of versions 1 and 2, integers big-endian:

    u8 version | u8 flags (bits 0-1 QoS, bit 2 RETAIN, others zero)
    u64 accepted_at_ms | u64 expires_at_ms (0 = never)
    u16 publisher size | u16 topic size | u32 properties size | u32 payload size
    publisher | topic | properties | version 2 only: u16 size, the publisher's user name | payload
    u32 CRC-32 of all of the above, little-endian

Only a message with a user name is of version 2.

The checksum is last and little-endian because the CRC-32 of data followed by its own CRC-32 in that
form is a constant: checking a record is one call over the whole value and copies no payload. The
offset is the key and is not repeated here. Read next: `storage.log.message_log`.
"""

import struct
import zlib
from typing import Final

from mqtt.message import Message
from storage.errors import CorruptRecord

VERSION: Final = 1
NAMED_VERSION: Final = 2  # with a user name
QOS_MASK: Final = 0x03
RETAIN_FLAG: Final = 0x04
FLAGS_KNOWN: Final = QOS_MASK | RETAIN_FLAG

_HEAD: Final = struct.Struct(">BBQQHHII")
NAME_SIZE: Final = struct.Struct(">H")
_CRC: Final = struct.Struct("<I")
_HEAD_SIZE: Final = 30
_CRC_SIZE: Final = 4
_CRC_RESIDUE: Final = 0x2144DF1C  # CRC-32 of any data followed by its own little-endian CRC-32
_QOS_MAX: Final = 2

_pack_head: Final = _HEAD.pack
_unpack_head: Final = _HEAD.unpack_from
_pack_crc: Final = _CRC.pack
_crc32: Final = zlib.crc32


def encode_message(message: Message) -> bytes:
    """Return the record of `message`; its offset is not part of it.

    The size fields are as wide as in MQTT, so every message that a decoder accepted fits.
    """
    publisher = message.publisher.encode()
    topic = message.topic.encode()
    properties = message.properties
    payload = message.payload
    named = encode_username(message.username) if message.username else b""
    head = (
        _pack_head(
            NAMED_VERSION if named else VERSION,
            message.qos | RETAIN_FLAG if message.retain else message.qos,
            message.accepted_at_ms,
            message.expires_at_ms,
            len(publisher),
            len(topic),
            len(properties),
            len(payload),
        )
        + publisher
        + topic
        + properties
        + named
    )
    # Checksum in two steps and one join: a large payload is copied once (26 us instead of 67 us at
    # 100 kB); at 128 bytes it costs 0.1 us more than checksumming the joined body.
    return b"".join((head, payload, _pack_crc(_crc32(payload, _crc32(head)))))


def encode_username(username: str) -> bytes:
    """Return a user name with its size before it, as it stands behind the properties."""
    name = username.encode()
    return NAME_SIZE.pack(len(name)) + name


def decode_message(data: bytes, offset: int) -> Message:
    """Return the message of a record, with its offset.

    Raises `CorruptRecord` unless every byte is as `encode_message` wrote it.
    """
    if _crc32(data) != _CRC_RESIDUE or len(data) < _HEAD_SIZE + _CRC_SIZE:
        raise CorruptRecord(f"message {offset}: checksum does not match its {len(data)} bytes")
    (
        version,
        flags,
        accepted_at_ms,
        expires_at_ms,
        publisher_size,
        topic_size,
        properties_size,
        payload_size,
    ) = _unpack_head(data)
    if version != VERSION and version != NAMED_VERSION:
        raise CorruptRecord(
            f"message {offset}: record version {version}, expected {VERSION} or {NAMED_VERSION}"
        )
    qos = flags & QOS_MASK
    if flags & ~FLAGS_KNOWN or qos > _QOS_MAX:
        raise CorruptRecord(f"message {offset}: flags {flags:#04x}, unknown to version {version}")
    topic_at = _HEAD_SIZE + publisher_size
    properties_at = topic_at + topic_size
    name_at = payload_at = properties_at + properties_size
    if version == NAMED_VERSION and name_at + NAME_SIZE.size <= len(data):
        name_at += NAME_SIZE.size
        payload_at = name_at + (data[name_at - 2] << 8 | data[name_at - 1])
    end = payload_at + payload_size
    if end + _CRC_SIZE != len(data) or (version == NAMED_VERSION and name_at == payload_at):
        raise CorruptRecord(
            f"message {offset}: {len(data)} bytes, expected {end + _CRC_SIZE} by its sizes"
        )
    try:
        return Message(
            data[topic_at:properties_at].decode(),
            data[payload_at:end],
            qos,
            flags & RETAIN_FLAG != 0,
            data[properties_at : properties_at + properties_size],
            data[_HEAD_SIZE:topic_at].decode(),
            accepted_at_ms,
            expires_at_ms,
            offset,
            data[name_at:payload_at].decode(),
        )
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"message {offset}: a name in it is not UTF-8") from error


def topic_bytes(data: bytes, offset: int) -> bytes:
    """Return only the topic of a record, for a scan that has to match it.

    Raises `CorruptRecord`: a damaged topic could make the scan skip a message.
    """
    is_sound = _crc32(data) == _CRC_RESIDUE and len(data) >= _HEAD_SIZE + _CRC_SIZE
    if not is_sound or data[0] not in (VERSION, NAMED_VERSION):
        raise CorruptRecord(f"message {offset}: {len(data)} bytes are no sound record")
    topic_at = _HEAD_SIZE + (data[18] << 8 | data[19])
    return data[topic_at : topic_at + (data[20] << 8 | data[21])]
