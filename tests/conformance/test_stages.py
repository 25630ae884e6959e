"""The way to the point where each packet is the right one, and the packet that is then wrong."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from conformance import stages, tables, wire
from conformance.adapters.base import Broker
from conformance.check import Bench, Check
from conformance.client import Client
from conformance.failure import Failure
from conformance.record import Ledger, Record

CONNACK = b"\x20\x03\x00\x00\x00"
GOODBYE = b"\xe0\x01\x81"
SUBACK = {qos: bytes([0x90, 4, 0, 1, 0, qos]) for qos in (0, 1, 2)}
DELIVERY = {qos: wire.publish("u/stage/t", b"p", version=5, qos=qos, packet_id=9) for qos in (1, 2)}
# What a broker says on the way to a stage, after CONNACK. Its delivery has id 9.
TO_PUBACK = SUBACK[1] + b"\x40\x02\x00\x02" + DELIVERY[1]
TO_PUBREC = SUBACK[2] + b"\x50\x02\x00\x02" + b"\x70\x02\x00\x02" + DELIVERY[2]
TO_PUBCOMP = TO_PUBREC + b"\x62\x02\x00\x09"
TO_PUBREL = b"\x50\x02\x03\xe9"
WAYS = {
    tables.PUBACK: TO_PUBACK,
    tables.PUBREC: TO_PUBREC,
    tables.PUBREL: TO_PUBREL,
    tables.PUBCOMP: TO_PUBCOMP,
}
# Each packet with its right flags and without properties.
RIGHT = {
    tables.PUBLISH: b"\x30\x0d\x00\x09u/stage/t\x00p",
    tables.PUBACK: b"\x40\x02\x00\x09",
    tables.PUBREC: b"\x50\x02\x00\x09",
    tables.PUBREL: b"\x62\x02\x03\xe9",
    tables.PUBCOMP: b"\x70\x02\x00\x09",
    tables.SUBSCRIBE: b"\x82\x0f\x03\xe8\x00\x00\x09u/stage/t\x00",
    tables.UNSUBSCRIBE: b"\xa2\x0e\x03\xe8\x00\x00\x09u/stage/t",
    tables.PINGREQ: b"\xc0\x00",
    tables.DISCONNECT: b"\xe0\x00",
    tables.AUTH: b"\xf0\x02\x18\x00",
}


class Stand(Bench):
    """A bench whose clients meet a broker that has said all it has to say beforehand."""

    def __init__(self, *, strict: bool = False, **said: bytes) -> None:
        super().__init__(
            Check(
                "X-99", 5, "x_99", "m", lambda _: None, frozenset(), False, False, 0, frozenset()
            ),
            Record(Ledger(), version=5, check="X-99"),
            unique="u",
            shared=Broker("shared", "127.0.0.1", 1),
            start=None,
            strict=strict,
            patience=0.05,
        )
        self.pairs: dict[str, tuple[socket.socket, socket.socket]] = {}
        for name, packets in said.items():
            self.pairs[name] = socket.socketpair()
            far = self.pairs[name][1]
            far.sendall(CONNACK + packets)
            if packets.endswith(GOODBYE):
                far.shutdown(socket.SHUT_WR)

    def client(self, name: str = "a", **options: Any) -> Client:
        return super().client(name, stream=self.pairs[name][0], **options)

    def heard(self, name: str) -> bytes:
        """Return what this client has written."""
        self.pairs[name][1].setblocking(False)
        return self.pairs[name][1].recv(1 << 16)

    def end(self) -> None:
        for pair in self.pairs.values():
            for channel in pair:
                channel.close()


@pytest.fixture
def stands() -> Iterator[list[Stand]]:
    """Stands to be ended with the test."""
    made: list[Stand] = []
    yield made
    for stand in made:
        stand.end()


def stand(stands: list[Stand], *, strict: bool = False, **said: bytes) -> Stand:
    stands.append(Stand(strict=strict, **said))
    return stands[-1]


def test_every_packet_a_client_may_send_has_a_stage() -> None:
    assert set(stages.PACKETS) == set(RIGHT)
    assert set(stages.WITH_PROPERTIES) == set(RIGHT) - {tables.PINGREQ}


def test_every_property_has_a_sample_that_can_be_written() -> None:
    assert set(stages.SAMPLES) == set(tables.PROPERTY_NAMES)
    for identifier, value in stages.SAMPLES.items():
        assert wire.props([(identifier, value)])[1] == identifier


@pytest.mark.parametrize("kind", stages.PACKETS)
def test_a_packet_with_no_fault_is_the_right_one_at_its_stage(
    kind: int, stands: list[Stand]
) -> None:
    stage = stages.Stage(stand(stands, stage=WAYS.get(kind, b"")), kind)
    assert stage.packet() == RIGHT[kind]


@pytest.mark.parametrize("kind", stages.PACKETS)
def test_flags_and_properties_that_are_asked_for_are_in_the_packet(
    kind: int, stands: list[Stand]
) -> None:
    stage = stages.Stage(stand(stands, stage=WAYS.get(kind, b"")), kind)
    assert stage.packet(flags=0x0F)[0] == kind << 4 | 0x0F
    if kind in stages.WITH_PROPERTIES:
        wanted = wire.props([(tables.USER_PROPERTY, ("k", "v"))])
        assert wanted in stage.packet(properties=[(tables.USER_PROPERTY, ("k", "v"))])


@pytest.mark.parametrize("kind", [kind for kind in stages.PACKETS if kind != tables.DISCONNECT])
def test_the_broker_has_to_close_after_the_unfit_packet(kind: int, stands: list[Stand]) -> None:
    closing = stand(stands, stage=WAYS.get(kind, b"") + GOODBYE)
    stages.expect_unfit(closing, kind, 0x81, flags=0x0F)
    assert bytes([kind << 4 | 0x0F]) + RIGHT[kind][1:] in closing.heard("stage")
    staying = stand(stands, stage=WAYS.get(kind, b""))
    with pytest.raises(Failure, match="keeps the connection open"):
        stages.expect_unfit(staying, kind, 0x81, flags=0x0F)


def test_another_reason_than_the_one_of_the_fault_is_found_in_the_strict_profile(
    stands: list[Stand],
) -> None:
    with pytest.raises(Failure, match="0x81"):
        stages.expect_unfit(
            stand(stands, strict=True, stage=GOODBYE), tables.PINGREQ, 0x82, flags=0x01
        )
    stages.expect_unfit(stand(stands, stage=GOODBYE), tables.PINGREQ, 0x82, flags=0x01)


def test_a_wrong_disconnect_shows_in_the_will_where_the_broker_says_nothing(
    stands: list[Stand],
) -> None:
    will = wire.publish("u/stage/will", b"will", version=5)
    told = stand(stands, watcher=SUBACK[0], stage=GOODBYE)
    stages.expect_unfit(told, tables.DISCONNECT, 0x81, flags=0x01)
    silent = stand(stands, watcher=SUBACK[0] + will, stage=b"")
    silent.pairs["stage"][1].shutdown(socket.SHUT_WR)
    stages.expect_unfit(silent, tables.DISCONNECT, 0x81, flags=0x01)
    taken = stand(stands, watcher=SUBACK[0], stage=b"")
    taken.pairs["stage"][1].shutdown(socket.SHUT_WR)
    with pytest.raises(Failure, match="no PUBLISH"):
        stages.expect_unfit(taken, tables.DISCONNECT, 0x81, flags=0x01)
