"""An answer that takes a while is shown as it was, while a new one is fetched."""

import asyncio

import pytest

from broker.admin.pages import fresh
from broker.admin.pages.fresh import KEPT_MAX, Fresh


class Source:
    """Gives answers when it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()

    async def ask(self) -> int:
        self.asked += 1
        number = self.asked
        await self.gate.wait()
        return number


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nobody waits for an answer, and each is old at once."""
    for name in ("WAIT_S", "OLDER_WAIT_S"):
        monkeypatch.setattr(fresh, name, 0.0)
    monkeypatch.setattr(fresh, "AGE_S", -1.0)
    return monkeypatch


async def settle(kept: Fresh) -> None:
    """Return when nothing is under way any more."""
    await asyncio.gather(*kept._tasks)


def test_who_asks_while_it_is_fetched_gets_the_older_answer(hasty: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        kept, source = Fresh(), Source()
        assert await kept.get("key", source.ask) is None  # there is none yet
        assert await kept.get("key", source.ask) is None
        assert source.asked == 1  # one question for both
        source.gate.set()
        await settle(kept)
        source.gate.clear()
        assert await kept.get("key", source.ask) == 1
        assert source.asked == 2
        await kept.close()

    asyncio.run(scene())


def test_a_young_answer_is_not_fetched_again() -> None:
    async def scene() -> None:
        kept, source = Fresh(), Source()
        source.gate.set()
        assert [await kept.get("key", source.ask) for _ in range(3)] == [1, 1, 1]
        assert await kept.get("other", source.ask) == 2

    asyncio.run(scene())


def test_after_a_change_nothing_older_is_shown() -> None:
    async def scene() -> None:
        kept, source = Fresh(), Source()
        source.gate.set()
        assert await kept.get("key", source.ask) == 1
        kept.drop()
        assert await kept.get("key", source.ask) == 2

    asyncio.run(scene())


def test_an_answer_that_was_asked_for_before_a_change_is_not_kept(
    hasty: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        kept, source = Fresh(), Source()
        assert await kept.get("key", source.ask) is None
        kept.drop()
        source.gate.set()
        await settle(kept)
        source.gate.clear()
        assert await kept.get("key", source.ask) is None
        await kept.close()

    asyncio.run(scene())


def test_an_error_is_told_and_not_kept() -> None:
    async def scene() -> None:
        kept = Fresh()

        async def fail() -> int:
            raise ValueError("silent")

        for _ in range(2):
            with pytest.raises(ValueError, match="silent"):
                await kept.get("key", fail)

        async def answer() -> int:
            return 5

        assert await kept.get("key", answer) == 5

    asyncio.run(scene())


def test_only_so_many_answers_are_kept() -> None:
    async def scene() -> None:
        kept, source = Fresh(), Source()
        source.gate.set()
        for number in range(KEPT_MAX + 10):
            await kept.get(number, source.ask)
        assert len(kept._kept) == KEPT_MAX

    asyncio.run(scene())


def test_a_very_old_answer_is_not_shown(hasty: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        kept, source = Fresh(), Source()
        source.gate.set()
        await kept.get("key", source.ask)
        await settle(kept)
        source.gate.clear()
        hasty.setattr(fresh, "FORGET_S", -1.0)
        assert await kept.get("key", source.ask) is None
        await kept.close()

    asyncio.run(scene())
