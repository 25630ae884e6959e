"""What clients of a node that does not lead are told: where the leader is, or to come again.

Answers each CONNECT with 0x9C and the leader's address [MQTT-5 4.11], in MQTT 3 with "server
unavailable", and closes. Only plain and TLS listeners are served; others refuse the connection.
Read next: `broker.cluster.member`.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final, cast

from broker.configuration.listener_options import UNIX, WEBSOCKET, Endpoint
from broker.loop.farewell import refusal
from broker.network import tls
from broker.network.acceptor import Acceptor
from broker.network.listeners import ListenError, bind, bind_problem
from broker.observe.structured_log import Log
from mqtt.decoder import CONNECT_SIZE_MAX, Decoder
from mqtt.packets import Connect

CONNECT_S: Final = 5.0  # to send a whole CONNECT
READ_BYTES: Final = 4096
TURNS: Final = 3  # of the loop, until what was ended has ended
CLIENTS_MAX: Final = 1024  # that are answered at a time


class Standby:
    """The listeners of a node while it does not lead."""

    def __init__(self, endpoints: Sequence[Endpoint], leader: Callable[[], str], log: Log) -> None:
        """`leader` returns the leader's address, "" = not known."""
        self._endpoints: Final = endpoints
        self._leader: Final = leader
        self._log: Final = log
        self._channels: Final[list[socket.socket]] = []
        self._acceptors: Final[list[Acceptor]] = []
        self._contexts: Final[dict[Endpoint, ssl.SSLContext]] = {}  # of those with TLS
        self._clients: Final[set[_Client]] = set()
        self._is_closed: bool = False
        self.answered: int = 0
        self.port: int = 0  # of the first listener, as bound

    async def open(self) -> None:
        """Listen; raises `ListenError`."""
        for endpoint in self._endpoints:
            if endpoint.type in (UNIX, WEBSOCKET) or endpoint.proxy_protocol:
                continue
            assert endpoint.port is not None
            try:
                if endpoint.has_tls:
                    self._contexts[endpoint] = tls.server_context(endpoint)
            except tls.TlsError as problem:
                raise ListenError(str(problem)) from None
            for channel in bind(endpoint.section, endpoint.host, endpoint.port):
                self.port = self.port or channel.getsockname()[1]
                self._channels.append(channel)
                try:
                    channel.listen(endpoint.backlog)
                except OSError as problem:
                    raise ListenError(
                        bind_problem(endpoint.section, endpoint.host, endpoint.port, problem)
                    ) from None
                self._acceptors.append(self._acceptor(channel, endpoint))

    def _acceptor(self, channel: socket.socket, endpoint: Endpoint) -> Acceptor:
        """Return who accepts: it bounds how many connections are in a handshake, and for how long.

        Without a descriptor for another one it pauses.
        """
        loop = asyncio.get_running_loop()

        def make(remote: str, identity: str | None, waited_ms: int) -> asyncio.Protocol:
            return _Client(self, loop)

        def refused(remote: str, why: str) -> None:
            self._log.info("connection_refused", why, listener=endpoint.name, remote=remote)

        return Acceptor(
            channel,
            make,
            name="",
            has_header=False,
            context=lambda: self._contexts.get(endpoint),
            identity_kind="none",
            timeout_s=CONNECT_S,
            refused=refused,
        )

    def reload(self) -> None:
        """Read certificates again, for connections from now on; log bad ones and keep the others.

        A node may follow for longer than a certificate is good.
        """
        for endpoint in self._contexts:
            try:
                self._contexts[endpoint] = tls.server_context(endpoint)
            except tls.TlsError as problem:
                self._log.error("reload_failed", f"{problem}; keeping the certificate in use")
            else:
                section = endpoint.section
                self._log.info("reload", "certificate read again", listener=section)

    async def close(self) -> None:
        """Listen no more, and end what is open."""
        self._is_closed = True
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        for channel in self._channels:
            channel.close()
        self._channels.clear()
        for client in list(self._clients):
            client.end()
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def admit(self, client: "_Client") -> bool:
        """Note a client; return whether it is to be answered."""
        if self._is_closed or len(self._clients) >= CLIENTS_MAX:
            return False
        self._clients.add(client)
        return True

    def leave(self, client: "_Client") -> None:
        """Forget a client. Idempotent."""
        self._clients.discard(client)

    def answer(self, version: int, limit: int) -> bytes:
        """Return what a client is told; no packet to it may exceed `limit`, 0 = any."""
        self.answered += 1
        return refusal(version, self._leader(), limit)


class _Client(asyncio.Protocol):
    """One connection: it sends CONNECT, is answered, and that is the end.

    No task and no stream: an end that comes as the socket is handed over cannot hold up the loop.
    """

    def __init__(self, standby: Standby, loop: asyncio.AbstractEventLoop) -> None:
        self._standby: Final = standby
        self._loop: Final = loop
        self._decoder: Final = Decoder("server", CONNECT_SIZE_MAX)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_over: bool = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for CONNECT, but not for ever."""
        self._transport = cast(asyncio.Transport, transport)
        if self._standby.admit(self):
            self._deadline = self._loop.call_later(CONNECT_S, self.end)
        else:
            self.end()

    def data_received(self, data: bytes) -> None:
        """Answer CONNECT; whatever else comes first ends it."""
        if self._is_over or self._transport is None:
            return
        decoder = self._decoder
        packet = next(iter(decoder.receive(data)), None)
        if packet is None and decoder.error is None:
            return
        self._is_over = True
        if isinstance(packet, Connect):
            answer = self._standby.answer(decoder.version, packet.maximum_packet_size)
            self._transport.write(answer)
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._standby.leave(self)

    def end(self) -> None:
        """End it at once."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()
