"""The tables of QoS 2 exchanges, held to the engine: every event in every phase, both ways."""

from collections.abc import Callable
from typing import Final

import pytest

from mqtt import reasons
from mqtt.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from session.state.in_flight import (
    AWAITING_PUBCOMP,
    AWAITING_PUBREC,
    FREE,
    PHASE_MASK,
)
from session.state.qos2_phases import (
    AWAITING_PUBREL,
    GIVEN_UP,
    NOTHING,
    PHASES,
    PUBACK,
    PUBCOMP,
    PUBCOMP_UNKNOWN,
    PUBLISH,
    PUBLISH_AGAIN,
    PUBLISH_REFUSED,
    PUBREC,
    PUBREC_ERROR,
    PUBREL,
    PUBREL_UNKNOWN,
    RECEIVER,
    RECEIVER_EVENTS,
    RESUMED,
    SENDER,
    SENDER_EVENTS,
)
from session.state.session import Session
from tests.session.harness import NEVER, Broker, Client

ID: Final = 1  # the packet id of the exchange that is looked at
SENDER_PAIRS: Final = [
    (phase, event) for phase in PHASES if phase != AWAITING_PUBREL for event in SENDER_EVENTS
]
RECEIVER_PAIRS: Final = [
    (phase, event) for phase in (FREE, AWAITING_PUBREL) for event in RECEIVER_EVENTS
]


def named(pair: tuple[int, str]) -> str:
    return f"{PHASES[pair[0]]}: {pair[1]}"


def what(packets: list[Packet]) -> str:
    """Return what was sent in the words of the tables."""
    if not packets:
        return NOTHING
    (packet,) = packets
    if isinstance(packet, Publish):
        return PUBLISH_AGAIN if packet.dup else PUBLISH
    assert isinstance(packet, (Pubrec, Pubrel, Pubcomp)) and packet.packet_id == ID, packet
    if isinstance(packet, Pubrec):
        return PUBREC_ERROR if packet.reason_code >= 0x80 else PUBREC
    if isinstance(packet, Pubrel):
        return PUBREL_UNKNOWN if packet.reason_code else PUBREL
    return PUBCOMP_UNKNOWN if packet.reason_code else PUBCOMP


class Scene:
    """A broker and a client with a session that lasts, and one exchange between them."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.client: Client = self.broker.durable("c", "t", qos=2)
        self.has_crashed = False

    def resume(self) -> None:
        """Lose the connection, or the process, and come back."""
        if self.has_crashed:
            self.broker.restart()
        else:
            self.client.drop()
        self.client = self.broker.connect("c", expiry=NEVER)
        assert self.client.connack is not None and self.client.connack.session_present

    @property
    def session(self) -> Session:
        """The session of the client."""
        session = self.client.connection.session
        assert session is not None
        return session


# The broker sends


def sending(phase: int) -> Scene:
    """Return a scene with an exchange in this phase."""
    scene = Scene()
    if phase != FREE:
        scene.broker.publish("t", qos=2)
        assert scene.client.message().packet_id == ID
    if phase == AWAITING_PUBCOMP:
        scene.client.send(Pubrec(ID))
        scene.client.answer(Pubrel)
    return scene


def sent(scene: Scene) -> int:
    return scene.session.in_flight.get(ID, FREE) & PHASE_MASK


def give_up(scene: Scene) -> None:
    scene.broker.rules.forbid("receive", "t")
    scene.resume()


SENDER_TRIGGERS: Final[dict[str, Callable[[Scene], None]]] = {
    PUBLISH: lambda scene: scene.broker.publish("t", qos=2),
    PUBACK: lambda scene: scene.client.send(Puback(ID)),
    PUBREC: lambda scene: scene.client.send(Pubrec(ID)),
    PUBREC_ERROR: lambda scene: scene.client.send(Pubrec(ID, reasons.UNSPECIFIED_ERROR)),
    PUBCOMP: lambda scene: scene.client.send(Pubcomp(ID)),
    RESUMED: Scene.resume,
    GIVEN_UP: give_up,
}
WRONG_ANSWERS: Final = {
    (AWAITING_PUBREC, PUBACK),
    (AWAITING_PUBREC, PUBCOMP),
    (AWAITING_PUBCOMP, PUBACK),
}
# A packet id in flight is not taken again [MQTT-4.3.3-1].
TAKEN_IDS: Final = {(AWAITING_PUBREC, PUBLISH), (AWAITING_PUBCOMP, PUBLISH)}
# What comes of these, as there is no message any more that would be looked at.
SENDER_INSTEAD: Final = {
    (FREE, RESUMED): (FREE, NOTHING),
    (FREE, GIVEN_UP): (FREE, NOTHING),
    (AWAITING_PUBCOMP, GIVEN_UP): SENDER[AWAITING_PUBCOMP, RESUMED],
}


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("pair", [*SENDER, *SENDER_INSTEAD], ids=named)
def test_an_exchange_of_ours_goes_on_as_the_table_says(pair: tuple[int, str], crash: bool) -> None:
    phase, event = pair
    scene = sending(phase)
    assert sent(scene) == phase
    scene.has_crashed = crash
    SENDER_TRIGGERS[event](scene)
    assert (sent(scene), what(scene.client.take())) == {**SENDER_INSTEAD, **SENDER}[pair]
    # The store knows the same, once the end of an exchange has reached it.
    scene.broker.advance(scene.broker.settings.progress_delay_ms)
    after = sent(scene)
    scene.resume()
    assert sent(scene) == (after if (after, RESUMED) in SENDER else FREE)


@pytest.mark.parametrize("pair", sorted(WRONG_ANSWERS), ids=named)
def test_an_answer_that_the_table_lacks_is_a_protocol_error(pair: tuple[int, str]) -> None:
    phase, event = pair
    scene = sending(phase)
    SENDER_TRIGGERS[event](scene)
    scene.client.expect_closed(reasons.PROTOCOL_ERROR)
    scene.client = scene.broker.connect("c", expiry=NEVER)
    assert sent(scene) == phase


@pytest.mark.parametrize("pair", sorted(TAKEN_IDS), ids=named)
def test_a_packet_id_is_not_taken_twice(pair: tuple[int, str]) -> None:
    phase, event = pair
    scene = sending(phase)
    SENDER_TRIGGERS[event](scene)
    assert scene.client.message().packet_id != ID
    assert sent(scene) == phase


# The broker receives


def receiving(phase: int) -> Scene:
    """Return a scene with an exchange in this phase."""
    scene = Scene()
    scene.client.unsubscribe("t")
    if phase == AWAITING_PUBREL:
        scene.client.send(Publish("t", b"x", 2, packet_id=ID))
        scene.client.answer(Pubrec)
    return scene


def received(scene: Scene) -> int:
    return AWAITING_PUBREL if ID in scene.session.incoming else FREE


def publish(scene: Scene) -> None:
    scene.client.send(Publish("t", b"x", 2, packet_id=ID, dup=received(scene) != FREE))


def publish_refused(scene: Scene) -> None:
    scene.broker.rules.forbid("publish", "t")
    publish(scene)


RECEIVER_TRIGGERS: Final[dict[str, Callable[[Scene], None]]] = {
    PUBLISH: publish,
    PUBLISH_REFUSED: publish_refused,
    PUBREL: lambda scene: scene.client.send(Pubrel(ID)),
    RESUMED: Scene.resume,
}
RECEIVER_INSTEAD: Final = {
    (FREE, RESUMED): (FREE, NOTHING),
    # It was accepted before, and is not judged again.
    (AWAITING_PUBREL, PUBLISH_REFUSED): RECEIVER[AWAITING_PUBREL, PUBLISH],
}


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("pair", [*RECEIVER, *RECEIVER_INSTEAD], ids=named)
def test_an_exchange_of_a_client_goes_on_as_the_table_says(
    pair: tuple[int, str], crash: bool
) -> None:
    phase, event = pair
    scene = receiving(phase)
    assert received(scene) == phase
    scene.has_crashed = crash
    RECEIVER_TRIGGERS[event](scene)
    assert (received(scene), what(scene.client.take())) == {**RECEIVER_INSTEAD, **RECEIVER}[pair]
    after = received(scene)
    scene.resume()
    assert received(scene) == after


# Both


def test_every_event_was_tried_in_every_phase() -> None:
    ways: list[set[tuple[int, str]]]
    ways = [set(SENDER), set(SENDER_INSTEAD), WRONG_ANSWERS, TAKEN_IDS]
    assert set.union(*ways) == set(SENDER_PAIRS)
    assert sum(map(len, ways)) == len(SENDER_PAIRS), "a pair has two fates"
    assert set(RECEIVER) | set(RECEIVER_INSTEAD) == set(RECEIVER_PAIRS)
    assert len(RECEIVER) + len(RECEIVER_INSTEAD) == len(RECEIVER_PAIRS)
    assert set(SENDER_TRIGGERS) == set(SENDER_EVENTS)
    assert set(RECEIVER_TRIGGERS) == set(RECEIVER_EVENTS)


@pytest.mark.parametrize("pair", SENDER_PAIRS, ids=named)
def test_the_bits_of_a_session_follow_the_table(pair: tuple[int, str]) -> None:
    phase, event = pair
    session = Session("c", "", 1)
    session.begin_connection(10)
    if phase != FREE:
        assert session.bind(5, 2) == ID
    if phase == AWAITING_PUBCOMP:
        session.release(ID)
    if event == PUBREC:
        session.release(ID)
    elif event == PUBREC_ERROR:
        session.complete(ID, AWAITING_PUBREC)
    elif event == PUBCOMP:
        session.complete(ID, AWAITING_PUBCOMP)
    elif event == RESUMED:
        session.begin_connection(10)
    elif event == GIVEN_UP and phase == AWAITING_PUBREC:
        session.begin_connection(10)
        session.give_up(ID)
    elif event == PUBLISH:
        session.bind(6, 2)
    expected = SENDER[pair][0] if pair in SENDER else phase
    assert session.in_flight.get(ID, FREE) & PHASE_MASK == expected
