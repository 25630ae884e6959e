"""Who a client is: by its transport, its password, or an exchange of AUTH packets.

Must never touch a session: a client that is not known yet changes nothing. What it decides goes to
the two ports it was given, `accept` per CONNECT and `refuse` or `end`. One exchange at a time
belongs to a connection, in `Connection.handshake`. Read next: `session.ports`,
`session.lifetime.connect`.
"""

from collections.abc import Callable
from typing import Final

from mqtt import reasons
from mqtt.encoder import encode
from mqtt.errors import ProtocolError
from mqtt.packets import AUTH, Auth, Connect
from session.counters import Counters
from session.live.commit_gate import CommitGate
from session.live.connection import ACTIVE, AUTHENTICATING, Connection, Handshake
from session.live.connection_states import (
    AUTH_RECEIVED,
    AUTHENTICATION_FAILED,
    CONNECT_RECEIVED,
    move,
)
from session.ports import STEP_CONTINUE, STEP_SUCCESS, Authenticator, Step, Verdict


class Authentication:
    """Asks the authenticator, and carries AUTH packets between it and the client."""

    def __init__(
        self,
        gate: CommitGate,
        authenticator: Authenticator,
        counters: Counters,
        refuse: Callable[[Connection, int], None],
        end: Callable[[Connection, str, int], None],
    ) -> None:
        """`refuse` answers a CONNECT, `end` an accepted connection, each with a reason code."""
        self._gate: Final = gate
        self._authenticator: Final = authenticator
        self._counters: Final = counters
        self._refuse: Final = refuse
        self._end: Final = end

    # At CONNECT

    def begin(
        self,
        connection: Connection,
        packet: Connect,
        accept: Callable[[str, bytes | None], None],
        decided: Callable[[], None],
    ) -> None:
        """Find out who sent a CONNECT: `accept(identity, Authentication Data)`, or it is refused.

        `decided` is called too if a password was judged later than this returns.
        """
        move(connection, CONNECT_RECEIVED)
        method = packet.authentication_method
        if method is not None:
            exchange = self._authenticator.exchange(method, packet.client_id)
            if exchange is None:
                self._refuse(connection, reasons.BAD_AUTHENTICATION_METHOD)  # [MQTT-4.12.0-1]
                return
            connection.authentication_method = method
            names = _Names(packet.username, connection.identity, accept)
            connection.handshake = Handshake(exchange, names.accept)
            self._step(connection, packet.authentication_data)
        elif connection.identity is not None:
            accept(connection.identity, None)
        else:
            self._ask_password(connection, packet, accept, decided)

    def _ask_password(
        self,
        connection: Connection,
        packet: Connect,
        accept: Callable[[str, bytes | None], None],
        decided: Callable[[], None],
    ) -> None:
        later = False

        def done(verdict: Verdict) -> None:
            if connection.state != AUTHENTICATING:
                return
            if verdict.ok:
                accept(verdict.identity, None)
            else:
                self._refuse(connection, verdict.reason_code)
            if later:
                decided()

        self._authenticator.authenticate(packet.client_id, packet.username, packet.password, done)
        later = True

    # AUTH

    def receive(self, connection: Connection, packet: Auth) -> None:
        """Take an AUTH packet of the client: an answer, or a wish to authenticate again.

        Raises `ProtocolError` for one that does not belong there. [MQTT-4.12.0-3, -5, -7],
        [MQTT-4.12.1-1].
        """
        method = connection.authentication_method
        handshake = connection.handshake
        if method is None:
            raise ProtocolError("AUTH without an authentication method in CONNECT")
        if packet.authentication_method != method:
            raise ProtocolError("AUTH with another authentication method, expected that of CONNECT")
        if packet.reason_code == reasons.CONTINUE_AUTHENTICATION:
            if handshake is None or not handshake.awaits_client:
                raise ProtocolError("AUTH 0x18 that nobody has asked for")
        elif packet.reason_code == reasons.REAUTHENTICATE:
            if handshake is not None or connection.state != ACTIVE:
                raise ProtocolError("AUTH 0x19 while an authentication is under way")
            exchange = self._authenticator.exchange(method, connection.client_id)
            if exchange is None:  # the method was there at CONNECT
                self._end(connection, AUTHENTICATION_FAILED, reasons.BAD_AUTHENTICATION_METHOD)
                return
            connection.handshake = Handshake(exchange, None)
        else:
            raise ProtocolError(f"AUTH {packet.reason_code:#04x}, expected 0x18 or 0x19")
        move(connection, AUTH_RECEIVED)
        self._step(connection, packet.authentication_data)

    def _step(self, connection: Connection, data: bytes | None) -> None:
        handshake = connection.handshake
        assert handshake is not None
        handshake.awaits_client = False

        def done(step: Step) -> None:
            if connection.handshake is handshake and connection.state <= ACTIVE:
                self._stepped(connection, handshake, step)

        handshake.exchange.step(data, done)

    def _stepped(self, connection: Connection, handshake: Handshake, step: Step) -> None:
        if step.outcome == STEP_CONTINUE:
            handshake.awaits_client = True
            self._send(connection, reasons.CONTINUE_AUTHENTICATION, step.data)  # [MQTT-4.12.0-2]
            return
        connection.handshake = None
        accept = handshake.accept
        if accept is not None:
            if step.outcome != STEP_SUCCESS:
                self._refuse(connection, step.reason_code)
            elif not accept(step.identity, step.data):
                self._refuse(connection, reasons.NOT_AUTHORIZED)
            return
        session = connection.session
        assert session is not None
        if step.outcome != STEP_SUCCESS or step.identity != session.identity:
            self._end(connection, AUTHENTICATION_FAILED, reasons.NOT_AUTHORIZED)  # [MQTT-4.12.1-2]
        else:
            self._send(connection, reasons.SUCCESS, step.data)

    def _send(self, connection: Connection, reason_code: int, data: bytes | None) -> None:
        packet = Auth(
            reason_code,
            authentication_method=connection.authentication_method,
            authentication_data=data,
        )
        raw = encode(packet, 5)
        limit = connection.maximum_packet_size
        if limit and len(raw) > limit:  # [MQTT-3.1.2-24]
            if connection.state == AUTHENTICATING:
                self._refuse(connection, reasons.PACKET_TOO_LARGE)
            else:
                self._end(connection, AUTHENTICATION_FAILED, reasons.PACKET_TOO_LARGE)
            return
        self._counters.packets_sent[AUTH] += 1
        self._gate.send(connection, raw)


class _Names:
    """Accepts a CONNECT only if all that says who the client is says the same."""

    def __init__(
        self,
        username: str | None,
        proved: str | None,
        accept: Callable[[str, bytes | None], None],
    ) -> None:
        self._username: Final = username  # in CONNECT
        self._proved: Final = proved  # by the transport
        self._accept: Final = accept

    def accept(self, identity: str, data: bytes | None) -> bool:
        """Accept and return True, or return False if another name was claimed or proved."""
        if self._proved is not None and self._proved != identity:
            return False
        if self._username is not None and self._username != identity:
            return False
        self._accept(identity, data)
        return True
