"""Takes connections from a listening socket, many in one turn of the loop.

A loop's own server takes one connection a turn: in a storm of new clients each of them then costs a
turn, and a tick of its own. Must never read from a connection, and never spin: without a free file
descriptor it pauses. Read next: `broker.network.plain_acceptor`, `broker.network.acceptor`.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

# Connections taken from the kernel in one turn of the loop; the rest waits for the next one.
ACCEPTS_MAX: Final = 64
# After the system had no file descriptor for a connection, how long until the next try.
EXHAUSTED_PAUSE_S: Final = 1.0


# Connections, each with the address of its peer.
Accepted: TypeAlias = list[tuple[socket.socket, object]]


class MakeStream(Protocol):
    """Makes the protocol of an accepted connection."""

    def __call__(self, remote: str, identity: str | None, waited_ms: int) -> asyncio.Protocol:
        """Return the protocol of a client at `remote`, accepted `waited_ms` ago."""
        ...


class Intake:
    """Accepts the connections of one listening socket until closed."""

    def __init__(
        self,
        channel: socket.socket,
        take: Callable[[Accepted], None],
        failed: Callable[[str], None],
    ) -> None:
        """Call `take` with the connections of each turn; it owns them then.

        `failed` is called with the reason when no connection can be accepted for a while.
        """
        self._channel: Final = channel
        self._take: Final = take
        self._failed: Final = failed
        self._loop: Final = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        channel.setblocking(False)
        self._loop.add_reader(channel.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more. The socket stays open."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._channel.fileno())

    def _accept(self) -> None:
        accepted: Accepted = []
        for _ in range(ACCEPTS_MAX):
            try:
                accepted.append(self._channel.accept())
            except (BlockingIOError, InterruptedError):
                break
            except ConnectionAbortedError:
                continue  # gone while it waited
            except OSError as problem:
                self._exhausted(problem)
                break
        if accepted:
            self._take(accepted)

    def _exhausted(self, problem: OSError) -> None:
        """Stop accepting for a moment: without a free descriptor the loop would spin."""
        self._failed(f"cannot accept: {problem.strerror or problem}")
        self._loop.remove_reader(self._channel.fileno())
        self._pause = self._loop.call_later(EXHAUSTED_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._channel.fileno(), self._accept)
