"""What an operator is told when a store refuses rows, or does not get them."""

import pytest

from broker.backends.pump import telling
from storage.tables import feed_rows
from storage.tables.feed_rows import FeedEvent
from tests.broker.backends.pump.feeding import NAME, Feeding, Store, numbered, scenario


def test_a_refusal_that_nobody_heard_is_a_dead_letter_once() -> None:
    store = Store()
    store.poison[b"1"] = "WRONGTYPE"

    async def play(made: Feeding) -> None:
        await made.publish(*numbered(3))
        await made.until_confirmed(2)
        assert made.pump.figures().dead_letters == 1
        store.answers = False
        await made.publish(*numbered(3))
        await made.until(lambda: sum(len(each.rows) for each in store.link.waiting) == 3)
        store.link.answered = lambda answer: None
        store.link.work()
        store.link.die("signal 9")
        store.answers = True
        await made.until(made.is_confirmed)
        assert made.pump.figures().dead_letters == 2
        assert await made.letters(2) == [b"1", b""]
        assert len(made.events("backend_dead_letter")) == 2

    scenario(play, store)


def test_a_store_that_lost_more_than_is_kept_is_told_of() -> None:
    async def play(made: Feeding) -> None:
        await made.publish(*numbered(4))
        await made.until_confirmed(4)
        made.broker.engine.feeds.backends[NAME].record.floor = made.store.cursor or (0, 0)
        made.store.cursor = (1, 0)
        made.store.rows.clear()
        made.store.link.die("gone")
        await made.until(lambda: made.pump.figures().gaps == 1)
        (told,) = made.events("backend_gap")
        assert "not kept any more" in str(told["message"])
        assert made.store.link.runs[-1][1] == made.broker.engine.feeds.floor(NAME)
        assert made.pump.figures().rewinds == 1

    scenario(play)


def test_messages_that_went_before_the_store_got_them_are_a_gap() -> None:
    async def play(made: Feeding) -> None:
        broker = made.broker
        broker.driver.run(broker.engine._feed.lost, NAME, "total_limit", 3, 7)
        await made.until(lambda: made.pump.figures().gaps == 1)
        (told,) = made.events("backend_gap")
        assert str(told["message"]).startswith("total_limit: the messages 3 to 7 of the log")
        assert [row.kind for row in made.store.rows if isinstance(row, FeedEvent)] == [
            feed_rows.GAP
        ]

    scenario(play)


def test_what_a_full_backlog_loses_is_logged_at_once_and_is_a_gap_later() -> None:
    async def play(made: Feeding) -> None:
        await made.until(lambda: made.store.link.run is not None)
        made.pump.pause()
        await made.publish(*[bytes(100_000) for _ in range(30)])
        await made.until(lambda: made.pump.figures().backlog_bytes <= 1_500_000)
        await made.until(lambda: bool(made.events("backend_full")))
        assert "the oldest rows are dropped" in str(made.events("backend_full")[0]["message"])
        assert made.pump.figures().gaps == 0
        made.pump.resume()
        await made.until(lambda: made.pump.figures().gaps > 0)
        (told, *_) = made.events("backend_gap")
        assert str(told["message"]).startswith("dropped by backlog_bytes_max: the messages")
        await made.until(lambda: made.pump.figures().backlog_bytes == 0)

    scenario(play, limit=1_500_000)


def test_that_messages_are_refused_is_logged_and_so_is_its_end() -> None:
    async def play(made: Feeding) -> None:
        await made.until(lambda: made.store.link.run is not None)
        made.pump.pause()
        await made.publish(*[bytes(500) for _ in range(30)])
        await made.until(lambda: bool(made.events("backend_full")))
        assert made.pump.figures().is_refusing
        made.pump.resume()
        await made.until(lambda: bool(made.events("backend_has_room")))
        assert not made.pump.figures().is_refusing
        assert len(made.events("backend_full")) == 1

    scenario(play, limit=5000, on_full="reject")


def test_events_that_were_dropped_are_named_without_messages() -> None:
    async def play(made: Feeding) -> None:
        gap = FeedEvent(feed_rows.GAP, 1, 0, "", "dropped (events 1 to 2, too)", seq=1)
        outlet = made.broker.engine.feeds
        await made.until(lambda: made.store.link.run is not None)
        figures = made.pump.figures()
        telling.Telling(NAME, outlet, figures, made.broker.log).gap_rows([gap])
        assert figures.gaps == 1
        (told,) = made.events("backend_gap")
        assert told["message"] == "dropped (events 1 to 2, too); the store does not get them"
        assert outlet.drops(NAME) == 0

    scenario(play)


def test_a_row_that_the_store_refuses_is_a_dead_letter_and_the_rest_goes_on() -> None:
    store = Store()
    store.poison[b"1"] = "WRONGTYPE"

    async def play(made: Feeding) -> None:
        await made.publish(*numbered(3))
        await made.until_confirmed(2)
        assert store.payloads() == [b"0", b"2"]
        assert made.pump.figures().dead_letters == 1
        (told,) = made.events("backend_dead_letter")
        assert told["message"] == "rule 1: WRONGTYPE"

    scenario(play, store)


def test_rows_that_are_refused_do_not_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "DEAD_LETTERS_MAX", 3)
    monkeypatch.setattr(telling, "DEAD_LETTER_BYTES_MAX", 10)
    store = Store()
    store.poison = dict.fromkeys((b"small", b"large" * 10), "WRONGTYPE")

    async def play(made: Feeding) -> None:
        for _ in range(3):
            await made.publish(*store.poison, b"good")
        await made.until_confirmed(3)
        figures = made.pump.figures()
        assert (figures.dead_letters, store.payloads()) == (3, [b"good"] * 3)
        assert figures.gaps >= 1
        assert await made.letters(3) == [b"small", b"", b"small"]

    scenario(play, store)


def test_dead_letters_of_an_earlier_run_are_kept() -> None:
    async def play(made: Feeding) -> None:
        await made.publish(*numbered(3))
        await made.until_confirmed(3)
        before = made.broker.engine.feeds.cursor(NAME)
        letter = {"at": [2, 0], "rule": 1, "why": "WRONGTYPE", "row": ""}
        made.store.link.say({"done": [99, 0], "run": 0, "rows": 1, "ms": 1, "dead": [letter]})
        assert made.pump.figures().dead_letters == 1
        assert made.broker.engine.feeds.cursor(NAME) == before

    scenario(play)
