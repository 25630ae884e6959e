"""What is asked of the broker for each change, and what its answers become."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.admin import records
from broker.admin.acting import Acting
from broker.admin.asking import Asking
from broker.admin.sources.lanes import NotThere
from broker.configuration.config import Config
from broker.operations.control_socket import ControlServer, Request

BAN = {
    "kind": "user",
    "since": "2026-01-01T00:00:00Z",
    "until": "2026-01-02T00:00:00Z",
    "left_seconds": 5,
    "by": "ann (http)",
    "reason": "",
}


class Broker:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self, data_dir: Path, *answers: Request) -> None:
        self.asked: list[Request] = []
        self._answers = iter(answers)
        self.server = ControlServer(data_dir, self.answer, lambda call: call())

    def answer(self, request: Request) -> Request:
        self.asked.append(request)
        return next(self._answers)


def play(
    data_dir: Path, story: Callable[[Acting], Awaitable[None]], *answers: Request
) -> list[Request]:
    """Run a story against these answers; return what was asked."""
    broker = Broker(data_dir, *answers)

    async def run() -> None:
        config = Config()
        config.shell.data_dir = str(data_dir)
        asking = Asking(config)
        try:
            await story(Acting(asking))
        finally:
            asking.close()

    asyncio.run(run())
    broker.server.close()
    return broker.asked


def test_bans_are_listed_over_all_pages(tmp_path: Path) -> None:
    async def story(acting: Acting) -> None:
        assert [each.value for each in await acting.bans()] == ["a", "b", "c"]

    pages = [["a", "b"], ["c"]]
    asked = play(
        tmp_path,
        story,
        *(
            {
                "bans": json.dumps([{**BAN, "value": value} for value in page]),
                "after": "ab" if number == 0 else "",
            }
            for number, page in enumerate(pages)
        ),
    )
    assert [each["after"] for each in asked] == ["", "ab"]
    assert not any("http" in each["by"] for each in asked), "to look is on nobody's behalf"


def test_a_message_is_handed_over_with_all_its_fields(tmp_path: Path) -> None:
    wanted = records.Publication(
        topic="t",
        text="x",
        qos=2,
        retain=True,
        content_type="text/plain",
        expiry_seconds=7,
        user_properties=[("a", "b")],
        reason="why",
    )
    answer = {"matched": "6", "connected": "1", "groups": "2", "filters": "3", "stored": "1"}

    async def story(acting: Acting) -> None:
        told = await acting.publish(wanted, "ann", b"x")
        assert told == records.Published("t", 6, 1, 2, 3, True)

    (asked,) = play(tmp_path, story, answer)
    assert asked == {
        "do": "publish",
        "by": "ann (http)",
        "topic": "t",
        "payload": "eA==",
        "qos": "2",
        "retain": "1",
        "content_type": "text/plain",
        "expiry_s": "7",
        "properties": '[["a", "b"]]',
        "reason": "why",
    }


def test_a_retained_message_that_is_not_there_is_told(tmp_path: Path) -> None:
    async def story(acting: Acting) -> None:
        with pytest.raises(NotThere, match="no retained message on 't'"):
            await acting.delete_retained("ann", topic="t", dry_run=False)
        told = await acting.delete_retained("ann", match="t/#", dry_run=False)
        assert told == records.RetainedDeleted(False, 0)

    play(tmp_path, story, {"deleted": "0"}, {"deleted": "0"})


def test_payloads_of_a_trace_are_left_out_for_who_may_not_read_them(tmp_path: Path) -> None:
    answer = {
        "lines": json.dumps([{"topic": "t", "payload": "00"}, {"topic": "u"}]),
        "left_out": "4",
        "over": "its time is over",
    }

    async def story(acting: Acting) -> None:
        hidden = await acting.trace_lines(1, payloads=False)
        assert hidden.lines == [{"topic": "t"}, {"topic": "u"}]
        shown = await acting.trace_lines(1, payloads=True)
        assert shown.lines[0] == {"topic": "t", "payload": "00"}
        assert (shown.left_out, shown.over) == (4, "its time is over")

    play(tmp_path, story, answer, answer)


def test_what_was_read_again_is_told_in_lists(tmp_path: Path) -> None:
    answer = {"changed": '["a"]', "needs_restart": "[]", "problems": '["b", "c"]'}

    async def story(acting: Acting) -> None:
        assert await acting.reload("ann") == records.Reloaded(["a"], [], ["b", "c"])

    play(tmp_path, story, answer)
