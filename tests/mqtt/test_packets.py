"""Packets are plain values."""

import pytest

from mqtt import packets
from mqtt.packets import Connect, Pingreq, Pingresp, Puback, Publish, Pubrec, Will
from tests.mqtt.samples import GOLDEN, Sample


@pytest.mark.parametrize("sample", GOLDEN, ids=repr)
def test_kind_is_the_packet_type_of_the_first_byte(sample: Sample) -> None:
    assert sample.packet.kind == sample.data[0] >> 4
    assert packets.NAMES[sample.packet.kind] == type(sample.packet).__name__.upper()


def test_equal_fields_make_equal_packets() -> None:
    assert Puback(1, 0x80) == Puback(1, 0x80)
    assert Puback(1, 0x80) != Puback(1)
    assert Pingreq() == Pingreq()


def test_packets_of_different_types_differ() -> None:
    assert Puback(1) != Pubrec(1)
    assert Pingreq() != Pingresp()


@pytest.mark.parametrize("sample", GOLDEN, ids=repr)
def test_a_packet_equals_itself_and_no_other_object(sample: Sample) -> None:
    same = sample.packet
    assert same == sample.packet
    assert sample.packet != object()


def test_a_repr_shows_the_fields() -> None:
    shown = repr(Puback(7, 0x87))
    assert shown.startswith("Puback(") and "packet_id=7" in shown and "reason_code=135" in shown
    assert repr(Pingreq()) == "Pingreq()"


def test_a_repr_keeps_secrets() -> None:
    connect = Connect("c", username="u", password=b"tops3cret", authentication_data=b"tops3cret")
    assert "tops3cret" not in repr(connect)
    assert "password=***" in repr(connect)
    assert "password=None" in repr(Connect("c"))


def test_a_repr_does_not_carry_a_long_payload() -> None:
    assert "payload=<100000 bytes>" in repr(Publish("t", b"x" * 100_000))
    assert "payload=<65 bytes>" in repr(Will("t", b"x" * 65, 0, False))
