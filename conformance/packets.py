"""A strict parser of what a broker may send.

`parse` returns the fields of one whole packet, or raises `Violation` with the statements it breaks.
What depends on the rest of the connection (first packet, aliases, limits the client announced) is
judged by `conformance.rules`. A fault that no numbered statement forbids is booked on X-00, our own
"what a broker sends can be parsed".
"""

import dataclasses
from collections.abc import Iterator
from typing import Final, NoReturn, TypeAlias

from conformance import tables
from conformance.failure import Violation

Value: TypeAlias = int | str | bytes | tuple[str, str]
UNPARSABLE: Final = "X-00"


@dataclasses.dataclass(frozen=True)
class Properties:
    """The properties of one packet, in the order they were sent."""

    items: tuple[tuple[int, Value], ...] = ()

    def __contains__(self, identifier: int) -> bool:
        return any(found == identifier for found, _ in self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[tuple[int, Value]]:
        return iter(self.items)

    def all(self, identifier: int) -> list[Value]:
        """Return every value of `identifier`, in order."""
        return [value for found, value in self.items if found == identifier]

    def get(self, identifier: int) -> Value | None:
        """Return the first value of `identifier`, or None."""
        return next(iter(self.all(identifier)), None)

    def number(self, identifier: int) -> int | None:
        """Return an integer property, or None if it is absent."""
        value = self.get(identifier)
        assert value is None or isinstance(value, int)
        return value

    def text(self, identifier: int) -> str | None:
        """Return a string property, or None if it is absent."""
        value = self.get(identifier)
        assert value is None or isinstance(value, str)
        return value

    def data(self, identifier: int) -> bytes | None:
        """Return a binary property, or None if it is absent."""
        value = self.get(identifier)
        assert value is None or isinstance(value, bytes)
        return value

    def subscription_ids(self) -> list[int]:
        """Return every Subscription Identifier, in order."""
        return [value for value in self.all(tables.SUBSCRIPTION_ID) if isinstance(value, int)]

    def user(self) -> list[tuple[str, str]]:
        """Return every User Property, in order."""
        return [value for value in self.all(tables.USER_PROPERTY) if isinstance(value, tuple)]


@dataclasses.dataclass(frozen=True)
class Connack:
    """CONNACK; `code` is the return code (3.1.1) or reason code (5.0)."""

    raw: bytes
    session_present: bool
    code: int
    properties: Properties


@dataclasses.dataclass(frozen=True)
class Publish:
    """PUBLISH; `topic` has the alias resolved, `wire_topic` is the topic in the packet."""

    raw: bytes
    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int | None
    properties: Properties
    wire_topic: str


@dataclasses.dataclass(frozen=True)
class Puback:
    """PUBACK; `reason` is 0 in 3.1.1 and in the short form."""

    raw: bytes
    packet_id: int
    reason: int
    properties: Properties


@dataclasses.dataclass(frozen=True)
class Pubrec:
    """PUBREC; `reason` is 0 in 3.1.1 and in the short form."""

    raw: bytes
    packet_id: int
    reason: int
    properties: Properties


@dataclasses.dataclass(frozen=True)
class Pubrel:
    """PUBREL; `reason` is 0 in 3.1.1 and in the short form."""

    raw: bytes
    packet_id: int
    reason: int
    properties: Properties


@dataclasses.dataclass(frozen=True)
class Pubcomp:
    """PUBCOMP; `reason` is 0 in 3.1.1 and in the short form."""

    raw: bytes
    packet_id: int
    reason: int
    properties: Properties


@dataclasses.dataclass(frozen=True)
class Suback:
    """SUBACK with one code per filter."""

    raw: bytes
    packet_id: int
    codes: tuple[int, ...]
    properties: Properties


@dataclasses.dataclass(frozen=True)
class Unsuback:
    """UNSUBACK; `codes` is empty in 3.1.1."""

    raw: bytes
    packet_id: int
    codes: tuple[int, ...]
    properties: Properties


@dataclasses.dataclass(frozen=True)
class Pingresp:
    """PINGRESP."""

    raw: bytes


@dataclasses.dataclass(frozen=True)
class Disconnect:
    """DISCONNECT from the server, 5.0 only."""

    raw: bytes
    reason: int
    properties: Properties


@dataclasses.dataclass(frozen=True)
class Auth:
    """AUTH, 5.0 only."""

    raw: bytes
    reason: int
    properties: Properties


Packet: TypeAlias = (
    Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Suback
    | Unsuback
    | Pingresp
    | Disconnect
    | Auth
)
Acknowledgement: TypeAlias = Puback | Pubrec | Pubrel | Pubcomp

_ACKNOWLEDGEMENTS: Final[dict[int, type[Puback] | type[Pubrec] | type[Pubrel] | type[Pubcomp]]] = {
    tables.PUBACK: Puback,
    tables.PUBREC: Pubrec,
    tables.PUBREL: Pubrel,
    tables.PUBCOMP: Pubcomp,
}
# The statement that limits the reason codes of each packet, 5.0.
_REASON_STATEMENTS: Final = {
    tables.CONNACK: "MQTT-3.2.2-8",
    tables.PUBACK: "MQTT-3.4.2-1",
    tables.PUBREC: "MQTT-3.5.2-1",
    tables.PUBREL: "MQTT-3.6.2-1",
    tables.PUBCOMP: "MQTT-3.7.2-1",
    tables.SUBACK: "MQTT-3.9.3-2",
    tables.UNSUBACK: "MQTT-3.11.3-2",
    tables.DISCONNECT: "MQTT-3.14.2-1",
    tables.AUTH: "MQTT-3.15.2-1",
}
_BOOLEANS: Final = frozenset(
    {
        tables.PAYLOAD_FORMAT,
        tables.RETAIN_AVAILABLE,
        tables.WILDCARD_AVAILABLE,
        tables.SUBSCRIPTION_ID_AVAILABLE,
        tables.SHARED_AVAILABLE,
    }
)


def header(data: bytes, version: int) -> tuple[int, int] | None:
    """Return (size of the fixed header, Remaining Length) of the first packet in `data`.

    None if more bytes are needed. Raises `Violation` for an invalid length.
    """
    number = 0
    for index in range(1, 5):
        if index >= len(data):
            return None
        number |= (data[index] & 0x7F) << (7 * (index - 1))
        if data[index] < 0x80:
            if version >= 5 and index > 1 and data[index] == 0:
                raise Violation(
                    ("MQTT-1.5.5-1",),
                    "Remaining Length is not in its shortest form",
                    packet=data[: index + 1],
                    expected="the shortest encoding of the length",
                )
            return index + 1, number
    raise Violation((UNPARSABLE,), "Remaining Length of more than 4 bytes", packet=data[:6])


class _Reader:
    """Reads the fields of one packet in order; every fault raises `Violation`."""

    def __init__(self, raw: bytes, version: int, start: int) -> None:
        self.raw = raw
        self.version = version
        self.position = start
        self.end = len(raw)

    def fail(self, statement: str, message: str, expected: str = "") -> NoReturn:
        name = tables.PACKET_NAMES[self.raw[0] >> 4]
        raise Violation((statement,), f"{name}: {message}", packet=self.raw, expected=expected)

    @property
    def left(self) -> int:
        return self.end - self.position

    def take(self, count: int, what: str, statement: str = UNPARSABLE) -> bytes:
        if count > self.left:
            self.fail(statement, f"{what} runs past the end of the packet")
        self.position += count
        return self.raw[self.position - count : self.position]

    def number(self, count: int, what: str) -> int:
        return int.from_bytes(self.take(count, what), "big")

    def varint(self, what: str, statement: str = UNPARSABLE) -> int:
        number = 0
        for index in range(4):
            byte = self.take(1, what, statement)[0]
            number |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if index and not byte:
                    self.fail("MQTT-1.5.5-1", f"{what} is not in its shortest form")
                return number
        self.fail("MQTT-1.5.5-1", f"{what} of more than 4 bytes")

    def string(self, what: str, statement: str | None = None) -> str:
        raw = self.take(self.number(2, f"length of {what}"), what, statement or UNPARSABLE)
        ids = ("MQTT-1.5.4-1", "MQTT-1.5.4-2") if self.version >= 5 else _STRINGS_V4
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(statement or ids[0], f"{what} is not valid UTF-8: {raw.hex(' ')}")
        if "\0" in text:
            self.fail(statement or ids[1], f"{what} contains U+0000")
        return text

    def done(self) -> None:
        if self.left:
            self.fail(UNPARSABLE, f"{self.left} bytes are left over at the end of the packet")

    def properties(self, kind: int) -> Properties:
        """Read a property block; `kind` must allow its ids, and only some may be repeated."""
        if self.version < 5:
            return Properties()
        length = self.varint("Property Length", "MQTT-2.2.2-1")
        if length > self.left:
            self.fail(UNPARSABLE, "Property Length runs past the end of the packet")
        outer, self.end = self.end, self.position + length
        items: list[tuple[int, Value]] = []
        while self.left:
            identifier = self.varint("property identifier")
            name = tables.PROPERTY_NAMES.get(identifier, f"property 0x{identifier:02X}")
            if identifier not in tables.PROPERTIES_OF[kind]:
                if kind == tables.DISCONNECT and identifier == tables.SESSION_EXPIRY:
                    self.fail("MQTT-3.14.2-2", f"{name} sent by a server")
                self.fail("X-10", f"{name} is not allowed in this packet")
            many = identifier == tables.USER_PROPERTY or identifier == tables.SUBSCRIPTION_ID
            if not many and any(found == identifier for found, _ in items):
                self.fail("X-09", f"{name} more than once")
            items.append((identifier, self._property(identifier, name)))
        if kind == tables.DISCONNECT and any(i == tables.SESSION_EXPIRY for i, _ in items):
            self.fail("MQTT-3.14.2-2", "Session Expiry Interval sent by a server")
        self.end = outer
        return Properties(tuple(items))

    def _property(self, identifier: int, name: str) -> Value:
        kind = tables.PROPERTY_TYPES[identifier]
        if kind == "string":
            return self.string(name, _STRING_STATEMENTS.get(identifier))
        if kind == "pair":
            return (
                self.string("name of a User Property", "MQTT-1.5.7-1"),
                self.string("value of a User Property", "MQTT-1.5.7-1"),
            )
        if kind == "binary":
            return self.take(self.number(2, f"length of {name}"), name)
        if kind == "varint":
            value = self.varint(name)
            if not value:
                self.fail("X-16", f"{name} is 0")
            return value
        value = self.number({"byte": 1, "two": 2, "four": 4}[kind], name)
        if identifier in _BOOLEANS and value > 1:
            self.fail(UNPARSABLE, f"{name} is {value}", "0 or 1")
        if identifier == tables.MAXIMUM_QOS and value > 1:
            self.fail("MQTT-3.2.2-9", f"{name} is {value}", "0 or 1, or no such property")
        if identifier in (tables.RECEIVE_MAXIMUM, tables.MAXIMUM_PACKET_SIZE) and not value:
            self.fail(UNPARSABLE, f"{name} is 0", "a value above 0")
        if identifier == tables.TOPIC_ALIAS and not value:
            self.fail("MQTT-3.3.2-8", f"{name} is 0", "an alias above 0")
        return value

    def reason(self, kind: int) -> int:
        code = self.number(1, "reason code")
        if code not in tables.REASONS_OF[kind]:
            self.fail(
                _REASON_STATEMENTS[kind],
                f"reason code {tables.reason_name(code)} is not for this packet",
                "one of " + ", ".join(f"0x{c:02X}" for c in sorted(tables.REASONS_OF[kind])),
            )
        return code


_STRINGS_V4: Final = ("MQTT-1.5.3-1", "MQTT-1.5.3-2")
_STRING_STATEMENTS: Final = {
    tables.RESPONSE_TOPIC: "MQTT-3.3.2-13",
    tables.CONTENT_TYPE: "MQTT-3.3.2-19",
}


# Return codes of 3.1.1 -> reason codes of 5.0.
_RETURN_CODES: Final = {1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}


def parse_foreign_connack(raw: bytes) -> Connack | None:
    """Return a 3.1.1 refusal with its code translated to 5.0; None if it is not one.

    A broker that does not support the client's version may answer in the format of 3.1.1.
    """
    if raw[:3] == b"\x20\x02\x00" and raw[3:] and raw[3] in _RETURN_CODES:
        return Connack(raw, False, _RETURN_CODES[raw[3]], Properties())
    return None


def parse(raw: bytes, version: int) -> Packet:
    """Return the parsed form of one whole packet from a broker; raises `Violation`."""
    kind = raw[0] >> 4
    found = header(raw, version)
    assert found is not None
    assert found[0] + found[1] == len(raw)
    reader = _Reader(raw, version, found[0])
    if kind == tables.PUBLISH:
        return _publish(reader)
    wanted = 2 if kind == tables.PUBREL else 0
    if raw[0] & 0x0F != wanted:
        statement = "MQTT-2.1.3-1" if version >= 5 else "MQTT-2.2.2-1"
        if kind == tables.AUTH:
            statement = "MQTT-3.15.1-1"
        reader.fail(statement, f"fixed header flags {raw[0] & 0x0F:04b}", f"{wanted:04b}")
    if kind in _ACKNOWLEDGEMENTS:
        return _acknowledgement(reader, kind)
    if kind == tables.CONNACK:
        return _connack(reader)
    if kind in (tables.SUBACK, tables.UNSUBACK):
        return _granted(reader, kind)
    if kind == tables.PINGRESP:
        reader.done()
        return Pingresp(raw)
    if version >= 5 and kind in (tables.DISCONNECT, tables.AUTH):
        return _disconnect_or_auth(reader, kind)
    reader.fail(UNPARSABLE, "no server sends this packet")


def _connack(reader: _Reader) -> Connack:
    flags = reader.number(1, "acknowledge flags")
    if flags > 1:
        statement = "MQTT-3.2.2-1" if reader.version >= 5 else "X-02"
        reader.fail(statement, f"acknowledge flags 0x{flags:02X}", "bits 7-1 are 0")
    if reader.version >= 5:
        code = reader.reason(tables.CONNACK)
    else:
        code = reader.number(1, "return code")
        if code > 5:
            reader.fail(
                "MQTT-3.2.2-6", f"return code {code} is reserved", "0 to 5, or just a close"
            )
    properties = reader.properties(tables.CONNACK)
    reader.done()
    if flags and code:
        statement = "MQTT-3.2.2-6" if reader.version >= 5 else "MQTT-3.2.2-4"
        reader.fail(statement, "session present is 1 although the code is not 0", "0")
    return Connack(reader.raw, bool(flags), code, properties)


def _publish(reader: _Reader) -> Publish:
    flags = reader.raw[0] & 0x0F
    qos = (flags >> 1) & 3
    dup = bool(flags & 8)
    if qos == 3:
        reader.fail("MQTT-3.3.1-4", "QoS bits 11")
    if dup and not qos:
        reader.fail("MQTT-3.3.1-2", "DUP 1 at QoS 0", "DUP 0")
    if reader.left < 2:
        reader.fail("MQTT-3.3.2-1", "no topic name")
    topic = reader.string("topic name")
    if "+" in topic or "#" in topic:
        reader.fail("MQTT-3.3.2-2", f"wildcard in topic name {topic!r}")
    packet_id = None
    if qos:
        packet_id = reader.number(2, "packet identifier")
        if not packet_id:
            statement = "MQTT-2.2.1-4" if reader.version >= 5 else "MQTT-2.3.1-1"
            reader.fail(statement, "packet identifier 0", "1 to 65535")
    properties = reader.properties(tables.PUBLISH)
    if not topic and tables.TOPIC_ALIAS not in properties:
        reader.fail("MQTT-4.7.3-1", "empty topic name" + " without alias" * (reader.version >= 5))
    response_topic = properties.text(tables.RESPONSE_TOPIC) or ""
    if "+" in response_topic or "#" in response_topic:
        reader.fail("MQTT-3.3.2-14", f"wildcard in response topic {response_topic!r}")
    payload = reader.take(reader.left, "payload")
    retain = bool(flags & 1)
    return Publish(reader.raw, topic, payload, qos, retain, dup, packet_id, properties, topic)


def _acknowledgement(reader: _Reader, kind: int) -> Acknowledgement:
    packet_id = reader.number(2, "packet identifier")
    if not packet_id:
        reader.fail(_IDS[reader.version >= 5], "packet identifier 0", "the id of its PUBLISH")
    reason = 0
    properties = Properties()
    if reader.version >= 5 and reader.left:
        reason = reader.reason(kind)
        if reader.left:
            properties = reader.properties(kind)
    reader.done()
    return _ACKNOWLEDGEMENTS[kind](reader.raw, packet_id, reason, properties)


_IDS: Final = ("MQTT-2.3.1-6", "MQTT-2.2.1-5")


def _granted(reader: _Reader, kind: int) -> Suback | Unsuback:
    packet_id = reader.number(2, "packet identifier")
    properties = reader.properties(kind)
    codes = []
    if kind == tables.UNSUBACK and reader.version < 5:
        reader.done()
    while reader.left:
        if reader.version >= 5:
            codes.append(reader.reason(kind))
            continue
        code = reader.number(1, "return code")
        if code not in (0, 1, 2, 0x80):
            reader.fail("MQTT-3.9.3-2", f"return code 0x{code:02X}", "0x00, 0x01, 0x02 or 0x80")
        codes.append(code)
    made = Suback if kind == tables.SUBACK else Unsuback
    return made(reader.raw, packet_id, tuple(codes), properties)


def _disconnect_or_auth(reader: _Reader, kind: int) -> Disconnect | Auth:
    reason = 0
    properties = Properties()
    if reader.left:
        reason = reader.reason(kind)
        if reader.left:
            properties = reader.properties(kind)
    reader.done()
    made = Disconnect if kind == tables.DISCONNECT else Auth
    return made(reader.raw, reason, properties)


def describe(packet: Packet) -> str:
    """Return a readable line: `PUBACK id 7, 0x10 No matching subscribers`."""
    name = type(packet).__name__.upper()
    parts: list[str] = []
    if isinstance(packet, Connack):
        parts += [f"session present {int(packet.session_present)}", f"code 0x{packet.code:02X}"]
    elif isinstance(packet, Publish):
        flags = f"QoS {packet.qos}" + " RETAIN" * packet.retain + " DUP" * packet.dup
        parts += [f"{_cut(packet.topic)}", flags, f"payload {_cut(packet.payload)}"]
    elif isinstance(packet, Puback | Pubrec | Pubrel | Pubcomp | Disconnect | Auth):
        parts.append(tables.reason_name(packet.reason))
    elif isinstance(packet, Suback | Unsuback):
        parts.append("codes " + " ".join(f"{code:02X}" for code in packet.codes))
    packet_id = getattr(packet, "packet_id", None)
    if packet_id is not None:
        parts.insert(0, f"id {packet_id}")
    for identifier, value in getattr(packet, "properties", ()):
        parts.append(f"{tables.PROPERTY_NAMES[identifier]}={_cut(value)}")
    return f"{name} {', '.join(parts)}".strip()


def _cut(value: Value, length: int = 60) -> str:
    shown = repr(value)
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"
