"""The faults carry the reason code that the peer is told."""

from mqtt.errors import MalformedPacket, MqttError, ProtocolError, UnsupportedProtocolVersion


def test_default_reason_codes() -> None:
    assert MqttError("x").reason_code == 0x80
    assert MalformedPacket("x").reason_code == 0x81
    assert ProtocolError("x").reason_code == 0x82


def test_a_reason_code_can_be_given() -> None:
    assert ProtocolError("x", reason_code=0x93).reason_code == 0x93
    assert MalformedPacket("x", reason_code=0x90).reason_code == 0x90


def test_an_unsupported_version_tells_which() -> None:
    error = UnsupportedProtocolVersion("protocol version 6", 6)
    assert error.reason_code == 0x84
    assert error.protocol_version == 6
    assert str(error) == "protocol version 6"
