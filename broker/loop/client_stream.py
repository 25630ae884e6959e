"""One client's stream: bytes go to the engine as they come, and out as it says.

Implements `session.ports.Transport` for the engine and `asyncio.Protocol` for the loop, in one
object per connection. Under it is a socket, TLS, or `broker.network.websocket`, which is a
transport of the loop to this one. Must decide nothing about MQTT. Holds the shell boundary of a
connection: whatever unexpected leaves the engine here is logged, counted, and costs this connection
only. Read next: `broker.loop.driver`.
"""

import asyncio
import socket
from typing import Final, cast

from broker.loop.driver import Driver
from session.live.connection import ACTIVE, Connection
from storage.errors import StorageError

# After our last byte we wait this long for the peer to close. Closing at once, with bytes of the
# peer unread, would make the kernel send a reset that can overtake and destroy our last packet
# (the CONNACK or DISCONNECT that says why). A client that is gone costs a socket this long.
LINGER_S: Final = 2.0
# The loop tells the engine to go on writing when the buffer has fallen to this share of its mark.
LOW_MARK_SHARE: Final = 4


class ClientStream:
    """One accepted connection.

    An `asyncio.Protocol` by its methods, which is all a loop asks for: a compiled class cannot
    derive from an interpreted one.
    """

    __slots__ = (
        "_connection",
        "_driver",
        "_identity",
        "_is_closing",
        "_is_paused",
        "_linger",
        "_listener",
        "_transport",
        "_waited_ms",
        "remote",
    )

    def __init__(
        self,
        driver: Driver,
        listener: str,
        *,
        remote: str = "",
        identity: str | None = None,
        waited_ms: int = 0,
    ) -> None:
        """`remote` is the client's address where the socket's is not ("" = it is).

        `identity` is who the client is, if a certificate has proved it, and `waited_ms` how long
        ago it was accepted.
        """
        self._driver: Driver = driver
        self._listener: str = listener
        self._identity: str | None = identity
        self._waited_ms: int = waited_ms
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._is_closing: bool = False
        self._is_paused: bool = False
        self._linger: asyncio.TimerHandle | None = None
        self.remote: str = remote

    @property
    def is_accepted(self) -> bool:
        """Whether the engine has accepted the client's CONNECT, and not ended the connection."""
        return self._connection is not None and self._connection.state == ACTIVE

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce a new client to the engine."""
        stream = cast(asyncio.Transport, transport)
        self._transport = stream
        self.remote = self.remote or remote_name(stream.get_extra_info("peername"))
        channel = stream.get_extra_info("socket")
        if channel is not None and channel.family != socket.AF_UNIX:
            # One write per tick is already as large as it can be; waiting for more only delays it.
            channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        high = self._driver.out_buffer_bytes_max
        stream.set_write_buffer_limits(high=high, low=high // LOW_MARK_SHARE)
        driver = self._driver
        driver.streams.add(self)
        driver.connections[self._listener] += 1
        if not driver.is_due:
            driver.wake()
        try:
            self._connection = driver.engine.open(
                self,
                driver.now,
                listener=self._listener,
                remote=self.remote,
                identity=self._identity,
                waited_ms=self._waited_ms,
            )
        except Exception as error:  # shell boundary
            self._boundary(error)

    def data_received(self, data: bytes) -> None:
        """Hand `data` to the engine; everything that follows from it happens at the tick's end."""
        connection = self._connection
        if connection is None or self._is_closing:
            return  # lingering: read only so that the kernel sends no reset
        driver = self._driver
        if not driver.is_due:
            driver.wake()
        try:
            driver.engine.receive(connection, data, driver.now)
        except Exception as error:  # shell boundary
            self._boundary(error)

    def eof_received(self) -> bool:
        """End the connection: MQTT knows no half-open ones."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the engine that the stream is gone, once."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._transport = None
        driver = self._driver
        driver.streams.discard(self)
        driver.connections[self._listener] -= 1
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if not driver.is_due:
            driver.wake()
        try:
            driver.engine.transport_lost(connection, driver.now)
        except Exception as error:  # shell boundary
            self._boundary(error)

    def pause_writing(self) -> None:
        """Tell the engine that this client takes its bytes too slowly."""
        if self._connection is not None:
            self._driver.engine.pause_writing(self._connection)

    def resume_writing(self) -> None:
        """Tell the engine that this client has taken its bytes."""
        driver = self._driver
        if self._connection is None:
            return
        if not driver.is_due:
            driver.wake()
        try:
            driver.engine.resume_writing(self._connection, driver.now)
        except Exception as error:  # shell boundary
            self._boundary(error)

    # What the engine calls (`session.ports.Transport`).

    def write(self, data: bytes) -> None:
        """Queue `data` to the peer; ignored once the stream is closing or lost."""
        if self._transport is not None and not self._is_closing:
            self._transport.write(data)

    def close(self) -> None:
        """Close once everything written is out and the peer has had a chance to read it."""
        transport = self._transport
        if self._is_closing or transport is None:
            return
        self._is_closing = True
        self.resume_reading()
        try:
            transport.write_eof()
        except (OSError, NotImplementedError, RuntimeError):
            transport.close()  # the peer is gone already, so nobody waits for the last packet
        self._linger = self._driver.loop.call_later(LINGER_S, transport.abort)

    def abort(self) -> None:
        """Drop the connection with whatever was still to be written."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Stop handing in bytes. Idempotent."""
        transport = self._transport
        if transport is not None and not self._is_paused and not transport.is_closing():
            self._is_paused = True
            transport.pause_reading()

    def resume_reading(self) -> None:
        """Hand in bytes again. Idempotent."""
        transport = self._transport
        if transport is not None and self._is_paused and not transport.is_closing():
            self._is_paused = False
            transport.resume_reading()

    def _boundary(self, error: Exception) -> None:
        """Give up this connection after a bug of ours, the process after a failure of the store."""
        if isinstance(error, StorageError):
            self._driver.fail(error)  # memory may be ahead of the disk
            return
        self._driver.count_bug("connection", error, remote=self.remote)
        self.abort()


def remote_name(peer: object) -> str:
    """Return a peer address as people write it: 10.0.0.1:5 or [::1]:5."""
    if isinstance(peer, tuple) and len(peer) >= 2:
        host, port = str(peer[0]), peer[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(peer or "")
