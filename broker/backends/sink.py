"""What every external store is to the process that feeds it: open, start, apply, look, close.

A sink turns rows into the commands of its store, by the rules, and applies a batch of them together
with the cursor behind it. A batch is applied once: where the store's cursor is not the one before
the batch, nothing is. A store that keeps no cursor gets each batch at least once. Read next:
`broker.backends.process` (who calls this), `broker.backends.redis.sink`.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, runtime_checkable

from broker.backends.actions import ACTIONS, HOOKS, MESSAGE_PUBLISH
from broker.backends.inbox.changes import Tell
from broker.backends.inbox.questions import Page, Question
from broker.backends.rows import Cursor, Row, RowBatch
from mqtt.topics import matches, split_shared
from storage.tables.feed_rows import (
    GAP,
    PUBLISHED,
    SESSION_ENDED,
    FeedEvent,
)


class Unavailable(Exception):
    """The store does not answer or takes no rows now; nothing of the batch was applied.

    Or it is not known whether it was: its cursor says so when it answers again. One line.
    """

    def __init__(self, why: str, retry_s: float = 0.0) -> None:
        super().__init__(why)
        self.retry_s: Final = retry_s  # the store asks not to be tried again before


class FenceRefused(Exception):
    """The store's cursor is not the one before the batch: it has lost rows, or is fed by others."""


class Unusable(Exception):
    """It cannot work at all with these options or without a package; one line."""


class Fence:
    """The cursor in the store, and the mark of the database that has written it."""

    __slots__ = ("cursor", "instance")

    def __init__(self, instance: str, cursor: Cursor) -> None:
        self.instance: Final = instance
        self.cursor: Final = cursor

    def encode(self) -> bytes:
        """Return it as it is kept in a store."""
        return f"{self.instance}:{self.cursor[0]}:{self.cursor[1]}".encode()

    @staticmethod
    def decode(value: bytes) -> "Fence | None":
        """Return the fence of a value, None if that is something else."""
        parts = value.decode("utf-8", "replace").split(":")
        if len(parts) != 3 or not parts[1].isdecimal() or not parts[2].isdecimal():
            return None
        return Fence(parts[0], (int(parts[1]), int(parts[2])))


# Of a store that keeps no cursor, such as a webhook: the broker's own cursor decides, and whatever
# comes behind that is sent again.
UNKNOWN: Final = Fence("", (0, 0))


class Rule:
    """One rule as the process knows it."""

    __slots__ = ("action", "commands", "expires_s", "filter", "is_muted", "number", "on", "qos0")

    def __init__(self, told: dict[str, Any]) -> None:
        self.number: Final[int] = told["number"]
        self.on: Final[str] = told["on"]
        self.filter: Final[str | None] = told.get("topic")
        self.action: Final[str | None] = told.get("action")
        self.commands: Final[list[str]] = list(told.get("commands") or ())
        self.expires_s: Final[int] = told.get("expires_s") or 0  # 0 = never
        self.qos0: Final[bool] = bool(told.get("qos0"))  # are messages with QoS 0 for it, too?
        self.is_muted: bool = False  # a row is sent again for another rule

    def takes(self, row: Row, type: str) -> bool:
        """Return whether the rule does something for this row."""
        if self.is_muted:
            return False
        if isinstance(row, FeedEvent):
            if row.kind == GAP:
                return False
            if row.kind == PUBLISHED:
                return self._takes_message(row.text, 0, type)
            if self.action is not None:
                kinds = ACTIONS[type][self.action].kinds
            else:
                kinds = HOOKS[self.on].kinds
            if row.kind not in kinds:
                return False
            if row.kind == SESSION_ENDED or self.filter is None:
                return True
            return _matches(self.filter, row.text)
        return self._takes_message(row.topic, row.qos, type)

    def _takes_message(self, topic: str, qos: int, type: str) -> bool:
        if self.on != MESSAGE_PUBLISH or (not qos and not self.qos0):
            return False
        if self.action is not None and not ACTIONS[type][self.action].messages:
            return False
        return self.filter is None or matches(self.filter, topic)


def _matches(topic_filter: str, text: str) -> bool:
    """Does a filter match a topic, or a topic filter that a client has written?"""
    shared = split_shared(text)
    return matches(topic_filter, shared[1] if shared else text)


class Poison:
    """Something that the store refused for good, for one rule and one row."""

    __slots__ = ("row", "rule", "why")

    def __init__(self, row: int, rule: int, why: str) -> None:
        self.row: Final = row  # its index in the batch
        self.rule: Final = rule  # the number of the rule
        self.why: Final = why


class Refusal:
    """The same as the store remembers it: nobody may have heard the answer to its batch."""

    __slots__ = ("at", "rule", "upto", "why")

    def __init__(self, upto: Cursor, at: Cursor, rule: int, why: str) -> None:
        self.upto: Final = upto  # where the batch ended
        self.at: Final = at  # of the row
        self.rule: Final = rule
        self.why: Final = why


def place_of(row: Row, batch: RowBatch) -> Cursor:
    """Return the cursor that names a row of a batch."""
    if isinstance(row, FeedEvent):
        return row.end, row.seq
    return row.offset, batch.after[1]


class Options:
    """What a sink is made of: the backend's options and rules, as the configuration has them."""

    __slots__ = ("name", "node", "rules", "type", "values")

    def __init__(
        self, name: str, type: str, node: str, values: dict[str, Any], rules: Sequence[Rule]
    ) -> None:
        self.name: Final = name
        self.type: Final = type
        self.node: Final = node  # name of this broker in the store
        self.values: Final = values
        self.rules: Final = rules


class Refused(Exception):
    """The store refuses a question for good; one line."""


@runtime_checkable
class Fetching(Protocol):
    """A sink whose store can be asked what a session fetches."""

    def fetch(self, question: Question, fence: Fence) -> Page:
        """Return a page of the answer, if the store's fence is still this one.

        Raises `FenceRefused`, `Refused`, and `Unavailable`.
        """
        ...


class Changes(Protocol):
    """Hears by itself what applications tell of subscriptions, in threads of its own."""

    def start(self) -> None:
        """Begin to listen."""
        ...

    def answered(self, numbers: list[int]) -> None:
        """Take the numbers of changes that the broker has dealt with."""
        ...


@runtime_checkable
class Listening(Protocol):
    """A sink whose store tells of changes by itself."""

    def listen(self, tell: Tell) -> Changes | None:
        """Return who hears them and tells the broker, None if nobody has to."""
        ...


class Sink(Protocol):
    """One store. Every method may raise `Unavailable`; the caller then begins again at `open`."""

    def open(self) -> Fence | None:
        """Connect, and return the store's fence, None if it has none, `UNKNOWN` if none is kept."""
        ...

    def start(self, fence: Fence, *, is_rewind: bool) -> None:
        """Put the fence where a run begins. `is_rewind`: the store has lost rows it had."""
        ...

    def apply(self, batch: RowBatch, instance: str) -> list[Poison]:
        """Apply a batch once, and move the fence behind it, both or neither.

        A batch that is applied already counts as applied. Raises `FenceRefused`.
        """
        ...

    def refusals(self, instance: str) -> list[Refusal]:
        """Return what the store has refused in the last batches that had such rows."""
        ...

    def look(self) -> Fence | None:
        """Return the store's fence again, to notice that it is there and has lost nothing."""
        ...

    def health(self) -> dict[str, Any]:
        """Return what an operator wants to know: version, whether rows can be written, problems."""
        ...

    def create(self) -> list[str]:
        """Make the tables that are missing, and return their names; connects by itself."""
        ...

    def close(self) -> None:
        """Close connections. Idempotent; raises nothing."""
        ...
