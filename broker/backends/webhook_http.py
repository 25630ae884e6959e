"""POSTs bodies to one URL over a connection that stays open, with one deadline for an answer.

No redirects are followed: a body with its signature goes to the configured place and nowhere else.
Read next: `broker.backends.webhook_sink`, which says what an answer means.
"""

import contextlib
import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from email.message import Message
from typing import Any, Final

from broker.configuration.option_types import split_url

ANSWER_BYTES_MAX: Final = 64 << 10  # of a body that is read, so that its connection stays open
SAID_CHARACTERS_MAX: Final = 200  # of that body, for a log


class HttpFailed(Exception):
    """There was no whole answer: it is not known whether the body was taken. One line."""


class Answer:
    """What the server has answered."""

    __slots__ = ("headers", "reason", "status", "text")

    def __init__(self, status: int, reason: str, headers: Message, text: str) -> None:
        self.status: Final = status
        self.reason: Final = reason
        self.headers: Final = headers
        self.text: Final = text  # the beginning of the body, in one line


class HttpPlace:
    """One URL."""

    def __init__(self, url: str) -> None:
        """Raises ValueError for anything but an http or https URL with a host."""
        parts = split_url(url)
        self.host: Final = str(parts.hostname)
        self.port: Final = parts.port  # None = the scheme's
        self.is_tls: Final = parts.scheme == "https"
        self.path: Final = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        # Without path and query, which may hold a secret.
        self.origin: Final = f"{parts.scheme}://{parts.netloc}"


class HttpClient:
    """One connection at a time to one place; it is opened when it is needed."""

    def __init__(self, place: HttpPlace, timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self._connection: Final = (
            _Connection(place.host, place.port, timeout=timeout_s)
            if tls is None
            else _TlsConnection(place.host, place.port, timeout=timeout_s, context=tls)
        )
        self._path: Final = place.path
        self._timeout_s: Final = timeout_s

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a body and return the answer. Raises `HttpFailed`."""
        is_reused = self._connection.sock is not None
        try:
            try:
                return self._post(body, headers)
            except (ConnectionError, ssl.SSLEOFError):
                # The server may have closed an idle connection just when this was sent.
                if not is_reused:
                    raise
                self.close()
                return self._post(body, headers)
        except (OSError, http.client.HTTPException) as problem:
            self.close()
            text = " ".join(str(problem).split()) or type(problem).__name__
            raise HttpFailed(text) from None

    def _post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        connection = self._connection
        if connection.sock is None:
            connection.connect()
        connection.sock.settimeout(self._timeout_s)
        is_sent = False
        with contextlib.suppress(ConnectionError):  # it may have answered before it had all of it
            connection.request("POST", self._path, body, dict(headers))
            is_sent = True
        response = connection.getresponse()
        read = response.read(ANSWER_BYTES_MAX)
        if not is_sent or response.status < 200 or not response.isclosed():  # more follows
            self.close()
        reason, text = map(_line, (response.reason, read.decode("utf-8", "replace")))
        return Answer(response.status, reason, response.headers, text)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()


def _line(text: str) -> str:
    """Return what a server has said as one line for a log."""
    return "".join(filter(str.isprintable, " ".join(text.split())))[:SAID_CHARACTERS_MAX]


class _Timed(io.RawIOBase):
    """Reads of a socket that all end before one deadline, however slowly bytes come."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket: Final = sock
        self._raw: Final = sock.makefile("rb", buffering=0)
        self._deadline: Final = time.monotonic() + (sock.gettimeout() or 0.0)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return itself with a buffer, as the response asks for it."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what there is, or wait for it until the deadline."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        """Let the socket go."""
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        timed: Any = _Timed(sock)
        super().__init__(timed, *arguments, **named)


class _Connection(http.client.HTTPConnection):
    response_class = _Response


class _TlsConnection(http.client.HTTPSConnection):
    response_class = _Response
