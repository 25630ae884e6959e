"""Is a closing stream dropped when its time is over, and none before?"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from broker.loop.lingering import Lingering
from tests.broker.inside import LOOPS

DELAY_S = 0.05
PATIENCE_S = 60.0
BOTH = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


class Stream:
    """A stream that notes when it was aborted, and forgets itself as a lost one does."""

    def __init__(self, lingering: Lingering) -> None:
        self.lingering = lingering
        self.aborted_at: list[float] = []

    def abort(self) -> None:
        self.aborted_at.append(asyncio.get_running_loop().time())
        self.lingering.discard(self)


def run(scenario: Callable[[Lingering], Coroutine[Any, Any, None]], loop: str) -> None:
    async def main() -> None:
        lingering = Lingering(asyncio.get_running_loop())
        await scenario(lingering)
        assert not len(lingering) and lingering._timer is None

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        await asyncio.sleep(0.001)


@BOTH
def test_each_stream_is_aborted_once_after_its_time(loop: str) -> None:
    async def scenario(lingering: Lingering) -> None:
        now = asyncio.get_running_loop().time
        streams: list[tuple[Stream, float]] = []
        for _ in range(4):
            streams.append((Stream(lingering), now()))
            lingering.add(streams[-1][0], DELAY_S)
            await asyncio.sleep(DELAY_S / 3)
        await until(lambda: not len(lingering))
        for stream, began in streams:
            (aborted_at,) = stream.aborted_at
            assert aborted_at >= began + DELAY_S

    run(scenario, loop)


@BOTH
def test_a_stream_that_is_lost_before_is_left_alone(loop: str) -> None:
    async def scenario(lingering: Lingering) -> None:
        lost, other = Stream(lingering), Stream(lingering)
        lingering.add(lost, DELAY_S)
        lingering.add(other, DELAY_S)
        lingering.discard(lost)
        lingering.discard(lost)
        await until(lambda: bool(other.aborted_at))
        assert not lost.aborted_at

    run(scenario, loop)


@BOTH
def test_the_timer_ends_with_the_last_stream_and_begins_with_the_next(loop: str) -> None:
    async def scenario(lingering: Lingering) -> None:
        for _ in range(2):
            stream = Stream(lingering)
            lingering.add(stream, DELAY_S)
            lingering.discard(stream)
            assert lingering._timer is not None
            await until(lambda: lingering._timer is None)
            assert not stream.aborted_at

    run(scenario, loop)
