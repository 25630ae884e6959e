"""Orders of all sessions: worked out one after the other in the background, used again for a while.

To put many sessions in order takes long. Whoever asks waits for a moment, and then gets the last
order, or is told to come again; the work goes on, and is never given up. All methods are the
loop's. Must never keep more than `KEPT_MAX` orders. Read next: `broker.admin.asking`.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from time import monotonic
from typing import Final, TypeAlias

from broker.admin.sources.lanes import Busy
from broker.admin.sources.reading import now_text

KEPT_MAX: Final = 8
# For how long an order is used again: every session was read for it, 100,000 in some seconds.
AGE_S: Final = 10.0
SHARE: Final = 10  # or so many times what it took
WAIT_S: Final = 20.0  # of somebody who asks
SORTING_MAX: Final = 8  # that are worked out, or wait for it
UNWANTED_S: Final = 60.0  # one that has not begun is left when nobody asked for it for so long

Key: TypeAlias = Hashable
# Places and client ids of the first sessions, and what could not be read.
Sorted: TypeAlias = tuple[list[tuple[int, str]], list[str]]


class BeingSorted(Exception):
    """There is no order yet: come again."""

    def __init__(self, for_s: float) -> None:
        super().__init__("the sessions are being put in order: ask again")
        self.for_s: Final = for_s


class Order:
    """The first sessions in one order, as they were at one moment."""

    __slots__ = ("_clock", "as_of", "notes", "places", "until_s")

    def __init__(
        self, found: Sorted, as_of: str, until_s: float, clock: Callable[[], float]
    ) -> None:
        self._clock: Final = clock
        self.places, self.notes = found
        self.as_of: Final = as_of
        self.until_s: float = until_s  # monotonic: then it is worked out anew

    @property
    def is_old(self) -> bool:
        """Return whether it is to be worked out anew."""
        return self._clock() > self.until_s


class _Work:
    __slots__ = ("began_s", "task", "wanted_s")

    def __init__(self, now_s: float) -> None:
        self.began_s: Final = now_s
        self.wanted_s: float = now_s  # when somebody has asked for it last
        self.task: asyncio.Task[Order] | None = None


class Orders:
    """The last orders, and those that are being worked out."""

    def __init__(
        self,
        sort: Callable[[Key], Awaitable[Sorted]],
        *,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`sort` works out the order of a key; `clock` is monotonic, s."""
        self._clock: Final = clock
        self._sort: Final = sort
        self._wait_s: Final = wait_s
        self._kept: Final[OrderedDict[Key, Order]] = OrderedDict()
        self._works: Final[dict[Key, _Work]] = {}
        self._turn: Final = asyncio.Lock()
        self._changes = 0

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, key: Key) -> Order:
        """Return an order; `is_old` says that a newer one is still being worked out.

        Raises `BeingSorted`, `Busy`, and what the work raises.
        """
        until_s = self._clock() + self._wait_s
        while True:
            order = self._kept.get(key)
            if order is not None:
                self._kept.move_to_end(key)
                if not order.is_old:
                    return order
            work = self._works.get(key)
            if work is None:
                if len(self._works) >= SORTING_MAX:
                    raise Busy("too many orders are being worked out")
                work = self._begin(key)
            work.wanted_s = self._clock()
            assert work.task is not None
            done, _ = await asyncio.wait({work.task}, timeout=max(0.0, until_s - self._clock()))
            if not done:
                if order is None:
                    raise BeingSorted(self._clock() - work.began_s)
                return order
            order = work.task.result()
            if not order.is_old or self._clock() >= until_s:
                return order

    def _begin(self, key: Key) -> _Work:
        work = self._works[key] = _Work(self._clock())
        work.task = asyncio.get_running_loop().create_task(self._fill(key, work))
        work.task.add_done_callback(_look)
        return work

    async def _fill(self, key: Key, work: _Work) -> Order:
        try:
            async with self._turn:
                if self._clock() - work.wanted_s > UNWANTED_S:
                    raise Busy("nobody has asked for this order for a while")
                changes, as_of, began_s = self._changes, now_text(), self._clock()
                found = await self._sort(key)
                took_s = self._clock() - began_s
            until_s = self._clock() + max(AGE_S, SHARE * took_s)
            # Where something was changed meanwhile, the next one who asks has it done again.
            order = Order(
                found, as_of, until_s if changes == self._changes else -math.inf, self._clock
            )
            self._kept[key] = order
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
            return order
        finally:
            del self._works[key]

    def forget(self) -> None:
        """Have every order worked out anew: something was changed."""
        self._changes += 1
        for order in self._kept.values():
            order.until_s = -math.inf

    def close(self) -> None:
        """End what is under way."""
        for work in self._works.values():
            if work.task is not None:
                work.task.cancel()


def _look(task: asyncio.Task[Order]) -> None:
    if not task.cancelled():
        task.exception()  # whoever waited was told of it; perhaps nobody did
