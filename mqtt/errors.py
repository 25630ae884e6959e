"""The faults of a peer: bytes that break the protocol, with the reason code that names the fault.

Must never describe a fault of ours or of the environment. Raised in `mqtt` and `session`,
translated once, in the engine: to CONNACK or DISCONNECT with `reason_code` and a close for v5, to
a plain close for v3.1.1 [MQTT-4.8.0-1, MQTT-4.13.1-1]. Read next: `mqtt.decoder`.
"""

from typing import Final

from mqtt import reasons


class MqttError(Exception):
    """A peer broke the protocol; the connection has to be closed with `reason_code`."""

    def __init__(self, message: str, reason_code: int = reasons.UNSPECIFIED_ERROR) -> None:
        super().__init__(message)
        self.reason_code: Final[int] = reason_code


class MalformedPacket(MqttError):
    """The bytes cannot be parsed according to the specification."""

    def __init__(self, message: str, reason_code: int = reasons.MALFORMED_PACKET) -> None:
        super().__init__(message, reason_code)


class ProtocolError(MqttError):
    """The packet parses, but its content or its moment is forbidden."""

    def __init__(self, message: str, reason_code: int = reasons.PROTOCOL_ERROR) -> None:
        super().__init__(message, reason_code)


class UnsupportedProtocolVersion(MqttError):
    """CONNECT asks for a protocol version that we do not speak [MQTT-3.1.2-2].

    `protocol_version` is the byte that the client sent; `reads_as_five` tells whether the answer
    should have the form of v5: the rest of the packet does. Bridges try 0x83 and 0x84 first, with
    the form of 3.1 and 3.1.1, and go on with 3 or 4 when they are answered in that form.
    """

    def __init__(self, message: str, protocol_version: int) -> None:
        super().__init__(message, reasons.UNSUPPORTED_PROTOCOL_VERSION)
        self.protocol_version: Final[int] = protocol_version
        self.reads_as_five: bool = False
