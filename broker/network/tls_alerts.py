"""The alert of a refused TLS handshake: sent before the loop drops the connection.

RFC 8446 6.2: whoever ends a handshake sends an alert that says why ("certificate expired"). OpenSSL
writes it to memory, and both loops then drop the connection without sending it. So the TLS object
of a connection sends it itself, on a second handle of the socket: the loop closes the first. After
the handshake nothing here is in the way. Must never hold a connection for longer than the caller
allows. Read next: `broker.network.acceptor`.
"""

import asyncio
import contextlib
import socket
import ssl
from contextvars import ContextVar
from typing import Final

READ_BYTES: Final = 65_536


class Handshake:
    """The handshake of one connection: if it is refused, sends the alert and waits for the peer."""

    __slots__ = ("_connection", "_rest")

    def __init__(self, connection: socket.socket) -> None:
        self._connection: Final = connection
        self._rest: socket.socket | None = None  # once it is refused, until the peer has closed

    def begin(self) -> None:
        """Make this the handshake of the connection that the running task gives to the loop."""
        _current.set(self)

    def refuse(self, alert: bytes) -> None:
        """Send `alert` and no more; without a free descriptor the peer gets none."""
        try:
            rest = self._connection.dup()
        except OSError:
            return
        try:
            rest.setblocking(False)
            rest.send(alert)
            rest.shutdown(socket.SHUT_WR)
        except OSError:  # the peer has gone, or does not read
            rest.close()
            return
        self._rest = rest

    async def linger(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        """After a refusal read until the peer closes, but no longer than `timeout_s`.

        If we closed while bytes of the peer are unread, a reset could destroy the alert.
        """
        if self._rest is None:
            return
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                while await loop.sock_recv(self._rest, READ_BYTES):
                    pass

    def close(self) -> None:
        """Close the second handle of the socket, if there is one. Idempotent."""
        if self._rest is not None:
            self._rest.close()
            self._rest = None


# Both loops make the TLS object of a connection in the context of the task that gave it to them.
_current: Final[ContextVar[Handshake]] = ContextVar("handshake")


class AlertingObject(ssl.SSLObject):
    """The TLS of one connection, which sends its alert if the handshake fails."""

    handshake: Handshake | None = None
    outgoing: ssl.MemoryBIO | None = None

    def do_handshake(self) -> None:
        """Go on with the handshake; raises `SSLError`, with the alert sent if it has failed."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self.handshake is not None and self.outgoing is not None:
                self.handshake.refuse(self.outgoing.read())
            raise
        self.handshake = self.outgoing = None


class AlertingContext(ssl.SSLContext):
    """A context whose connections send their alerts; see `Handshake.begin`."""

    sslobject_class = AlertingObject

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Return the TLS object of a connection."""
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, AlertingObject)
        made.handshake = _current.get(None)
        made.outgoing = outgoing
        return made
