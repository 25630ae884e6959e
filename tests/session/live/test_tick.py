"""The rhythm of the broker: ticks, deadlines and keep alive."""

import pytest

from mqtt import reasons
from mqtt.packets import Connack, Publish
from session.live.tick import Tick
from session.state.session import Session
from tests.session.harness import Broker, Stream


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


@pytest.mark.parametrize(("asked", "answer"), [(0, 2), (31, 2), (30, 0), (1, 0)])
def test_a_v4_client_that_asks_for_more_is_refused_because_it_cannot_be_told(
    asked: int, answer: int
) -> None:
    broker = Broker(keep_alive_max_s=30)
    client = broker.request("c", keep_alive=asked, version=4)
    connack = client.answer(Connack)
    assert isinstance(connack, Connack) and connack.reason_code == answer


def test_bytes_of_a_packet_that_never_ends_are_no_sign_of_life() -> None:
    """[MQTT-3.1.2-22] and SlowITe: a control packet has to come."""
    broker = Broker()
    client = broker.connect("c", keep_alive=10)
    client.send_bytes(b"\x30\x64")
    for _ in range(2):
        broker.advance(s=7)
        client.send_bytes(b"\x00")
    broker.advance(s=2)
    client.expect_closed(reasons.KEEP_ALIVE_TIMEOUT)


def test_a_large_packet_on_a_slow_link_may_take_its_time() -> None:
    broker = Broker()
    client = broker.connect("c", keep_alive=10)
    client.send_bytes(b"\x30\xa0\x1f" + b"\x00\x01t\x00" + b"x" * 1024)
    for _ in range(4):
        broker.advance(s=14)
        client.send_bytes(b"x" * 100)
    assert not client.is_closed


def test_a_client_we_do_not_read_from_is_not_silent() -> None:
    broker = Broker(held_bytes_max=100)
    broker.durable("other", "t").drop()
    client = broker.connect("c", keep_alive=10)
    broker.hold_commits()
    for packet_id in range(1, 51):
        client.send(Publish("t", b"", 1, packet_id=packet_id))
    assert not client.stream.is_read
    broker.advance(s=100)
    assert not client.is_closed
    broker.commit()
    assert client.stream.is_read
    broker.advance(s=16)
    assert client.is_closed


def test_closed_connections_are_not_kept_for_the_rest_of_their_keep_alive() -> None:
    broker = Broker()
    stays = broker.connect("stays", keep_alive=10)
    for number in range(3000):
        broker.connect(f"c{number}", keep_alive=65_535).drop()
    assert len(broker.engine._silence) < 2000
    broker.advance(s=15)
    stays.expect_closed(reasons.KEEP_ALIVE_TIMEOUT)


def test_a_socket_without_connect_is_closed_in_time() -> None:
    broker = Broker(connect_timeout_ms=5000)
    silent = broker.open()
    halfway = broker.open()
    halfway.send_bytes(b"\x10\x20\x00\x04MQTT")
    broker.advance(ms=4999)
    assert not silent.is_closed and not halfway.is_closed
    broker.advance(ms=1)
    silent.expect_closed()
    halfway.expect_closed()
    assert broker.counters.connects["timeout"] == 2


def test_time_spent_before_mqtt_counts_against_the_connect_timeout() -> None:
    broker = Broker(connect_timeout_ms=5000)
    stream = Stream()
    broker.engine.open(stream, broker.now, waited_ms=4000)
    broker.advance(ms=999)
    assert not stream.is_closing
    broker.advance(ms=1)
    assert stream.is_closing


def test_a_client_that_connected_in_time_stays() -> None:
    broker = Broker(connect_timeout_ms=5000)
    client = broker.connect("c")
    broker.advance(s=60)
    client.ping()


def test_what_is_due_waits_for_the_store_and_does_not_spin() -> None:
    broker = Broker()
    broker.durable("expires", "t", expiry=1).drop()
    other = broker.durable("other", "t")
    broker.store.full = True
    broker.hold_commits()
    other.unsubscribe("t")
    broker.advance(s=2)  # fails if a deadline never passes
    deadline = broker.engine.next_deadline()
    assert deadline is not None and deadline > broker.now
    broker.store.full = False
    broker.advance(s=1)
    broker.commit()
    assert [key for key, _ in broker.rows("sessions")] == [b"other"]


def test_only_stored_sessions_have_records_to_write() -> None:
    tick = Tick(200)
    session = Session("c", "", 1)
    tick.mark(session)
    tick.mark_late(session)
    assert not tick.dirty and not tick.late and tick.late_due_ms is None
    session.is_stored = True
    tick.now = 1000
    tick.mark(session)
    tick.mark_late(session)
    tick.now = 1100
    tick.mark_late(session)
    assert list(tick.dirty) == list(tick.late) == [session]
    assert tick.late_due_ms == 1200  # counted from the first
    tick.forget(session)
    assert not tick.dirty and not tick.late
