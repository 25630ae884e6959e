"""Accepts connections that begin with a PROXY header or a TLS handshake.

`broker.network.plain_acceptor` accepts those of plain listeners. The header is read with
`MSG_PEEK`, so that no byte of the handshake behind it is taken. Until its stream is made, each
connection is a task, bounded by the connect timeout; the engine counts the rest of that time.
Connections without a finished handshake must never use up what clients need: see `PENDING_MAX`.
Read next: `broker.network.proxy_protocol`, `broker.network.tls`, `broker.network.tls_alerts`.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from broker.loop.client_stream import LINGER_S, remote_name
from broker.network.intake import Accepted, Intake, MakeStream
from broker.network.proxy_protocol import HEADER_BYTES_MAX, ProxyError, ProxyHeader
from broker.network.tls import IdentityError, identity, reason
from broker.network.tls_alerts import Handshake

# Connections of one listener in a handshake. The next one ends the oldest: a client is through in
# a few round trips, so it is whoever says nothing that goes. A handshake holds some 60 KiB.
PENDING_MAX: Final = 2048
SHORTEST_TIMEOUT_S: Final = 0.001  # a timeout of 0 means something else to the loop


class Acceptor:
    """Accepts the connections of one listening socket until closed."""

    def __init__(
        self,
        channel: socket.socket,
        make_stream: MakeStream,
        *,
        name: str,
        has_header: bool,
        context: Callable[[], ssl.SSLContext | None],
        identity_kind: str,
        timeout_s: float,
        refused: Callable[[str, str], None],
    ) -> None:
        """`context` is called for every connection, so that reloaded certificates take effect.

        `name` is the remote of a client whose socket has no address; `refused` is
        called with (remote, reason) for every connection that does not become a stream.
        """
        self._make_stream: Final = make_stream
        self._name: Final = name
        self._has_header: Final = has_header
        self._context: Final = context
        self._identity_kind: Final = identity_kind
        self._timeout_s: Final = timeout_s
        self._refused: Final = refused
        self._loop: Final = asyncio.get_running_loop()
        # Oldest first, with the socket of a task that has not begun.
        self._pending: Final[dict[asyncio.Task[None], socket.socket | None]] = {}
        self._intake: Final = Intake(channel, self._take, lambda why: refused("", why))

    def close(self) -> None:
        """Accept no more, and drop connections in a handshake. The socket stays open."""
        self._intake.close()
        for task in list(self._pending):
            task.cancel()

    def _take(self, accepted: Accepted) -> None:
        for connection, peer in accepted:
            if len(self._pending) >= PENDING_MAX:
                self._refused("", f"{PENDING_MAX} handshakes at a time: ending the oldest one")
                next(iter(self._pending)).cancel()
            task = self._loop.create_task(self._settle(connection, peer))
            self._pending[task] = connection
            task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        connection = self._pending.pop(task)
        if connection is not None:
            connection.close()
        if not task.cancelled():
            task.result()  # raises a bug here, so that the loop reports it

    async def _settle(self, connection: socket.socket, peer: object) -> None:
        """Read the header, shake hands, and hand the connection to its stream."""
        task = asyncio.current_task()
        assert task is not None
        self._pending[task] = None
        began = self._loop.time()
        remote = remote_name(peer) or self._name
        handshake = Handshake(connection)
        is_ours = True
        try:
            connection.setblocking(False)
            if self._has_header:
                async with asyncio.timeout(self._timeout_s):
                    remote = await _read_header(self._loop, connection) or remote
            is_ours = False
            handshake.begin()
            await self._hand_over(connection, remote, began)
        except (ConnectionResetError, BrokenPipeError):
            return  # the peer has gone, as health checks of the port do
        except TimeoutError:
            self._refused(remote, "no PROXY header in time")
        except ProxyError as problem:
            self._refused(remote, f"PROXY header: {problem}")
        except ConnectionAbortedError:
            self._refused(remote, "no TLS handshake in time")
        except ssl.SSLError as problem:
            self._refused(remote, f"TLS: {reason(problem)}")
            await handshake.linger(self._loop, LINGER_S)
        except UnicodeDecodeError:  # which the loop tells its exception handler as well
            self._refused(remote, "TLS: a name in the certificate is not text")
        except OSError as problem:
            self._refused(remote, str(problem))
        finally:
            handshake.close()
            if is_ours:
                connection.close()

    async def _hand_over(self, connection: socket.socket, remote: str, began: float) -> None:
        """Give the socket to the loop, which owns it from then on."""
        context = self._context()
        if context is None:
            await self._loop.connect_accepted_socket(
                lambda: self._make_stream(remote, None, self._waited_ms(began)), connection
            )
            return
        left_s = self._timeout_s - (self._loop.time() - began)
        await self._loop.connect_accepted_socket(
            lambda: Arrival(self, remote, began),
            connection,
            ssl=context,
            ssl_handshake_timeout=max(left_s, SHORTEST_TIMEOUT_S),
            ssl_shutdown_timeout=LINGER_S,
        )

    def _waited_ms(self, began: float) -> int:
        return int((self._loop.time() - began) * 1000)

    def arrived(self, transport: asyncio.Transport, remote: str, began: float) -> None:
        """Read the name in the certificate after the handshake, and make the stream."""
        who: str | None = None
        if self._identity_kind != "none":
            try:
                who = identity(self._identity_kind, transport.get_extra_info("peercert") or {})
            except IdentityError as problem:
                self._refused(remote, f"TLS: {problem}")
                transport.close()
                return
        stream = self._make_stream(remote, who, self._waited_ms(began))
        transport.set_protocol(stream)
        stream.connection_made(transport)


class Arrival(asyncio.Protocol):
    """A connection during its TLS handshake; what comes behind that is for the stream."""

    __slots__ = ("_acceptor", "_began", "_remote")

    def __init__(self, acceptor: Acceptor, remote: str, began: float) -> None:
        self._acceptor: Acceptor = acceptor
        self._remote: str = remote
        self._began: float = began

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the handshake is done."""
        self._acceptor.arrived(cast(asyncio.Transport, transport), self._remote, self._began)


async def _read_header(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> str:
    """Return the client's address from the PROXY header, "" if it names none.

    Reads no byte behind it. Raises `ProxyError` and `OSError`.
    """
    header = ProxyHeader()
    while not header.is_complete:
        await _readable(loop, connection)
        try:
            data = connection.recv(HEADER_BYTES_MAX, socket.MSG_PEEK)
        except BlockingIOError:
            continue
        if not data:
            raise ConnectionResetError("closed before the end of the PROXY header")
        connection.recv(header.receive(data))
    return header.remote


async def _readable(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    """Return when there is something to read."""
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection.fileno(), _wake, ready)
    try:
        await ready
    finally:
        loop.remove_reader(connection.fileno())


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
