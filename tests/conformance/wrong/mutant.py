"""A wrong broker: a name, one sentence that says what is wrong, and hooks that make it so.

    @on_client("forgets_retain", "takes every PUBLISH for one with RETAIN 0", PUBLISH)
    def _(link: Link, frame: Frame) -> Answer:
        frame.flags &= ~1

A hook changes the frame it is given and returns None (pass it on), `DROP`, or the frames and bytes
to pass on in its place. It is only called for frames that can be taken apart, unless `bad=True`.
Memory of a connection is `link.notes`, memory of the broker `link.world`.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from tests.conformance.wrong.frames import EVERY, Frame

Out: TypeAlias = Frame | bytes
Answer: TypeAlias = Sequence[Out] | None
DROP: Final[Sequence[Out]] = ()


class Link(Protocol):
    """One connection through the man in the middle."""

    version: int
    client_id: bytes
    notes: dict[Any, Any]
    world: dict[Any, Any]
    links: list["Link"]
    last: Frame | None  # the last frame of the client
    started: int  # how often the broker was started

    def to_client(self, *out: Out) -> None:
        """Send to the client, past the hooks."""

    def to_broker(self, *out: Out) -> None:
        """Send to the broker, past the hooks."""

    def cut(self) -> None:
        """Close the client's connection in good order, and the broker's."""

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after a while, if the connection is still there."""


Hook: TypeAlias = Callable[[Link, Frame], Answer]
Start: TypeAlias = Callable[[Path, dict[str, str], int], None]


@dataclasses.dataclass
class Mutant:
    """What the proxy and the search have to know."""

    name: str
    sentence: str
    client: list[tuple[frozenset[int], bool, Hook]] = dataclasses.field(default_factory=list)
    broker: list[tuple[frozenset[int], bool, Hook]] = dataclasses.field(default_factory=list)
    # The broker has closed: True keeps the client's connection open.
    keeps_open: Callable[[Link], bool] | None = None
    # The client has gone; called before the broker is told. False: it is not told.
    client_gone: Callable[[Link], bool | None] | None = None
    opened: Callable[[Link], None] | None = None
    # Before the broker is started: its directory, environment, and the number of the start.
    start: Start | None = None
    # True: bytes that do not begin with a packet are lost.
    wants_whole_packets: bool = False
    # Bytes over a WebSocket, from the client and from the broker.
    websocket_client: Callable[[dict[Any, Any], bytes], bytes] | None = None
    websocket_broker: Callable[[dict[Any, Any], bytes], bytes] | None = None

    def on_client(self, *kinds: int, bad: bool = False) -> Callable[[Hook], Hook]:
        """Add a hook for what clients send."""
        return self._add(self.client, kinds, bad)

    def on_broker(self, *kinds: int, bad: bool = False) -> Callable[[Hook], Hook]:
        """Add a hook for what the broker sends."""
        return self._add(self.broker, kinds, bad)

    def _add(
        self, hooks: list[tuple[frozenset[int], bool, Hook]], kinds: tuple[int, ...], bad: bool
    ) -> Callable[[Hook], Hook]:
        def add(hook: Hook) -> Hook:
            hooks.append((frozenset(kinds or EVERY), bad, hook))
            return hook

        return add


MUTANTS: Final[dict[str, Mutant]] = {}
# Brokers that are not Holdfast at all: name -> sentence. `toys.py` has them.
TOYS: Final[dict[str, str]] = {
    "mute": "accepts connections and says nothing",
    "yes_man": "answers every packet with success, never closes and delivers nothing",
    "parrot": "a yes-man that sends each PUBLISH as it is to every client of the check",
}


def mutant(name: str, sentence: str) -> Mutant:
    """Register a wrong broker; its hooks are added to what is returned."""
    assert name not in MUTANTS and name not in TOYS, name
    MUTANTS[name] = Mutant(name, sentence)
    return MUTANTS[name]


def on_client(name: str, sentence: str, *kinds: int, bad: bool = False) -> Callable[[Hook], Hook]:
    """Register a wrong broker with one hook for what clients send."""
    return mutant(name, sentence).on_client(*kinds, bad=bad)


def on_broker(name: str, sentence: str, *kinds: int, bad: bool = False) -> Callable[[Hook], Hook]:
    """Register a wrong broker with one hook for what the broker sends."""
    return mutant(name, sentence).on_broker(*kinds, bad=bad)


def counter(notes: dict[Any, Any], key: Any) -> int:
    """Count up and return how often this was called with `key` before."""
    counts = notes.setdefault("counts", defaultdict(int))
    counts[key] += 1
    return int(counts[key]) - 1
