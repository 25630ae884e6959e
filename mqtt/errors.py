"""Protocol errors of a peer, each with the reason code to answer it with.

Not for errors of the broker or its environment. Raised in `mqtt` and `session`, translated in one
place, the engine: for v5 to CONNACK or DISCONNECT with `reason_code` and a close, for v3.1.1 to a
plain close [MQTT-4.8.0-1, MQTT-4.13.1-1]. Read next: `mqtt.decoder`.
"""

from typing import Final

from mqtt import reasons


class MqttError(Exception):
    """A peer broke the protocol; close the connection with `reason_code`."""

    def __init__(self, message: str, reason_code: int = reasons.UNSPECIFIED_ERROR) -> None:
        super().__init__(message)
        self.reason_code: Final[int] = reason_code


class MalformedPacket(MqttError):
    """The bytes cannot be parsed according to the specification."""

    def __init__(self, message: str, reason_code: int = reasons.MALFORMED_PACKET) -> None:
        super().__init__(message, reason_code)


class ProtocolError(MqttError):
    """The packet can be parsed, but its content or its timing is forbidden."""

    def __init__(self, message: str, reason_code: int = reasons.PROTOCOL_ERROR) -> None:
        super().__init__(message, reason_code)


class UnsupportedProtocolVersion(MqttError):
    """CONNECT asks for an unsupported protocol version [MQTT-3.1.2-2].

    `protocol_version` is the byte that the client sent. `reads_as_five` says that the rest of the
    packet has the form of v5, so the answer should have it, too. Bridges try 0x83 and 0x84 first,
    in the form of 3.1 and 3.1.1, and retry with 3 or 4 when answered in that form.
    """

    def __init__(self, message: str, protocol_version: int) -> None:
        super().__init__(message, reasons.UNSUPPORTED_PROTOCOL_VERSION)
        self.protocol_version: Final[int] = protocol_version
        self.reads_as_five: bool = False
