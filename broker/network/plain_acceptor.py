"""Accepts connections that begin with MQTT or HTTP at once: nothing comes before their stream.

Read next: `broker.network.intake`, `broker.network.acceptor` (TLS and PROXY headers).
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

from broker.loop.client_stream import remote_name
from broker.network.intake import Accepted, Intake, MakeStream

_HandOver: TypeAlias = Coroutine[Any, Any, tuple[asyncio.BaseTransport, asyncio.BaseProtocol]]


class PlainAcceptor:
    """Accepts the connections of one listening socket until closed."""

    def __init__(
        self,
        channel: socket.socket,
        make_stream: MakeStream,
        *,
        name: str,
        refused: Callable[[str, str], None],
    ) -> None:
        """`name` is the remote of a client whose socket has no address.

        `refused` is called with (remote, reason) for every connection that does not become a
        stream.
        """
        self._channel: Final = channel
        self._make_stream: Final = make_stream
        self._name: Final = name
        self._refused: Final = refused
        self._loop: Final = asyncio.get_running_loop()
        self._intake: Final = Intake(channel, self._take, lambda why: refused("", why))

    def close(self) -> None:
        """Accept no more, and close the socket, so that new clients are refused at once."""
        self._intake.close()
        self._channel.close()

    def _take(self, accepted: Accepted) -> None:
        """Give the sockets to the loop, which owns them from then on.

        It makes each transport at once, and tells the stream a moment later. A task that waits for
        that would cost as much as all the rest, so one call finishes those of a whole turn.
        """
        handed_over: list[tuple[_HandOver, str]] = []
        for connection, peer in accepted:
            remote = remote_name(peer) or self._name
            connection.setblocking(False)
            make = partial(self._make_stream, remote, None, 0)
            hand_over = self._loop.connect_accepted_socket(make, connection)
            try:
                hand_over.send(None)
            except OSError as problem:
                connection.close()
                self._refused(remote, str(problem))
            else:
                handed_over.append((hand_over, remote))
        # The loop calls in order: before this one, all that the streams have to be told.
        self._loop.call_soon(self._finish, handed_over)

    def _finish(self, handed_over: list[tuple[_HandOver, str]]) -> None:
        """End the calls that have handed connections over: their streams were told."""
        for hand_over, remote in handed_over:
            try:
                hand_over.send(None)
            except StopIteration:
                continue
            except (OSError, RuntimeError) as problem:  # gone before its stream was told
                self._refused(remote, str(problem))
