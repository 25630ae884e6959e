"""What clients hear that have to go to another server."""

from broker.loop.farewell import farewell, refusal
from mqtt.encoder import encode
from mqtt.packets import V4, V5, Connack, Disconnect

THERE = "there.example:1883"


def test_mqtt_5_is_told_where_to_go() -> None:
    assert refusal(V5, THERE, 0) == encode(Connack(reason_code=0x9C, server_reference=THERE), V5)
    assert farewell(V5, THERE, 0) == encode(Disconnect(0x9C, server_reference=THERE), V5)


def test_where_nobody_leads_clients_come_again() -> None:
    assert refusal(V5, "", 0) == encode(Connack(reason_code=0x88), V5)
    assert farewell(V5, "", 0) == encode(Disconnect(0x9C), V5)


def test_mqtt_3_knows_no_reasons() -> None:
    assert refusal(V4, THERE, 0) == b"\x20\x02\x00\x03"
    assert farewell(V4, THERE, 0) == b""


def test_the_address_is_left_out_where_the_packet_would_be_too_long() -> None:
    short = encode(Connack(reason_code=0x9C), V5)
    assert refusal(V5, THERE, len(short)) == short
    assert refusal(V5, THERE, len(short) - 1) == b""
    short = encode(Disconnect(0x9C), V5)
    assert farewell(V5, THERE, len(short)) == short
    assert farewell(V5, THERE, len(short) - 1) == b""
