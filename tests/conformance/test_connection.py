"""One connection: packets out of pieces, ends, faults booked, markers swallowed."""

import time
from collections.abc import Callable

import pytest

from conformance import wire
from conformance.connection import Connection, Silence, open_tcp
from conformance.failure import Failure, Violation
from conformance.packets import Connack, Pingresp, Publish
from conformance.record import Ledger, Record
from tests.conformance.far_end import CONNACK, FarEnd

Ends = Callable[..., FarEnd]


def soon() -> float:
    return time.monotonic() + 0.05


def test_packets_arrive_whole_however_they_are_cut(far_end: Ends) -> None:
    end = far_end()
    end.client.send(wire.connect("x", version=5) + wire.pingreq())
    connection = end.client.connection
    stream = CONNACK[5] + b"\xd0\x00"
    end.says(stream[:1])
    with pytest.raises(Silence):
        connection.arrive(soon())
    end.says(stream[1:6])
    assert isinstance(connection.arrive(soon()), Connack)
    end.says(stream[6:])
    assert isinstance(connection.arrive(soon()), Pingresp)


def test_the_end_of_the_connection_is_no_packet(far_end: Ends) -> None:
    end = far_end()
    end.hangs_up()
    assert end.client.connection.arrive(soon()) is None
    assert end.client.connection.eof


def test_a_fault_is_booked_even_if_nobody_listens(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    end.says(b"\x93\x04\x00\x01\x00\x00")
    with pytest.raises(Violation, match=r"flags 0011"):
        client.connection.arrive(soon())
    assert end.booked() == ["MQTT-2.1.3-1"]
    end.says(b"\x30\xff\xff\xff\xff\x01")
    with pytest.raises(Violation):
        client.connection.arrive(soon())
    assert end.booked() == ["MQTT-2.1.3-1", "X-00"]


def test_a_send_into_a_closed_connection_is_swallowed_and_the_end_is_seen(far_end: Ends) -> None:
    end = far_end()
    end.hangs_up()
    end.client.send(wire.pingreq())
    end.client.send(wire.pingreq())
    assert end.client.connection.arrive(soon()) is None


def test_closing_waits_for_the_other_side(far_end: Ends) -> None:
    end = far_end()
    end.says(b"\xd0\x00")
    end.far.shutdown(1)
    end.client.connection.close()
    assert end.client.eof
    assert not end.client.is_open
    assert end.far.recv(10) == b""


def test_bytes_to_the_end_are_not_judged(far_end: Ends) -> None:
    end = far_end()
    end.says(b"\xff\xff\xff")
    with pytest.raises(Silence, match="open"):
        end.client.connection.bytes_to_end(soon())
    end.hangs_up()
    assert end.client.connection.bytes_to_end(soon()) == b"\xff\xff\xff"
    assert end.booked() == []


def test_a_marker_of_another_client_is_swallowed_and_acknowledged(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    client.send(wire.subscribe(1, [("#", 1)], version=5))
    end.heard()
    end.says(b"\x90\x04\x00\x01\x00\x01")
    end.says(wire.publish("~other", version=5, qos=1, packet_id=3))
    end.says(wire.publish("t", version=5))
    client.connection.arrive(soon())
    packet = client.connection.arrive(soon())
    assert isinstance(packet, Publish)
    assert packet.topic == "t"
    assert end.heard() == wire.puback(3)


def test_the_last_packet_that_was_sent_is_known(far_end: Ends) -> None:
    end = far_end()
    client = end.accepts()
    client.send(wire.pingreq() + wire.disconnect())
    assert client.connection.last_sent == wire.disconnect()
    client.send(b"\x30\x7f")
    assert client.connection.last_sent == b"\x30\x7f"


def test_a_broker_that_is_not_there_is_a_failure() -> None:
    record = Record(Ledger(), version=5, check="test")
    with pytest.raises(Failure, match="cannot open"):
        Connection(lambda: open_tcp("127.0.0.1", 1, 1.0), name="a", version=5, record=record)
