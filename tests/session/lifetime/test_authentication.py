"""Enhanced authentication (section 4.12): AUTH packets before CONNACK, and again later."""

from collections.abc import Callable

import pytest

from mqtt import reasons
from mqtt.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    Auth,
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
)
from session.ports import STEP_CONTINUE, STEP_REFUSED, STEP_SUCCESS, Exchange, Step
from tests.session.harness import Broker, Client, SlowAuthenticator, connect_packet, will

METHOD = "X-GREETING"


class Greeting:
    """An exchange: any greeting is answered with a question, and the answer is the name."""

    def __init__(self, later: list[Callable[[], None]] | None) -> None:
        self._later = later
        self._asked = False

    def step(self, data: bytes | None, done: Callable[[Step], None]) -> None:
        """Answer at once, or when the test calls what is put into `later`."""
        step = self._judge(data)
        if self._later is None:
            done(step)
        else:
            self._later.append(lambda: done(step))

    def _judge(self, data: bytes | None) -> Step:
        if not self._asked:
            self._asked = True
            if data == b"rude":
                return Step(STEP_REFUSED, reason_code=reasons.NOT_AUTHORIZED)
            return Step(STEP_CONTINUE, b"who?")
        if data == b"nobody":
            return Step(STEP_REFUSED, reason_code=reasons.BAD_USER_NAME_OR_PASSWORD)
        return Step(STEP_SUCCESS, b"welcome", (data or b"").decode())


class Greeter(SlowAuthenticator):
    """An authenticator with one method."""

    def __init__(self, *, is_slow: bool = False) -> None:
        super().__init__()
        self.later: list[Callable[[], None]] | None = [] if is_slow else None
        self.is_offered = True

    def exchange(self, method: str, client_id: str) -> Exchange | None:
        """Begin an exchange of the one method."""
        return Greeting(self.later) if method == METHOD and self.is_offered else None


def auth(data: bytes | None, reason_code: int = 0x18, method: str = METHOD) -> Auth:
    return Auth(reason_code, authentication_method=method, authentication_data=data)


def begin(broker: Broker, client_id: str = "c", **fields: object) -> Client:
    client = broker.open()
    fields.setdefault("authentication_method", METHOD)
    client.send(connect_packet(client_id, 5, **fields))
    return client


def accepted(
    broker: Broker, client_id: str = "c", name: bytes = b"ann", **fields: object
) -> Client:
    client = begin(broker, client_id, **fields)
    client.expect(auth(b"who?"))
    client.send(auth(name))
    answer = client.answer(Connack)
    assert isinstance(answer, Connack) and answer.reason_code == 0
    return client


def test_an_exchange_goes_on_after_the_pause_of_a_client_that_sends_too_fast() -> None:
    broker = Broker(authenticator=Greeter(), receive_rate_bytes=100)
    client = begin(broker, "c" * 300)
    client.expect(auth(b"who?"))
    assert not client.stream.is_read
    broker.advance(s=9)
    assert client.stream.is_read
    client.send(auth(b"ann"))
    assert isinstance(client.answer(Connack), Connack)


def test_the_exchange_ends_in_a_connack_with_method_and_data() -> None:
    """[MQTT-4.12.0-2] and [MQTT-4.12.0-5]"""
    broker = Broker(authenticator=Greeter())
    client = begin(broker, authentication_data=b"hello")
    client.expect(auth(b"who?"))
    client.send(auth(b"ann"))
    (answer,) = client.take()
    assert isinstance(answer, Connack)
    assert answer.reason_code == 0
    assert answer.authentication_method == METHOD
    assert answer.authentication_data == b"welcome"


def test_who_is_asked_is_read_from_and_who_waits_for_a_verdict_is_not() -> None:
    broker = Broker(authenticator=Greeter())
    asked, waiting = begin(broker), broker.open()
    waiting.send(connect_packet("waiting", 5))
    assert asked.stream.is_read and not waiting.stream.is_read


def test_every_packet_of_an_exchange_is_counted() -> None:
    broker = Broker(authenticator=Greeter())
    client = accepted(broker)
    client.send(auth(None, 0x19))
    received, sent = broker.counters.packets_received, broker.counters.packets_sent
    assert (received[CONNECT], received[AUTH]) == (1, 2)
    assert (sent[CONNACK], sent[AUTH]) == (1, 2)


def test_the_session_belongs_to_the_name_that_was_proved() -> None:
    broker = Broker(authenticator=Greeter())
    accepted(broker, name=b"ann", expiry=60).drop()
    thief = begin(broker)
    thief.take()
    thief.send(auth(b"bob"))
    (answer,) = thief.take()
    assert isinstance(answer, Connack) and answer.reason_code == reasons.NOT_AUTHORIZED
    client = begin(broker, clean_start=False, expiry=60)
    client.take()
    client.send(auth(b"ann"))
    (answer,) = client.take()
    assert isinstance(answer, Connack) and answer.session_present


def test_an_unknown_method_is_refused() -> None:
    """[MQTT-4.12.0-1]"""
    broker = Broker(authenticator=Greeter())
    assert broker.refused("c", authentication_method="NOPE") == reasons.BAD_AUTHENTICATION_METHOD


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"rude", reasons.NOT_AUTHORIZED), (b"nobody", reasons.BAD_USER_NAME_OR_PASSWORD)],
)
def test_a_refusal_at_any_step_is_a_connack(data: bytes, code: int) -> None:
    """[MQTT-4.12.0-4]"""
    broker = Broker(authenticator=Greeter())
    client = begin(broker, authentication_data=data)
    if data == b"nobody":
        client.take()
        client.send(auth(data))
    (answer,) = client.take()
    assert isinstance(answer, Connack) and answer.reason_code == code
    assert client.is_closed


@pytest.mark.parametrize(
    "packet",
    [
        auth(b"ann", 0x19),
        auth(b"ann", 0x18, "OTHER"),
        Publish("t", b"x"),
        Pingreq(),
        connect_packet("c", 5),
    ],
    ids=["0x19", "method", "publish", "ping", "connect"],
)
def test_nothing_but_the_answer_may_come_before_connack(packet: Auth) -> None:
    """[MQTT-3.1.2-30], [MQTT-4.12.0-3] and [MQTT-4.12.0-5]"""
    broker = Broker(authenticator=Greeter())
    client = begin(broker)
    client.take()
    client.send(packet)
    (answer,) = client.take()
    assert isinstance(answer, Connack) and answer.reason_code == reasons.PROTOCOL_ERROR
    assert client.is_closed


def test_an_answer_that_was_not_asked_for_is_an_error() -> None:
    broker = Broker(authenticator=Greeter(is_slow=True))
    client = begin(broker)
    client.send(auth(b"ann"))
    (answer,) = client.take()
    assert isinstance(answer, Connack) and answer.reason_code == reasons.PROTOCOL_ERROR


def test_a_client_may_give_up_before_connack() -> None:
    broker = Broker(authenticator=Greeter())
    client = begin(broker)
    client.take()
    client.send(Disconnect(0))
    assert client.is_closed and client.take() == []


def test_an_exchange_that_is_not_finished_in_time_is_closed() -> None:
    broker = Broker(authenticator=Greeter(), connect_timeout_ms=5000)
    client = begin(broker, keep_alive=0)
    client.take()
    broker.advance(s=6)
    assert client.is_closed


def test_an_answer_for_a_connection_that_is_gone_changes_nothing() -> None:
    greeter = Greeter(is_slow=True)
    broker = Broker(authenticator=greeter)
    client = begin(broker)
    client.lose()
    assert greeter.later is not None
    greeter.later.pop()()
    broker.settle()
    assert broker.engine.stats()["connections"] == 0


def test_a_name_in_connect_must_be_the_one_that_was_proved() -> None:
    broker = Broker(authenticator=Greeter())
    client = begin(broker, username="bob")
    client.take()
    client.send(auth(b"ann"))
    (answer,) = client.take()
    assert isinstance(answer, Connack) and answer.reason_code == reasons.NOT_AUTHORIZED


def test_a_client_authenticates_again_while_other_traffic_goes_on() -> None:
    """[MQTT-4.12.1-1]"""
    broker = Broker(authenticator=Greeter())
    client = accepted(broker)
    client.send(auth(b"hello", 0x19))
    client.expect(auth(b"who?"))
    client.send(Pingreq())
    client.expect(Pingresp())
    client.send(auth(b"ann"))
    client.expect(auth(b"welcome", 0))
    client.ping()


@pytest.mark.parametrize("name", [b"nobody", b"bob"])
def test_a_failed_re_authentication_ends_the_connection(name: bytes) -> None:
    """[MQTT-4.12.1-2] To become somebody else is a failure too; the will is published."""
    broker = Broker(authenticator=Greeter())
    watcher = accepted(broker, "watcher")
    watcher.subscribe("w")
    client = accepted(broker, will=will("w"))
    client.send(auth(b"hello", 0x19))
    client.take()
    client.send(auth(name))
    client.expect_closed(reasons.NOT_AUTHORIZED)
    assert watcher.payloads() == [b"will"]


@pytest.mark.parametrize(
    "packet",
    [auth(b"x", 0x18), auth(b"x", 0x19, "OTHER")],
    ids=["unasked", "method"],
)
def test_auth_out_of_place_is_a_protocol_error(packet: Auth) -> None:
    broker = Broker(authenticator=Greeter())
    client = accepted(broker)
    client.send(packet)
    client.expect_closed(reasons.PROTOCOL_ERROR)


def test_a_second_re_authentication_at_once_is_a_protocol_error() -> None:
    broker = Broker(authenticator=Greeter())
    client = accepted(broker)
    client.send(auth(b"hello", 0x19), auth(b"hello", 0x19))
    assert client.answer(Auth) == auth(b"who?")
    client.expect_closed(reasons.PROTOCOL_ERROR)


def test_a_method_that_is_gone_ends_a_re_authentication() -> None:
    greeter = Greeter()
    broker = Broker(authenticator=greeter)
    client = accepted(broker)
    greeter.is_offered = False
    client.send(auth(b"hello", 0x19))
    client.expect_closed(reasons.BAD_AUTHENTICATION_METHOD)


def test_auth_without_a_method_in_connect_is_a_protocol_error() -> None:
    """[MQTT-4.12.0-7]"""
    broker = Broker()
    client = broker.connect("c")
    client.send(auth(None, 0x19))
    client.expect_closed(reasons.PROTOCOL_ERROR)


def test_an_auth_larger_than_the_client_takes_is_not_sent() -> None:
    """[MQTT-3.1.2-24]"""
    broker = Broker(authenticator=Greeter())
    client = begin(broker, maximum_packet_size=20)
    (answer,) = client.take()
    assert isinstance(answer, Connack) and answer.reason_code == reasons.PACKET_TOO_LARGE


def test_who_the_transport_proved_needs_no_password() -> None:
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    client = broker.open(identity="device-7")
    client.send(connect_packet("c", 5, expiry=60, username="somebody else"))
    answer = client.answer(Connack)
    assert isinstance(answer, Connack) and answer.reason_code == 0
    assert slow.waiting == {}
    client.drop()
    other = broker.open(identity="device-8")
    other.send(connect_packet("c", 5))
    answer = other.answer(Connack)
    assert isinstance(answer, Connack) and answer.reason_code == reasons.NOT_AUTHORIZED


def test_an_exchange_must_prove_the_same_name_as_the_transport() -> None:
    broker = Broker(authenticator=Greeter())
    client = broker.open(identity="ann")
    client.send(connect_packet("c", 5, authentication_method=METHOD))
    client.take()
    client.send(auth(b"bob"))
    (answer,) = client.take()
    assert isinstance(answer, Connack) and answer.reason_code == reasons.NOT_AUTHORIZED
