"""The control packets of MQTT 3.1.1 and 5.0 as plain values.

Must never hold state of a connection, and must never check itself: `mqtt.decoder` makes only legal
packets, `mqtt.encoder` refuses what the wire cannot carry. Fields that only v5 knows keep their
default in v3.1.1. Plain classes with annotated `__init__`, because these are created once per
packet and are compiled well that way. Read next: `mqtt.decoder`.
"""

from typing import Final, TypeAlias

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

NAMES: Final[tuple[str, ...]] = (
    "reserved",
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

V3: Final = 3  # protocol version of MQTT 3.1, before the standard
V4: Final = 4  # protocol level of MQTT 3.1.1
V5: Final = 5  # protocol version of MQTT 5.0

SHOWN_SIZE_MAX: Final = 64  # bytes of a payload in a repr
_SECRET: Final = frozenset(("password", "authentication_data"))

UserProperties: TypeAlias = tuple[tuple[str, str], ...]  # (name, value) in order; names may repeat


def _equal(one: object, other: object, fields: tuple[str, ...]) -> bool:
    """Compare two values of one class field by field. For tests and assertions, not a hot path."""
    for field in fields:
        if getattr(one, field) != getattr(other, field):
            return False
    return True


def _show(value: object, fields: tuple[str, ...]) -> str:
    """Return `Class(field=value, ...)` for logs: without secrets, long payloads by their size."""
    shown: list[str] = []
    for field in fields:
        content = getattr(value, field)
        if field in _SECRET and content is not None:
            shown.append(f"{field}=***")
        elif isinstance(content, bytes) and len(content) > SHOWN_SIZE_MAX:
            shown.append(f"{field}=<{len(content)} bytes>")
        else:
            shown.append(f"{field}={content!r}")
    return f"{type(value).__name__}({', '.join(shown)})"


_WILL_FIELDS: Final[tuple[str, ...]] = (
    "delay_interval",
    "message_expiry_interval",
    "payload",
    "properties",
    "qos",
    "retain",
    "topic",
)


class Will:
    """The message that the server publishes if the connection ends without a proper DISCONNECT."""

    __slots__ = (
        "delay_interval",
        "message_expiry_interval",
        "payload",
        "properties",
        "qos",
        "retain",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        delay_interval: int = 0,
        message_expiry_interval: int | None = None,
        properties: bytes = b"",
    ) -> None:
        self.topic: str = topic
        self.payload: bytes = payload
        self.qos: int = qos
        self.retain: bool = retain
        self.delay_interval: int = delay_interval  # seconds
        self.message_expiry_interval: int | None = message_expiry_interval  # seconds, None = never
        # Raw v5 properties to pass on, in the order received; no 0x02, 0x18.
        self.properties: bytes = properties

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Will) and _equal(self, other, _WILL_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _WILL_FIELDS)


_CONNECT_FIELDS: Final[tuple[str, ...]] = (
    "authentication_data",
    "authentication_method",
    "clean_start",
    "client_id",
    "keep_alive",
    "maximum_packet_size",
    "password",
    "protocol_version",
    "receive_maximum",
    "request_problem_information",
    "request_response_information",
    "session_expiry_interval",
    "topic_alias_maximum",
    "user_properties",
    "username",
    "will",
)


class Connect:
    """The first packet from a client."""

    __slots__ = (
        "authentication_data",
        "authentication_method",
        "clean_start",
        "client_id",
        "keep_alive",
        "maximum_packet_size",
        "password",
        "protocol_version",
        "receive_maximum",
        "request_problem_information",
        "request_response_information",
        "session_expiry_interval",
        "topic_alias_maximum",
        "user_properties",
        "username",
        "will",
    )
    kind: Final = CONNECT

    def __init__(
        self,
        client_id: str,
        protocol_version: int = 5,
        clean_start: bool = True,
        keep_alive: int = 0,
        will: Will | None = None,
        username: str | None = None,
        password: bytes | None = None,
        session_expiry_interval: int = 0,
        receive_maximum: int = 65_535,
        maximum_packet_size: int = 0,
        topic_alias_maximum: int = 0,
        request_response_information: bool = False,
        request_problem_information: bool = True,
        user_properties: UserProperties = (),
        authentication_method: str | None = None,
        authentication_data: bytes | None = None,
    ) -> None:
        self.client_id: str = client_id
        self.protocol_version: int = protocol_version  # 4 or 5
        self.clean_start: bool = clean_start  # v3.1.1: Clean Session
        self.keep_alive: int = keep_alive  # seconds, 0 = off
        self.will: Will | None = will
        self.username: str | None = username
        self.password: bytes | None = password
        self.session_expiry_interval: int = session_expiry_interval  # seconds, 0xFFFFFFFF = never
        self.receive_maximum: int = receive_maximum
        self.maximum_packet_size: int = maximum_packet_size  # bytes, 0 = no limit given
        self.topic_alias_maximum: int = topic_alias_maximum
        self.request_response_information: bool = request_response_information
        self.request_problem_information: bool = request_problem_information
        self.user_properties: UserProperties = user_properties
        self.authentication_method: str | None = authentication_method
        self.authentication_data: bytes | None = authentication_data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Connect) and _equal(self, other, _CONNECT_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _CONNECT_FIELDS)


_CONNACK_FIELDS: Final[tuple[str, ...]] = (
    "assigned_client_id",
    "authentication_data",
    "authentication_method",
    "maximum_packet_size",
    "maximum_qos",
    "reason_code",
    "reason_string",
    "receive_maximum",
    "response_information",
    "retain_available",
    "server_keep_alive",
    "server_reference",
    "session_expiry_interval",
    "session_present",
    "shared_subscription_available",
    "subscription_identifier_available",
    "topic_alias_maximum",
    "user_properties",
    "wildcard_subscription_available",
)


class Connack:
    """The answer of a server to CONNECT."""

    __slots__ = (
        "assigned_client_id",
        "authentication_data",
        "authentication_method",
        "maximum_packet_size",
        "maximum_qos",
        "reason_code",
        "reason_string",
        "receive_maximum",
        "response_information",
        "retain_available",
        "server_keep_alive",
        "server_reference",
        "session_expiry_interval",
        "session_present",
        "shared_subscription_available",
        "subscription_identifier_available",
        "topic_alias_maximum",
        "user_properties",
        "wildcard_subscription_available",
    )
    kind: Final = CONNACK

    def __init__(
        self,
        session_present: bool = False,
        reason_code: int = 0,
        session_expiry_interval: int | None = None,
        receive_maximum: int = 65_535,
        maximum_qos: int = 2,
        retain_available: bool = True,
        maximum_packet_size: int = 0,
        assigned_client_id: str | None = None,
        topic_alias_maximum: int = 0,
        reason_string: str | None = None,
        user_properties: UserProperties = (),
        wildcard_subscription_available: bool = True,
        subscription_identifier_available: bool = True,
        shared_subscription_available: bool = True,
        server_keep_alive: int | None = None,
        response_information: str | None = None,
        server_reference: str | None = None,
        authentication_method: str | None = None,
        authentication_data: bytes | None = None,
    ) -> None:
        self.session_present: bool = session_present
        self.reason_code: int = reason_code  # read from v3.1.1: its return code
        # Seconds, None = as the client asked.
        self.session_expiry_interval: int | None = session_expiry_interval
        self.receive_maximum: int = receive_maximum
        self.maximum_qos: int = maximum_qos
        self.retain_available: bool = retain_available
        self.maximum_packet_size: int = maximum_packet_size  # bytes, 0 = no limit given
        self.assigned_client_id: str | None = assigned_client_id
        self.topic_alias_maximum: int = topic_alias_maximum
        self.reason_string: str | None = reason_string
        self.user_properties: UserProperties = user_properties
        self.wildcard_subscription_available: bool = wildcard_subscription_available
        self.subscription_identifier_available: bool = subscription_identifier_available
        self.shared_subscription_available: bool = shared_subscription_available
        self.server_keep_alive: int | None = server_keep_alive  # seconds, None = the client's
        self.response_information: str | None = response_information
        self.server_reference: str | None = server_reference
        self.authentication_method: str | None = authentication_method
        self.authentication_data: bytes | None = authentication_data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Connack) and _equal(self, other, _CONNACK_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _CONNACK_FIELDS)


_PUBLISH_FIELDS: Final[tuple[str, ...]] = (
    "dup",
    "message_expiry_interval",
    "packet_id",
    "payload",
    "properties",
    "qos",
    "retain",
    "subscription_identifiers",
    "topic",
    "topic_alias",
)


class Publish:
    """An application message on its way, in either direction."""

    __slots__ = (
        "dup",
        "message_expiry_interval",
        "packet_id",
        "payload",
        "properties",
        "qos",
        "retain",
        "subscription_identifiers",
        "topic",
        "topic_alias",
    )
    kind: Final = PUBLISH

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: bytes = b"",
        message_expiry_interval: int = -1,
        topic_alias: int = 0,
        subscription_identifiers: tuple[int, ...] = (),
    ) -> None:
        self.topic: str = topic  # "" only together with a topic alias, which is not resolved here
        self.payload: bytes = payload
        self.qos: int = qos
        self.retain: bool = retain
        self.dup: bool = dup
        self.packet_id: int = packet_id  # 0 at QoS 0
        # Raw v5 properties to pass on (01 03 08 09 26), checked, in the order received.
        self.properties: bytes = properties
        self.message_expiry_interval: int = message_expiry_interval  # seconds, -1 = absent
        self.topic_alias: int = topic_alias  # 0 = absent
        # From a server only.
        self.subscription_identifiers: tuple[int, ...] = subscription_identifiers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Publish) and _equal(self, other, _PUBLISH_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _PUBLISH_FIELDS)


_PUBACK_FIELDS: Final[tuple[str, ...]] = (
    "packet_id",
    "reason_code",
    "reason_string",
    "user_properties",
)


class Puback:
    """Answers a QoS 1 PUBLISH."""

    __slots__ = ("packet_id", "reason_code", "reason_string", "user_properties")
    kind: Final = PUBACK

    def __init__(
        self,
        packet_id: int,
        reason_code: int = 0,
        reason_string: str | None = None,
        user_properties: UserProperties = (),
    ) -> None:
        self.packet_id: int = packet_id
        self.reason_code: int = reason_code
        self.reason_string: str | None = reason_string
        self.user_properties: UserProperties = user_properties

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Puback) and _equal(self, other, _PUBACK_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _PUBACK_FIELDS)


_PUBREC_FIELDS: Final[tuple[str, ...]] = (
    "packet_id",
    "reason_code",
    "reason_string",
    "user_properties",
)


class Pubrec:
    """Answers a QoS 2 PUBLISH."""

    __slots__ = ("packet_id", "reason_code", "reason_string", "user_properties")
    kind: Final = PUBREC

    def __init__(
        self,
        packet_id: int,
        reason_code: int = 0,
        reason_string: str | None = None,
        user_properties: UserProperties = (),
    ) -> None:
        self.packet_id: int = packet_id
        self.reason_code: int = reason_code
        self.reason_string: str | None = reason_string
        self.user_properties: UserProperties = user_properties

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pubrec) and _equal(self, other, _PUBREC_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _PUBREC_FIELDS)


_PUBREL_FIELDS: Final[tuple[str, ...]] = (
    "packet_id",
    "reason_code",
    "reason_string",
    "user_properties",
)


class Pubrel:
    """Answers PUBREC."""

    __slots__ = ("packet_id", "reason_code", "reason_string", "user_properties")
    kind: Final = PUBREL

    def __init__(
        self,
        packet_id: int,
        reason_code: int = 0,
        reason_string: str | None = None,
        user_properties: UserProperties = (),
    ) -> None:
        self.packet_id: int = packet_id
        self.reason_code: int = reason_code
        self.reason_string: str | None = reason_string
        self.user_properties: UserProperties = user_properties

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pubrel) and _equal(self, other, _PUBREL_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _PUBREL_FIELDS)


_PUBCOMP_FIELDS: Final[tuple[str, ...]] = (
    "packet_id",
    "reason_code",
    "reason_string",
    "user_properties",
)


class Pubcomp:
    """Answers PUBREL; the end of a QoS 2 flow."""

    __slots__ = ("packet_id", "reason_code", "reason_string", "user_properties")
    kind: Final = PUBCOMP

    def __init__(
        self,
        packet_id: int,
        reason_code: int = 0,
        reason_string: str | None = None,
        user_properties: UserProperties = (),
    ) -> None:
        self.packet_id: int = packet_id
        self.reason_code: int = reason_code
        self.reason_string: str | None = reason_string
        self.user_properties: UserProperties = user_properties

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pubcomp) and _equal(self, other, _PUBCOMP_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _PUBCOMP_FIELDS)


_SUBSCRIPTION_FIELDS: Final[tuple[str, ...]] = (
    "no_local",
    "qos",
    "retain_as_published",
    "retain_handling",
    "topic_filter",
)


class Subscription:
    """One filter of a SUBSCRIBE with its options. Its syntax is not judged here."""

    __slots__ = ("no_local", "qos", "retain_as_published", "retain_handling", "topic_filter")

    def __init__(
        self,
        topic_filter: str,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> None:
        self.topic_filter: str = topic_filter
        self.qos: int = qos  # the maximum asked for
        self.no_local: bool = no_local
        self.retain_as_published: bool = retain_as_published
        self.retain_handling: int = retain_handling  # 0 = always, 1 = if new, 2 = never

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subscription) and _equal(self, other, _SUBSCRIPTION_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _SUBSCRIPTION_FIELDS)


_SUBSCRIBE_FIELDS: Final[tuple[str, ...]] = (
    "packet_id",
    "subscription_identifier",
    "subscriptions",
    "user_properties",
)


class Subscribe:
    """Asks for one subscription or more."""

    __slots__ = ("packet_id", "subscription_identifier", "subscriptions", "user_properties")
    kind: Final = SUBSCRIBE

    def __init__(
        self,
        packet_id: int,
        subscriptions: list[Subscription],
        subscription_identifier: int = 0,
        user_properties: UserProperties = (),
    ) -> None:
        self.packet_id: int = packet_id
        self.subscriptions: list[Subscription] = subscriptions
        self.subscription_identifier: int = subscription_identifier  # 0 = absent
        self.user_properties: UserProperties = user_properties

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subscribe) and _equal(self, other, _SUBSCRIBE_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _SUBSCRIBE_FIELDS)


_SUBACK_FIELDS: Final[tuple[str, ...]] = (
    "packet_id",
    "reason_codes",
    "reason_string",
    "user_properties",
)


class Suback:
    """Answers SUBSCRIBE with one reason code per filter, in order."""

    __slots__ = ("packet_id", "reason_codes", "reason_string", "user_properties")
    kind: Final = SUBACK

    def __init__(
        self,
        packet_id: int,
        reason_codes: list[int],
        reason_string: str | None = None,
        user_properties: UserProperties = (),
    ) -> None:
        self.packet_id: int = packet_id
        self.reason_codes: list[int] = reason_codes
        self.reason_string: str | None = reason_string
        self.user_properties: UserProperties = user_properties

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Suback) and _equal(self, other, _SUBACK_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _SUBACK_FIELDS)


_UNSUBSCRIBE_FIELDS: Final[tuple[str, ...]] = ("packet_id", "topic_filters", "user_properties")


class Unsubscribe:
    """Asks to end subscriptions."""

    __slots__ = ("packet_id", "topic_filters", "user_properties")
    kind: Final = UNSUBSCRIBE

    def __init__(
        self,
        packet_id: int,
        topic_filters: list[str],
        user_properties: UserProperties = (),
    ) -> None:
        self.packet_id: int = packet_id
        self.topic_filters: list[str] = topic_filters
        self.user_properties: UserProperties = user_properties

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unsubscribe) and _equal(self, other, _UNSUBSCRIBE_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _UNSUBSCRIBE_FIELDS)


_UNSUBACK_FIELDS: Final[tuple[str, ...]] = (
    "packet_id",
    "reason_codes",
    "reason_string",
    "user_properties",
)


class Unsuback:
    """Answers UNSUBSCRIBE; v3.1.1 has no reason codes."""

    __slots__ = ("packet_id", "reason_codes", "reason_string", "user_properties")
    kind: Final = UNSUBACK

    def __init__(
        self,
        packet_id: int,
        reason_codes: list[int],
        reason_string: str | None = None,
        user_properties: UserProperties = (),
    ) -> None:
        self.packet_id: int = packet_id
        self.reason_codes: list[int] = reason_codes
        self.reason_string: str | None = reason_string
        self.user_properties: UserProperties = user_properties

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unsuback) and _equal(self, other, _UNSUBACK_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _UNSUBACK_FIELDS)


class Pingreq:
    """Asks whether the server is there."""

    __slots__: tuple[str, ...] = ()
    kind: Final = PINGREQ

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pingreq)

    def __repr__(self) -> str:
        return "Pingreq()"


class Pingresp:
    """Answers PINGREQ."""

    __slots__: tuple[str, ...] = ()
    kind: Final = PINGRESP

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pingresp)

    def __repr__(self) -> str:
        return "Pingresp()"


_DISCONNECT_FIELDS: Final[tuple[str, ...]] = (
    "reason_code",
    "reason_string",
    "server_reference",
    "session_expiry_interval",
    "user_properties",
)


class Disconnect:
    """The last packet of a connection; from a server in v5 only."""

    __slots__ = (
        "reason_code",
        "reason_string",
        "server_reference",
        "session_expiry_interval",
        "user_properties",
    )
    kind: Final = DISCONNECT

    def __init__(
        self,
        reason_code: int = 0,
        session_expiry_interval: int | None = None,
        reason_string: str | None = None,
        user_properties: UserProperties = (),
        server_reference: str | None = None,
    ) -> None:
        self.reason_code: int = reason_code
        # Seconds, None = unchanged; from a client only.
        self.session_expiry_interval: int | None = session_expiry_interval
        self.reason_string: str | None = reason_string
        self.user_properties: UserProperties = user_properties
        self.server_reference: str | None = server_reference

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Disconnect) and _equal(self, other, _DISCONNECT_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _DISCONNECT_FIELDS)


_AUTH_FIELDS: Final[tuple[str, ...]] = (
    "authentication_data",
    "authentication_method",
    "reason_code",
    "reason_string",
    "user_properties",
)


class Auth:
    """A step of enhanced authentication, v5 only."""

    __slots__ = (
        "authentication_data",
        "authentication_method",
        "reason_code",
        "reason_string",
        "user_properties",
    )
    kind: Final = AUTH

    def __init__(
        self,
        reason_code: int = 0,
        authentication_method: str | None = None,
        authentication_data: bytes | None = None,
        reason_string: str | None = None,
        user_properties: UserProperties = (),
    ) -> None:
        self.reason_code: int = reason_code
        self.authentication_method: str | None = authentication_method
        self.authentication_data: bytes | None = authentication_data
        self.reason_string: str | None = reason_string
        self.user_properties: UserProperties = user_properties

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Auth) and _equal(self, other, _AUTH_FIELDS)

    def __repr__(self) -> str:
        return _show(self, _AUTH_FIELDS)


Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
