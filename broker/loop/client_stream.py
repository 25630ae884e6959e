"""The byte stream of one client: hands what is received to the engine and sends what it queues.

One object per connection: `asyncio.Protocol` for the loop, `session.ports.Transport` for the
engine. Under it is a socket, TLS, or `broker.network.websocket`, which acts as the loop's transport
here. Must decide nothing about MQTT. An unexpected exception of the engine is logged and counted
here, and ends this connection only. Read next: `broker.loop.driver`.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from broker.loop.driver import Driver, Tap
from broker.loop.farewell import farewell, refusal
from mqtt.packets import PUBLISH
from session.live.connection import ACTIVE, Connection
from storage.errors import StorageError

# After our last byte we wait this long for the peer to close. If we close while bytes of the peer
# are unread, the kernel sends a reset, and the peer may lose our last packet (the CONNACK or
# DISCONNECT with the reason). The price is a socket that stays open this long.
LINGER_S: Final = 2.0
# Writing goes on when the buffer has fallen to this share of its high-water mark.
LOW_MARK_SHARE: Final = 4


class ClientStream:
    """One accepted connection.

    Has the methods of `asyncio.Protocol` without deriving from it: a compiled class cannot derive
    from an interpreted one, and a loop only calls the methods.
    """

    __slots__ = (
        "_connection",
        "_driver",
        "_identity",
        "_is_closing",
        "_is_paused",
        "_listener",
        "_sent_ms",
        "_transport",
        "_waited_ms",
        "remote",
        "tap",
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
        """`remote` is the client's address, "" = that of the socket.

        `identity` is the user name from a verified certificate; `waited_ms` is the time since the
        connection was accepted.
        """
        self._driver: Driver = driver
        self._listener: str = listener
        self._identity: str | None = identity
        self._waited_ms: int = waited_ms
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._is_closing: bool = False
        self._is_paused: bool = False
        self._sent_ms: int = 0  # broker time of our last packet to the client
        self.remote: str = remote
        self.tap: Tap | None = None  # set while a trace is on

    @property
    def connection(self) -> Connection | None:
        """The engine's connection; None before its start and after its end."""
        return self._connection

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
        # The loop has set TCP_NODELAY: one write per tick is as large as it can be.
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
            if driver.new_tap is not None:
                self.tap = driver.new_tap(self._connection)
        except Exception as error:  # shell boundary
            self._boundary(error)

    def data_received(self, data: bytes) -> None:
        """Hand `data` to the engine; commits and answers follow at the end of the tick."""
        driver = self._driver
        driver.before_data()
        connection = self._connection
        if connection is None or self._is_closing:
            return  # after our last byte: read only so that the kernel sends no reset
        if not driver.is_due:
            driver.wake()
        if self.tap is not None:
            self._show(self.tap.received, data)
        received = driver.engine.counters.packets_received
        published = received[PUBLISH]
        try:
            driver.engine.receive(connection, data, driver.now)
        except Exception as error:  # shell boundary
            self._boundary(error)
        if received[PUBLISH] != published:
            driver.pace.published(driver.now, self._sent_ms)

    def eof_received(self) -> bool:
        """End the connection: MQTT has no half-closed connections."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the engine that the stream is gone, once."""
        self._transport = None
        driver = self._driver
        if self._is_closing:
            driver.lingering.discard(self)
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
        if self.tap is not None:
            self._show(self.tap.closed, "connection closed")

    def pause_writing(self) -> None:
        """Tell the engine that the write buffer is above its high-water mark."""
        if self._connection is not None:
            self._driver.engine.pause_writing(self._connection)

    def resume_writing(self) -> None:
        """Tell the engine that the write buffer has drained."""
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
            self._sent_ms = self._driver.now
            self._transport.write(data)
            if self.tap is not None:
                self._show(self.tap.sent, data)

    def close(self) -> None:
        """Close after everything is sent and the peer has had time to read it."""
        transport = self._transport
        if self._is_closing or transport is None:
            return
        self._is_closing = True
        self.resume_reading()
        try:
            transport.write_eof()
        except (OSError, NotImplementedError, RuntimeError):
            transport.close()  # the peer is gone already
        self._driver.lingering.add(self, LINGER_S)

    def send_away(self, server: str) -> None:
        """End the connection and name another server; the engine is not told."""
        connection = self._connection
        if connection is not None and connection.state == ACTIVE:
            tell = refusal if connection.connack_waits() else farewell
            if said := tell(connection.version, server, connection.maximum_packet_size):
                self.write(said)
        self.close()

    def abort(self) -> None:
        """Close at once; what is not sent yet is lost."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Stop handing in bytes. Idempotent."""
        transport = self._transport
        if transport is not None and not self._is_paused and not transport.is_closing():
            self._is_paused = True
            if self.tap is not None:
                self._show(self.tap.said, "is not read from")
            transport.pause_reading()

    def resume_reading(self) -> None:
        """Hand in bytes again. Idempotent."""
        transport = self._transport
        if transport is not None and self._is_paused and not transport.is_closing():
            self._is_paused = False
            if self.tap is not None:
                self._show(self.tap.said, "is read from again")
            transport.resume_reading()

    def _show(self, tell: Callable[..., None], what: object) -> None:
        """Tell the tap; a bug there ends the trace of this connection, and nothing else."""
        try:
            tell(what)
        except Exception as error:  # shell boundary
            self.tap = None
            self._driver.count_bug("trace", error, remote=self.remote)

    def _boundary(self, error: Exception) -> None:
        """After a bug end this connection, after a failure of the store the process."""
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
