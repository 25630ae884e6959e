"""A tolerant parser of what the client sends, to know what it announced and to show it.

It must never raise, as checks send invalid bytes on purpose. Bytes it cannot parse set `is_lost`;
then `conformance.rules` skips every rule that depends on the client's own packets.
"""

import dataclasses
from typing import Final

from conformance import tables
from conformance.packets import Properties, Value

_SHOWN_MAX: Final = 70  # characters of a field in a description


_NONE: Final = Properties()


@dataclasses.dataclass(frozen=True)
class Sent:
    """One packet of the client; fields that could not be parsed are empty."""

    kind: int
    raw: bytes
    packet_id: int | None = None
    reason: int = 0
    filters: tuple[str, ...] = ()
    properties: Properties = _NONE
    summary: str = ""
    level: int | None = None  # of CONNECT
    retained_topic: str | None = None  # topic of a retained PUBLISH or will

    def describe(self) -> str:
        """Return a readable line."""
        return f"{tables.PACKET_NAMES[self.kind]} {self.summary}".strip()


class _Lost(Exception):
    """The bytes are not valid in this version."""


class _Reader:
    def __init__(self, raw: bytes, position: int) -> None:
        self.raw = raw
        self.position = position

    def take(self, count: int) -> bytes:
        if self.position + count > len(self.raw):
            raise _Lost
        self.position += count
        return self.raw[self.position - count : self.position]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def varint(self) -> int:
        number = 0
        for index in range(4):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return number
        raise _Lost

    def data(self) -> bytes:
        return self.take(self.number(2))

    def text(self) -> str:
        try:
            return self.data().decode()
        except UnicodeDecodeError:
            raise _Lost from None

    @property
    def left(self) -> int:
        return len(self.raw) - self.position

    def properties(self) -> Properties:
        length = self.varint()
        end = self.position + length
        items: list[tuple[int, Value]] = []
        while self.position < end:
            identifier = self.varint()
            items.append((identifier, self._value(tables.PROPERTY_TYPES.get(identifier))))
        if self.position != end:
            raise _Lost
        return Properties(tuple(items))

    def _value(self, kind: tables.Type | None) -> Value:
        if kind is None:
            raise _Lost
        if kind == "string":
            return self.text()
        if kind == "binary":
            return self.data()
        if kind == "pair":
            return (self.text(), self.text())
        if kind == "varint":
            return self.varint()
        return self.number({"byte": 1, "two": 2, "four": 4}[kind])


class Splitter:
    """Splits the client's byte stream into packets."""

    def __init__(self, version: int) -> None:
        self.is_lost: bool = False
        self._version = version
        self._pending = b""

    def feed(self, data: bytes) -> list[Sent]:
        """Take bytes in pieces of any size; return the packets they completed."""
        self._pending += data
        packets = []
        while (size := self._size()) is not None:
            raw, self._pending = self._pending[:size], self._pending[size:]
            try:
                packets.append(_read(raw, self._version))
            except _Lost:
                self.is_lost = True
                kind = raw[0] >> 4
                level = _level(raw) if kind == tables.CONNECT else None
                packets.append(Sent(kind, raw, summary="(not well formed)", level=level))
        return packets

    def _size(self) -> int | None:
        """Return the size of the first packet in `_pending`, None if it is not complete."""
        if len(self._pending) < 2:
            return None
        try:
            reader = _Reader(self._pending, 1)
            size = reader.varint() + reader.position
        except _Lost:
            self.is_lost = self.is_lost or len(self._pending) >= 5
            return None
        return size if size <= len(self._pending) else None


def _read(raw: bytes, version: int) -> Sent:
    kind = raw[0] >> 4
    reader = _Reader(raw, 1)
    reader.varint()
    if kind == tables.CONNECT:
        return _read_connect(raw, reader, version)
    if kind == tables.PUBLISH:
        return _read_publish(raw, reader, version)
    if kind in (tables.SUBSCRIBE, tables.UNSUBSCRIBE):
        return _read_request(raw, reader, version)
    if kind in (tables.PUBACK, tables.PUBREC, tables.PUBREL, tables.PUBCOMP):
        packet_id = reader.number(2)
        reason = reader.number(1) if reader.left else 0
        properties = reader.properties() if reader.left else Properties()
        summary = f"id {packet_id}, {tables.reason_name(reason)}"
        return Sent(kind, raw, packet_id, reason, properties=properties, summary=summary)
    if kind in (tables.DISCONNECT, tables.AUTH) and reader.left:
        reason = reader.number(1)
        properties = reader.properties() if reader.left else Properties()
        summary = f"{tables.reason_name(reason)}{_show(properties)}"
        return Sent(kind, raw, None, reason, properties=properties, summary=summary)
    return Sent(kind, raw)


def _read_connect(raw: bytes, reader: _Reader, version: int) -> Sent:
    name = reader.text()
    level, flags = reader.number(1), reader.number(1)
    keep_alive = reader.number(2)
    if level != version:
        raise _Lost
    properties = reader.properties() if version >= 5 else Properties()
    client_id = reader.text()
    summary = f"{name} {level}, id {client_id!r}, flags 0x{flags:02X}, keep alive {keep_alive} s"
    summary += _show(properties)
    will_topic = None
    if flags & 0x24 == 0x24:  # a retained will
        if version >= 5:
            reader.properties()
        will_topic = reader.text()
    return Sent(
        tables.CONNECT,
        raw,
        properties=properties,
        summary=summary,
        level=level,
        retained_topic=will_topic,
    )


def _level(raw: bytes) -> int | None:
    """Return the protocol level of a CONNECT of any version."""
    try:
        reader = _Reader(raw, 1)
        reader.varint()
        reader.data()
        return reader.number(1)
    except _Lost:
        return None


def _read_publish(raw: bytes, reader: _Reader, version: int) -> Sent:
    qos = (raw[0] >> 1) & 3
    topic = reader.text()
    packet_id = reader.number(2) if qos else None
    properties = reader.properties() if version >= 5 else Properties()
    payload = raw[reader.position :]
    flags = f"QoS {qos}" + " RETAIN" * (raw[0] & 1) + " DUP" * ((raw[0] >> 3) & 1)
    summary = f"id {packet_id}, " * (packet_id is not None)
    summary += f"{_cut(topic)}, {flags}, payload {_cut(payload)}{_show(properties)}"
    retained_topic = topic if raw[0] & 1 and payload and topic else None
    return Sent(
        tables.PUBLISH,
        raw,
        packet_id,
        properties=properties,
        summary=summary,
        retained_topic=retained_topic,
    )


def _read_request(raw: bytes, reader: _Reader, version: int) -> Sent:
    kind = raw[0] >> 4
    packet_id = reader.number(2)
    properties = reader.properties() if version >= 5 else Properties()
    filters, shown = [], []
    while reader.left:
        filters.append(reader.text())
        shown.append(_cut(filters[-1]))
        if kind == tables.SUBSCRIBE:
            shown[-1] += f" 0x{reader.number(1):02X}"
    summary = f"id {packet_id}, {', '.join(shown[:4])}{', …' * (len(shown) > 4)}"
    return Sent(
        kind,
        raw,
        packet_id,
        filters=tuple(filters),
        properties=properties,
        summary=summary + _show(properties),
    )


def _show(properties: Properties) -> str:
    return "".join(
        f", {tables.PROPERTY_NAMES.get(identifier, hex(identifier))}={_cut(value)}"
        for identifier, value in properties
    )


def _cut(value: Value) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[: _SHOWN_MAX - 1]}…"
