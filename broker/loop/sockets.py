"""The sockets of the compiled build, or None: then the loop's own transports serve all clients.

`_sockets.c` reads from all connections that have something in one call, and sends everything a tick
has to send in one call without the GIL. Its connections act as the loop's transports. It needs
Linux. Read next: `broker.loop.driver`, which polls and flushes.
"""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.loop._sockets import Poller


def open_poller(loop: asyncio.AbstractEventLoop) -> "Poller | None":
    """Return what polls the sockets of a process, None in the pure build."""
    try:
        from broker.loop._sockets import Poller
    except ImportError:
        return None

    def failed(error: BaseException) -> None:
        loop.call_exception_handler({"message": "sockets", "exception": error})

    return Poller(loop.call_soon, failed)
