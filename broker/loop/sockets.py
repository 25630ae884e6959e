"""The sockets of the compiled build, or None: then the loop's own transports serve all clients.

`_sockets.c` reads from all connections that have something in one call, and sends everything a tick
has to send in one call without the GIL. Its connections act as the loop's transports. It needs
epoll. Read next: `broker.loop.driver`, which polls and flushes, and `broker.network.listeners`.
"""

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.loop._sockets import Listener, Poller

EXHAUSTED_PAUSE_S: Final = 1.0  # after there was no free descriptor


def open_poller(loop: asyncio.AbstractEventLoop) -> "Poller | None":
    """Return what polls the sockets of a process, None in the pure build."""
    try:
        from broker.loop._sockets import Poller
    except ImportError:
        return None

    def failed(error: BaseException) -> None:
        loop.call_exception_handler({"message": "sockets", "exception": error})

    return Poller(loop.call_soon, failed)


class Exhaustion:
    """Lets a listener accept again after there was no free descriptor."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, refused: Callable[[str, str], None]
    ) -> None:
        """`refused` is told why, with the address of nobody."""
        self._loop: Final = loop
        self._refused: Final = refused
        self.listener: Listener | None = None

    def __call__(self, number: int) -> None:
        """Tell why no connection can be accepted (an errno), and try again later."""
        self._refused("", f"cannot accept: {os.strerror(number)}")
        self._loop.call_later(EXHAUSTED_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        if self.listener is not None:
            self.listener.resume()
