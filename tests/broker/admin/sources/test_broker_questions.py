"""Questions to the broker: a few at a time, for somebody, and its silence is remembered."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.admin.sources.broker_questions import THREADS, WAITING_MAX, BrokerQuestions
from broker.admin.sources.lanes import Busy
from broker.operations.control_socket import ControlError, ControlServer, Request, Unanswered


class Broker:
    """Answers on the control socket with what it was asked; waits while it is told to."""

    def __init__(self, data_dir: Path) -> None:
        self.go = threading.Event()
        self.go.set()
        self.server = ControlServer(data_dir, self.answer, lambda call: call())

    def answer(self, request: Request) -> Request:
        self.go.wait()
        if request["do"] == "fail":
            raise ControlError("that is refused")
        return request


def play(data_dir: Path, story: Callable[[BrokerQuestions], Awaitable[None]]) -> None:
    async def run() -> None:
        questions = BrokerQuestions(data_dir, lambda: "now")
        try:
            await story(questions)
        finally:
            questions.close()

    asyncio.run(run())


def test_a_question_says_for_whom_it_is(tmp_path: Path) -> None:
    broker = Broker(tmp_path)

    async def story(questions: BrokerQuestions) -> None:
        answer = await questions.ask({"do": "kick"}, "ann")
        assert answer == {"do": "kick", "by": "ann (http)"}
        assert "for" not in await questions.ask({"do": "look"})

    play(tmp_path, story)
    broker.server.close()


def test_what_the_broker_says_against_it_is_no_silence(tmp_path: Path) -> None:
    broker = Broker(tmp_path)

    async def story(questions: BrokerQuestions) -> None:
        with pytest.raises(ControlError, match="that is refused"):
            await questions.ask({"do": "fail"})
        assert questions.silent_since is None

    play(tmp_path, story)
    broker.server.close()


def test_silence_is_remembered_from_its_beginning_until_an_answer(tmp_path: Path) -> None:
    moments = iter(["first", "second", "third"])

    async def story() -> None:
        questions = BrokerQuestions(tmp_path, lambda: next(moments))
        for _ in range(2):
            with pytest.raises(Unanswered, match="cannot ask the broker"):
                await questions.ask({"do": "look"})
            assert questions.silent_since == "first"
        broker = Broker(tmp_path)
        await questions.ask({"do": "look"})
        assert questions.silent_since is None
        broker.server.close()
        with pytest.raises(Unanswered):
            await questions.ask({"do": "look"})
        assert questions.silent_since == "second"
        questions.close()

    asyncio.run(story())


def test_more_questions_than_may_wait_are_refused_and_room_comes_back(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.go.clear()

    async def story(questions: BrokerQuestions) -> None:
        asked = [asyncio.create_task(questions.ask({"do": "look"})) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await questions.ask({"do": "look"})
        for each in asked[THREADS:]:
            each.cancel()  # they had not begun
        await asyncio.gather(*asked[THREADS:], return_exceptions=True)
        more = asyncio.create_task(questions.ask({"do": "more"}))
        broker.go.set()
        assert (await more)["do"] == "more"
        await asyncio.gather(*asked[:THREADS])

    play(tmp_path, story)
    broker.server.close()
