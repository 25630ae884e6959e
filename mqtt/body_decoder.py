"""Decode packet bodies (what follows the fixed header) off the hot path.

Must never read beyond its packet or keep anything between packets. Each function reads one whole
body: leftover bytes are malformed. The usual PUBLISH and the acknowledgements are decoded in
`mqtt.decoder`. `from_client` is the direction, which decides the allowed reason codes and a few
properties.
"""

from typing import Final

from mqtt import packets, reasons
from mqtt import properties as props
from mqtt.errors import MalformedPacket, MqttError, ProtocolError, UnsupportedProtocolVersion
from mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    UserProperties,
    Will,
)
from mqtt.properties import Properties
from mqtt.topics import SHARE_PREFIX
from mqtt.wire import Reader, text

# Topic filters in one SUBSCRIBE or UNSUBSCRIBE: each costs objects, however small.
FILTERS_MAX: Final = 16_384
PROTOCOL_NAME: Final = b"MQTT"
PROTOCOL_NAME_V3: Final = b"MQIsdp"  # MQTT 3.1, before the standard

# CONNECT flags, section 3.1.2.3
_RESERVED: Final = 0x01
_CLEAN_START: Final = 0x02
_WILL: Final = 0x04
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USER_NAME: Final = 0x80


def read_topic(raw: bytes, field: str = "topic") -> str:
    """Decode the bytes of a topic name; raise if it has wildcards [MQTT-3.3.2-2]."""
    topic = text(raw, field)
    if "+" in topic or "#" in topic:
        raise MalformedPacket(f"{field} holds a wildcard", reasons.TOPIC_NAME_INVALID)
    return topic


def read_protocol(reader: Reader) -> int:
    """Read protocol name and version of CONNECT; return 3, 4 or 5 [MQTT-3.1.2-1, MQTT-3.1.2-2]."""
    name = reader.binary("protocol name")
    version = reader.byte("protocol version")
    if name == PROTOCOL_NAME:
        if version == packets.V4 or version == packets.V5:
            return version
        raise UnsupportedProtocolVersion(f"protocol version {version}: expected 4 or 5", version)
    if name == PROTOCOL_NAME_V3:
        if version == packets.V3:
            return version
        raise UnsupportedProtocolVersion(
            f"protocol version {version} of 'MQIsdp': expected 3", version
        )
    problem = f"protocol name {name[:8]!r}: expected b'MQTT'"
    if version == packets.V5:
        raise UnsupportedProtocolVersion(problem, version)  # can be answered: section 3.1.2.1
    raise ProtocolError(problem, reasons.UNSUPPORTED_PROTOCOL_VERSION)


def read_connect(
    reader: Reader, version: int, user_properties_max: int, found: Properties
) -> Connect:
    """Read CONNECT after its protocol version, filling `found` up to the first error."""
    flags = reader.byte("connect flags")
    _check_connect_flags(flags, version)
    keep_alive = reader.two_bytes("keep alive")
    if version == packets.V5:
        props.read(reader.properties(), packets.CONNECT, user_properties_max, found)
        if props.AUTHENTICATION_DATA in found.binaries:
            if props.AUTHENTICATION_METHOD not in found.strings:
                raise ProtocolError("authentication data without authentication method")
    client_id = reader.string("client id")
    will = _read_will(reader, flags, version, user_properties_max) if flags & _WILL else None
    # MQTT 3.1, CONNECT, "User name and password flags": for older clients the end of the packet
    # takes precedence over the flags.
    ends = version == packets.V3 and reader.position == reader.end
    username = reader.string("user name") if flags & _USER_NAME and not ends else None
    ends = version == packets.V3 and reader.position == reader.end
    password = reader.binary("password") if flags & _PASSWORD and not ends else None
    reader.finish()
    numbers = found.numbers
    return Connect(
        client_id=client_id,
        protocol_version=version,
        clean_start=flags & _CLEAN_START != 0,
        keep_alive=keep_alive,
        will=will,
        username=username,
        password=password,
        session_expiry_interval=numbers.get(props.SESSION_EXPIRY_INTERVAL, 0),
        receive_maximum=numbers.get(props.RECEIVE_MAXIMUM, 65_535),
        maximum_packet_size=numbers.get(props.MAXIMUM_PACKET_SIZE, 0),
        topic_alias_maximum=numbers.get(props.TOPIC_ALIAS_MAXIMUM, 0),
        request_response_information=numbers.get(props.REQUEST_RESPONSE_INFORMATION, 0) == 1,
        request_problem_information=numbers.get(props.REQUEST_PROBLEM_INFORMATION, 1) == 1,
        user_properties=tuple(found.user),
        authentication_method=found.strings.get(props.AUTHENTICATION_METHOD),
        authentication_data=found.binaries.get(props.AUTHENTICATION_DATA),
    )


def _check_connect_flags(flags: int, version: int) -> None:
    is_old = version == packets.V3  # ignores bit 0, and the will's bits if there is no will
    if flags & _RESERVED and not is_old:
        raise MalformedPacket("connect flags: reserved bit 0 is set")  # [MQTT-3.1.2-3]
    if flags & _WILL:
        if flags >> 3 & 3 == 3:
            raise MalformedPacket("will QoS 3: expected 0, 1 or 2")  # v5 [MQTT-3.1.2-12]
    elif flags & 0x38 and not is_old:
        # v4 [MQTT-3.1.2-13, MQTT-3.1.2-15], v5 [MQTT-3.1.2-11, MQTT-3.1.2-13]
        raise MalformedPacket("will QoS or will retain without will")
    if version < packets.V5 and flags & _PASSWORD and not flags & _USER_NAME:
        raise MalformedPacket("password without user name")  # v4 [MQTT-3.1.2-22]


def _read_will(reader: Reader, flags: int, version: int, user_properties_max: int) -> Will:
    numbers: dict[int, int] = {}
    forward = b""
    if version == packets.V5:
        block = reader.properties()
        start = block.position
        found = props.read(block, props.WILL, user_properties_max)
        numbers = found.numbers
        forward = props.forwardable(reader.data, start, block.end)
    topic = read_topic(reader.binary("will topic"), "will topic")
    if not topic:
        raise ProtocolError("will topic is empty", reasons.TOPIC_NAME_INVALID)  # [MQTT-4.7.3-1]
    return Will(
        topic=topic,
        payload=reader.binary("will payload"),
        qos=flags >> 3 & 3,
        retain=flags & _WILL_RETAIN != 0,
        delay_interval=numbers.get(props.WILL_DELAY_INTERVAL, 0),
        message_expiry_interval=numbers.get(props.MESSAGE_EXPIRY_INTERVAL),
        properties=forward,
    )


def read_body(
    kind: int, reader: Reader, version: int, from_client: bool, user_properties_max: int
) -> Packet:
    """Read the body of a packet of type `kind`, which is neither CONNECT nor PUBLISH.

    The caller has checked that the sender may send this type in this version.
    """
    if packets.PUBACK <= kind <= packets.PUBCOMP:
        return _read_acknowledgement(kind, reader, version, user_properties_max)
    if kind == packets.SUBSCRIBE:
        return _read_subscribe(reader, version, user_properties_max)
    if kind == packets.UNSUBSCRIBE:
        return _read_unsubscribe(reader, version, user_properties_max)
    if kind == packets.PINGREQ:
        reader.finish()
        return Pingreq()
    if kind == packets.DISCONNECT:
        return _read_disconnect(reader, version, from_client, user_properties_max)
    if kind == packets.AUTH:
        return _read_auth(reader, from_client, user_properties_max)
    if kind == packets.CONNACK:
        return _read_connack(reader, version, user_properties_max)
    if kind == packets.SUBACK:
        return _read_suback(reader, version, user_properties_max)
    if kind == packets.UNSUBACK:
        return _read_unsuback(reader, version, user_properties_max)
    assert kind == packets.PINGRESP
    reader.finish()
    return Pingresp()


def _read_packet_id(reader: Reader) -> int:
    packet_id = reader.two_bytes("packet id")
    if packet_id == 0:
        raise MalformedPacket("packet id 0: expected 1 to 65535")  # [MQTT-2.2.1-3]
    return packet_id


def _check_reason(code: int, allowed: frozenset[int], kind: int) -> None:
    if code not in allowed:
        raise ProtocolError(f"reason code 0x{code:02X} is not allowed in {packets.NAMES[kind]}")


def _read_acknowledgement(
    kind: int, reader: Reader, version: int, user_properties_max: int
) -> Packet:
    packet_id = _read_packet_id(reader)
    code = reasons.SUCCESS
    reason_string: str | None = None
    user_properties: UserProperties = ()
    if version == packets.V5 and reader.position < reader.end:
        code = reader.byte("reason code")
        if kind == packets.PUBREL or kind == packets.PUBCOMP:
            _check_reason(code, reasons.PUBREL_CODES, kind)
        else:
            _check_reason(code, reasons.PUBACK_CODES, kind)
        if reader.position < reader.end:
            found = props.read(reader.properties(), kind, user_properties_max)
            reason_string = found.strings.get(props.REASON_STRING)
            user_properties = tuple(found.user)
    reader.finish()
    if kind == packets.PUBACK:
        return Puback(packet_id, code, reason_string, user_properties)
    if kind == packets.PUBREC:
        return Pubrec(packet_id, code, reason_string, user_properties)
    if kind == packets.PUBREL:
        return Pubrel(packet_id, code, reason_string, user_properties)
    return Pubcomp(packet_id, code, reason_string, user_properties)


def _read_subscribe(reader: Reader, version: int, user_properties_max: int) -> Subscribe:
    packet_id = _read_packet_id(reader)
    identifier = 0
    user_properties: UserProperties = ()
    if version == packets.V5:
        found = props.read(reader.properties(), packets.SUBSCRIBE, user_properties_max)
        identifier = found.numbers.get(props.SUBSCRIPTION_IDENTIFIER, 0)
        user_properties = tuple(found.user)
    if reader.position == reader.end:
        raise ProtocolError("SUBSCRIBE without topic filter")  # [MQTT-3.8.3-2]
    subscriptions: list[Subscription] = []
    while reader.position < reader.end:
        _check_count(len(subscriptions))
        topic_filter = _read_filter(reader)
        options = reader.byte("subscription options")
        if version == packets.V5:
            subscriptions.append(_subscription(topic_filter, options))
        elif options > 2:
            # v4 [MQTT-3.8.3-4]
            raise MalformedPacket(f"requested QoS byte 0x{options:02X}: expected 0, 1 or 2")
        else:
            subscriptions.append(Subscription(topic_filter, options))
    return Subscribe(packet_id, subscriptions, identifier, user_properties)


def _check_count(count: int) -> None:
    if count == FILTERS_MAX:
        raise ProtocolError(
            f"more than {FILTERS_MAX} topic filters in one packet, expected several packets",
            reasons.QUOTA_EXCEEDED,
        )


def _read_filter(reader: Reader) -> str:
    """Read a topic filter; its wildcards are checked later, because each filter gets an answer."""
    topic_filter = reader.string("topic filter")
    if not topic_filter:
        raise ProtocolError("topic filter is empty")  # [MQTT-4.7.3-1]
    return topic_filter


def _subscription(topic_filter: str, options: int) -> Subscription:
    """Decode the v5 options byte, section 3.8.3.1."""
    if options & 0xC0:
        raise MalformedPacket("subscription options: reserved bits are set")  # [MQTT-3.8.3-5]
    qos = options & 3
    if qos == 3:
        raise ProtocolError("subscription options: QoS 3")
    retain_handling = options >> 4
    if retain_handling == 3:
        raise ProtocolError("subscription options: retain handling 3")
    no_local = options & 4 != 0
    if no_local and topic_filter.startswith(SHARE_PREFIX):
        raise ProtocolError("no local on a shared subscription")  # [MQTT-3.8.3-4]
    return Subscription(topic_filter, qos, no_local, options & 8 != 0, retain_handling)


def _read_unsubscribe(reader: Reader, version: int, user_properties_max: int) -> Unsubscribe:
    packet_id = _read_packet_id(reader)
    user_properties: UserProperties = ()
    if version == packets.V5:
        found = props.read(reader.properties(), packets.UNSUBSCRIBE, user_properties_max)
        user_properties = tuple(found.user)
    if reader.position == reader.end:
        raise ProtocolError("UNSUBSCRIBE without topic filter")  # [MQTT-3.10.3-2]
    topic_filters: list[str] = []
    while reader.position < reader.end:
        _check_count(len(topic_filters))
        topic_filters.append(_read_filter(reader))
    return Unsubscribe(packet_id, topic_filters, user_properties)


def _read_disconnect(
    reader: Reader, version: int, from_client: bool, user_properties_max: int
) -> Disconnect:
    if version < packets.V5 or reader.position == reader.end:
        reader.finish()
        return Disconnect()
    code = reader.byte("reason code")
    allowed = (
        reasons.DISCONNECT_CODES_FROM_CLIENT
        if from_client
        else reasons.DISCONNECT_CODES_FROM_SERVER
    )
    _check_reason(code, allowed, packets.DISCONNECT)  # [MQTT-3.14.2-1]
    if reader.position == reader.end:
        return Disconnect(code)
    found = props.read(reader.properties(), packets.DISCONNECT, user_properties_max)
    reader.finish()
    expiry = found.numbers.get(props.SESSION_EXPIRY_INTERVAL)
    server_reference = found.strings.get(props.SERVER_REFERENCE)
    if expiry is not None and not from_client:
        raise ProtocolError("session expiry interval from a server")  # [MQTT-3.14.2-2]
    if server_reference is not None and from_client:
        raise ProtocolError("server reference from a client")
    return Disconnect(
        code,
        expiry,
        found.strings.get(props.REASON_STRING),
        tuple(found.user),
        server_reference,
    )


def _read_auth(reader: Reader, from_client: bool, user_properties_max: int) -> Auth:
    code = reasons.SUCCESS
    found = Properties()
    if reader.position < reader.end:
        code = reader.byte("reason code")
        found = props.read(reader.properties(), packets.AUTH, user_properties_max)
        reader.finish()
    allowed = reasons.AUTH_CODES_FROM_CLIENT if from_client else reasons.AUTH_CODES_FROM_SERVER
    _check_reason(code, allowed, packets.AUTH)  # [MQTT-3.15.2-1]
    method = found.strings.get(props.AUTHENTICATION_METHOD)
    if method is None:
        raise ProtocolError("AUTH without authentication method")  # section 3.15.2.2.2
    return Auth(
        code,
        method,
        found.binaries.get(props.AUTHENTICATION_DATA),
        found.strings.get(props.REASON_STRING),
        tuple(found.user),
    )


def _read_connack(reader: Reader, version: int, user_properties_max: int) -> Connack:
    flags = reader.byte("connect acknowledge flags")
    if version == packets.V3:
        flags = 0  # reserved in MQTT 3.1 and ignored
    if flags > 1:
        raise MalformedPacket("connect acknowledge flags: reserved bits are set")  # [MQTT-3.2.2-1]
    code = reader.byte("reason code")
    five = version == packets.V5
    _check_reason(
        code, reasons.CONNACK_CODES if five else reasons.CONNACK_CODES_V4, packets.CONNACK
    )
    if flags and code:
        raise ProtocolError("session present with a refusal")  # v4 [MQTT-3.2.2-4], v5 [-6]
    if five:
        found = props.read(reader.properties(), packets.CONNACK, user_properties_max)
    else:
        found = Properties()
    reader.finish()
    numbers = found.numbers
    strings = found.strings
    return Connack(
        session_present=flags == 1,
        reason_code=code,
        session_expiry_interval=numbers.get(props.SESSION_EXPIRY_INTERVAL),
        receive_maximum=numbers.get(props.RECEIVE_MAXIMUM, 65_535),
        maximum_qos=numbers.get(props.MAXIMUM_QOS, 2),
        retain_available=numbers.get(props.RETAIN_AVAILABLE, 1) == 1,
        maximum_packet_size=numbers.get(props.MAXIMUM_PACKET_SIZE, 0),
        assigned_client_id=strings.get(props.ASSIGNED_CLIENT_IDENTIFIER),
        topic_alias_maximum=numbers.get(props.TOPIC_ALIAS_MAXIMUM, 0),
        reason_string=strings.get(props.REASON_STRING),
        user_properties=tuple(found.user),
        wildcard_subscription_available=numbers.get(props.WILDCARD_SUBSCRIPTION_AVAILABLE, 1) == 1,
        subscription_identifier_available=(
            numbers.get(props.SUBSCRIPTION_IDENTIFIER_AVAILABLE, 1) == 1
        ),
        shared_subscription_available=numbers.get(props.SHARED_SUBSCRIPTION_AVAILABLE, 1) == 1,
        server_keep_alive=numbers.get(props.SERVER_KEEP_ALIVE),
        response_information=strings.get(props.RESPONSE_INFORMATION),
        server_reference=strings.get(props.SERVER_REFERENCE),
        authentication_method=strings.get(props.AUTHENTICATION_METHOD),
        authentication_data=found.binaries.get(props.AUTHENTICATION_DATA),
    )


def _read_suback(reader: Reader, version: int, user_properties_max: int) -> Suback:
    packet_id = _read_packet_id(reader)
    found = Properties()
    allowed = reasons.SUBACK_CODES_V4
    if version == packets.V5:
        found = props.read(reader.properties(), packets.SUBACK, user_properties_max)
        allowed = reasons.SUBACK_CODES
    codes = _read_codes(reader, allowed, packets.SUBACK)  # v4 [MQTT-3.9.3-2]
    return Suback(packet_id, codes, found.strings.get(props.REASON_STRING), tuple(found.user))


def _read_unsuback(reader: Reader, version: int, user_properties_max: int) -> Unsuback:
    packet_id = _read_packet_id(reader)
    if version < packets.V5:
        reader.finish()
        return Unsuback(packet_id, [])
    found = props.read(reader.properties(), packets.UNSUBACK, user_properties_max)
    codes = _read_codes(reader, reasons.UNSUBACK_CODES, packets.UNSUBACK)
    return Unsuback(packet_id, codes, found.strings.get(props.REASON_STRING), tuple(found.user))


def _read_codes(reader: Reader, allowed: frozenset[int], kind: int) -> list[int]:
    codes = list(reader.data[reader.position : reader.end])
    reader.position = reader.end
    if not codes:
        raise ProtocolError(f"{packets.NAMES[kind]} without reason code")
    for code in codes:
        _check_reason(code, allowed, kind)
    return codes


def header_fault(first: int, version: int, *, from_client: bool) -> MqttError | None:
    """Return the error of a first byte, None if such a packet is allowed now, section 2.1.

    `version` 0 means that there was no CONNECT yet [MQTT-3.1.0-1].
    """
    kind = first >> 4
    flags = first & 15
    if kind == 0 or (kind == packets.AUTH and 0 < version < packets.V5):
        return MalformedPacket(f"packet type {kind} is reserved")
    name = packets.NAMES[kind]
    if kind == packets.PUBLISH:
        if flags & 6 == 6:
            return MalformedPacket("PUBLISH with QoS 3")  # [MQTT-3.3.1-4]
        if flags & 14 == 8 and version != packets.V3:
            return MalformedPacket("PUBLISH with DUP at QoS 0")  # [MQTT-3.3.1-2]
    elif version == packets.V3:
        pass  # MQTT 3.1 sets DUP on packets sent again; the other flags are "not used"
    elif flags != (2 if kind in (packets.PUBREL, packets.SUBSCRIBE, packets.UNSUBSCRIBE) else 0):
        return MalformedPacket(f"{name} with fixed header flags {flags:04b}")  # [MQTT-2.1.3-1]
    if version == 0:
        return None if kind == packets.CONNECT else ProtocolError(f"{name} before CONNECT")
    if from_client:
        if kind == packets.CONNECT:
            return ProtocolError("second CONNECT")  # [MQTT-3.1.0-2]
        if kind in (packets.CONNACK, packets.SUBACK, packets.UNSUBACK, packets.PINGRESP):
            return ProtocolError(f"{name} from a client")
    elif kind in (packets.CONNECT, packets.SUBSCRIBE, packets.UNSUBSCRIBE, packets.PINGREQ) or (
        kind == packets.DISCONNECT and version < packets.V5
    ):
        return ProtocolError(f"{name} from a server")
    return None
