"""Server-sent events: the broker's figures each second, for as long as somebody watches.

A stream ends after some minutes and a browser begins another one, so that nobody watches for ever
with a token that was removed. Read next: `broker.admin.figures`.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from starlette.responses import Response, StreamingResponse

from broker.admin.api.endpoints import Call
from broker.admin.figures import Figure, Figures
from broker.admin.problems import Refused

MEDIA_TYPE: Final = "text/event-stream"
STREAM_S: Final = 300.0
HEARTBEAT_S: Final = 15.0
AGAIN_MS: Final = 2000  # a browser waits before it begins another stream


async def events(call: Call) -> Response:
    """Tell the figures of now, and then those of each second."""
    figures = call.services.figures
    if not figures.has_room():
        raise Refused(503, "too many watch already", retry_s=10)
    return StreamingResponse(_lines(figures), media_type=MEDIA_TYPE)


async def _lines(figures: Figures) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    until = loop.time() + STREAM_S
    yield f"retry: {AGAIN_MS}\n\n".encode()
    with figures.watching() as queue:
        while loop.time() < until:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    figure = await queue.get()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            yield _event(figure)


def _event(figure: Figure) -> bytes:
    return b"event: figures\ndata: " + msgspec.json.encode(figure) + b"\n\n"
