"""What holds for every request before anybody looks at it: host, size, time; and headers.

The body is read whole, so that nothing behind this waits for a slow peer. Must never trust what a
peer says of itself. Read next: `broker.admin.web.gate`, which comes behind it.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker.admin import problems
from broker.admin.problems import Refused

BODY_BYTES_MAX: Final = 512 << 10  # before anybody is known, of every connection
BODY_S: Final = 15.0  # to send it
SEND_S: Final = 30.0  # to take a piece of the answer
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
BODY: Final = "body"  # where it is in the state of a request
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
HSTS: Final = ("Strict-Transport-Security", "max-age=31536000")


class Gone(Exception):
    """The peer does not take its answer."""


class Hygiene:
    """Wraps the application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        names: Iterable[str] | None,
        body_s: float = BODY_S,
        send_s: float = SEND_S,
    ) -> None:
        """`names` are those that a `Host` may have, without a port; None = any.

        A web page elsewhere can make its own name lead to 127.0.0.1; its requests then carry that
        name. With TLS a browser finds the certificate to be of another name.
        """
        self._app: Final = app
        self._body_s: Final = body_s
        self._send_s: Final = send_s
        self._names: Final = None if names is None else frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def careful_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if scope.get("scheme") == "https":
                    headers.setdefault(*HSTS)
                if "server" in headers:
                    del headers["server"]
            try:
                async with asyncio.timeout(self._send_s):
                    await send(message)
            except TimeoutError:
                raise Gone from None

        try:
            self._check_host(scope)
            body = await _body(scope, receive, self._body_s)
        except Refused as problem:
            await problems.answer(problem)(scope, receive, careful_send)
            return
        scope.setdefault("state", {})[BODY] = body
        try:
            await self._app(scope, _replayed(body, receive), careful_send)
        except Gone:
            return  # the connection is closed, since its answer is not whole

    def _check_host(self, scope: Scope) -> None:
        if self._names is None:
            return
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        host = hosts[0].decode("latin-1").lower() if len(hosts) == 1 else ""
        name, colon, port = host.rpartition(":")
        if not colon or not port.isdecimal():
            name = host
        if name not in self._names:
            raise Refused(
                421, f"Host {host[:80]!r}: expected one of {', '.join(sorted(self._names))}"
            )


async def _body(scope: Scope, receive: Receive, body_s: float) -> bytes:
    """Return the body of a request. Raises `Refused`."""
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or int(value) > BODY_BYTES_MAX):
            raise _too_large()
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(body_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "the request was not whole")
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                if size > BODY_BYTES_MAX:
                    raise _too_large()
                if not message.get("more_body", False):
                    return b"".join(pieces)
    except TimeoutError:
        raise Refused(408, f"the body did not come in {body_s:g} s", headers=CLOSE) from None


CLOSE: Final = {"Connection": "close"}


def _too_large() -> Refused:
    return Refused(413, f"a body may have {BODY_BYTES_MAX} bytes", headers=CLOSE)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return what gives the body again, and then what really comes: the end of the connection."""
    is_told = False

    async def replay() -> Message:
        nonlocal is_told
        if is_told:
            return await receive()
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
