"""The process of a store, as the broker starts, feeds, hears and ends it."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest
import uvloop

from broker import own_process
from broker.backends import link as linking
from broker.backends.link import Answer, BackendLink, LinkFailed
from tests.stand_in import replace_in

pytestmark = pytest.mark.full  # starts processes

# What the other end does: answers every frame with its size, or what its body asks for.
PROCESS: Final = """
import json, os, struct, sys
print("a library says hello")
print(json.dumps({"pid": os.getpid(), "session": os.getsid(0)}), flush=True)
while len(head := sys.stdin.buffer.read(5)) == 5:
    body = sys.stdin.buffer.read(struct.unpack(">cI", head)[1])
    if body == b"die":
        sys.exit("it cannot go on")
    if body == b"sleep":
        sys.stdin.buffer.raw.read(0)
        import time; time.sleep(600)
    print(json.dumps({"size": len(body)}), flush=True)
"""


class Heard:
    """What came from the process."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Answer] = asyncio.Queue()
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.link = BackendLink(self.answers.put_nowait, self.ended.put_nowait)

    async def answer(self) -> Answer:
        return await asyncio.wait_for(self.answers.get(), 30)

    async def end(self) -> str:
        return await asyncio.wait_for(self.ended.get(), 30)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that plays with a process, on either loop."""
    replace_in(
        monkeypatch,
        linking,
        "own_process",
        command=lambda module: [sys.executable, "-c", PROCESS],
        environment=own_process.environment,
    )

    def play(scene: Callable[[Heard], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            heard = Heard()
            await heard.link.open()
            await scene(heard)
            heard.link.kill()
            await asyncio.wait_for(heard.link.wait_gone(), 30)
            assert not os.path.exists(f"/proc/{heard.link.pid}"), "not even as a zombie"  # noqa: ASYNC240

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return play


def frame(body: bytes) -> bytes:
    return b"B" + len(body).to_bytes(4, "big") + body


def test_every_answer_comes_in_its_order_and_what_is_none_is_passed_over(
    run: Callable[..., None],
) -> None:
    async def scene(heard: Heard) -> None:
        hello = await heard.answer()
        assert hello["pid"] == heard.link.pid
        assert hello["session"] == heard.link.pid, "Ctrl-C on a terminal would reach it"
        for size in (0, 5, 300_000):
            heard.link.send(frame(bytes(size)))
        assert [await heard.answer() for _ in range(3)] == [
            {"size": 0},
            {"size": 5},
            {"size": 300_000},
        ]

    run(scene)


def test_clients_are_more_urgent_than_the_process_from_its_start(run: Callable[..., None]) -> None:
    async def scene(heard: Heard) -> None:
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, heard.link.pid) == min(19, ours + linking.NICENESS)

    run(scene)


def test_a_process_that_reads_nothing_leaves_no_room(run: Callable[..., None]) -> None:
    async def scene(heard: Heard) -> None:
        await heard.answer()
        heard.link.send(frame(b"sleep"))
        assert heard.link.has_room()
        while heard.link.has_room():
            heard.link.send(frame(bytes(1 << 18)))
            await asyncio.sleep(0)
        heard.link.kill()
        await asyncio.wait_for(heard.link.wait_gone(), 30)
        assert heard.ended.empty(), "what was killed is not told of"

    run(scene)


def test_a_process_that_dies_says_how_and_what_it_said_last(run: Callable[..., None]) -> None:
    async def scene(heard: Heard) -> None:
        await heard.answer()
        heard.link.send(frame(b"die"))
        heard.link.send(frame(b"too late"))
        assert await heard.end() == "the process has ended with status 1: it cannot go on"
        heard.link.send(frame(b"even later"))

    run(scene)


def test_a_process_that_is_killed_by_somebody_is_told_of(run: Callable[..., None]) -> None:
    async def scene(heard: Heard) -> None:
        pid = (await heard.answer())["pid"]
        os.kill(pid, signal.SIGKILL)
        assert (await heard.end()).startswith("the process has ended with signal 9")

    run(scene)


def test_a_process_that_cannot_be_started_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_in(
        monkeypatch,
        linking,
        "own_process",
        command=lambda module: ["/no/such/program"],
        environment=own_process.environment,
    )
    with pytest.raises(LinkFailed, match="cannot start a process: "):
        asyncio.run(Heard().link.open())
