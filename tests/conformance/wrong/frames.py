"""Control packets a wrong broker can take apart, change and put together again.

A `Frame` is loose on purpose: what cannot be taken apart has `good` False and is passed on as it
is. Properties are (identifier, raw value) pairs in their order. Must never raise for what a peer
sent.
"""

import copy
from typing import Any, Final

from conformance import tables, wire
from mqtt.decoder import Decoder

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)
ACKS: Final = (PUBACK, PUBREC, PUBREL, PUBCOMP)
EVERY: Final = tuple(range(1, 16))

WIDTHS: Final = {"byte": 1, "two": 2, "four": 4}


class _Short(Exception):
    """There is less in the packet than it says."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        if self.left < count:
            raise _Short
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def varint(self) -> int:
        number = 0
        for index in range(4):
            byte = self.number(1)
            number |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return number
        raise _Short

    def string(self) -> bytes:
        return self.take(self.number(2))

    def rest(self) -> bytes:
        return self.take(self.left)

    def properties(self) -> list[tuple[int, bytes]]:
        length = self.varint()
        inner = _Reader(self.take(length))
        found = []
        while inner.left:
            identifier = inner.varint()
            begin = inner.at
            kind = tables.PROPERTY_TYPES.get(identifier)
            if kind is None:
                raise _Short
            if kind in WIDTHS:
                inner.take(WIDTHS[kind])
            elif kind == "varint":
                inner.varint()
            else:
                inner.string()
                if kind == "pair":
                    inner.string()
            found.append((identifier, inner.data[begin : inner.at]))
        return found


class Frame:
    """One packet; which fields count depends on `kind`. Change them and `encode` again."""

    def __init__(self, raw: bytes, version: int) -> None:
        self.raw: bytes = raw
        self.version: int = version
        self.kind: int = raw[0] >> 4
        self.flags: int = raw[0] & 15
        self.packet_id: int | None = None
        self.reason: int | None = None  # None: the short form
        self.properties: list[tuple[int, bytes]] | None = None
        self.topic: bytes = b""
        self.payload: bytes = b""
        self.filters: list[tuple[bytes, int]] = []
        self.codes: list[int] = []
        self.session_present: int = 0
        # CONNECT
        self.name: bytes = b"MQTT"
        self.level: int = 4
        self.connect_flags: int = 0
        self.keep_alive: int = 0
        self.client_id: bytes = b""
        self.will_properties: list[tuple[int, bytes]] = []
        self.username: bytes = b""
        self.password: bytes = b""
        header = _Reader(raw)
        header.take(1)
        try:
            header.varint()
            body = header.rest()
            self._original = body
            self._read(_Reader(body))
            self.good: bool = self._body() == body
        except _Short:
            self.good = False

    # The parts everybody asks for.

    @property
    def qos(self) -> int:
        """QoS of a PUBLISH."""
        return (self.flags >> 1) & 3

    @qos.setter
    def qos(self, qos: int) -> None:
        self.flags = (self.flags & ~6) | (qos << 1)
        if not qos:
            self.packet_id = None

    @property
    def retain(self) -> bool:
        """RETAIN of a PUBLISH."""
        return bool(self.flags & 1)

    @property
    def dup(self) -> bool:
        """DUP of a PUBLISH."""
        return bool(self.flags & 8)

    def get(self, identifier: int) -> bytes | None:
        """Return the raw value of a property, None if it is not there."""
        return next((value for found, value in self.properties or () if found == identifier), None)

    def number(self, identifier: int) -> int | None:
        """Return an integer property of fixed width."""
        value = self.get(identifier)
        return None if value is None else int.from_bytes(value, "big")

    def set(self, identifier: int, value: Any) -> None:
        """Replace a property, or add it."""
        self.remove(identifier)
        self.add(identifier, value)

    def add(self, identifier: int, value: Any) -> None:
        """Add a property; an acknowledgement in its short form becomes a long one."""
        if self.reason is None:
            self.reason = 0
        raw = wire.property_value(identifier, value)
        self.properties = [*(self.properties or ()), (identifier, raw)]

    def remove(self, identifier: int) -> bool:
        """Leave a property out; tell whether it was there."""
        kept = [item for item in self.properties or () if item[0] != identifier]
        was_there = len(kept) != len(self.properties or ())
        if was_there:
            self.properties = kept
        return was_there

    def copy(self, **changes: Any) -> "Frame":
        """Return a copy with other fields."""
        found = copy.deepcopy(self)
        for name, value in changes.items():
            assert hasattr(found, name), name
            setattr(found, name, value)
        return found

    # Format.

    def _read(self, body: _Reader) -> None:
        five = self.version >= 5
        if self.kind == CONNECT:
            self._read_connect(body)
        elif self.kind == PUBLISH:
            self.topic = body.string()
            self.packet_id = body.number(2) if self.qos else None
            self.properties = body.properties() if five else None
            self.payload = body.rest()
        elif self.kind == CONNACK:
            self.session_present, self.reason = body.number(1), body.number(1)
            self.properties = body.properties() if five else None
        elif self.kind in ACKS:
            self.packet_id = body.number(2)
            self._read_reason(body)
        elif self.kind in (SUBSCRIBE, UNSUBSCRIBE):
            self.packet_id = body.number(2)
            self.properties = body.properties() if five else None
            while body.left:
                text = body.string()
                self.filters.append((text, body.number(1) if self.kind == SUBSCRIBE else 0))
        elif self.kind in (SUBACK, UNSUBACK):
            self.packet_id = body.number(2)
            self.properties = body.properties() if five else None
            self.codes = list(body.rest())
        elif self.kind in (DISCONNECT, AUTH):
            self._read_reason(body)

    def _read_reason(self, body: _Reader) -> None:
        self.reason = body.number(1) if body.left else None
        self.properties = body.properties() if body.left else None

    def _read_connect(self, body: _Reader) -> None:
        self.name, self.level, self.connect_flags = body.string(), body.number(1), body.number(1)
        self.keep_alive = body.number(2)
        self.version = self.level
        self.properties = body.properties() if self.version == 5 else None
        self.client_id = body.string()
        if self.connect_flags & 4:
            self.will_properties = body.properties() if self.version == 5 else []
            self.topic, self.payload = body.string(), body.string()
        self.username = body.string() if self.connect_flags & 0x80 else b""
        self.password = body.string() if self.connect_flags & 0x40 else b""

    def _body(self) -> bytes:
        number = b"" if self.packet_id is None else self.packet_id.to_bytes(2, "big")
        if self.kind == CONNECT:
            return self._connect_body()
        if self.kind == PUBLISH:
            return wire.string(self.topic) + number + _block(self.properties) + self.payload
        if self.kind == CONNACK:
            head = bytes([self.session_present, self.reason or 0])
            return head + _block(self.properties)
        if self.kind in (*ACKS, DISCONNECT, AUTH):
            reason = b"" if self.reason is None else bytes([self.reason])
            return number + reason + _block(self.properties)
        head = number + _block(self.properties)
        if self.kind == SUBSCRIBE:
            return head + b"".join(wire.string(f) + bytes([o]) for f, o in self.filters)
        if self.kind == UNSUBSCRIBE:
            return head + b"".join(wire.string(f) for f, _ in self.filters)
        return head + bytes(self.codes)

    def _connect_body(self) -> bytes:
        body = wire.string(self.name) + bytes([self.level, self.connect_flags])
        body += self.keep_alive.to_bytes(2, "big") + _block(self.properties)
        body += wire.string(self.client_id)
        if self.connect_flags & 4:
            body += _block(self.will_properties) if self.version == 5 else b""
            body += wire.string(self.topic) + wire.string(self.payload)
        body += wire.string(self.username) if self.connect_flags & 0x80 else b""
        return body + (wire.string(self.password) if self.connect_flags & 0x40 else b"")

    def encode(self) -> bytes:
        """Return the packet with what was changed."""
        if not self.good:
            return self.raw
        body = self._body()
        if body == self._original and self.raw[0] == self.kind << 4 | self.flags:
            return self.raw  # with a Remaining Length of strange form, if it had one
        return wire.packet(self.kind << 4 | self.flags, body)


def _block(properties: list[tuple[int, bytes]] | None) -> bytes:
    if properties is None:
        return b""
    body = b"".join(wire.varint(identifier) + value for identifier, value in properties)
    return wire.varint(len(body)) + body


class Cutter:
    """Cuts a byte stream into raw packets; `lost` once the stream makes no sense."""

    def __init__(self) -> None:
        self.pending: bytes = b""
        self.lost: bool = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes in any pieces; return the packets they completed."""
        self.pending += data
        found = []
        while (size := self._size()) and len(self.pending) >= size:
            found.append(self.pending[:size])
            self.pending = self.pending[size:]
        return found

    @property
    def missing(self) -> int:
        """Bytes the packet in `pending` still lacks, as far as its header tells."""
        return max(0, self._size() - len(self.pending))

    def _size(self) -> int:
        length = 0
        for index, byte in enumerate(self.pending[1:5]):
            length |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return length + index + 2
        self.lost = self.lost or len(self.pending) >= 5
        return 0


def is_sound(raw: bytes, version: int) -> bool:
    """Does the broker's own codec take this packet of a client?"""
    decoder = Decoder("server", 0, 0 if raw[0] >> 4 == CONNECT else version)
    decoder.receive(raw)
    return decoder.error is None
