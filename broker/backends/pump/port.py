"""The process that writes to a store, as the pump sees it. Read next: `broker.backends.link`."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from broker.backends.link import Answer


class Link(Protocol):
    """A process that writes to a store."""

    async def open(self) -> None:
        """Start the process."""
        ...

    def has_room(self) -> bool:
        """Return whether a frame may be sent."""
        ...

    def send(self, frame: bytes) -> None:
        """Hand over a frame."""
        ...

    def kill(self) -> None:
        """End the process; nothing more is heard of it."""
        ...

    async def wait_gone(self) -> None:
        """Return once the process has ended."""
        ...


# Makes a link; it calls the first function with each answer, the second one when it has ended.
MakeLink: TypeAlias = Callable[[Callable[[Answer], None], Callable[[str], None]], Link]
