"""What a broker may send around an answer that a check waits for."""

from collections.abc import Callable

import pytest

from conformance import wire
from conformance.connection import Silence
from conformance.deliveries import answers
from conformance.packets import Disconnect, Puback, Pubrec
from tests.conformance.far_end import FarEnd

PINGRESP = b"\xd0\x00"
PUBACK = b"\x40\x02\x00\x01"


def test_an_answer_may_come_after_the_pingresp(far_end: Callable[..., FarEnd]) -> None:
    """It may wait for a disk, and a PINGRESP does not."""
    for said in ((PINGRESP, PUBACK), (PUBACK, PINGRESP)):
        end = far_end()
        client = end.accepts()
        client.send(wire.publish("t", b"", version=5, qos=1, packet_id=1))
        end.says(*said)
        found, is_open = answers(client, Puback, Pubrec)
        assert is_open and [type(packet) for packet in found] == [Puback]
        assert end.heard().endswith(b"\xc0\x00")


def test_no_answer_is_a_failure_and_an_end_is_not(far_end: Callable[..., FarEnd]) -> None:
    end = far_end()
    client = end.accepts()
    end.says(PINGRESP)
    with pytest.raises(Silence):
        answers(client, Puback)
    end = far_end()
    client = end.accepts()
    end.says(b"\xe0\x01\x90")
    end.hangs_up()
    found, is_open = answers(client, Puback)
    assert not is_open and [type(packet) for packet in found] == [Disconnect]
