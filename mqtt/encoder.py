"""Encode control packets, for both versions and both directions.

Raises `ValueError`, naming the field, for anything the format cannot carry or the specification
forbids. For deliveries the engine builds no `Publish` objects: it calls `encode_publish_parts` once
per version and set of properties and inserts the packet ids. Acknowledgements without a reason are
four bytes and the same in both versions. Read next: `mqtt.wire`.
"""

from typing import Final

from mqtt import packets, reasons
from mqtt import properties as props
from mqtt.packets import (
    Acknowledgement,
    Auth,
    Connack,
    Connect,
    Disconnect,
    FilterAcknowledgement,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
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
from mqtt.wire import (
    TWO_BYTES,
    VARINT_MAX,
    encode_binary,
    encode_byte,
    encode_four_bytes,
    encode_string,
    encode_two_bytes,
    encode_varint,
)

PACKET_ID: Final[list[bytes]] = TWO_BYTES  # packet id -> its two bytes; id 0 is never legal
PINGREQ_BYTES: Final = b"\xc0\x00"
PINGRESP_BYTES: Final = b"\xd0\x00"

_PUBLISH_FIRST: Final[list[bytes]] = [bytes((0x30 | flags,)) for flags in range(16)]
_LENGTH_MAX_SHORT: Final = 16_384  # remaining lengths below this are encoded in advance
# Put together of their two bytes: asked for one by one they take a twentieth of a start's time.
_LOW_BYTES: Final[list[bytes]] = [bytes((0x80 | low,)) for low in range(128)]
_HIGH_BYTES: Final[list[bytes]] = [bytes((high,)) for high in range(128)]
_LENGTHS: Final[list[bytes]] = _HIGH_BYTES + [
    low + high for high in _HIGH_BYTES[1:] for low in _LOW_BYTES
]
_DISCONNECT_CODES: Final = (
    reasons.DISCONNECT_CODES_FROM_CLIENT | reasons.DISCONNECT_CODES_FROM_SERVER
)
_AUTH_CODES: Final = reasons.AUTH_CODES_FROM_CLIENT | reasons.AUTH_CODES_FROM_SERVER


def puback(packet_id: int) -> bytes:
    """Encode PUBACK with reason 0x00; the same bytes in both versions."""
    assert 0 < packet_id < 65_536
    return b"\x40\x02" + TWO_BYTES[packet_id]


# The PUBACKs of all packet ids in order: those of sequential ids are one slice.
_PUBACKS: Final[bytes] = b"\x40\x02" + b"\x40\x02".join(TWO_BYTES)


def pubacks(packet_ids: list[int], is_sequential: bool) -> bytes:
    """Encode PUBACKs with reason 0x00 for a run of PUBLISHes, in order."""
    if is_sequential:
        return _PUBACKS[4 * packet_ids[0] : 4 * packet_ids[-1] + 4]
    return b"".join([b"\x40\x02" + TWO_BYTES[packet_id] for packet_id in packet_ids])


def pubrec(packet_id: int) -> bytes:
    """Encode PUBREC with reason 0x00; the same bytes in both versions."""
    assert 0 < packet_id < 65_536
    return b"\x50\x02" + TWO_BYTES[packet_id]


def pubrel(packet_id: int) -> bytes:
    """Encode PUBREL with reason 0x00; the same bytes in both versions."""
    assert 0 < packet_id < 65_536
    return b"\x62\x02" + TWO_BYTES[packet_id]


def pubcomp(packet_id: int) -> bytes:
    """Encode PUBCOMP with reason 0x00; the same bytes in both versions."""
    assert 0 < packet_id < 65_536
    return b"\x70\x02" + TWO_BYTES[packet_id]


def encode_publish_parts(
    version: int,
    topic_bytes: bytes,
    payload: bytes,
    qos: int,
    retain: bool,
    dup: bool,
    properties: bytes = b"",
) -> tuple[bytes, bytes]:
    """Encode a PUBLISH around its packet id; return (head, tail).

    The packet is head + tail at QoS 0 and head + PACKET_ID[packet_id] + tail at QoS 1 and 2; the
    remaining length includes the id. `topic_bytes` is a valid topic name in UTF-8 (empty only with
    a topic alias). `properties` is the v5 property block without its length, see
    `publish_properties`; it is ignored for v3.1.1.
    """
    assert 0 <= qos <= 2
    assert qos or not dup  # [MQTT-3.3.1-2]
    if version == packets.V5:
        if properties:
            tail = encode_varint(len(properties), "property length") + properties + payload
        else:
            tail = b"\x00" + payload
    else:
        tail = payload
    topic_size = len(topic_bytes)
    if topic_size > 65_535:
        raise ValueError(f"topic of {topic_size} bytes: expected at most 65535")
    length = 2 + topic_size + len(tail) + (2 if qos else 0)
    first = _PUBLISH_FIRST[qos << 1 | retain | dup << 3]
    if length < _LENGTH_MAX_SHORT:
        return first + _LENGTHS[length] + TWO_BYTES[topic_size] + topic_bytes, tail
    return first + _remaining_length(length) + TWO_BYTES[topic_size] + topic_bytes, tail


def encode_publish_run(
    version: int, topic_bytes: bytes, payloads: list[bytes], qos: int, properties: bytes
) -> tuple[list[bytes], list[bytes]]:
    """Encode PUBLISHes that differ in their payloads; return their heads and tails.

    Each pair is as from `encode_publish_parts`, without RETAIN and DUP.
    """
    heads: list[bytes] = []
    tails: list[bytes] = []
    size = -1
    head = b""
    prefix = b""
    if version == packets.V5:
        prefix = encode_varint(len(properties), "property length") + properties
    for payload in payloads:
        if len(payload) != size:
            size = len(payload)
            head, _ = encode_publish_parts(
                version, topic_bytes, payload, qos, retain=False, dup=False, properties=properties
            )
        heads.append(head)
        tails.append(prefix + payload if prefix else payload)
    return heads, tails


def publish_properties(
    message_expiry_interval: int,
    topic_alias: int,
    subscription_identifiers: tuple[int, ...],
    forward: bytes,
) -> bytes:
    """Encode the property block of a PUBLISH, without its length.

    `message_expiry_interval` is in seconds, -1 = absent; `topic_alias` 0 = absent; `forward` holds
    the publisher's properties to pass on, as `Publish.properties` has them.
    """
    if message_expiry_interval < 0 and not topic_alias and not subscription_identifiers:
        return forward
    block = b""
    if message_expiry_interval >= 0:
        block = b"\x02" + encode_four_bytes(message_expiry_interval, "message expiry interval")
    if topic_alias:
        block += b"\x23" + encode_two_bytes(topic_alias, "topic alias")
    for identifier in subscription_identifiers:
        if identifier == 0:
            raise ValueError("subscription identifier 0: expected 1 to 268435455")
        block += b"\x0b" + encode_varint(identifier, "subscription identifier")
    return block + forward


def message_properties(content_type: str | None, user_properties: UserProperties) -> bytes:
    """Encode properties that a publisher gives receivers, as `Publish.properties` has them.

    Raises ValueError for a text that is too long or that MQTT does not allow.
    """
    return _string(props.CONTENT_TYPE, content_type) + _user(user_properties)


def encode(packet: Packet, version: int) -> bytes:
    """Encode any packet for `version` 3 (MQTT 3.1), 4 (3.1.1) or 5.

    For v3.1.1, properties and reasons are left out, and CONNACK and SUBACK codes are mapped to the
    nearest one. Raises `ValueError` for what v3.1.1 does not have (AUTH, a CONNACK reason without a
    return code) and for anything that breaks a limit or table of the specification.
    """
    if not packets.V3 <= version <= packets.V5:
        raise ValueError(f"version {version}: expected 3, 4 or 5")
    if isinstance(packet, Publish):
        return _encode_publish(packet, version)
    if isinstance(packet, Puback):
        return _encode_acknowledgement(0x40, packet, version, reasons.PUBACK_CODES)
    if isinstance(packet, Pubrec):
        return _encode_acknowledgement(0x50, packet, version, reasons.PUBREC_CODES)
    if isinstance(packet, Pubrel):
        return _encode_acknowledgement(0x62, packet, version, reasons.PUBREL_CODES)
    if isinstance(packet, Pubcomp):
        return _encode_acknowledgement(0x70, packet, version, reasons.PUBCOMP_CODES)
    if isinstance(packet, Suback):
        return _frame(0x90, _suback_body(packet, version))
    if isinstance(packet, Unsuback):
        return _frame(0xB0, _unsuback_body(packet, version))
    if isinstance(packet, Connack):
        return _frame(0x20, _connack_body(packet, version))
    if isinstance(packet, Disconnect):
        return _frame(0xE0, _disconnect_body(packet, version))
    if isinstance(packet, Connect):
        return _frame(0x10, _connect_body(packet, version))
    if isinstance(packet, Subscribe):
        return _frame(0x82, _subscribe_body(packet, version))
    if isinstance(packet, Unsubscribe):
        return _frame(0xA2, _unsubscribe_body(packet, version))
    if isinstance(packet, Auth):
        return _frame(0xF0, _auth_body(packet, version))
    if isinstance(packet, Pingreq):
        return PINGREQ_BYTES
    return PINGRESP_BYTES


def _remaining_length(length: int) -> bytes:
    if length > VARINT_MAX:
        raise ValueError(f"packet body of {length} bytes: expected at most {VARINT_MAX}")
    return encode_varint(length, "remaining length")


def _frame(first: int, body: bytes) -> bytes:
    return bytes((first,)) + _remaining_length(len(body)) + body


def _packet_id(packet_id: int) -> bytes:
    if not 1 <= packet_id <= 65_535:
        raise ValueError(f"packet_id {packet_id}: expected 1 to 65535")
    return TWO_BYTES[packet_id]


def _reason(code: int, allowed: frozenset[int]) -> bytes:
    if code not in allowed:
        raise ValueError(f"reason_code 0x{code:02X} is not allowed in this packet")
    return bytes((code,))


def _reasons(codes: list[int], allowed: frozenset[int]) -> bytes:
    if not codes:
        raise ValueError("reason_codes is empty")
    return b"".join([_reason(code, allowed) for code in codes])


def _qos(qos: int, field: str) -> int:
    if not 0 <= qos <= 2:
        raise ValueError(f"{field} {qos}: expected 0, 1 or 2")
    return qos


# Properties. Each of these returns b"" for "absent".


def _block(*pieces: bytes) -> bytes:
    """Join properties and prefix them with the property length."""
    properties = b"".join(pieces)
    return encode_varint(len(properties), "property length") + properties


def _user(user_properties: UserProperties) -> bytes:
    pieces: list[bytes] = []
    for name, value in user_properties:
        pieces.append(b"\x26")
        pieces.append(encode_string(name, "user property name"))
        pieces.append(encode_string(value, "user property value"))
    return b"".join(pieces)


def _string(identifier: int, value: str | None) -> bytes:
    if value is None:
        return b""
    return bytes((identifier,)) + encode_string(value, props.NAMES[identifier])


def _binary(identifier: int, value: bytes | None) -> bytes:
    if value is None:
        return b""
    return bytes((identifier,)) + encode_binary(value, props.NAMES[identifier])


def _number(identifier: int, value: int | None, default: int | None = None) -> bytes:
    """Encode a number in the width of its identifier, b"" if it has its default value."""
    if value is None or value == default:
        return b""
    name = props.NAMES[identifier]
    width = props.TYPES[identifier]
    if width == props.BYTE:
        return bytes((identifier,)) + encode_byte(value, name)
    if width == props.TWO_BYTES:
        return bytes((identifier,)) + encode_two_bytes(value, name)
    if width == props.FOUR_BYTES:
        return bytes((identifier,)) + encode_four_bytes(value, name)
    return bytes((identifier,)) + encode_varint(value, name)


def _receive_maximum(value: int) -> bytes:
    if value == 0:
        raise ValueError("receive maximum 0: expected 1 to 65535")
    return _number(props.RECEIVE_MAXIMUM, value, 65_535)


def _diagnostics(reason_string: str | None, user_properties: UserProperties) -> bytes:
    return _string(props.REASON_STRING, reason_string) + _user(user_properties)


def _encode_publish(packet: Publish, version: int) -> bytes:
    _qos(packet.qos, "qos")
    if packet.dup and not packet.qos:
        raise ValueError("dup at qos 0")  # [MQTT-3.3.1-2]
    if "+" in packet.topic or "#" in packet.topic:
        raise ValueError("topic holds a wildcard")  # [MQTT-3.3.2-2]
    if not packet.topic and not (version == packets.V5 and packet.topic_alias):
        raise ValueError("topic is empty and there is no topic alias")  # [MQTT-4.7.3-1]
    properties = b""
    if version == packets.V5:
        properties = publish_properties(
            packet.message_expiry_interval,
            packet.topic_alias,
            packet.subscription_identifiers,
            packet.properties,
        )
    head, tail = encode_publish_parts(
        version,
        encode_string(packet.topic, "topic")[2:],
        packet.payload,
        packet.qos,
        packet.retain,
        packet.dup,
        properties,
    )
    if packet.qos:
        return head + _packet_id(packet.packet_id) + tail
    if packet.packet_id:
        raise ValueError(f"packet_id {packet.packet_id} at qos 0: expected 0")  # [MQTT-2.2.1-2]
    return head + tail


def _encode_acknowledgement(
    first: int, packet: Acknowledgement, version: int, allowed: frozenset[int]
) -> bytes:
    body = _packet_id(packet.packet_id)
    if version == packets.V5:
        reason = _reason(packet.reason_code, allowed)
        diagnostics = _diagnostics(packet.reason_string, packet.user_properties)
        if diagnostics:
            body += reason + _block(diagnostics)
        elif packet.reason_code:
            body += reason  # the short form: property length left out
    return _frame(first, body)


def _connect_body(packet: Connect, version: int) -> bytes:
    if packet.protocol_version != version:
        raise ValueError(f"protocol_version {packet.protocol_version}: expected {version}")
    will = packet.will
    flags = packet.clean_start << 1
    if packet.username is not None:
        flags |= 0x80
    if packet.password is not None:
        if version < packets.V5 and packet.username is None:
            raise ValueError("password without username")  # v4 [MQTT-3.1.2-22]
        flags |= 0x40
    if will is not None:
        flags |= 4 | _qos(will.qos, "will qos") << 3 | will.retain << 5
    name = b"\x00\x06MQIsdp" if version == packets.V3 else b"\x00\x04MQTT"
    pieces = [name, bytes((version, flags))]
    pieces.append(encode_two_bytes(packet.keep_alive, "keep alive"))
    if version == packets.V5:
        pieces.append(_connect_properties(packet))
    pieces.append(encode_string(packet.client_id, "client id"))
    if will is not None:
        pieces.append(_will_fields(will, version))
    if packet.username is not None:
        pieces.append(encode_string(packet.username, "user name"))
    if packet.password is not None:
        pieces.append(encode_binary(packet.password, "password"))
    return b"".join(pieces)


def _connect_properties(packet: Connect) -> bytes:
    if packet.authentication_data is not None and packet.authentication_method is None:
        raise ValueError("authentication data without authentication method")
    return _block(
        _number(props.SESSION_EXPIRY_INTERVAL, packet.session_expiry_interval, 0),
        _receive_maximum(packet.receive_maximum),
        _number(props.MAXIMUM_PACKET_SIZE, packet.maximum_packet_size, 0),
        _number(props.TOPIC_ALIAS_MAXIMUM, packet.topic_alias_maximum, 0),
        _number(props.REQUEST_RESPONSE_INFORMATION, packet.request_response_information, 0),
        _number(props.REQUEST_PROBLEM_INFORMATION, packet.request_problem_information, 1),
        _user(packet.user_properties),
        _string(props.AUTHENTICATION_METHOD, packet.authentication_method),
        _binary(props.AUTHENTICATION_DATA, packet.authentication_data),
    )


def _will_fields(will: Will, version: int) -> bytes:
    if not will.topic or "+" in will.topic or "#" in will.topic:
        raise ValueError("will topic is not a topic name")
    fields = encode_string(will.topic, "will topic") + encode_binary(will.payload, "will payload")
    if version < packets.V5:
        return fields
    properties = _block(
        _number(props.WILL_DELAY_INTERVAL, will.delay_interval, 0),
        _number(props.MESSAGE_EXPIRY_INTERVAL, will.message_expiry_interval),
        will.properties,
    )
    return properties + fields


def _connack_body(packet: Connack, version: int) -> bytes:
    if packet.session_present and packet.reason_code:
        raise ValueError("session_present with a refusal")  # v4 [MQTT-3.2.2-4], v5 [-6]
    flags = b"\x01" if packet.session_present else b"\x00"
    if version < packets.V5:
        code = reasons.connack_v4(packet.reason_code)
        if code < 0:
            raise ValueError(f"reason_code 0x{packet.reason_code:02X} has no v3.1.1 return code")
        if version == packets.V3:
            flags = b"\x00"  # MQTT 3.1 has no session present: the byte is reserved
        return flags + bytes((code,))
    _qos(packet.maximum_qos, "maximum QoS")
    return (
        flags
        + _reason(packet.reason_code, reasons.CONNACK_CODES)
        + _block(
            _number(props.SESSION_EXPIRY_INTERVAL, packet.session_expiry_interval),
            _receive_maximum(packet.receive_maximum),
            _number(props.MAXIMUM_QOS, packet.maximum_qos, 2),  # 2 must not be sent
            _number(props.RETAIN_AVAILABLE, packet.retain_available, 1),
            _number(props.MAXIMUM_PACKET_SIZE, packet.maximum_packet_size, 0),
            _string(props.ASSIGNED_CLIENT_IDENTIFIER, packet.assigned_client_id),
            _number(props.TOPIC_ALIAS_MAXIMUM, packet.topic_alias_maximum, 0),
            _diagnostics(packet.reason_string, packet.user_properties),
            _number(
                props.WILDCARD_SUBSCRIPTION_AVAILABLE, packet.wildcard_subscription_available, 1
            ),
            _number(
                props.SUBSCRIPTION_IDENTIFIER_AVAILABLE, packet.subscription_identifier_available, 1
            ),
            _number(props.SHARED_SUBSCRIPTION_AVAILABLE, packet.shared_subscription_available, 1),
            _number(props.SERVER_KEEP_ALIVE, packet.server_keep_alive),
            _string(props.RESPONSE_INFORMATION, packet.response_information),
            _string(props.SERVER_REFERENCE, packet.server_reference),
            _string(props.AUTHENTICATION_METHOD, packet.authentication_method),
            _binary(props.AUTHENTICATION_DATA, packet.authentication_data),
        )
    )


def _subscribe_body(packet: Subscribe, version: int) -> bytes:
    if not packet.subscriptions:
        raise ValueError("subscriptions is empty")  # [MQTT-3.8.3-2]
    pieces = [_packet_id(packet.packet_id)]
    if version == packets.V5:
        pieces.append(
            _block(
                _number(props.SUBSCRIPTION_IDENTIFIER, packet.subscription_identifier, 0),
                _user(packet.user_properties),
            )
        )
    for subscription in packet.subscriptions:
        pieces.append(_filter(subscription.topic_filter))
        pieces.append(bytes((_subscription_options(subscription, version),)))
    return b"".join(pieces)


def _filter(topic_filter: str) -> bytes:
    if not topic_filter:
        raise ValueError("topic filter is empty")  # [MQTT-4.7.3-1]
    return encode_string(topic_filter, "topic filter")


def _subscription_options(subscription: Subscription, version: int) -> int:
    qos = _qos(subscription.qos, "subscription qos")
    if version < packets.V5:
        return qos
    if not 0 <= subscription.retain_handling <= 2:
        raise ValueError(f"retain_handling {subscription.retain_handling}: expected 0, 1 or 2")
    return (
        qos
        | subscription.no_local << 2
        | subscription.retain_as_published << 3
        | subscription.retain_handling << 4
    )


def _suback_body(packet: Suback, version: int) -> bytes:
    if version == packets.V5:
        return _filter_acknowledgement(packet, reasons.SUBACK_CODES)
    codes = _reasons(packet.reason_codes, reasons.SUBACK_CODES)
    return _packet_id(packet.packet_id) + bytes([0x80 if code > 2 else code for code in codes])


def _unsubscribe_body(packet: Unsubscribe, version: int) -> bytes:
    if not packet.topic_filters:
        raise ValueError("topic_filters is empty")  # [MQTT-3.10.3-2]
    pieces = [_packet_id(packet.packet_id)]
    if version == packets.V5:
        pieces.append(_block(_user(packet.user_properties)))
    for topic_filter in packet.topic_filters:
        pieces.append(_filter(topic_filter))
    return b"".join(pieces)


def _unsuback_body(packet: Unsuback, version: int) -> bytes:
    if version < packets.V5:
        return _packet_id(packet.packet_id)
    return _filter_acknowledgement(packet, reasons.UNSUBACK_CODES)


def _filter_acknowledgement(packet: FilterAcknowledgement, allowed: frozenset[int]) -> bytes:
    codes = _reasons(packet.reason_codes, allowed)
    diagnostics = _diagnostics(packet.reason_string, packet.user_properties)
    return _packet_id(packet.packet_id) + _block(diagnostics) + codes


def _disconnect_body(packet: Disconnect, version: int) -> bytes:
    if version < packets.V5:
        return b""
    reason = _reason(packet.reason_code, _DISCONNECT_CODES)
    properties = (
        _number(props.SESSION_EXPIRY_INTERVAL, packet.session_expiry_interval)
        + _diagnostics(packet.reason_string, packet.user_properties)
        + _string(props.SERVER_REFERENCE, packet.server_reference)
    )
    if properties:
        return reason + _block(properties)
    return reason if packet.reason_code else b""


def _auth_body(packet: Auth, version: int) -> bytes:
    if version < packets.V5:
        raise ValueError("AUTH does not exist in v3.1.1")
    if packet.authentication_method is None:
        raise ValueError("authentication method is missing")
    return _reason(packet.reason_code, _AUTH_CODES) + _block(
        _string(props.AUTHENTICATION_METHOD, packet.authentication_method),
        _binary(props.AUTHENTICATION_DATA, packet.authentication_data),
        _diagnostics(packet.reason_string, packet.user_properties),
    )
