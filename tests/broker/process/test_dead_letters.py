"""What an operator is told of dead letters, in pages that fit into an answer, and may do."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from broker.backends.rows import encode_wire_row
from broker.operations.control_socket import LINE_BYTES_MAX, ControlError
from broker.process.dead_letters import DROP, LIST, RETRY, DeadLetterDesk, describe
from session.feed.dead_letters import DeadLetter
from session.settings import Feed, Settings
from storage.tables.feed_rows import SUBSCRIBED
from tests.broker.backends.told_rows import event, message, unlogged
from tests.broker.inside import InsideBroker, run

NAME = "cache"


def scenario(play: Callable[[InsideBroker, DeadLetterDesk], Coroutine[Any, Any, None]]) -> None:
    """Play with a broker whose store has refused 40 rows of many control characters."""
    settings = Settings()
    settings.feeds = (Feed(NAME, ("#",), 0),)
    row = encode_wire_row(message(1, "\u7fff" * 500, b"\x00" * 5000))
    letters = [DeadLetter((0, 0), "1", "\u7fff" * 5000, row) for _ in range(40)]

    async def main(broker: InsideBroker) -> None:
        feeds = broker.engine.feeds
        broker.driver.run(feeds.confirm, NAME, (0, 0), letters)
        await broker.until(lambda: len(feeds.dead_letters(NAME, 0, 99)) == 40)
        await play(broker, DeadLetterDesk(NAME, broker.engine, broker.driver, broker.log))

    run(main, settings=settings)


def ask(desk: DeadLetterDesk, do: str, **request: str) -> dict[str, Any]:
    """Return the answer to a request, which fits into a line."""
    answer = desk.answer({"do": do, "name": NAME, **request})
    assert len(json.dumps(answer)) < LINE_BYTES_MAX
    found = json.loads(answer["answer"])
    assert isinstance(found, dict)
    return found


def test_pages_fit_into_an_answer_and_together_have_all() -> None:
    async def play(broker: InsideBroker, desk: DeadLetterDesk) -> None:
        numbers: list[int] = []
        has_more = True
        while has_more:
            after = str(numbers[-1] if numbers else 0)
            page = ask(desk, LIST, after=after, limit="32")
            numbers += [letter["id"] for letter in page["letters"]]
            has_more = page["has_more"]
        assert numbers == list(range(1, 41))

    scenario(play)


def test_orders_say_what_was_done_and_what_not() -> None:
    async def play(broker: InsideBroker, desk: DeadLetterDesk) -> None:
        assert ask(desk, DROP, ids="1,99") == {
            "done": 1,
            "problems": ["99: there is no such dead letter"],
            "last": 99,
            "has_more": False,
            "is_full": False,
        }
        feeds = broker.engine.feeds
        await broker.until(lambda: feeds.stats(NAME).dead_letters == 39)
        first = ask(desk, RETRY, limit="32")
        assert first["done"] == first["last"] - 1 and first["has_more"]
        assert ask(desk, RETRY, after=str(first["last"]), limit="32")["done"] == 39 - first["done"]
        assert all(each["retrying"] for each in ask(desk, LIST, limit="3")["letters"])
        for wrong in ({"ids": "x"}, {"after": "-1"}, {"ids": str(1 << 64)}):
            with pytest.raises(ControlError):
                desk.answer({"do": DROP, **wrong})

    scenario(play)


def test_a_row_is_described_shortly() -> None:
    told = describe(encode_wire_row(message(7, "t", b"\xff" + b"x" * 100)))
    assert told is not None
    assert (told["kind"], told["topic"], told["payload_bytes"]) == ("message", "t", 101)
    assert told["payload"] == "\\xff" + "x" * 63
    told = describe(encode_wire_row(event(SUBSCRIBED, "c", "a/#", 5, qos=1)))
    assert told == {"kind": "subscribed", "event": 5, "client": "c", "topic": "a/#", "qos": 1}
    assert describe(b"") is None
    broken = describe(b"nonsense")
    assert broken is not None and broken["kind"] == "unreadable"


def test_a_message_with_qos_0_is_described_as_a_message() -> None:
    told = describe(encode_wire_row(unlogged(5, "a/b", b"hi")))
    assert told == {
        "kind": "message", "event": 5, "client": "sender", "topic": "a/b", "qos": 0,
        "payload": "hi", "payload_bytes": 2,
    }  # fmt: skip
    row = unlogged(5)
    row.body = b"x"
    broken = describe(encode_wire_row(row))
    assert broken is not None and broken["kind"] == "unreadable"
