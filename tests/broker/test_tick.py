"""The rhythm of the broker: ticks, deadlines and keep alive."""

import pytest

from mqtt import reasons
from tests.broker.harness import Broker


def test_a_client_that_is_silent_for_one_and_a_half_keep_alives_is_closed() -> None:
    broker = Broker()
    five = broker.connect("five", keep_alive=10)
    four = broker.connect("four", keep_alive=10, version=4)
    broker.advance(ms=14_999)
    assert not five.is_closed and not four.is_closed
    broker.advance(ms=1)
    five.expect_closed(reasons.KEEP_ALIVE_TIMEOUT)
    four.expect_closed()


def test_what_we_send_does_not_count_as_a_sign_of_life() -> None:
    broker = Broker()
    client = broker.clean("c", "t", keep_alive=10)
    broker.advance(s=10)
    broker.publish("t", b"1")
    broker.advance(s=5)
    assert client.is_closed


def test_any_packet_counts_as_a_sign_of_life() -> None:
    broker = Broker()
    client = broker.connect("c", keep_alive=10)
    for _ in range(5):
        broker.advance(s=14)
        client.ping()
    broker.advance(s=15)
    client.expect_closed(reasons.KEEP_ALIVE_TIMEOUT)


def test_keep_alive_0_is_off() -> None:
    broker = Broker()
    client = broker.connect("c", keep_alive=0)
    broker.advance(s=1_000_000)
    client.ping()


@pytest.mark.parametrize(("asked", "told"), [(0, 30), (600, 30), (20, None), (30, None)])
def test_the_ceiling_for_keep_alive_is_told_and_held(asked: int, told: int | None) -> None:
    broker = Broker(keep_alive_max_s=30)
    client = broker.connect("c", keep_alive=asked)
    assert client.connack is not None and client.connack.server_keep_alive == told
    limit = min(asked or 30, 30) * 1500
    broker.advance(ms=limit - 1)
    assert not client.is_closed
    broker.advance(ms=1)
    client.expect_closed(reasons.KEEP_ALIVE_TIMEOUT)


def test_a_v4_client_keeps_its_own_keep_alive_because_it_cannot_be_told() -> None:
    broker = Broker(keep_alive_max_s=30)
    client = broker.connect("c", keep_alive=600, version=4)
    broker.advance(s=800)
    client.ping()
    broker.advance(s=900)
    client.expect_closed()
