"""The changes of subscriptions that one store tells of by itself, in their order.

A change is made when the database takes it; until then the ones behind it wait, too. It is answered
once it is durable, and so is one that changes nothing: what it found may not be durable yet, and a
crash would take it back. Must never answer what a crash can undo. Read next:
`session.packets.proxy` (what a change does), `broker.backends.pump.pump` (who hears of them).
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from session.packets.proxy import LATER, ProxyHandler


class ToldChange:
    """A change as it was told."""

    __slots__ = ("client_id", "number", "qos", "topic_filter")

    def __init__(self, number: int, client_id: str, topic_filter: str, qos: int | None) -> None:
        self.number: Final = number  # with which it is answered
        self.client_id: Final = client_id
        self.topic_filter: Final = topic_filter
        self.qos: Final = qos  # None ends the subscription


class ToldChanges:
    """What was told and is not answered."""

    def __init__(self, backend: str, proxy: ProxyHandler, settled_by: Callable[[], int]) -> None:
        """`settled_by` returns the batch with which everything done up to now is durable."""
        self._backend: Final = backend
        self._proxy: Final = proxy
        self._settled_by: Final = settled_by
        self._told: Final[deque[ToldChange]] = deque()
        self._made: Final[deque[tuple[int, int]]] = deque()  # the batch, the number

    def add(self, change: ToldChange) -> None:
        """Take a change, which comes behind those before it."""
        self._told.append(change)

    @property
    def are_waiting(self) -> bool:
        """Are there any that are not made?"""
        return bool(self._told)

    def make_next(self) -> tuple[ToldChange, str] | None:
        """Make the next change, and return what became of it; None if none can be made now.

        Call it at the start of an event.
        """
        if not self._told:
            return None
        change = self._told[0]
        outcome = self._proxy.changed(
            self._backend, change.client_id, change.topic_filter, change.qos
        )
        if outcome == LATER:
            return None
        self._told.popleft()
        self._made.append((self._settled_by(), change.number))
        return change, outcome

    def answers(self, durable: int) -> list[int]:
        """Return the numbers of changes that are durable now, each once."""
        numbers: list[int] = []
        while self._made and self._made[0][0] <= durable:
            numbers.append(self._made.popleft()[1])
        return numbers

    def forget(self) -> None:
        """Forget all: who has told them tells them again, with other numbers."""
        self._told.clear()
        self._made.clear()
