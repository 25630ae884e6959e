"""Build packets as bytes, valid or invalid.

Every field can be overridden with raw bytes. Nothing is validated: a check may want
`connect(flags=0x03)`. Sizes are in bytes, intervals in seconds.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from conformance import tables

Text: TypeAlias = str | bytes
Value: TypeAlias = int | str | bytes | tuple[Text, Text]
# A property is (id, value); bytes are written unchanged.
Property: TypeAlias = tuple[int, Value] | bytes
# A whole property block: a list of properties, or raw bytes *including* the length field.
Block: TypeAlias = Iterable[Property] | bytes
Filter: TypeAlias = tuple[Text, int]

VARINT_MAX = 268_435_455


@dataclasses.dataclass(frozen=True)
class Will:
    """The will of a CONNECT; `properties` are for 5.0 only."""

    topic: Text
    payload: Text = b"will"
    qos: int = 0
    retain: bool = False
    properties: Block = ()


def varint(number: int, width: int | None = None) -> bytes:
    """Return a variable byte integer; `width` pads it to that many bytes, legal or not."""
    encoded = bytearray()
    while True:
        number, group = number >> 7, number & 0x7F
        encoded.append(group)
        if not number:
            break
    if width is not None:
        encoded.extend(bytes(width - len(encoded)))
    for index in range(len(encoded) - 1):
        encoded[index] |= 0x80
    return bytes(encoded)


def _raw(text: Text) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def string(text: Text) -> bytes:
    """Return a string field; bytes are written unchanged, lone surrogates are encoded."""
    raw = _raw(text)
    return len(raw).to_bytes(2, "big") + raw


def binary(data: Text) -> bytes:
    """Return a binary field."""
    return string(data)


def property_value(identifier: int, value: Value) -> bytes:
    """Return the value of a property, encoded by its type; an unknown id takes raw bytes."""
    kind = tables.PROPERTY_TYPES.get(identifier)
    if isinstance(value, tuple):
        return string(value[0]) + string(value[1])
    if isinstance(value, int):
        if kind == "varint":
            return varint(value)
        return value.to_bytes({"byte": 1, "two": 2, "four": 4}.get(kind or "byte", 1), "big")
    if kind in ("string", "binary"):
        return string(value)
    return _raw(value)


def props(properties: Block = ()) -> bytes:
    """Return a property block with its length; raw bytes are returned unchanged."""
    if isinstance(properties, bytes):
        return properties
    body = bytearray()
    for item in properties:
        if isinstance(item, bytes):
            body += item
        else:
            body += varint(item[0]) + property_value(item[0], item[1])
    return varint(len(body)) + bytes(body)


def packet(first_byte: int, body: bytes = b"", remaining: int | bytes | None = None) -> bytes:
    """Return a packet; `remaining` overrides the Remaining Length (bytes are written unchanged)."""
    if remaining is None:
        remaining = len(body)
    length = remaining if isinstance(remaining, bytes) else varint(remaining)
    return bytes([first_byte]) + length + body


class Login:
    """The user name and password of a run: in every CONNECT that says nothing of its own."""

    def __init__(self) -> None:
        self.username: str | None = None
        self.password: bytes | None = None


LOGIN: Final = Login()


def hidden(data: bytes) -> bytes:
    """Return a packet as it may be shown: without the password of the run."""
    password = LOGIN.password
    return data.replace(password, b"*" * len(password)) if password else data


def connect(
    client_id: Text = "",
    *,
    version: int,
    clean: bool = True,
    keep_alive: int = 60,
    will: Will | None = None,
    username: Text | None = None,
    password: Text | None = None,
    properties: Block = (),
    name: Text = "MQTT",
    level: int | None = None,
    flags: int | None = None,
    payload: bytes | None = None,
    trailing: bytes = b"",
    first_byte: int = 0x10,
    remaining: int | bytes | None = None,
) -> bytes:
    """Return CONNECT; `level`, `flags` and `payload` override, `trailing` is appended.

    Without user name, password and overrides it has those of `LOGIN`.
    """
    if username is None and password is None and flags is None and payload is None:
        username, password = LOGIN.username, LOGIN.password
    if flags is None:
        flags = (clean << 1) | ((password is not None) << 6) | ((username is not None) << 7)
        if will is not None:
            flags |= 0x04 | (will.qos << 3) | (will.retain << 5)
    head = string(name) + bytes([version if level is None else level, flags])
    head += keep_alive.to_bytes(2, "big")
    if version >= 5:
        head += props(properties)
    if payload is None:
        payload = string(client_id)
        if will is not None:
            if version >= 5:
                payload += props(will.properties)
            payload += string(will.topic) + binary(will.payload)
        if username is not None:
            payload += string(username)
        if password is not None:
            payload += binary(password)
    return packet(first_byte, head + payload + trailing, remaining)


def publish(
    topic: Text,
    payload: Text = b"",
    *,
    version: int,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int | None = None,
    properties: Block = (),
    first_byte: int | None = None,
    remaining: int | bytes | None = None,
) -> bytes:
    """Return PUBLISH; the packet id is written if it is given, whatever the QoS."""
    if first_byte is None:
        first_byte = 0x30 | (dup << 3) | (qos << 1) | int(retain)
    body = string(topic)
    if packet_id is not None:
        body += packet_id.to_bytes(2, "big")
    if version >= 5:
        body += props(properties)
    return packet(first_byte, body + _raw(payload), remaining)


def acknowledgement(
    first_byte: int,
    packet_id: int,
    reason: int | None = None,
    properties: Block | None = None,
    remaining: int | bytes | None = None,
) -> bytes:
    """Return PUBACK, PUBREC, PUBREL or PUBCOMP in its short or long form."""
    body = packet_id.to_bytes(2, "big")
    if reason is not None or properties is not None:
        body += bytes([reason or 0])
    if properties is not None:
        body += props(properties)
    return packet(first_byte, body, remaining)


def puback(packet_id: int, reason: int | None = None, properties: Block | None = None) -> bytes:
    """Return PUBACK."""
    return acknowledgement(0x40, packet_id, reason, properties)


def pubrec(packet_id: int, reason: int | None = None, properties: Block | None = None) -> bytes:
    """Return PUBREC."""
    return acknowledgement(0x50, packet_id, reason, properties)


def pubrel(packet_id: int, reason: int | None = None, properties: Block | None = None) -> bytes:
    """Return PUBREL."""
    return acknowledgement(0x62, packet_id, reason, properties)


def pubcomp(packet_id: int, reason: int | None = None, properties: Block | None = None) -> bytes:
    """Return PUBCOMP."""
    return acknowledgement(0x70, packet_id, reason, properties)


def subscribe(
    packet_id: int,
    filters: Sequence[Filter],
    *,
    version: int,
    properties: Block = (),
    first_byte: int = 0x82,
    remaining: int | bytes | None = None,
) -> bytes:
    """Return SUBSCRIBE for (filter, options byte) pairs."""
    body = packet_id.to_bytes(2, "big")
    if version >= 5:
        body += props(properties)
    for topic_filter, options in filters:
        body += string(topic_filter) + bytes([options])
    return packet(first_byte, body, remaining)


def unsubscribe(
    packet_id: int,
    filters: Sequence[Text],
    *,
    version: int,
    properties: Block = (),
    first_byte: int = 0xA2,
    remaining: int | bytes | None = None,
) -> bytes:
    """Return UNSUBSCRIBE."""
    body = packet_id.to_bytes(2, "big")
    if version >= 5:
        body += props(properties)
    body += b"".join(string(topic_filter) for topic_filter in filters)
    return packet(first_byte, body, remaining)


def pingreq() -> bytes:
    """Return PINGREQ."""
    return packet(0xC0)


def disconnect(
    reason: int | None = None, properties: Block | None = None, *, first_byte: int = 0xE0
) -> bytes:
    """Return DISCONNECT; without arguments the short form, valid in both versions."""
    body = b""
    if reason is not None or properties is not None:
        body += bytes([reason or 0])
    if properties is not None:
        body += props(properties)
    return packet(first_byte, body)


def auth(
    reason: int | None = None, properties: Block | None = None, *, first_byte: int = 0xF0
) -> bytes:
    """Return AUTH (5.0 only)."""
    return disconnect(reason, properties, first_byte=first_byte)
