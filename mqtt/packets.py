"""The control packets of MQTT 3.1.1 and 5.0 as plain values.

They hold no state of a connection and do not check themselves: `mqtt.decoder` creates only legal
packets, `mqtt.encoder` refuses what the wire cannot carry. Fields that exist only in v5 keep their
default in v3.1.1. These are plain classes with an annotated `__init__`, because one is created per
packet and mypyc compiles this form well; base classes cost nothing when compiled. Read next:
`mqtt.decoder`.
"""

from typing import ClassVar, Final, TypeAlias

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


class _Value:
    """Equality and repr, field by field: for tests, assertions and logs."""

    # The same names as `__slots__`, which compiled classes do not have.
    _fields: ClassVar[tuple[str, ...]] = ()
    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        for field in self._fields:
            if getattr(self, field) != getattr(other, field):
                return False
        return True

    def __repr__(self) -> str:
        """Return `Class(field=value, ...)`: no secrets, and only the size of long payloads."""
        shown: list[str] = []
        for field in self._fields:
            content = getattr(self, field)
            if field in _SECRET and content is not None:
                shown.append(f"{field}=***")
            elif isinstance(content, bytes) and len(content) > SHOWN_SIZE_MAX:
                shown.append(f"{field}=<{len(content)} bytes>")
            else:
                shown.append(f"{field}={content!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class Will(_Value):
    """The message that the server publishes if the connection ends without a proper DISCONNECT."""

    _fields = (
        "delay_interval",
        "message_expiry_interval",
        "payload",
        "properties",
        "qos",
        "retain",
        "topic",
    )
    __slots__ = _fields

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


class Connect(_Value):
    """The first packet from a client."""

    _fields = (
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
    __slots__ = _fields
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


class Connack(_Value):
    """The answer of a server to CONNECT."""

    _fields = (
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
    __slots__ = _fields
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


class Publish(_Value):
    """Carries an application message, in either direction."""

    _fields = (
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
    __slots__ = _fields
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


class Acknowledgement(_Value):
    """The fields of the four acknowledgements of QoS 1 and 2."""

    _fields = ("packet_id", "reason_code", "reason_string", "user_properties")
    __slots__ = _fields

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


class Puback(Acknowledgement):
    """Answers a QoS 1 PUBLISH."""

    __slots__ = ()
    kind: Final = PUBACK


class Pubrec(Acknowledgement):
    """Answers a QoS 2 PUBLISH."""

    __slots__ = ()
    kind: Final = PUBREC


class Pubrel(Acknowledgement):
    """Answers PUBREC."""

    __slots__ = ()
    kind: Final = PUBREL


class Pubcomp(Acknowledgement):
    """Answers PUBREL and ends a QoS 2 flow."""

    __slots__ = ()
    kind: Final = PUBCOMP


class Subscription(_Value):
    """One filter of a SUBSCRIBE with its options. The syntax of the filter is not checked here."""

    _fields = ("no_local", "qos", "retain_as_published", "retain_handling", "topic_filter")
    __slots__ = _fields

    def __init__(
        self,
        topic_filter: str,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> None:
        self.topic_filter: str = topic_filter
        self.qos: int = qos  # the maximum requested
        self.no_local: bool = no_local
        self.retain_as_published: bool = retain_as_published
        self.retain_handling: int = retain_handling  # 0 = always, 1 = if new, 2 = never


class Subscribe(_Value):
    """Asks for one or more subscriptions."""

    _fields = ("packet_id", "subscription_identifier", "subscriptions", "user_properties")
    __slots__ = _fields
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


class FilterAcknowledgement(_Value):
    """The fields of SUBACK and UNSUBACK: one reason code per filter, in order."""

    _fields = ("packet_id", "reason_codes", "reason_string", "user_properties")
    __slots__ = _fields

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


class Suback(FilterAcknowledgement):
    """Answers SUBSCRIBE."""

    __slots__ = ()
    kind: Final = SUBACK


class Unsubscribe(_Value):
    """Asks to end subscriptions."""

    _fields = ("packet_id", "topic_filters", "user_properties")
    __slots__ = _fields
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


class Unsuback(FilterAcknowledgement):
    """Answers UNSUBSCRIBE; v3.1.1 has no reason codes."""

    __slots__ = ()
    kind: Final = UNSUBACK


class Pingreq(_Value):
    """Asks whether the server is alive."""

    __slots__ = ()
    kind: Final = PINGREQ


class Pingresp(_Value):
    """Answers PINGREQ."""

    __slots__ = ()
    kind: Final = PINGRESP


class Disconnect(_Value):
    """The last packet of a connection; from a server in v5 only."""

    _fields = (
        "reason_code",
        "reason_string",
        "server_reference",
        "session_expiry_interval",
        "user_properties",
    )
    __slots__ = _fields
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


class Auth(_Value):
    """A step of enhanced authentication, v5 only."""

    _fields = (
        "authentication_data",
        "authentication_method",
        "reason_code",
        "reason_string",
        "user_properties",
    )
    __slots__ = _fields
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
