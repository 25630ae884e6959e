"""The questions to external stores: which are owed, which may be asked now, which are under way.

A store is asked only once it has everything that it was told before, so it knows what a session has
done up to then. A question is owed until it is answered, however often the way to the store is
lost. In memory only: whoever asks keeps what must outlive a crash. Knows nothing of what is asked.
Read next: `session.delivery.fetching.inbox` and `session.delivery.fetching.proxies`, which ask.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from session.delivery.context import DeliveryContext

LOOK_MAX: Final = 64  # waiting questions that one call looks at


class FetchRequest:
    """A question to a store."""

    __slots__ = (
        "after",
        "began_ms",
        "client_id",
        "count",
        "kind",
        "not_before_ms",
        "number",
        "since",
        "topic",
    )

    def __init__(
        self,
        number: int,
        kind: int,
        client_id: str,
        topic: str,
        after: str,
        count: int,
        *,
        since: int = 0,
        began_ms: int = 0,
        not_before_ms: int = 0,
    ) -> None:
        """`kind` is one of `storage.tables.fetch_rows`."""
        self.number: Final = number
        self.kind: Final = kind
        self.client_id: Final = client_id
        self.topic: Final = topic
        # Only what is greater: ids of messages, not of a queue, or topic filters.
        self.after: Final = after
        # Messages of our log with a greater offset are not asked for, if they are not older than
        # the subscription (then they are of an earlier database).
        self.since: Final = since
        self.began_ms: Final = began_ms
        self.count: Final = count  # at most
        self.not_before_ms: Final = not_before_ms


class Asking(ABC):
    """Something that is asked of a store, with one question at a time."""

    __slots__ = ("asked_ms", "backend", "events", "is_due", "number", "offset", "sealed")

    def __init__(self, backend: str) -> None:
        self.backend: Final = backend
        self.is_due: bool = False  # asked for again while a question was under way
        self.number: int = 0  # of the question that is not answered, 0 = none
        self.asked_ms: int = 0
        # What the store must have first: the feed up to here; -1 = not known yet, it is what there
        # is once the events of this tick are in a batch.
        self.offset: int = -1
        self.events: int = 0
        self.sealed: int = 0

    @abstractmethod
    def is_ready(self) -> bool:
        """Is there room for the answer?"""

    @abstractmethod
    def question(self) -> FetchRequest:
        """Return what is asked; `number` and `asked_ms` are set."""

    @abstractmethod
    def is_alive(self) -> bool:
        """Is there still a session that wants the answer? For the invariants."""


class Requests:
    """The questions of all sessions."""

    def __init__(self, context: DeliveryContext, backends: Iterable[str]) -> None:
        self._tick: Final = context.tick
        self._log: Final = context.log
        self._feed: Final = context.history.feed
        # With each: was there no room for its answer when it was looked at?
        self._waiting: Final[dict[str, dict[Asking, bool]]] = {name: {} for name in backends}
        self._asked: Final[dict[int, Asking]] = {}
        self._last_number: int = 0
        self._listeners: Final[dict[str, Callable[[], None]]] = {}  # by store: who asks it
        self.is_on: Final = bool(self._waiting)  # without stores that are asked nothing is called

    def want(self, asking: Asking) -> None:
        """Ask the store, once it has everything that it was told up to now."""
        if asking.number:
            asking.is_due = True
            return
        asking.is_due = False
        asking.offset = -1
        asking.sealed = self._feed.sealed
        self._waiting[asking.backend][asking] = False

    def listen(self, name: str, listener: Callable[[], None]) -> None:
        """Call `listener` when a store is to be asked something at once; it must not call back."""
        self._listeners[name] = listener

    def hurry(self, name: str) -> None:
        """Have a store asked at once: no commit will remind of it."""
        listener = self._listeners.get(name)
        if listener is not None:
            listener()

    def forget(self, asking: Asking) -> None:
        """Ask no more; an answer that is under way is ignored."""
        self._waiting[asking.backend].pop(asking, None)
        self._asked.pop(asking.number, None)
        asking.number = 0

    def owed(self, name: str) -> int:
        """Return how many questions a store has not answered."""
        asked = sum(asking.backend == name for asking in self._asked.values())
        return len(self._waiting.get(name, ())) + asked

    def held(self, name: str) -> int:
        """Return how many of these wait for their own client, which has no room for the answer."""
        return sum(self._waiting.get(name, {}).values())

    def next(self, name: str, reached: tuple[int, int]) -> FetchRequest | None:
        """Return the next question to a store that has the feed up to `reached`; None for now."""
        waiting = self._waiting.get(name)
        if not waiting:
            return None
        for asking in list(islice(waiting, LOOK_MAX)):
            if asking.offset < 0:
                if asking.sealed == self._feed.sealed and not self._feed.is_empty:
                    continue
                asking.offset, asking.events = self._log.end, self._feed.seq
            if reached[0] < asking.offset or reached[1] < asking.events:
                continue
            del waiting[asking]
            if asking.is_ready():
                self._last_number += 1
                asking.number = self._last_number
                asking.asked_ms = self._tick.now
                self._asked[asking.number] = asking
                return asking.question()
            waiting[asking] = True  # behind the others
        return None

    def ask_again(self, name: str) -> None:
        """Ask again what a store has not answered: the way to it was lost."""
        for number, asking in list(self._asked.items()):
            if asking.backend == name:
                del self._asked[number]
                asking.number = 0
                self.want(asking)

    def answered(self, number: int) -> Asking | None:
        """Return what a question was asked for, None if it is not under way any more."""
        asking = self._asked.pop(number, None)
        if asking is not None:
            asking.number = 0
        return asking

    def invariants(self) -> Iterator[str]:
        """Yield what must hold of questions and does not."""
        for number, asking in self._asked.items():
            if asking.number != number or asking in self._waiting[asking.backend]:
                yield f"question {number} to {asking.backend} is under way twice"
        waiting = [each for of_store in self._waiting.values() for each in of_store]
        for asking in [*waiting, *self._asked.values()]:
            if not asking.is_alive():
                yield f"{asking.backend} is asked for a session that is gone"
