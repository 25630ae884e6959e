"""Orders are worked out in the background: nobody waits for long, and none is given up."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from time import monotonic

import pytest

from broker.admin.sources.lanes import Busy, Unreadable
from broker.admin.sources.orders import (
    KEPT_MAX,
    SORTING_MAX,
    UNWANTED_S,
    BeingSorted,
    Orders,
    Sorted,
)


class Sorter:
    """Sorts when a test says so."""

    def __init__(self) -> None:
        self.asked: list[Hashable] = []
        self.results: asyncio.Queue[int | Exception] = asyncio.Queue()

    async def sort(self, key: Hashable) -> Sorted:
        self.asked.append(key)
        found = await self.results.get()
        if isinstance(found, Exception):
            raise found
        return [(found, str(key))], []


def play(
    story: Callable[[Orders, Sorter], Awaitable[None]],
    *,
    wait_s: float = 0.0,
    clock: Callable[[], float] = monotonic,
) -> None:
    """Run a story; by default nobody waits at all."""

    async def run() -> None:
        sorter = Sorter()
        orders = Orders(sorter.sort, wait_s=wait_s, clock=clock)
        try:
            await story(orders, sorter)
        finally:
            orders.close()

    asyncio.run(run())


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_who_comes_while_it_is_worked_out_is_told_to_come_again_and_it_goes_on() -> None:
    async def story(orders: Orders, sorter: Sorter) -> None:
        for _ in range(50):
            with pytest.raises(BeingSorted, match="ask again") as told:
                await orders.get("bytes")
            assert told.value.for_s >= 0
            await settle()
        assert sorter.asked == ["bytes"], "once for all who ask"
        sorter.results.put_nowait(7)
        await settle()
        order = await orders.get("bytes")
        assert order.places == [(7, "bytes")] and not order.is_old
        assert (await orders.get("bytes")) is order and sorter.asked == ["bytes"]

    play(story)


def test_who_waits_gets_it_when_it_is_there() -> None:
    async def story(orders: Orders, sorter: Sorter) -> None:
        waiting = [asyncio.create_task(orders.get("bytes")) for _ in range(5)]
        await settle()
        sorter.results.put_nowait(7)
        found = await asyncio.gather(*waiting)
        assert {id(each) for each in found} == {id(found[0])} and sorter.asked == ["bytes"]

    play(story, wait_s=60.0)


def test_after_a_change_the_last_one_is_told_until_a_newer_one_is_there() -> None:
    async def story(orders: Orders, sorter: Sorter) -> None:
        with pytest.raises(BeingSorted):
            await orders.get("bytes")
        sorter.results.put_nowait(1)
        await settle()
        orders.forget()
        old = await orders.get("bytes")
        assert old.is_old and old.places == [(1, "bytes")]
        await settle()
        orders.forget()  # another change, while it is worked out
        sorter.results.put_nowait(2)
        await settle()
        second = await orders.get("bytes")
        assert second.is_old and second.places == [(2, "bytes")], "it does not know the last change"
        sorter.results.put_nowait(3)
        await settle()
        newest = await orders.get("bytes")
        assert not newest.is_old and newest.places == [(3, "bytes")]

    play(story)


def test_who_waits_after_a_change_gets_one_that_knows_it() -> None:
    async def story(orders: Orders, sorter: Sorter) -> None:
        first = asyncio.create_task(orders.get("bytes"))
        await settle()
        orders.forget()
        second = asyncio.create_task(orders.get("bytes"))
        await settle()
        for number in (1, 2):
            sorter.results.put_nowait(number)
        assert [each.places[0][0] for each in (await first, await second)] == [2, 2]

    play(story, wait_s=60.0)


def test_they_are_worked_out_one_after_the_other_and_few_wait() -> None:
    async def story(orders: Orders, sorter: Sorter) -> None:
        for number in range(SORTING_MAX):
            with pytest.raises(BeingSorted):
                await orders.get(number)
        with pytest.raises(Busy):
            await orders.get("one more")
        await settle()
        assert sorter.asked == [0]
        for number in range(SORTING_MAX):
            sorter.results.put_nowait(number)
            await settle()
        assert sorter.asked == list(range(SORTING_MAX))

    play(story)


def test_one_that_nobody_wants_any_more_is_not_begun() -> None:
    now_s = 1000.0

    async def story(orders: Orders, sorter: Sorter) -> None:
        nonlocal now_s
        for key in ("first", "left", "wanted"):
            with pytest.raises(BeingSorted):
                await orders.get(key)
        await settle()
        now_s += UNWANTED_S + 1
        with pytest.raises(BeingSorted):
            await orders.get("wanted")
        for number in range(2):
            sorter.results.put_nowait(number)
        await settle()
        assert sorter.asked == ["first", "wanted"]

    play(story, clock=lambda: now_s)


def test_what_goes_wrong_is_told_to_who_waits_and_tried_anew() -> None:
    async def story(orders: Orders, sorter: Sorter) -> None:
        waiting = asyncio.create_task(orders.get("bytes"))
        await settle()
        sorter.results.put_nowait(Unreadable("no database"))
        with pytest.raises(Unreadable, match="no database"):
            await waiting
        sorter.results.put_nowait(1)
        assert (await orders.get("bytes")).places == [(1, "bytes")]

    play(story, wait_s=60.0)


def test_few_are_kept() -> None:
    async def story(orders: Orders, sorter: Sorter) -> None:
        for number in range(2 * KEPT_MAX):
            sorter.results.put_nowait(number)
            await orders.get(number)
        assert len(orders) == KEPT_MAX

    play(story, wait_s=60.0)
