"""Counts each request by the role of who asks, and by its outcome.

Read next: `broker.admin.counts`.
"""

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker.admin.counts import Counts
from broker.admin.web.gate import READING, WHO

NOBODY: Final = "none"


class Counting:
    """Wraps the application inside of `Hygiene`."""

    def __init__(self, app: ASGIApp, *, counts: Counts) -> None:
        self._app: Final = app
        self._counts: Final = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, and count it when its answer begins."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                who = scope["state"].get(WHO)
                role = NOBODY if who is None else who.role.word
                kind = "read" if scope["method"] in READING else "change"
                status = f"{message['status'] // 100}xx"
                self._counts.requests.labels(role, kind, status).inc()
            await send(message)

        await self._app(scope, receive, counted)
