"""The tables of both specifications: packet types, properties, reason codes.

Data only, used by `wire` to build packets, by `packets` to judge them, and by reports for names.
"""

from typing import Final, Literal

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

PACKET_NAMES: Final = (
    "type 0",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
)

# Properties of MQTT 5.0.
PAYLOAD_FORMAT: Final = 0x01
MESSAGE_EXPIRY: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_ID: Final = 0x0B
SESSION_EXPIRY: Final = 0x11
ASSIGNED_CLIENT_ID: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTH_METHOD: Final = 0x15
AUTH_DATA: Final = 0x16
REQUEST_PROBLEM_INFO: Final = 0x17
WILL_DELAY: Final = 0x18
REQUEST_RESPONSE_INFO: Final = 0x19
RESPONSE_INFO: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_AVAILABLE: Final = 0x28
SUBSCRIPTION_ID_AVAILABLE: Final = 0x29
SHARED_AVAILABLE: Final = 0x2A

Type = Literal["byte", "two", "four", "varint", "string", "binary", "pair"]

PROPERTY_TYPES: Final[dict[int, Type]] = {
    PAYLOAD_FORMAT: "byte",
    MESSAGE_EXPIRY: "four",
    CONTENT_TYPE: "string",
    RESPONSE_TOPIC: "string",
    CORRELATION_DATA: "binary",
    SUBSCRIPTION_ID: "varint",
    SESSION_EXPIRY: "four",
    ASSIGNED_CLIENT_ID: "string",
    SERVER_KEEP_ALIVE: "two",
    AUTH_METHOD: "string",
    AUTH_DATA: "binary",
    REQUEST_PROBLEM_INFO: "byte",
    WILL_DELAY: "four",
    REQUEST_RESPONSE_INFO: "byte",
    RESPONSE_INFO: "string",
    SERVER_REFERENCE: "string",
    REASON_STRING: "string",
    RECEIVE_MAXIMUM: "two",
    TOPIC_ALIAS_MAXIMUM: "two",
    TOPIC_ALIAS: "two",
    MAXIMUM_QOS: "byte",
    RETAIN_AVAILABLE: "byte",
    USER_PROPERTY: "pair",
    MAXIMUM_PACKET_SIZE: "four",
    WILDCARD_AVAILABLE: "byte",
    SUBSCRIPTION_ID_AVAILABLE: "byte",
    SHARED_AVAILABLE: "byte",
}

PROPERTY_NAMES: Final = {
    PAYLOAD_FORMAT: "Payload Format Indicator",
    MESSAGE_EXPIRY: "Message Expiry Interval",
    CONTENT_TYPE: "Content Type",
    RESPONSE_TOPIC: "Response Topic",
    CORRELATION_DATA: "Correlation Data",
    SUBSCRIPTION_ID: "Subscription Identifier",
    SESSION_EXPIRY: "Session Expiry Interval",
    ASSIGNED_CLIENT_ID: "Assigned Client Identifier",
    SERVER_KEEP_ALIVE: "Server Keep Alive",
    AUTH_METHOD: "Authentication Method",
    AUTH_DATA: "Authentication Data",
    REQUEST_PROBLEM_INFO: "Request Problem Information",
    WILL_DELAY: "Will Delay Interval",
    REQUEST_RESPONSE_INFO: "Request Response Information",
    RESPONSE_INFO: "Response Information",
    SERVER_REFERENCE: "Server Reference",
    REASON_STRING: "Reason String",
    RECEIVE_MAXIMUM: "Receive Maximum",
    TOPIC_ALIAS_MAXIMUM: "Topic Alias Maximum",
    TOPIC_ALIAS: "Topic Alias",
    MAXIMUM_QOS: "Maximum QoS",
    RETAIN_AVAILABLE: "Retain Available",
    USER_PROPERTY: "User Property",
    MAXIMUM_PACKET_SIZE: "Maximum Packet Size",
    WILDCARD_AVAILABLE: "Wildcard Subscription Available",
    SUBSCRIPTION_ID_AVAILABLE: "Subscription Identifier Available",
    SHARED_AVAILABLE: "Shared Subscription Available",
}

# Which properties each packet may hold (WILL stands for the will properties of CONNECT).
WILL: Final = 16
PROPERTIES_OF: Final[dict[int, frozenset[int]]] = {
    CONNECT: frozenset({0x11, 0x21, 0x27, 0x22, 0x19, 0x17, 0x26, 0x15, 0x16}),
    WILL: frozenset({0x18, 0x01, 0x02, 0x03, 0x08, 0x09, 0x26}),
    CONNACK: frozenset(
        {0x11, 0x21, 0x24, 0x25, 0x27, 0x12, 0x22, 0x1F, 0x26, 0x28, 0x29, 0x2A, 0x13}
        | {0x1A, 0x1C, 0x15, 0x16}
    ),
    PUBLISH: frozenset({0x01, 0x02, 0x23, 0x08, 0x09, 0x26, 0x0B, 0x03}),
    PUBACK: frozenset({0x1F, 0x26}),
    PUBREC: frozenset({0x1F, 0x26}),
    PUBREL: frozenset({0x1F, 0x26}),
    PUBCOMP: frozenset({0x1F, 0x26}),
    SUBSCRIBE: frozenset({0x0B, 0x26}),
    SUBACK: frozenset({0x1F, 0x26}),
    UNSUBSCRIBE: frozenset({0x26}),
    UNSUBACK: frozenset({0x1F, 0x26}),
    DISCONNECT: frozenset({0x11, 0x1F, 0x26, 0x1C}),
    AUTH: frozenset({0x15, 0x16, 0x1F, 0x26}),
}

# Reason codes a server may send in each packet, MQTT 5.0.
REASONS_OF: Final[dict[int, frozenset[int]]] = {
    CONNACK: frozenset(
        {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F}
    ),
    PUBACK: frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}),
    PUBREC: frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}),
    PUBREL: frozenset({0x00, 0x92}),
    PUBCOMP: frozenset({0x00, 0x92}),
    SUBACK: frozenset({0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    UNSUBACK: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
    # 0x8C is in the table of all codes for DISCONNECT, but not in the table of the packet.
    DISCONNECT: frozenset(
        {0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90}
        | {*range(0x93, 0xA3)}
    ),
    AUTH: frozenset({0x00, 0x18}),
}

REASON_NAMES: Final = {
    0x00: "Success",
    0x01: "Granted QoS 1",
    0x02: "Granted QoS 2",
    0x04: "Disconnect with Will Message",
    0x10: "No matching subscribers",
    0x11: "No subscription existed",
    0x18: "Continue authentication",
    0x19: "Re-authenticate",
    0x80: "Unspecified error",
    0x81: "Malformed Packet",
    0x82: "Protocol Error",
    0x83: "Implementation specific error",
    0x84: "Unsupported Protocol Version",
    0x85: "Client Identifier not valid",
    0x86: "Bad User Name or Password",
    0x87: "Not authorized",
    0x88: "Server unavailable",
    0x89: "Server busy",
    0x8A: "Banned",
    0x8B: "Server shutting down",
    0x8C: "Bad authentication method",
    0x8D: "Keep Alive timeout",
    0x8E: "Session taken over",
    0x8F: "Topic Filter invalid",
    0x90: "Topic Name invalid",
    0x91: "Packet Identifier in use",
    0x92: "Packet Identifier not found",
    0x93: "Receive Maximum exceeded",
    0x94: "Topic Alias invalid",
    0x95: "Packet too large",
    0x96: "Message rate too high",
    0x97: "Quota exceeded",
    0x98: "Administrative action",
    0x99: "Payload format invalid",
    0x9A: "Retain not supported",
    0x9B: "QoS not supported",
    0x9C: "Use another server",
    0x9D: "Server moved",
    0x9E: "Shared Subscriptions not supported",
    0x9F: "Connection rate exceeded",
    0xA0: "Maximum connect time",
    0xA1: "Subscription Identifiers not supported",
    0xA2: "Wildcard Subscriptions not supported",
}

RETURN_CODE_NAMES: Final = {
    0: "accepted",
    1: "protocol level not supported",
    2: "client identifier refused",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorised",
}


def reason_name(code: int) -> str:
    """Return a reason code of 5.0 with its name: `0x82 Protocol Error`."""
    return f"0x{code:02X} {REASON_NAMES.get(code, 'unknown reason')}"
