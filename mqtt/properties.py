"""The properties of MQTT 5.0: their types, the packets that may hold them, and their decoding.

Knows nothing of a packet's other fields. `TABLES` lists for each packet the identifiers it may hold
(any other is malformed, section 2.2.2.2); `read` checks types, repeats and values that are never
legal. Rules that need the direction or the connection's state belong to `mqtt.body_decoder` and
above.
"""

from typing import Final

from mqtt import packets, reasons
from mqtt.errors import MalformedPacket, ProtocolError
from mqtt.wire import Reader

PAYLOAD_FORMAT_INDICATOR: Final = 0x01
MESSAGE_EXPIRY_INTERVAL: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
SESSION_EXPIRY_INTERVAL: Final = 0x11
ASSIGNED_CLIENT_IDENTIFIER: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTHENTICATION_METHOD: Final = 0x15
AUTHENTICATION_DATA: Final = 0x16
REQUEST_PROBLEM_INFORMATION: Final = 0x17
WILL_DELAY_INTERVAL: Final = 0x18
REQUEST_RESPONSE_INFORMATION: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_SUBSCRIPTION_AVAILABLE: Final = 0x28
SUBSCRIPTION_IDENTIFIER_AVAILABLE: Final = 0x29
SHARED_SUBSCRIPTION_AVAILABLE: Final = 0x2A

# Types of values, section 2.2.2.2. 0 in a table means "not in this packet".
BYTE: Final = 1
TWO_BYTES: Final = 2
FOUR_BYTES: Final = 3
VARINT: Final = 4
STRING: Final = 5
BINARY: Final = 6
PAIR: Final = 7

WILL: Final = 0  # the place of the will properties in `ALLOWED` and `TABLES`: no packet has type 0

NAMES: Final[dict[int, str]] = {
    PAYLOAD_FORMAT_INDICATOR: "payload format indicator",
    MESSAGE_EXPIRY_INTERVAL: "message expiry interval",
    CONTENT_TYPE: "content type",
    RESPONSE_TOPIC: "response topic",
    CORRELATION_DATA: "correlation data",
    SUBSCRIPTION_IDENTIFIER: "subscription identifier",
    SESSION_EXPIRY_INTERVAL: "session expiry interval",
    ASSIGNED_CLIENT_IDENTIFIER: "assigned client identifier",
    SERVER_KEEP_ALIVE: "server keep alive",
    AUTHENTICATION_METHOD: "authentication method",
    AUTHENTICATION_DATA: "authentication data",
    REQUEST_PROBLEM_INFORMATION: "request problem information",
    WILL_DELAY_INTERVAL: "will delay interval",
    REQUEST_RESPONSE_INFORMATION: "request response information",
    RESPONSE_INFORMATION: "response information",
    SERVER_REFERENCE: "server reference",
    REASON_STRING: "reason string",
    RECEIVE_MAXIMUM: "receive maximum",
    TOPIC_ALIAS_MAXIMUM: "topic alias maximum",
    TOPIC_ALIAS: "topic alias",
    MAXIMUM_QOS: "maximum QoS",
    RETAIN_AVAILABLE: "retain available",
    USER_PROPERTY: "user property",
    MAXIMUM_PACKET_SIZE: "maximum packet size",
    WILDCARD_SUBSCRIPTION_AVAILABLE: "wildcard subscription available",
    SUBSCRIPTION_IDENTIFIER_AVAILABLE: "subscription identifier available",
    SHARED_SUBSCRIPTION_AVAILABLE: "shared subscription available",
}

TYPES: Final[dict[int, int]] = {
    PAYLOAD_FORMAT_INDICATOR: BYTE,
    MESSAGE_EXPIRY_INTERVAL: FOUR_BYTES,
    CONTENT_TYPE: STRING,
    RESPONSE_TOPIC: STRING,
    CORRELATION_DATA: BINARY,
    SUBSCRIPTION_IDENTIFIER: VARINT,
    SESSION_EXPIRY_INTERVAL: FOUR_BYTES,
    ASSIGNED_CLIENT_IDENTIFIER: STRING,
    SERVER_KEEP_ALIVE: TWO_BYTES,
    AUTHENTICATION_METHOD: STRING,
    AUTHENTICATION_DATA: BINARY,
    REQUEST_PROBLEM_INFORMATION: BYTE,
    WILL_DELAY_INTERVAL: FOUR_BYTES,
    REQUEST_RESPONSE_INFORMATION: BYTE,
    RESPONSE_INFORMATION: STRING,
    SERVER_REFERENCE: STRING,
    REASON_STRING: STRING,
    RECEIVE_MAXIMUM: TWO_BYTES,
    TOPIC_ALIAS_MAXIMUM: TWO_BYTES,
    TOPIC_ALIAS: TWO_BYTES,
    MAXIMUM_QOS: BYTE,
    RETAIN_AVAILABLE: BYTE,
    USER_PROPERTY: PAIR,
    MAXIMUM_PACKET_SIZE: FOUR_BYTES,
    WILDCARD_SUBSCRIPTION_AVAILABLE: BYTE,
    SUBSCRIPTION_IDENTIFIER_AVAILABLE: BYTE,
    SHARED_SUBSCRIPTION_AVAILABLE: BYTE,
}

# Table 2-4. DISCONNECT and PUBLISH are the union of both directions.
_DIAGNOSTICS: Final = frozenset((REASON_STRING, USER_PROPERTY))
ALLOWED: Final[dict[int, frozenset[int]]] = {
    WILL: frozenset((0x18, 0x01, 0x02, 0x03, 0x08, 0x09, 0x26)),
    packets.CONNECT: frozenset((0x11, 0x21, 0x27, 0x22, 0x19, 0x17, 0x26, 0x15, 0x16)),
    packets.CONNACK: frozenset(
        (0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, *range(0x26, 0x2B))
    ),
    packets.PUBLISH: frozenset((0x01, 0x02, 0x23, 0x08, 0x09, 0x26, 0x0B, 0x03)),
    packets.PUBACK: _DIAGNOSTICS,
    packets.PUBREC: _DIAGNOSTICS,
    packets.PUBREL: _DIAGNOSTICS,
    packets.PUBCOMP: _DIAGNOSTICS,
    packets.SUBSCRIBE: frozenset((0x0B, 0x26)),
    packets.SUBACK: _DIAGNOSTICS,
    packets.UNSUBSCRIBE: frozenset((0x26,)),
    packets.UNSUBACK: _DIAGNOSTICS,
    packets.DISCONNECT: frozenset((0x11, 0x1F, 0x26, 0x1C)),
    packets.AUTH: frozenset((0x15, 0x16, 0x1F, 0x26)),
}

# The same as look-up tables: TABLES[packet type][identifier] -> type of value, 0 = not allowed.
TABLES: Final[dict[int, bytes]] = {
    kind: bytes(TYPES[identifier] if identifier in allowed else 0 for identifier in range(256))
    for kind, allowed in ALLOWED.items()
}

# Properties passed on from publisher to receivers, unaltered and in order [MQTT-3.3.2-4, -15, -16,
# -17, -18, -20].
_FORWARDED: Final = bytes(
    identifier
    in (PAYLOAD_FORMAT_INDICATOR, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA, USER_PROPERTY)
    for identifier in range(256)
)

_ZERO_OR_ONE: Final = frozenset(
    (
        PAYLOAD_FORMAT_INDICATOR,
        REQUEST_PROBLEM_INFORMATION,
        REQUEST_RESPONSE_INFORMATION,
        MAXIMUM_QOS,
        RETAIN_AVAILABLE,
        WILDCARD_SUBSCRIPTION_AVAILABLE,
        SUBSCRIPTION_IDENTIFIER_AVAILABLE,
        SHARED_SUBSCRIPTION_AVAILABLE,
    )
)
_NOT_ZERO: Final = frozenset(
    (RECEIVE_MAXIMUM, MAXIMUM_PACKET_SIZE, TOPIC_ALIAS, SUBSCRIPTION_IDENTIFIER)
)


class Properties:
    """The values of one property block, by identifier and type."""

    __slots__ = ("binaries", "identifiers", "numbers", "strings", "user")

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.strings: dict[int, str] = {}
        self.binaries: dict[int, bytes] = {}
        self.user: list[tuple[str, str]] = []  # in the order received
        self.identifiers: list[int] = []  # subscription identifiers, in the order received


def read(
    block: Reader, kind: int, user_properties_max: int, found: Properties | None = None
) -> Properties:
    """Read a whole property block of a packet of type `kind` (or `WILL`), into `found` if given.

    Raises `MalformedPacket` for an identifier that is unknown or not allowed in the packet and for
    a block that ends within a property, `ProtocolError` for repeats and values that are never
    legal.
    """
    table = TABLES[kind]
    if found is None:
        found = Properties()
    seen = 0  # bit n is set once identifier n was read
    while block.position < block.end:
        identifier = block.byte("property identifier")
        value_type = table[identifier]
        if value_type == PAIR:
            if len(found.user) >= user_properties_max:
                raise too_many(user_properties_max)
            name = block.string("user property name")
            found.user.append((name, block.string("user property value")))
            continue
        if value_type == 0:
            raise MalformedPacket(f"property 0x{identifier:02X} is not allowed in this packet")
        bit = 1 << identifier
        if seen & bit and not (value_type == VARINT and kind == packets.PUBLISH):
            raise ProtocolError(f"{NAMES[identifier]} is repeated")
        seen |= bit
        _read_value(block, identifier, value_type, found)
    return found


def _read_value(block: Reader, identifier: int, value_type: int, found: Properties) -> None:
    """Read one value that is not a user property into its place in `found`."""
    name = NAMES[identifier]
    if value_type == STRING:
        string = block.string(name)
        if identifier == RESPONSE_TOPIC and (not string or "+" in string or "#" in string):
            # [MQTT-3.3.2-14, MQTT-4.7.3-1]
            raise ProtocolError(f"{name} is not a topic name", reasons.TOPIC_NAME_INVALID)
        found.strings[identifier] = string
        return
    if value_type == BINARY:
        found.binaries[identifier] = block.binary(name)
        return
    if value_type == BYTE:
        value = block.byte(name)
        if value > 1 and identifier in _ZERO_OR_ONE:
            raise ProtocolError(f"{name} {value}: expected 0 or 1")
    elif value_type == TWO_BYTES:
        value = block.two_bytes(name)
    elif value_type == FOUR_BYTES:
        value = block.four_bytes(name)
    else:
        value = block.varint(name)
        found.identifiers.append(value)
    if value == 0 and identifier in _NOT_ZERO:
        alias = identifier == TOPIC_ALIAS
        code = reasons.TOPIC_ALIAS_INVALID if alias else reasons.PROTOCOL_ERROR
        raise ProtocolError(f"{name} must not be 0", code)
    found.numbers[identifier] = value


def too_many(user_properties_max: int) -> ProtocolError:
    """Return the error for a packet with too many user properties."""
    return ProtocolError(f"more than {user_properties_max} user properties", reasons.QUOTA_EXCEEDED)


class PublishProperties:
    """The decoded property block of a PUBLISH; direction and connection limits are not checked."""

    __slots__ = (
        "forward",
        "message_expiry_interval",
        "subscription_identifiers",
        "topic_alias",
        "user_count",
    )

    def __init__(
        self,
        forward: bytes,
        message_expiry_interval: int,
        topic_alias: int,
        subscription_identifiers: tuple[int, ...],
        user_count: int,
    ) -> None:
        self.forward: bytes = forward  # see `forwardable`
        self.message_expiry_interval: int = message_expiry_interval  # seconds, -1 = absent
        self.topic_alias: int = topic_alias  # 0 = absent
        self.subscription_identifiers: tuple[int, ...] = subscription_identifiers
        self.user_count: int = user_count


def read_publish(raw: bytes, user_properties_max: int) -> PublishProperties:
    """Read `raw`, the property block of a PUBLISH without its length."""
    found = read(Reader(raw, 0, len(raw)), packets.PUBLISH, user_properties_max)
    return PublishProperties(
        forwardable(raw, 0, len(raw)),
        found.numbers.get(MESSAGE_EXPIRY_INTERVAL, -1),
        found.numbers.get(TOPIC_ALIAS, 0),
        tuple(found.identifiers),
        len(found.user),
    )


def forwardable(data: bytes, start: int, end: int) -> bytes:
    """Return the properties to pass on to receivers, raw and in order, of a block `read` accepted.

    A single slice of `data` if the block has no others, which is the usual case.
    """
    pieces: list[bytes] = []
    position = piece = start  # data[piece:position] is forwardable and not yet in `pieces`
    while position < end:
        identifier = data[position]
        after = _skip(data, position)
        if not _FORWARDED[identifier]:
            if piece < position:
                pieces.append(data[piece:position])
            piece = after
        position = after
    assert position == end
    if piece == start:
        return data[start:end]
    pieces.append(data[piece:end])
    return b"".join(pieces)


def _skip(data: bytes, position: int) -> int:
    """Return the position after the property at `position` of a block that `read` accepted."""
    value_type = TYPES[data[position]]
    position += 1
    if value_type == BYTE:
        return position + 1
    if value_type == TWO_BYTES:
        return position + 2
    if value_type == FOUR_BYTES:
        return position + 4
    if value_type == VARINT:
        while data[position] > 127:
            position += 1
        return position + 1
    position += 2 + (data[position] << 8 | data[position + 1])
    if value_type == PAIR:
        position += 2 + (data[position] << 8 | data[position + 1])
    return position
