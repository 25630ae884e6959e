"""Read and write the data types of section 1.5.

Knows no packets. Reading raises `MalformedPacket` (the peer's error), writing raises `ValueError`
(ours); both name the field. Read next: `mqtt.properties`.

Disallowed code points that a receiver MAY refuse (control characters, non-characters) are accepted
in every string: section 1.5.4 leaves the choice, and tabs and line feeds in user properties are
common in practice. U+0000 and ill-formed UTF-8 are refused [MQTT-1.5.4-1, -2].
"""

from typing import Final

from mqtt.errors import MalformedPacket

VARINT_MAX: Final = 268_435_455  # four bytes of seven bits
FIELD_SIZE_MAX: Final = 65_535  # bytes in a string or binary field
FOUR_BYTE_MAX: Final = 0xFFFF_FFFF

# Two Byte Integers, encoded in advance: every hot path needs them as packet ids or string lengths.
TWO_BYTES: Final[list[bytes]] = [value.to_bytes(2, "big") for value in range(65_536)]
_ONE_BYTE: Final[list[bytes]] = [bytes((value,)) for value in range(256)]


class Reader:
    """Reads consecutive fields from `data[position:end]` and nothing outside."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int, end: int) -> None:
        assert 0 <= position <= end <= len(data)
        self.data: bytes = data
        self.position: int = position
        self.end: int = end

    def byte(self, field: str) -> int:
        """Read a Byte."""
        position = self.position
        if position >= self.end:
            raise MalformedPacket(f"{field} is missing")
        self.position = position + 1
        return self.data[position]

    def two_bytes(self, field: str) -> int:
        """Read a Two Byte Integer."""
        position = self.position
        if position + 2 > self.end:
            raise MalformedPacket(f"{field} runs past the end")
        self.position = position + 2
        return self.data[position] << 8 | self.data[position + 1]

    def four_bytes(self, field: str) -> int:
        """Read a Four Byte Integer."""
        position = self.position
        if position + 4 > self.end:
            raise MalformedPacket(f"{field} runs past the end")
        self.position = position + 4
        return int.from_bytes(self.data[position : position + 4], "big")

    def varint(self, field: str) -> int:
        """Read a Variable Byte Integer in its shortest form [MQTT-1.5.5-1]."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte(field)
            value |= (byte & 127) << shift
            if byte < 128:
                if byte == 0 and shift:
                    raise MalformedPacket(f"{field} {value} is not in its shortest form")
                return value
        raise MalformedPacket(f"{field} has more than four bytes")

    def binary(self, field: str) -> bytes:
        """Read Binary Data."""
        start = self.position + 2
        if start > self.end:
            raise MalformedPacket(f"{field} runs past the end")
        stop = start + (self.data[start - 2] << 8 | self.data[start - 1])
        if stop > self.end:
            raise MalformedPacket(f"{field} runs past the end")
        self.position = stop
        return self.data[start:stop]

    def string(self, field: str) -> str:
        """Read a UTF-8 Encoded String; EF BB BF is U+FEFF and is kept [MQTT-1.5.4-3]."""
        return text(self.binary(field), field)

    def properties(self) -> "Reader":
        """Read a Property Length; return a reader of that block and skip it here."""
        length = self.varint("property length")
        start = self.position
        if start + length > self.end:
            raise MalformedPacket("properties run past the end of the packet")
        self.position = start + length
        return Reader(self.data, start, start + length)

    def finish(self) -> None:
        """Raise unless everything was read."""
        if self.position != self.end:
            raise MalformedPacket(f"{self.end - self.position} bytes are left over")


def text(raw: bytes, field: str) -> str:
    """Decode the bytes of a UTF-8 Encoded String; raise if ill-formed or with U+0000."""
    try:
        value = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedPacket(f"{field} is not well-formed UTF-8") from error
    if "\0" in value:
        raise MalformedPacket(f"{field} holds U+0000")
    return value


def encode_byte(value: int, field: str) -> bytes:
    """Encode a Byte."""
    if not 0 <= value <= 255:
        raise ValueError(f"{field} {value}: expected 0 to 255")
    return _ONE_BYTE[value]


def encode_two_bytes(value: int, field: str) -> bytes:
    """Encode a Two Byte Integer."""
    if not 0 <= value <= 65_535:
        raise ValueError(f"{field} {value}: expected 0 to 65535")
    return TWO_BYTES[value]


def encode_four_bytes(value: int, field: str) -> bytes:
    """Encode a Four Byte Integer."""
    if not 0 <= value <= FOUR_BYTE_MAX:
        raise ValueError(f"{field} {value}: expected 0 to {FOUR_BYTE_MAX}")
    return value.to_bytes(4, "big")


def encode_varint(value: int, field: str) -> bytes:
    """Encode a Variable Byte Integer in its shortest form [MQTT-1.5.5-1]."""
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    if not 0 <= value <= VARINT_MAX:
        raise ValueError(f"{field} {value}: expected 0 to {VARINT_MAX}")
    if value < 16_384:
        return bytes((value & 127 | 128, value >> 7))
    if value < 2_097_152:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14 & 127 | 128, value >> 21))


def encode_binary(value: bytes, field: str) -> bytes:
    """Encode Binary Data."""
    if len(value) > FIELD_SIZE_MAX:
        raise ValueError(f"{field} of {len(value)} bytes: expected at most {FIELD_SIZE_MAX}")
    return TWO_BYTES[len(value)] + value


def encode_string(value: str, field: str) -> bytes:
    """Encode a UTF-8 Encoded String [MQTT-1.5.4-1, MQTT-1.5.4-2]."""
    if "\0" in value:
        raise ValueError(f"{field} holds U+0000")
    try:
        raw = value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{field} holds a surrogate code point") from error
    return encode_binary(raw, field)
