"""Bytes of a connection cut into packets, however they come."""

import pytest

from broker.operations.tracing.cutting import KEPT_BYTES_MAX, Cutter
from mqtt.encoder import encode
from mqtt.packets import Pingreq, Publish

PACKETS = (
    encode(Publish("a/b", b"x" * 300, 1, packet_id=7), 5),
    encode(Pingreq(), 5),
    encode(Publish("c", b"", 0), 5),
)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100, 1000])
def test_packets_are_the_same_however_they_come(step: int) -> None:
    cutter = Cutter()
    stream = b"".join(PACKETS)
    found = [
        cut for at in range(0, len(stream), step) for cut in cutter.feed(stream[at : at + step])
    ]
    assert tuple(cut.data for cut in found) == PACKETS
    assert [cut.size for cut in found] == [len(packet) for packet in PACKETS]
    assert all(cut.is_whole for cut in found)
    assert [cut.body for cut in found] == [3, 2, 2]


@pytest.mark.parametrize("step", [1 << 30, 50_000])
def test_of_a_long_packet_the_beginning_is_kept(step: int) -> None:
    cutter = Cutter()
    stream = encode(Publish("a", b"x" * 200_000, 0), 5) + PACKETS[1]
    found = [
        cut for at in range(0, len(stream), step) for cut in cutter.feed(stream[at : at + step])
    ]
    long, ping = found
    assert long.data == stream[:KEPT_BYTES_MAX] and not long.is_whole
    assert (long.size, ping.data) == (len(stream) - 2, PACKETS[1])


@pytest.mark.parametrize("step", [1, 6])
def test_a_length_of_five_bytes_ends_the_cutting(step: int) -> None:
    cutter = Cutter()
    stream = b"\x30\xff\xff\xff\xff" + PACKETS[1]
    for at in range(0, len(stream), step):
        assert cutter.feed(stream[at : at + step]) == []
    assert cutter.is_lost
