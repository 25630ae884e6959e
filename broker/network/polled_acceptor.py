"""Accepts connections that begin with MQTT or HTTP at once, in the compiled build.

The poller accepts, reads and writes (`broker.loop.sockets`). The pure build has
`broker.network.plain_acceptor` instead. Must never spin: without a free file descriptor it pauses.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.network.intake import EXHAUSTED_PAUSE_S, MakeStream

if TYPE_CHECKING:
    from broker.loop._sockets import Poller


class PolledAcceptor:
    """Accepts the connections of one listening socket until closed."""

    def __init__(
        self,
        channel: socket.socket,
        poller: "Poller",
        make_stream: MakeStream,
        *,
        name: str,
        refused: Callable[[str, str], None],
    ) -> None:
        """`name` is the remote of a client whose socket has no address, "" = all have one.

        `refused` is called with ("", reason) when no connection can be accepted for a while.
        """
        self._channel: Final = channel
        self._refused: Final = refused
        self._loop: Final = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        channel.setblocking(False)
        self._listener: Final = poller.listen(
            channel.fileno(), lambda: make_stream(name, None, 0), self._exhausted
        )

    def close(self) -> None:
        """Accept no more, and close the socket, so that new clients are refused at once."""
        if self._pause is not None:
            self._pause.cancel()
        self._listener.close()
        self._channel.close()

    def _exhausted(self, number: int) -> None:
        """Say why (an errno), and accept again after a pause."""
        self._refused("", f"cannot accept: {os.strerror(number)}")
        self._pause = self._loop.call_later(EXHAUSTED_PAUSE_S, self._listener.resume)
