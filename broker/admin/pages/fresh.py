"""Answers that take a while: the last one is shown at once, and a new one is fetched meanwhile.

An order of 100,000 sessions takes seconds; nobody waits for it who has seen an older one. All
methods are the loop's. Must never keep more than `KEPT_MAX` answers. Read next:
`broker.admin.pages.serving.front`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar, cast

KEPT_MAX: Final = 32
AGE_S: Final = 3.0  # younger ones are shown as they are
WAIT_S: Final = 1.5  # waited for a first answer; beyond that a page says that it is under way
OLDER_WAIT_S: Final = 0.3  # and for a new one, where there is an older one
FORGET_S: Final = 120.0  # an older one is not shown at all

Result = TypeVar("Result")


class _Kept:
    __slots__ = ("made_s", "task", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.made_s: float | None = None  # None = there is no value
        self.task: asyncio.Task[Any] | None = None  # that fetches a new one


class Fresh:
    """The last answers to some questions, by what was asked."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[Result]]) -> Result | None:
        """Return an answer, perhaps an older one; None = it is not there yet, ask again.

        Raises what `ask` raises.
        """
        loop = asyncio.get_running_loop()
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        age_s = None if kept.made_s is None else loop.time() - kept.made_s
        if age_s is not None and age_s <= AGE_S:
            return cast(Result, kept.value)
        if age_s is not None and age_s > FORGET_S:
            kept.value = kept.made_s = age_s = None
        task = kept.task
        if task is None:
            task = kept.task = asyncio.ensure_future(self._fill(kept, ask))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        wait_s = WAIT_S if age_s is None else OLDER_WAIT_S
        done, _ = await asyncio.wait({task}, timeout=wait_s)
        if done:
            return cast(Result, task.result())
        return cast("Result | None", kept.value)

    async def _fill(self, kept: _Kept, ask: Callable[[], Awaitable[Any]]) -> Any:
        me = asyncio.current_task()
        try:
            value = await ask()
            if kept.task is me:  # else it was asked before something was changed
                kept.value, kept.made_s = value, asyncio.get_running_loop().time()
            return value
        finally:
            if kept.task is me:
                kept.task = None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited was told of it; perhaps nobody did

    def drop(self) -> None:
        """Forget all answers, also those under way: something was changed."""
        for kept in self._kept.values():
            kept.task = None
        self._kept.clear()

    async def close(self) -> None:
        """End what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._kept.clear()
