"""The table of a connection's life, held to the engine: every event in every state.

Each event is what a shell or a client really does. An edge of the table is taken out in turn, and
the engine must stumble at that very edge: so it is this edge that it takes, and no other way leads
there. A pair that the table lacks ends in another event, is ignored, or cannot be brought about.
"""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from mqtt import reasons
from mqtt.encoder import encode
from mqtt.packets import Auth, Disconnect, Packet, Pingreq
from session.live.connection import ACTIVE, AUTHENTICATING, AWAITING_CONNECT, CLOSED, CLOSING
from session.live.connection_states import (
    AUTH_RECEIVED,
    AUTHENTICATION_FAILED,
    CONNECT_ACCEPTED,
    CONNECT_RECEIVED,
    CONNECT_REFUSED,
    CONNECT_TIMEOUT,
    DISCONNECT_RECEIVED,
    EVENTS,
    KEEP_ALIVE_TIMEOUT,
    PROTOCOL_ERROR,
    SENT_AWAY,
    STATES,
    TAKEN_OVER,
    TRANSITIONS,
    TRANSPORT_LOST,
    TURNED_AWAY,
    move,
)
from session.ports import STEP_CONTINUE, STEP_REFUSED, STEP_SUCCESS, Exchange, Step, Verdict
from tests.session.harness import Broker, connect_packet

METHOD: Final = "X-METHOD"
KEEP_ALIVE_S: Final = 1000
SESSION: Final = Path(__file__).resolve().parents[3] / "session"


class Examiner:
    """An authenticator with one method that keeps what it is to call until the test answers."""

    def __init__(self) -> None:
        self.answer: Callable[[Step], None] | None = None  # None: never asked

    def authenticate(
        self,
        client_id: str,
        username: str | None,
        password: bytes | None,
        done: Callable[[Verdict], None],
    ) -> None:
        """Accept everybody who names no method."""
        done(Verdict(ok=True, reason_code=0, identity=""))

    def exchange(self, method: str, client_id: str) -> Exchange | None:
        """Begin an exchange of the one method."""
        return self if method == METHOD else None

    def step(self, data: bytes | None, done: Callable[[Step], None]) -> None:
        """Keep the callback."""
        self.answer = done


class Scene:
    """A real broker, and one connection that was brought into a state."""

    def __init__(self, state: int) -> None:
        self.examiner = Examiner()
        self.broker = Broker(authenticator=self.examiner, linger=True)
        self.client = self.broker.open()
        if state == AWAITING_CONNECT:
            return
        self.send(self.connect())
        self.tell(Step(STEP_CONTINUE, b"who?"))
        if state == AUTHENTICATING:
            return
        self.send(auth())
        self.tell(Step(STEP_SUCCESS, identity="ann"))
        if state == ACTIVE:
            return
        self.send(Disconnect())
        if state == CLOSED:
            self.client.drop()

    @property
    def state(self) -> int:
        """The state that the connection is in."""
        return self.client.connection.state

    def connect(self) -> Packet:
        """Return a CONNECT that asks for the method."""
        return connect_packet("c", 5, authentication_method=METHOD, keep_alive=KEEP_ALIVE_S)

    def send(self, *packets: Packet) -> None:
        """Hand packets to the engine, also those that a closed transport still had."""
        data = b"".join(encode(packet, 5) for packet in packets)
        self.broker.engine.receive(self.client.connection, data, self.broker.now)
        self.broker.settle()

    def tell(self, step: Step) -> None:
        """Let the authenticator answer what it was asked last, perhaps a second time."""
        assert self.examiner.answer is not None
        self.examiner.answer(step)
        self.broker.settle()


def auth(reason_code: int = reasons.CONTINUE_AUTHENTICATION) -> Auth:
    return Auth(reason_code, authentication_method=METHOD, authentication_data=b"ann")


# What brings each event about


def turned_away(scene: Scene) -> None:
    scene.broker.engine.drain(scene.broker.now)
    scene.client = scene.broker.open()
    scene.broker.settle()


def connect_received(scene: Scene) -> None:
    scene.send(scene.connect())


def connect_refused(scene: Scene) -> None:
    if scene.state == AWAITING_CONNECT:
        scene.send(Pingreq())
    else:
        scene.tell(Step(STEP_REFUSED, reason_code=reasons.NOT_AUTHORIZED))


def connect_accepted(scene: Scene) -> None:
    scene.tell(Step(STEP_SUCCESS, identity="ann"))


def connect_timeout(scene: Scene) -> None:
    scene.broker.advance(scene.broker.settings.connect_timeout_ms + 1)


def auth_received(scene: Scene) -> None:
    is_active = scene.state == ACTIVE
    scene.send(auth(reasons.REAUTHENTICATE if is_active else reasons.CONTINUE_AUTHENTICATION))


def disconnect_received(scene: Scene) -> None:
    scene.send(Disconnect())


def protocol_error(scene: Scene) -> None:
    scene.broker.engine.receive(scene.client.connection, b"\x00\x00", scene.broker.now)
    scene.broker.settle()


def authentication_failed(scene: Scene) -> None:
    if scene.state == ACTIVE:
        scene.send(auth(reasons.REAUTHENTICATE))
    scene.tell(Step(STEP_REFUSED, reason_code=reasons.NOT_AUTHORIZED))


def taken_over(scene: Scene) -> None:
    session = scene.client.connection.session
    identity = "ann" if session is None else session.identity
    other = scene.broker.open(identity=identity)
    other.send(connect_packet("c", 5))
    assert other.connection.state == ACTIVE


def keep_alive_timeout(scene: Scene) -> None:
    scene.broker.advance(s=KEEP_ALIVE_S * 3 // 2 + 1)


def sent_away(scene: Scene) -> None:
    scene.broker.engine.drain(scene.broker.now)
    scene.broker.settle()


def transport_lost(scene: Scene) -> None:
    scene.broker.engine.transport_lost(scene.client.connection, scene.broker.now)
    scene.broker.settle()


TRIGGERS: Final[dict[str, Callable[[Scene], None]]] = {
    TURNED_AWAY: turned_away,
    CONNECT_RECEIVED: connect_received,
    CONNECT_REFUSED: connect_refused,
    CONNECT_ACCEPTED: connect_accepted,
    CONNECT_TIMEOUT: connect_timeout,
    AUTH_RECEIVED: auth_received,
    DISCONNECT_RECEIVED: disconnect_received,
    PROTOCOL_ERROR: protocol_error,
    AUTHENTICATION_FAILED: authentication_failed,
    TAKEN_OVER: taken_over,
    KEEP_ALIVE_TIMEOUT: keep_alive_timeout,
    SENT_AWAY: sent_away,
    TRANSPORT_LOST: transport_lost,
}

# Pairs that are not in the table: what comes of them is another event.
INSTEAD: Final = {
    (AWAITING_CONNECT, AUTH_RECEIVED): CONNECT_REFUSED,
    (AWAITING_CONNECT, DISCONNECT_RECEIVED): CONNECT_REFUSED,
    (AWAITING_CONNECT, PROTOCOL_ERROR): CONNECT_REFUSED,
    (AWAITING_CONNECT, KEEP_ALIVE_TIMEOUT): CONNECT_TIMEOUT,
    (AUTHENTICATING, CONNECT_RECEIVED): CONNECT_REFUSED,
    (AUTHENTICATING, PROTOCOL_ERROR): CONNECT_REFUSED,
    (AUTHENTICATING, AUTHENTICATION_FAILED): CONNECT_REFUSED,
    (AUTHENTICATING, KEEP_ALIVE_TIMEOUT): CONNECT_TIMEOUT,
    (ACTIVE, CONNECT_RECEIVED): PROTOCOL_ERROR,
}

# Nothing comes of these, and of nothing in CLOSING and CLOSED that the table lacks.
IGNORED: Final = {
    (AWAITING_CONNECT, TAKEN_OVER),  # it has named no client yet
    (AUTHENTICATING, TAKEN_OVER),  # the session is not its own yet
    (ACTIVE, CONNECT_REFUSED),  # the authenticator answers twice
    (ACTIVE, CONNECT_ACCEPTED),
    (ACTIVE, CONNECT_TIMEOUT),
}

# Nobody can bring these about.
NEVER_ASKED: Final = {
    (AWAITING_CONNECT, CONNECT_ACCEPTED),
    (AWAITING_CONNECT, AUTHENTICATION_FAILED),
}
OPENED_BEFORE: Final = {(state, TURNED_AWAY) for state in STATES if state != AWAITING_CONNECT}

PAIRS: Final = [(state, event) for state in STATES for event in EVENTS]


def named(pair: tuple[int, str]) -> str:
    return f"{STATES[pair[0]]}: {pair[1]}"


def is_ignored(pair: tuple[int, str]) -> bool:
    if pair in TRANSITIONS or pair in OPENED_BEFORE:
        return False
    return pair in IGNORED or pair[0] >= CLOSING


@pytest.mark.parametrize("edge", TRANSITIONS, ids=named)
def test_every_edge_is_taken(edge: tuple[int, str]) -> None:
    scene = Scene(edge[0])
    assert scene.state == edge[0]
    TRIGGERS[edge[1]](scene)
    assert scene.state == TRANSITIONS[edge]


@pytest.mark.parametrize("edge", TRANSITIONS, ids=named)
def test_no_other_edge_leads_there(edge: tuple[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(edge[0])
    monkeypatch.delitem(TRANSITIONS, edge)
    with pytest.raises(AssertionError, match=f"{edge[1]} while {STATES[edge[0]]}"):
        TRIGGERS[edge[1]](scene)


@pytest.mark.parametrize("pair", INSTEAD, ids=named)
def test_what_a_state_does_not_allow_is_another_event(
    pair: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, event = pair
    edge = (state, INSTEAD[pair])
    scene = Scene(state)
    TRIGGERS[event](scene)
    assert scene.state == TRANSITIONS[edge]
    scene = Scene(state)
    monkeypatch.delitem(TRANSITIONS, edge)
    with pytest.raises(AssertionError, match=f"{edge[1]} while {STATES[state]}"):
        TRIGGERS[event](scene)


@pytest.mark.parametrize("pair", list(filter(is_ignored, PAIRS)), ids=named)
def test_what_comes_at_the_wrong_time_changes_nothing(pair: tuple[int, str]) -> None:
    scene = Scene(pair[0])
    TRIGGERS[pair[1]](scene)
    assert scene.state == pair[0]


def test_without_a_connect_nobody_is_asked_who_the_client_is() -> None:
    assert Scene(AWAITING_CONNECT).examiner.answer is None


@pytest.mark.parametrize("state", sorted({state for state, _ in OPENED_BEFORE}))
def test_only_a_new_connection_is_turned_away(state: int) -> None:
    scene = Scene(state)
    known = scene.client.connection
    turned_away(scene)
    assert scene.client.connection is not known
    assert scene.client.connection.state == CLOSING


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair not in TRANSITIONS], ids=named)
def test_a_pair_that_the_table_lacks_is_a_fault_of_ours(pair: tuple[int, str]) -> None:
    connection = Scene(pair[0]).client.connection
    with pytest.raises(AssertionError, match=f"{pair[1]} while {STATES[pair[0]]}"):
        move(connection, pair[1])
    assert connection.state == pair[0]


def test_every_event_was_tried_in_every_state() -> None:
    ignored = set(filter(is_ignored, PAIRS))
    ways = [set(TRANSITIONS), set(INSTEAD), ignored, NEVER_ASKED, OPENED_BEFORE]
    assert set.union(*ways) == set(PAIRS)
    assert sum(map(len, ways)) == len(PAIRS), "a pair has two fates"
    assert set(TRIGGERS) == set(EVENTS)


def test_only_the_table_changes_a_state() -> None:
    found = []
    for path in sorted(SESSION.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
                targets = [node.target]
            found += [
                f"{path.relative_to(SESSION)}: {ast.unparse(target)}"
                for target in targets
                if isinstance(target, ast.Attribute) and target.attr == "state"
            ]
    assert found == [
        "live/connection.py: self.state",
        "live/connection_states.py: connection.state",
    ]
