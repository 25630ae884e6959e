"""Server-sent events: the broker's figures each second, for as long as somebody watches.

A stream ends after some minutes and a browser begins another one, so that nobody watches for ever
with a token that was removed. Read next: `broker.admin.figures`.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from broker.admin.api.endpoints import Call
from broker.admin.figures import Figure, Figures

MEDIA_TYPE: Final = "text/event-stream"
STREAM_S: Final = 300.0
HEARTBEAT_S: Final = 15.0
AGAIN_MS: Final = 2000  # a browser waits before it begins another stream


async def events(call: Call) -> Response:
    """Tell the figures of now, and then those of each second. Raises `Busy`."""
    return _Stream(call.services.figures)


class _Stream(StreamingResponse):
    """A stream that has its place among those who watch from its making to its end."""

    def __init__(self, figures: Figures) -> None:
        self._figures: Final = figures
        self._queue: Final = figures.watch()
        super().__init__(_lines(self._queue), media_type=MEDIA_TYPE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._figures.leave(self._queue)


async def _lines(queue: asyncio.Queue[Figure]) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    until = loop.time() + STREAM_S
    yield f"retry: {AGAIN_MS}\n\n".encode()
    while loop.time() < until:
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                figure = await queue.get()
        except TimeoutError:
            yield b": still here\n\n"
            continue
        yield b"event: figures\ndata: " + msgspec.json.encode(figure) + b"\n\n"
