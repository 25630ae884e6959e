"""What the pages keep: what the broker has counted, over time, and what traces have told."""

import asyncio
from typing import Any

import pytest

from broker.admin.pages import desk as module
from broker.admin.pages.desk import Desk
from broker.admin.records import Backlog
from broker.operations.control_socket import ControlError
from tests.broker.admin.pages.records import backlog

OWED = backlog(messages=7, bytes=70, age_ms=5000)


class Counts:
    """Answers in the place of the broker."""

    def __init__(self, *answers: Backlog | Exception) -> None:
        self._answers = list(answers)
        self.over = asyncio.Event()

    async def backlog(self) -> Backlog:
        if not self._answers:
            self.over.set()
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Around:
    """The part of the services that asks."""

    def __init__(self, asking: Counts) -> None:
        self.asking = asking


async def run(*answers: Backlog | Exception) -> Desk:
    counts = Counts(*answers)
    services: Any = Around(counts)
    desk = Desk(services)
    task = asyncio.create_task(desk.run())
    await counts.over.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await desk.close()
    return desk


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look without pauses."""
    monkeypatch.setattr(module, "LOOK_S", 0.0)


def test_a_count_is_shown_and_drawn() -> None:
    desk = asyncio.run(run(OWED))
    assert desk.backlog == OWED
    assert desk.growth.columns()[1:] == [[7], [70]]


def test_what_cannot_be_counted_is_not_shown_and_counted_again() -> None:
    assert asyncio.run(run(OWED, ControlError("silent"))).backlog is None
    assert asyncio.run(run(ControlError("silent"), OWED)).backlog == OWED


def test_the_same_count_is_drawn_once() -> None:
    assert asyncio.run(run(OWED, OWED, OWED)).growth.columns()[1:] == [[7], [70]]
    newer = backlog(messages=9, bytes=90, age_ms=0)
    assert asyncio.run(run(OWED, newer)).growth.columns()[1:] == [[7, 9], [70, 90]]


def test_of_a_trace_only_the_newest_lines_are_kept() -> None:
    services: Any = None
    desk = Desk(services)
    desk.follow(1, "a client: boat", False)
    followed = desk.traces[1]
    followed.take([{"n": number} for number in range(module.LINES_MAX)], 2, "")
    followed.take([{"n": "last"}], 0, "its time is over")
    assert (len(followed.lines), followed.lines[-1]) == (module.LINES_MAX, {"n": "last"})
    assert (followed.left_out, followed.over) == (3, "its time is over")
    for number in range(module.TRACES_MAX):
        desk.follow(number + 2, "", False)
    assert 1 not in desk.traces and len(desk.traces) == module.TRACES_MAX
