"""Figures are looked at while somebody watches, are kept for an hour, and outlast a silence."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.admin.asking import Asking
from broker.admin.figures import KEPT_MAX, WATCHERS_MAX, Figures
from broker.admin.sources.lanes import Busy
from broker.configuration.config import Config


def play(data_dir: Path, story: Callable[[Figures], Awaitable[None]]) -> None:
    """Run a story with figures of a data directory without a broker."""

    async def run() -> None:
        config = Config()
        config.shell.data_dir = str(data_dir)
        asking = Asking(config)
        figures = Figures(asking)
        running = asyncio.create_task(figures.run())
        try:
            await story(figures)
        finally:
            running.cancel()
            asking.close()

    asyncio.run(run())


def test_who_watches_gets_figures_that_say_that_the_broker_is_silent(tmp_path: Path) -> None:
    async def story(figures: Figures) -> None:
        queue = figures.watch()
        figure = await queue.get()
        assert not figure.broker_answers and figure.connected is None
        assert list(figures.kept) == [figure]
        assert figures.kept.maxlen == KEPT_MAX

    play(tmp_path, story)


def test_there_is_room_for_so_many_and_who_leaves_makes_room(tmp_path: Path) -> None:
    async def story(figures: Figures) -> None:
        queues = [figures.watch() for _ in range(WATCHERS_MAX)]
        with pytest.raises(Busy):
            figures.watch()
        figures.leave(queues[0])
        figures.leave(queues[0])
        figures.watch()

    play(tmp_path, story)


def test_who_is_slow_gets_the_newest_and_holds_nobody_up(tmp_path: Path) -> None:
    async def story(figures: Figures) -> None:
        slow, quick = figures.watch(), figures.watch()
        first = await quick.get()
        second = await quick.get()
        assert second is not first
        newest = await slow.get()
        assert newest is figures.last
        assert slow.empty()

    play(tmp_path, story)
