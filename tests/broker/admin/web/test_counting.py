"""What is not HTTP is passed on; an answer that never begins is not counted."""

import asyncio
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

from broker.admin.web.counting import Counting
from tests.broker.admin.application import Application


@pytest.mark.parametrize("kind", ["lifespan", "http"])
def test_without_an_answer_nothing_is_counted(tmp_path: Path, kind: str) -> None:
    application = Application(tmp_path)
    counts, met = application.services.counts, []

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        met.append(scope["type"])

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    scope = {"type": kind, "method": "GET", "state": {}}
    asyncio.run(Counting(silent, counts=counts)(scope, receive, send))
    assert met == [kind]
    assert b"holdfast_admin_requests_total{" not in counts.text()
    application.services.close()
