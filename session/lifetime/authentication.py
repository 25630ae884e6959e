"""Finds out who a client is: by its transport, its password, or an exchange of AUTH packets.

Must never touch a session: a client that is not authenticated changes nothing. It reports its
decisions to `accept`, `refuse` and `end`. A connection has at most one exchange at a time, in
`Connection.handshake`. Read next: `session.ports`,
`session.lifetime.connect`.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from mqtt import reasons
from mqtt.encoder import encode
from mqtt.errors import ProtocolError
from mqtt.packets import AUTH, Auth, Connect
from session.lifetime.context import ClientContext
from session.live.connection import ACTIVE, AUTHENTICATING, Connection, Handshake
from session.live.connection_states import (
    AUTH_RECEIVED,
    AUTHENTICATION_FAILED,
    CONNECT_RECEIVED,
    move,
)
from session.ports import STEP_CONTINUE, STEP_SUCCESS, Step, Verdict

# Accepts a CONNECT: connection, packet, identity, Authentication Data for the CONNACK.
Accept: TypeAlias = Callable[[Connection, Connect, str, bytes | None], None]


class Authentication:
    """Asks the authenticator, and passes AUTH packets between it and the client."""

    def __init__(
        self,
        context: ClientContext,
        accept: Accept,
        refuse: Callable[[Connection, int], None],
        end: Callable[[Connection, str, int], None],
    ) -> None:
        """Report to these: `refuse` refuses a CONNECT, `end` ends an accepted connection."""
        self._gate: Final = context.gate
        self._authenticator: Final = context.ports.authenticator
        self._counters: Final = context.counters
        self._accept: Final = accept
        self._refuse: Final = refuse
        self._end: Final = end

    # At CONNECT

    def begin(
        self, connection: Connection, packet: Connect, decided: Callable[[Connection], None]
    ) -> None:
        """Find out who sent a CONNECT, and accept or refuse it.

        `decided` is called after that if a password is checked after this returned.
        """
        move(connection, CONNECT_RECEIVED)
        method = packet.authentication_method
        if method is not None:
            exchange = self._authenticator.exchange(method, connection.client_id)
            if exchange is None:
                self._refuse(connection, reasons.BAD_AUTHENTICATION_METHOD)  # [MQTT-4.12.0-1]
                return
            connection.authentication_method = method
            claim = _Claim(connection, packet, self._accept)
            connection.handshake = Handshake(exchange, claim.accept)
            self._step(connection, packet.authentication_data)
        elif connection.identity is not None:
            self._accept(connection, packet, connection.identity, None)
        else:
            self._check_password(connection, packet, decided)

    def _check_password(
        self, connection: Connection, packet: Connect, decided: Callable[[Connection], None]
    ) -> None:
        later = False

        def done(verdict: Verdict) -> None:
            if connection.state != AUTHENTICATING:
                return
            if verdict.ok:
                self._accept(connection, packet, verdict.identity, None)
            else:
                self._refuse(connection, verdict.reason_code)
            if later:
                decided(connection)

        self._authenticator.authenticate(
            connection.client_id, packet.username, packet.password, done
        )
        later = True

    # AUTH

    def receive(self, connection: Connection, packet: Auth) -> None:
        """Handle an AUTH packet of the client: an answer, or the start of a re-authentication.

        Raises `ProtocolError` for one that is not expected now. [MQTT-4.12.0-3, -5, -7],
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


class _Claim:
    """A CONNECT whose exchange, transport and user name must name the same client."""

    def __init__(self, connection: Connection, packet: Connect, accept: Accept) -> None:
        self._connection: Final = connection
        self._packet: Final = packet
        self._accept: Final = accept

    def accept(self, identity: str, data: bytes | None) -> bool:
        """Accept the CONNECT; False if its transport or its user name names somebody else."""
        proved = self._connection.identity
        if proved is not None and proved != identity:
            return False
        username = self._packet.username
        if username is not None and username != identity:
            return False
        self._accept(self._connection, self._packet, identity, data)
        return True
