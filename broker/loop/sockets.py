"""The sockets of the compiled build, or None: then the loop's own transports serve all clients.

`_sockets.c` reads from all connections that have something in one call, and sends everything a tick
has to send in one call without the GIL. Its connections act as the loop's transports. It needs
epoll. Read next: `broker.loop.driver`, which polls and flushes, and `broker.network.listeners`.
"""

import asyncio
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.loop._sockets import Listener, Poller

RETRY_S: Final = 1.0  # after there was no free descriptor, as asyncio waits


def open_poller(loop: asyncio.AbstractEventLoop) -> "Poller | None":
    """Return what polls the sockets of a process, None in the pure build."""
    try:
        from broker.loop._sockets import Poller
    except ImportError:
        return None
    return Poller(loop.call_soon)


class Exhaustion:
    """Lets a listener accept again after there was no free descriptor."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self.listener: Listener | None = None

    def __call__(self, number: int) -> None:
        """Tell the loop's exception handler why, and try again later."""
        problem = OSError(number, os.strerror(number))
        self._loop.call_exception_handler({"message": "cannot accept", "exception": problem})
        if self.listener is not None:
            self._loop.call_later(RETRY_S, self.listener.resume)
