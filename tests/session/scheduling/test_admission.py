"""Limits on who may come in and how fast a client may send."""

import pytest

from mqtt import reasons
from mqtt.encoder import encode
from mqtt.packets import Connack, Disconnect, Publish
from tests.session.harness import Broker, Client, SlowAuthenticator, connect_packet, will


def from_address(broker: Broker, remote: str, client_id: str) -> tuple[Client, int]:
    """Connect from an address; returns the client and the reason code."""
    client = broker.open(remote=remote)
    client.send(connect_packet(client_id, 5))
    answer = client.answer(Connack)
    assert isinstance(answer, Connack)
    return client, answer.reason_code


def test_an_address_has_only_so_many_connections() -> None:
    broker = Broker(connections_per_address=2)
    first, _ = from_address(broker, "10.0.0.1:1", "a")
    from_address(broker, "10.0.0.1:2", "b")
    refused, code = from_address(broker, "10.0.0.1:3", "c")
    assert code == reasons.QUOTA_EXCEEDED and refused.is_closed
    assert from_address(broker, "[::1]:3", "d")[1] == 0
    first.drop()
    assert from_address(broker, "10.0.0.1:4", "e")[1] == 0


def test_a_client_that_comes_back_takes_its_own_place() -> None:
    broker = Broker(connections_per_address=1)
    first, _ = from_address(broker, "10.0.0.1:1", "a")
    second, code = from_address(broker, "10.0.0.1:2", "a")
    assert code == 0
    first.expect_closed(reasons.SESSION_TAKEN_OVER)
    second.ping()


def test_an_address_cannot_have_any_number_of_passwords_checked() -> None:
    broker = Broker(connections_per_address=2)
    waiting = [broker.open(remote=f"10.0.0.1:{number}") for number in range(4)]
    surplus = broker.open(remote="10.0.0.1:5")
    other = broker.open(remote="10.0.0.2:1")
    broker.settle()
    assert surplus.is_closed
    surplus.drop()
    waiting[0].drop()
    again = broker.open(remote="10.0.0.1:6")
    broker.settle()
    assert not any(each.is_closed for each in (*waiting[1:], other, again))


def test_a_takeover_must_free_the_place_that_it_takes() -> None:
    """Else clients that were let in elsewhere come to an address one by one, past its limit."""
    broker = Broker(connections_per_address=1)
    from_address(broker, "10.0.0.1:1", "a")
    elsewhere, _ = from_address(broker, "10.0.0.2:1", "b")
    assert from_address(broker, "10.0.0.1:2", "b")[1] == reasons.QUOTA_EXCEEDED
    elsewhere.ping()


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"connections_per_address": 1}, reasons.QUOTA_EXCEEDED),
        ({"max_connections": 1}, reasons.SERVER_BUSY),
    ],
)
def test_a_limit_does_not_tell_strangers_who_is_connected(
    settings: dict[str, int], code: int
) -> None:
    """Neither by its answer nor by whether a password is checked at all."""
    authenticator = SlowAuthenticator()
    broker = Broker(authenticator=authenticator, **settings)
    owner = broker.open(remote="10.0.0.1:1", identity="owner")
    owner.send(connect_packet("a", 5, expiry=60))
    assert owner.answer(Connack).reason_code == 0  # type: ignore[union-attr]
    for name in ("a", "b"):
        stranger = broker.open(remote="10.0.0.1:2")
        stranger.send(connect_packet(name, 5))
        authenticator.answer(name, ok=False, reason_code=reasons.BAD_USER_NAME_OR_PASSWORD)
        broker.settle()
        assert stranger.take() == [Connack(False, reasons.BAD_USER_NAME_OR_PASSWORD)]
    for name in ("a", "b"):
        other = broker.open(remote="10.0.0.1:3", identity="other")
        other.send(connect_packet(name, 5))
        assert other.take() == [Connack(False, code)]
    owner.ping()


def test_logins_that_are_checked_at_the_same_time_do_not_pass_the_limit_together() -> None:
    authenticator = SlowAuthenticator()
    broker = Broker(authenticator=authenticator, max_connections=1)
    clients = [broker.open() for _ in range(3)]
    for number, client in enumerate(clients):
        client.send(connect_packet(str(number), 5))
    for number in range(3):
        authenticator.answer(str(number), ok=True)
    broker.settle()
    codes = [client.answer(Connack).reason_code for client in clients]  # type: ignore[union-attr]
    assert codes == [0, reasons.SERVER_BUSY, reasons.SERVER_BUSY]


def test_connections_without_an_address_are_not_counted() -> None:
    """A Unix socket has none."""
    broker = Broker(connections_per_address=1)
    for name in "abc":
        assert from_address(broker, "", name)[1] == 0


def test_connections_that_come_too_fast_are_refused() -> None:
    broker = Broker(connection_rate=2)
    broker.connect("a")
    broker.connect("b")
    assert broker.refused("c") == reasons.CONNECTION_RATE_EXCEEDED
    assert broker.refused("c", version=4) == 3
    broker.advance(s=1)
    broker.connect("c")


def test_connections_that_come_too_fast_are_refused_above_the_limit_of_their_address_too() -> None:
    broker = Broker(connection_rate=2, connections_per_address=1)
    assert from_address(broker, "10.0.0.1:1", "a")[1] == 0
    assert from_address(broker, "10.0.0.1:2", "b")[1] == reasons.QUOTA_EXCEEDED
    broker.advance(s=1)
    from_address(broker, "10.0.0.2:1", "c")
    assert from_address(broker, "10.0.0.1:3", "a")[1] == 0  # it comes back
    assert from_address(broker, "10.0.0.1:4", "a")[1] == reasons.CONNECTION_RATE_EXCEEDED


def test_a_broker_that_serves_nobody_refers_those_above_the_limit_of_their_address_too() -> None:
    broker = Broker(connections_per_address=1, server_reference="b:1", redirect_when="always")
    broker.open(remote="10.0.0.1:1")
    assert from_address(broker, "10.0.0.1:2", "a")[1] == reasons.USE_ANOTHER_SERVER


def test_a_flood_of_connections_without_connect_is_closed_at_the_door() -> None:
    broker = Broker(max_connections=1)
    strangers = [broker.open() for _ in range(1025)]
    broker.settle()
    assert not any(stranger.is_closed for stranger in strangers)
    late = broker.open()
    broker.settle()
    assert late.is_closed


def test_a_client_that_publishes_too_fast_is_closed() -> None:
    broker = Broker(publish_rate=5, on_rate="disconnect")
    client = broker.connect("c")
    client.send(*[Publish("t", b"x") for _ in range(5)])
    assert not client.is_closed
    client.send(Publish("t", b"x"))
    client.expect_closed(reasons.MESSAGE_RATE_TOO_HIGH)


def test_a_client_that_publishes_too_fast_is_read_more_slowly() -> None:
    broker = Broker(publish_rate=5)
    watcher = broker.clean("w", "t")
    client = broker.connect("c", keep_alive=1)
    client.send(*[Publish("t", b"x") for _ in range(10)])
    assert len(watcher.payloads()) == 10  # what has come is taken
    assert not client.stream.is_read
    broker.advance(ms=900)
    assert not client.stream.is_read
    broker.advance(ms=100)
    assert client.stream.is_read
    client.send(Publish("t", b"y"))
    assert watcher.payloads() == [b"y"] and not client.is_closed


def test_a_throttled_client_is_not_called_silent() -> None:
    broker = Broker(publish_rate=1)
    client = broker.connect("c", keep_alive=1)
    client.send(*[Publish("t", b"x") for _ in range(5)])
    broker.advance(ms=3900)
    assert not client.is_closed
    broker.advance(s=10)
    client.expect_closed(reasons.KEEP_ALIVE_TIMEOUT)


def test_a_throttled_client_that_is_gone_is_forgotten() -> None:
    broker = Broker(publish_rate=1)
    client = broker.connect("c")
    client.send(*[Publish("t", b"x") for _ in range(10)])
    client.lose()
    broker.advance(s=20)
    assert broker.engine.stats()["connections"] == 0


def test_bytes_are_limited_too() -> None:
    broker = Broker(receive_rate_bytes=1000, on_rate="disconnect")
    client = broker.connect("c")
    client.send(Publish("t", b"x" * 700))
    client.send(Publish("t", b"x" * 700))
    client.expect_closed(reasons.MESSAGE_RATE_TOO_HIGH)


def test_a_connect_above_its_limit_is_refused_on_its_header() -> None:
    broker = Broker(connect_size_max=200)
    client = broker.open()
    client.send_bytes(bytes.fromhex("10 e0 02 0004 4d515454 05"))
    answer = client.answer(Connack)
    assert isinstance(answer, Connack) and answer.reason_code == reasons.PACKET_TOO_LARGE
    assert client.is_closed


# Redirection


@pytest.mark.parametrize(("moved", "code"), [(False, 0x9C), (True, 0x9D)])
def test_a_draining_broker_names_another_one(moved: bool, code: int) -> None:
    broker = Broker(server_reference="other:1883", server_moved=moved)
    five, four = broker.connect("five"), broker.connect("four", version=4)
    broker.engine.drain(broker.now)
    broker.settle()
    assert five.take() == [Disconnect(code, server_reference="other:1883")]
    assert five.is_closed and four.is_closed and four.take() == []


@pytest.mark.parametrize("configured", [None, "other:1883"])
def test_a_broker_that_hands_over_names_who_serves_from_now_on(configured: str | None) -> None:
    broker = Broker(server_reference=configured, server_moved=configured is not None)
    five = broker.connect("five")
    broker.engine.drain(broker.now, "next:1883")
    broker.settle()
    assert five.take() == [Disconnect(0x9C, server_reference="next:1883")]
    broker.engine.finish(broker.now)
    settings = broker.engine.settings  # the process may lead again, with the same ones
    assert (settings.server_reference, settings.server_moved) == (configured, bool(configured))


@pytest.mark.parametrize(("moved", "code"), [(False, 0x9C), (True, 0x9D)])
def test_a_broker_that_serves_nobody_any_more_names_another_one(moved: bool, code: int) -> None:
    broker = Broker(server_reference="other:1883", server_moved=moved, redirect_when="always")
    client = broker.open()
    client.send(connect_packet("c", 5, expiry=60, will=will("t")))
    assert client.take() == [Connack(False, code, server_reference="other:1883")]
    assert client.is_closed
    assert broker.refused("c", version=4) == 3
    assert broker.engine.stats()["sessions_stored"] == 0


def test_a_reference_too_long_for_the_client_is_left_out() -> None:
    whole = Disconnect(reasons.USE_ANOTHER_SERVER, server_reference="x" * 100)
    size = len(encode(whole, 5))
    for limit, expected in ((size, whole), (size - 1, Disconnect(reasons.USE_ANOTHER_SERVER))):
        broker = Broker(server_reference="x" * 100)
        client = broker.connect("c", maximum_packet_size=limit)
        broker.engine.drain(broker.now)
        broker.settle()
        assert client.take() == [expected]
    broker = Broker(server_reference="x" * 100, redirect_when="always")
    assert broker.refused("c", maximum_packet_size=12) == reasons.USE_ANOTHER_SERVER


def test_a_redirection_needs_a_place() -> None:
    broker = Broker()
    broker.settings.redirect_when = "always"
    assert any("server_reference" in problem for problem in broker.settings.problems())
