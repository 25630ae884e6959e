"""Connections of the HTTP server: how many, and how long a peer may take to say what it wants.

uvicorn waits for ever for the headers of a request. Here a connection has so long for them, from
its beginning and from the end of the answer before, whether nothing comes or a byte a minute. Must
never decide about a request. Read next: `broker.admin.web.hygiene`, which has the other limits.
"""

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 256  # open at once; further ones are closed without a word
HEADERS_S: Final = 10.0  # for the headers of a request
# A client id of 65,535 bytes is a path of 196,605, percent-encoded.
HEADERS_BYTES_MAX: Final = 256 << 10
KEEP_ALIVE_S: Final = 30  # between two requests


class PatientProtocol(H11Protocol):
    """A connection that waits for headers, but not for ever."""

    headers_s = HEADERS_S
    connections_max = CONNECTIONS_MAX
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Take a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            transport.abort()
            return
        self._late = self.loop.call_later(self.headers_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Take bytes; while they are not a whole request the clock runs."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_clock()
        elif self._late is None:
            self._late = self.loop.call_later(self.headers_s, self.transport.abort)

    def on_response_complete(self) -> None:
        """Begin to wait for another request, or to read one that has begun to come."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._stop_clock()
            self._late = self.loop.call_later(self.headers_s, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def _stop_clock(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
