"""What a store must be able to tell to be compared with the broker: what it has, entry by entry.

Read by the command, never by the broker or the process that writes. Read next:
`broker.operations.backend_verify`, which compares.
"""

from collections.abc import Callable, Iterator
from typing import Final, Protocol, runtime_checkable

from broker.backends.message_ids import decimal_id, text_id
from broker.configuration import backend_options

# Kinds of entries.
MESSAGE: Final = "message"
INDEX: Final = "index"  # the place of a message in the list of its topic
RETAINED: Final = "retained"
SUBSCRIPTION: Final = "subscription"
CLIENT: Final = "client"  # that is connected
SETS: Final = (RETAINED, SUBSCRIPTION, CLIENT)
NOT_OURS: Final = "not ours"  # of another node or application: counted, and left alone

TEXT_CHARACTERS_MAX: Final = 120


STORE: Final = ("on_message_publish", "on_message_store")
RETAIN: Final = "on_message_retain"


class Shape:
    """What is different in the stores of one type."""

    __slots__ = ("has_index", "message_actions", "written_id")

    def __init__(
        self,
        written_id: Callable[[int], str] = text_id,
        *,
        has_index: bool = True,
        message_actions: tuple[str, ...] = STORE,
    ) -> None:
        self.written_id: Final = written_id  # of a message id, which is a number
        self.has_index: Final = has_index  # does a list of its topic name each message?
        self.message_actions: Final = message_actions  # which put messages where messages are

    @property
    def has_retained_messages(self) -> bool:
        """Is a retained message among the messages?"""
        return RETAIN in self.message_actions


# Of the types whose stores can be compared.
SHAPES: Final = {
    backend_options.REDIS: Shape(),
    backend_options.DYNAMODB: Shape(decimal_id),
    backend_options.CASSANDRA: Shape(has_index=False, message_actions=(*STORE, RETAIN)),
}


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
