"""A lane reads what is there, one thing at a time, for few who wait, and keeps nothing open."""

import asyncio
import math
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.admin.sources import lanes
from broker.admin.sources.lanes import Busy, Lane, NotThere, Opened, TooLong, Turn, Unreadable
from storage.errors import CorruptRecord
from storage.local.rocks import RocksStore


@pytest.fixture
def store(tmp_path: Path) -> RocksStore:
    """A database that somebody else has open and writes to."""
    return RocksStore(tmp_path / "db")


def value(opened: Opened) -> bytes | None:
    return opened.inventory.store.get("things", b"key")


def put(store: RocksStore, text: bytes) -> None:
    if "things" not in store.families():
        store.create_family("things")
    store.write([("things", b"key", text)])


def play(lane: Lane, story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await story()

    try:
        asyncio.run(run())
    finally:
        lane.close()


def test_a_change_is_seen_after_a_refresh(store: RocksStore, tmp_path: Path) -> None:
    lane = Lane(tmp_path, "test")

    async def story() -> None:
        put(store, b"one")
        assert await lane.run(value) == b"one"
        put(store, b"two")
        lane.refresh()
        assert await lane.run(value) == b"two"

    play(lane, story)
    store.close()


def test_what_came_after_the_opening_is_found_without_a_refresh(
    store: RocksStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "AGE_MIN_S", 3600.0)
    monkeypatch.setattr(lanes, "AGE_MAX_S", 3600.0)
    lane = Lane(tmp_path, "test")

    def found(opened: Opened) -> bytes:
        there = value(opened) if "things" in opened.inventory.store.families() else None
        if there is None:
            raise NotThere("no such thing")
        return there

    async def story() -> None:
        with pytest.raises(NotThere, match="no such thing"):
            await lane.run(found)
        put(store, b"one")
        assert await lane.run(found) == b"one"
        put(store, b"two")
        assert await lane.run(found) == b"one"  # what is there may be of the opening

    play(lane, story)
    store.close()


def test_questions_that_come_together_share_a_database(store: RocksStore, tmp_path: Path) -> None:
    lane = Lane(tmp_path, "test")

    async def story() -> None:
        put(store, b"one")
        found = await asyncio.gather(
            *(lane.run(lambda opened: opened.inventory.store) for _ in range(5))
        )
        assert len({id(each) for each in found}) == 1

    play(lane, story)
    store.close()


def test_nothing_stays_open_when_nobody_asks(store: RocksStore, tmp_path: Path) -> None:
    lane = Lane(tmp_path, "test", idle_s=0.01)

    def open_files() -> int:
        places = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        links = [os.readlink(each) for each in places if os.path.lexists(each)]
        return sum(each.startswith(str(tmp_path / "db")) for each in links)

    put(store, b"one")
    store.close()
    store = RocksStore(tmp_path / "db")  # an opening makes tables of what is in the log

    async def story() -> None:
        before = open_files()
        assert await lane.run(lambda opened: open_files()) > before
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def look() -> None:
            if open_files() == before:
                closed.set()
            else:
                loop.call_later(0.01, look)

        look()
        await closed.wait()

    play(lane, story)
    store.close()


def test_beyond_the_few_who_wait_others_are_told_to_come_again(
    store: RocksStore, tmp_path: Path
) -> None:
    lane = Lane(tmp_path, "test", waiting_max=2)
    go = threading.Event()

    async def story() -> None:
        put(store, b"one")
        slow = asyncio.create_task(lane.run(lambda opened: go.wait()))
        second = asyncio.create_task(lane.run(value))
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await lane.run(value)
        second.cancel()  # nobody waits for it any more, and it has not begun
        await asyncio.gather(second, return_exceptions=True)
        third = asyncio.create_task(lane.run(value))
        await asyncio.sleep(0)
        slow.cancel()  # it has begun, so it still counts
        await asyncio.gather(slow, return_exceptions=True)
        with pytest.raises(Busy):
            await lane.run(value)
        go.set()
        assert await third == b"one"

    play(lane, story)
    store.close()


def test_what_takes_too_long_is_given_up(store: RocksStore, tmp_path: Path) -> None:
    lane = Lane(tmp_path, "test", longest_s=-1.0)

    async def story() -> None:
        put(store, b"one")
        with pytest.raises(TooLong, match="ask on the command line"):
            await lane.run(lambda opened: opened.check())

    play(lane, story)
    store.close()


def test_what_has_begun_is_left_when_the_process_ends(store: RocksStore, tmp_path: Path) -> None:
    lane = Lane(tmp_path, "test", longest_s=math.inf)
    has_begun = threading.Event()

    def for_ever(opened: Opened) -> None:
        while True:
            opened.check()
            has_begun.set()

    async def story() -> None:
        put(store, b"one")
        work = asyncio.ensure_future(lane.run(for_ever))
        await asyncio.to_thread(has_begun.wait)
        lane.close()
        with pytest.raises(TooLong, match="this process ends"):
            await work

    asyncio.run(story())
    store.close()


def test_what_the_store_raises_is_told_and_the_next_question_opens_it_anew(
    store: RocksStore, tmp_path: Path
) -> None:
    lane = Lane(tmp_path, "test")

    def fail(opened: Opened) -> None:
        raise CorruptRecord("a bad block")

    async def story() -> None:
        put(store, b"one")
        with pytest.raises(Unreadable, match="a bad block"):
            await lane.run(fail)
        put(store, b"two")
        assert await lane.run(value) == b"two"

    play(lane, story)
    store.close()


def test_a_directory_without_a_database_is_told(tmp_path: Path) -> None:
    lane = Lane(tmp_path, "test")

    async def story() -> None:
        with pytest.raises(Unreadable, match="no database yet"):
            await lane.run(value)

    play(lane, story)
    assert lanes.AGE_MIN_S < lanes.AGE_MAX_S


def test_few_wait_for_their_turn_and_it_comes_for_each() -> None:
    async def run() -> None:
        turn = Turn(waiting_max=3)
        begun: list[int] = []
        go = asyncio.Event()

        async def take(number: int) -> None:
            async with turn.mine():
                begun.append(number)
                await go.wait()

        tasks = [asyncio.create_task(take(number)) for number in range(3)]
        await asyncio.sleep(0)
        assert begun == [0]
        with pytest.raises(Busy):
            await take(3)
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        tasks.append(asyncio.create_task(take(4)))
        go.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert begun == [0, 2, 4]

    asyncio.run(run())
