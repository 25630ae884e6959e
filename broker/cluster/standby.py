"""What clients of a node that does not lead are told: where the leader is, or to come again.

Answers each CONNECT with 0x9C and the leader's address [MQTT-5 4.11], in MQTT 3 with "server
unavailable", and closes. Only plain and TLS listeners are served; others refuse the connection.
Read next: `broker.cluster.member`.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

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
        # Who is answered, and how to end that.
        self._clients: Final[dict[asyncio.Task[None], asyncio.StreamWriter]] = {}
        self.answered: int = 0
        self.port: int = 0  # of the first listener, as bound

    async def open(self) -> None:
        """Listen; raises `ListenError`."""
        for endpoint in self._endpoints:
            if endpoint.type in (UNIX, WEBSOCKET) or endpoint.proxy_protocol:
                continue
            assert endpoint.port is not None
            try:
                context = tls.server_context(endpoint) if endpoint.has_tls else None
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
                self._acceptors.append(self._acceptor(channel, endpoint, context))

    def _acceptor(
        self, channel: socket.socket, endpoint: Endpoint, context: ssl.SSLContext | None
    ) -> Acceptor:
        """Return who accepts: it bounds how many connections are in a handshake, and for how long.

        Without a descriptor for another one it pauses.
        """
        loop = asyncio.get_running_loop()

        def make(remote: str, identity: str | None, waited_ms: int) -> asyncio.Protocol:
            return asyncio.StreamReaderProtocol(
                asyncio.StreamReader(loop=loop), self._answer, loop=loop
            )

        def refused(remote: str, why: str) -> None:
            self._log.info("connection_refused", why, listener=endpoint.name, remote=remote)

        return Acceptor(
            channel,
            make,
            name="",
            has_header=False,
            context=lambda: context,
            identity_kind="none",
            timeout_s=CONNECT_S,
            refused=refused,
        )

    async def close(self) -> None:
        """Listen no more, and end what is open.

        A task that is cancelled with the loop would be reported as an error.
        """
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        for channel in self._channels:
            channel.close()
        self._channels.clear()
        for writer in self._clients.values():
            writer.transport.abort()
        if self._clients:
            await asyncio.wait(tuple(self._clients), timeout=CONNECT_S)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = writer
        try:
            if len(self._clients) > CLIENTS_MAX:
                writer.transport.abort()
            else:
                async with asyncio.timeout(CONNECT_S):
                    version, limit = await _connected(reader)
                    if version:
                        self.answered += 1
                        writer.write(refusal(version, self._leader(), limit))
                        await writer.drain()
        except (OSError, TimeoutError):
            pass  # it is gone, or says nothing: there is nobody to tell
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            del self._clients[task]


async def _connected(reader: asyncio.StreamReader) -> tuple[int, int]:
    """Return the version of the CONNECT that a client sends first, 0 if it is none.

    And the size that no packet to this client may exceed, 0 = any.
    """
    decoder = Decoder("server", CONNECT_SIZE_MAX)
    while data := await reader.read(READ_BYTES):
        for packet in decoder.receive(data):
            if not isinstance(packet, Connect):
                return 0, 0
            return decoder.version, packet.maximum_packet_size
        if decoder.error is not None:
            break
    return 0, 0
