"""What a store must be able to tell to be compared with the broker: what it has, entry by entry.

Read by the command, never by the broker or the process that writes. Read next:
`broker.operations.backend_verify`, which compares.
"""

from collections.abc import Iterator
from typing import Final, Protocol, runtime_checkable

# Kinds of entries.
MESSAGE: Final = "message"
INDEX: Final = "index"  # the place of a message in the list of its topic
RETAINED: Final = "retained"
SUBSCRIPTION: Final = "subscription"
CLIENT: Final = "client"  # that is connected
SETS: Final = (RETAINED, SUBSCRIPTION, CLIENT)
NOT_OURS: Final = "not ours"  # of another node or application: counted, and left alone

TEXT_CHARACTERS_MAX: Final = 120


class Window:
    """Which messages are meant: those of one node, accepted since a time."""

    __slots__ = ("kinds", "node", "node_number", "start_ms")

    def __init__(self, node: str, node_number: int, start_ms: int, kinds: frozenset[str]) -> None:
        self.node: Final = node
        self.node_number: Final = node_number
        self.start_ms: Final = start_ms
        self.kinds: Final = kinds  # others are not looked for


class Entry:
    """One thing that a store has."""

    __slots__ = ("digest", "kind", "name", "number", "place", "text")

    def __init__(
        self,
        kind: str,
        place: str,
        *,
        number: int = 0,
        name: bytes = b"",
        text: str = "",
        digest: int = 0,
    ) -> None:
        self.kind: Final = kind
        self.place: Final = place  # where it is in the store
        self.number: Final = number  # the id of a message
        self.name: Final = name  # of anything else (`digests.name_of`)
        self.text: Final = text  # the same for people
        self.digest: Final = digest


@runtime_checkable
class Comparable(Protocol):
    """A sink whose store can be read in bounded pages."""

    def listing(self, window: Window) -> Iterator[Entry]:
        """Yield everything of the window; call `open` first. Raises `Unavailable`.

        What is there all the time comes at least once; what comes and goes meanwhile may come.
        """
        ...


def shown(*parts: bytes) -> str:
    """Return a name for people, shortened."""
    text = " ".join(part.decode("utf-8", "backslashreplace") for part in parts)
    if len(text) > TEXT_CHARACTERS_MAX:
        text = text[: TEXT_CHARACTERS_MAX - 3] + "..."
    return text
