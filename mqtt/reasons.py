"""Reason codes of MQTT 5.0 by name, the packets that may carry them, and their v3.1.1 counterparts.

Tables only: which code answers which error is decided elsewhere. Read next: `mqtt.errors`.
"""

from typing import Final

SUCCESS: Final = 0x00
NORMAL_DISCONNECTION: Final = 0x00  # the same code in DISCONNECT
GRANTED_QOS_0: Final = 0x00  # the same code in SUBACK
GRANTED_QOS_1: Final = 0x01
GRANTED_QOS_2: Final = 0x02
DISCONNECT_WITH_WILL: Final = 0x04
NO_MATCHING_SUBSCRIBERS: Final = 0x10
NO_SUBSCRIPTION_EXISTED: Final = 0x11
CONTINUE_AUTHENTICATION: Final = 0x18
REAUTHENTICATE: Final = 0x19
UNSPECIFIED_ERROR: Final = 0x80
MALFORMED_PACKET: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
IMPLEMENTATION_SPECIFIC_ERROR: Final = 0x83
UNSUPPORTED_PROTOCOL_VERSION: Final = 0x84
CLIENT_IDENTIFIER_NOT_VALID: Final = 0x85
BAD_USER_NAME_OR_PASSWORD: Final = 0x86
NOT_AUTHORIZED: Final = 0x87
SERVER_UNAVAILABLE: Final = 0x88
SERVER_BUSY: Final = 0x89
BANNED: Final = 0x8A
SERVER_SHUTTING_DOWN: Final = 0x8B
BAD_AUTHENTICATION_METHOD: Final = 0x8C
KEEP_ALIVE_TIMEOUT: Final = 0x8D
SESSION_TAKEN_OVER: Final = 0x8E
TOPIC_FILTER_INVALID: Final = 0x8F
TOPIC_NAME_INVALID: Final = 0x90
PACKET_IDENTIFIER_IN_USE: Final = 0x91
PACKET_IDENTIFIER_NOT_FOUND: Final = 0x92
RECEIVE_MAXIMUM_EXCEEDED: Final = 0x93
TOPIC_ALIAS_INVALID: Final = 0x94
PACKET_TOO_LARGE: Final = 0x95
MESSAGE_RATE_TOO_HIGH: Final = 0x96
QUOTA_EXCEEDED: Final = 0x97
ADMINISTRATIVE_ACTION: Final = 0x98
PAYLOAD_FORMAT_INVALID: Final = 0x99
RETAIN_NOT_SUPPORTED: Final = 0x9A
QOS_NOT_SUPPORTED: Final = 0x9B
USE_ANOTHER_SERVER: Final = 0x9C
SERVER_MOVED: Final = 0x9D
SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0x9E
CONNECTION_RATE_EXCEEDED: Final = 0x9F
MAXIMUM_CONNECT_TIME: Final = 0xA0
SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: Final = 0xA1
WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0xA2

NAMES: Final[dict[int, str]] = {
    SUCCESS: "Success",
    GRANTED_QOS_1: "Granted QoS 1",
    GRANTED_QOS_2: "Granted QoS 2",
    DISCONNECT_WITH_WILL: "Disconnect with Will Message",
    NO_MATCHING_SUBSCRIBERS: "No matching subscribers",
    NO_SUBSCRIPTION_EXISTED: "No subscription existed",
    CONTINUE_AUTHENTICATION: "Continue authentication",
    REAUTHENTICATE: "Re-authenticate",
    UNSPECIFIED_ERROR: "Unspecified error",
    MALFORMED_PACKET: "Malformed Packet",
    PROTOCOL_ERROR: "Protocol Error",
    IMPLEMENTATION_SPECIFIC_ERROR: "Implementation specific error",
    UNSUPPORTED_PROTOCOL_VERSION: "Unsupported Protocol Version",
    CLIENT_IDENTIFIER_NOT_VALID: "Client Identifier not valid",
    BAD_USER_NAME_OR_PASSWORD: "Bad User Name or Password",
    NOT_AUTHORIZED: "Not authorized",
    SERVER_UNAVAILABLE: "Server unavailable",
    SERVER_BUSY: "Server busy",
    BANNED: "Banned",
    SERVER_SHUTTING_DOWN: "Server shutting down",
    BAD_AUTHENTICATION_METHOD: "Bad authentication method",
    KEEP_ALIVE_TIMEOUT: "Keep Alive timeout",
    SESSION_TAKEN_OVER: "Session taken over",
    TOPIC_FILTER_INVALID: "Topic Filter invalid",
    TOPIC_NAME_INVALID: "Topic Name invalid",
    PACKET_IDENTIFIER_IN_USE: "Packet Identifier in use",
    PACKET_IDENTIFIER_NOT_FOUND: "Packet Identifier not found",
    RECEIVE_MAXIMUM_EXCEEDED: "Receive Maximum exceeded",
    TOPIC_ALIAS_INVALID: "Topic Alias invalid",
    PACKET_TOO_LARGE: "Packet too large",
    MESSAGE_RATE_TOO_HIGH: "Message rate too high",
    QUOTA_EXCEEDED: "Quota exceeded",
    ADMINISTRATIVE_ACTION: "Administrative action",
    PAYLOAD_FORMAT_INVALID: "Payload format invalid",
    RETAIN_NOT_SUPPORTED: "Retain not supported",
    QOS_NOT_SUPPORTED: "QoS not supported",
    USE_ANOTHER_SERVER: "Use another server",
    SERVER_MOVED: "Server moved",
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: "Shared Subscriptions not supported",
    CONNECTION_RATE_EXCEEDED: "Connection rate exceeded",
    MAXIMUM_CONNECT_TIME: "Maximum connect time",
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: "Subscription Identifiers not supported",
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: "Wildcard Subscriptions not supported",
}

# Which codes each packet may carry, section 2.4 and the table of each packet.
CONNACK_CODES: Final = frozenset(
    (SUCCESS, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F)
)
PUBACK_CODES: Final = frozenset((SUCCESS, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
# "No matching subscribers" makes no sense from a client, but counts as a success like every code
# below 0x80 [MQTT-4.3.3-4].
PUBREC_CODES: Final = PUBACK_CODES
PUBREL_CODES: Final = frozenset((SUCCESS, PACKET_IDENTIFIER_NOT_FOUND))
PUBCOMP_CODES: Final = PUBREL_CODES
SUBACK_CODES: Final = frozenset(
    (0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)
)
UNSUBACK_CODES: Final = frozenset((SUCCESS, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91))
# 0x8C is in table 2-6 but not in table 3-10, and section 4.12 uses it: accepted in both directions.
DISCONNECT_CODES_FROM_SERVER: Final = frozenset(
    (0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3))
)
# 0x9B: section 3.3.4 lets a client answer a PUBLISH above its Maximum QoS with it.
DISCONNECT_CODES_FROM_CLIENT: Final = frozenset(
    (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x8C, 0x90, *range(0x93, 0x9A), 0x9B)
)
AUTH_CODES_FROM_SERVER: Final = frozenset((SUCCESS, CONTINUE_AUTHENTICATION))
AUTH_CODES_FROM_CLIENT: Final = frozenset((CONTINUE_AUTHENTICATION, REAUTHENTICATE))

# v3.1.1: the whole tables of sections 3.2.2.3 and 3.9.3; every other value is reserved.
CONNACK_CODES_V4: Final = frozenset(range(6))
SUBACK_CODES_V4: Final = frozenset((0x00, 0x01, 0x02, 0x80))

# The v3.1.1 return code nearest to a v5 reason. Absent: none fits, close without CONNACK.
_CONNACK_V4: Final[dict[int, int]] = {
    **{code: code for code in CONNACK_CODES_V4},  # already a v3.1.1 return code
    UNSUPPORTED_PROTOCOL_VERSION: 1,
    CLIENT_IDENTIFIER_NOT_VALID: 2,
    UNSPECIFIED_ERROR: 3,
    IMPLEMENTATION_SPECIFIC_ERROR: 3,
    SERVER_UNAVAILABLE: 3,
    SERVER_BUSY: 3,
    QUOTA_EXCEEDED: 3,
    USE_ANOTHER_SERVER: 3,
    SERVER_MOVED: 3,
    CONNECTION_RATE_EXCEEDED: 3,
    BAD_USER_NAME_OR_PASSWORD: 4,
    NOT_AUTHORIZED: 5,
    BANNED: 5,
    BAD_AUTHENTICATION_METHOD: 5,
}


def name(code: int) -> str:
    """Return the name of a reason code as in the specification, or its hex value."""
    return NAMES.get(code) or f"0x{code:02X}"


def connack_v4(reason: int) -> int:
    """Return the v3.1.1 CONNACK return code for a v5 reason, -1 if none fits.

    -1 means: close without CONNACK [MQTT-3.2.2-6]. A malformed CONNECT (0x81, 0x82, 0x95, ...)
    never gets one [MQTT-3.1.4-1]. Values 0 to 5 are taken as v3.1.1 return codes and kept.
    """
    return _CONNACK_V4.get(reason, -1)
