"""The child is started again with growing pauses, ended in order, and never waited for."""

import asyncio
import gc
import io
import json
import os
import signal
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.observe.structured_log import Log
from broker.process.children import admin_child
from broker.process.children.admin_child import AdminChild
from tests.broker.process.starts import watch_imports
from tests.durability.process import BrokerProcess, free_port
from tests.stand_in import replace_in


class Parent:
    """What starts a child, with a short patience."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *script: str) -> None:
        self.lines = io.StringIO()
        replace_in(monkeypatch, admin_child, "own_process", command=lambda module: list(script))
        monkeypatch.setattr(admin_child, "WAITS", {"retry_first_ms": 1, "retry_max_ms": 2})
        monkeypatch.setattr(admin_child, "END_S", 0.05)
        self.child = AdminChild([], Log(self.lines, format="json"))

    def ends(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines.getvalue().splitlines()]

    def play(self, story: Callable[[AdminChild], Awaitable[None]]) -> None:
        async def run() -> None:
            self.child.start()
            try:
                await story(self.child)
            finally:
                await self.child.close()
            assert self.child.pid == 0

        asyncio.run(run())


async def until(is_so: Callable[[], bool]) -> None:
    """Return once something is so."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()

    def look() -> None:
        if is_so():
            event.set()
        else:
            loop.call_later(0.005, look)

    look()
    await event.wait()


def test_a_child_that_ends_is_started_again_and_how_it_ended_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent = Parent(monkeypatch, "/bin/sh", "-c", "exit 3", "sh")

    async def story(child: AdminChild) -> None:
        await until(lambda: len(parent.ends()) >= 3)

    parent.play(story)
    for line in parent.ends():
        assert (line["level"], line["event"]) == ("warning", "admin_ended")
        assert "status 3; the broker goes on without it" in line["message"]


def test_a_child_that_is_killed_is_another_one_later(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = Parent(monkeypatch, "/bin/sh", "-c", "read line", "sh")

    async def story(child: AdminChild) -> None:
        await until(lambda: child.pid != 0)
        first = child.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: child.pid not in (0, first))

    parent.play(story)
    assert [("signal 9" in line["message"]) for line in parent.ends()] == [True]


def test_a_program_that_cannot_be_started_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = Parent(monkeypatch, "/no/such/program")

    async def story(child: AdminChild) -> None:
        await until(lambda: len(parent.ends()) >= 2)

    parent.play(story)
    assert "cannot be started: No such file" in parent.ends()[0]["message"]


def test_a_child_that_does_not_end_with_its_stdin_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent = Parent(monkeypatch, "/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done", "sh")

    async def story(child: AdminChild) -> None:
        await until(lambda: child.pid != 0)

    parent.play(story)


def test_a_child_that_is_just_being_started_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for turns in range(8):
        parent = Parent(monkeypatch, "/bin/sh", "-c", "read line", "sh")

        async def story(child: AdminChild, turns: int = turns) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", ResourceWarning)
            parent.play(story)
            del parent
            gc.collect()
        assert not [str(each.message) for each in warned]


def test_the_broker_imports_nothing_of_it(
    prepare: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = prepare(HOLDFAST__ADMIN__LISTEN=f"127.0.0.1:{free_port()}")
    imported = watch_imports(
        broker, tmp_path, ("starlette", "uvicorn", "msgspec", "jinja2", "broker.admin")
    )
    broker.start()
    broker.wait_for_event("admin_ready")
    found = imported()
    own = broker.pid
    assert found.get(own, set()) == set()
    assert any("uvicorn" in names for pid, names in found.items() if pid != own)
    broker.stop()
