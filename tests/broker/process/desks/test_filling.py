"""What an operator may ask of a backfill, and is told of it."""

import pytest

from broker.operations.control_socket import ControlError
from broker.process.desks.filling import BEGIN, STOP, FillDesk
from session.settings import Feed, Settings
from storage.tables.feed_rows import CONNECTED, SUBSCRIBED
from tests.broker.inside import InsideBroker, run

NAME = "cache"


def test_a_backfill_begins_once_and_says_how_far_it_is() -> None:
    settings = Settings()
    settings.feeds = (Feed(NAME, (), 1 << SUBSCRIBED | 1 << CONNECTED),)

    async def play(broker: InsideBroker) -> None:
        desk = FillDesk(NAME, broker.engine, broker.driver, broker.log)
        feeds = broker.engine.feeds
        assert desk.progress() is None
        for wrong, why in (
            ({"do": BEGIN, "parts": "everything"}, "expected one of subscriptions, retained"),
            ({"do": BEGIN, "parts": "retained"}, "no rule of the backend wants any of that"),
            ({"do": STOP}, "no backfill is under way"),
        ):
            with pytest.raises(ControlError, match=why):
                desk.answer(wrong)
        await broker.connect("c")
        broker.engine.backfill.behind_max = -1  # it must wait for the store
        assert desk.answer({"do": BEGIN, "parts": "presence,subscriptions"}) == {"name": NAME}
        with pytest.raises(ControlError, match="under way"):
            desk.answer({"do": BEGIN})
        told = desk.progress()
        assert told is not None
        assert (told["left"], told["rows"]) == (["subscriptions", "presence"], 0)
        broker.engine.backfill.behind_max = 100
        await broker.until(lambda: (desk.progress() or {})["left"] == [])
        told = desk.progress()
        assert told is not None and told["rows"] == 1 and told["ended_seconds_ago"] is not None
        await broker.until(lambda: feeds.end()[1] >= 2)
        (line,) = broker.events("backend_backfill")
        assert line["message"].endswith("subscriptions, presence")
        broker.engine.backfill.behind_max = -1
        desk.answer({"do": BEGIN})
        desk.answer({"do": STOP})
        assert len(broker.events("backend_backfill_stopped")) == 1

    run(play, settings=settings)
