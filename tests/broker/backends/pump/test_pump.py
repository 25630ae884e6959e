"""What of the feed goes to a store when, and what becomes of it when something fails."""

import asyncio
import random

import pytest

from broker.backends.link import Answer
from broker.backends.pump.pump import UNANSWERED_MAX
from broker.backends.pump.row_buffer import BATCH_ROWS
from broker.observe.backend_figures import CONNECTED, FAILED
from mqtt.message import Message
from mqtt.packets import Puback
from storage.tables import feed_rows
from storage.tables.feed_rows import FeedEvent
from tests.broker.backends.pump.feeding import (
    EVERYTHING,
    NAME,
    Feeding,
    Store,
    numbered,
    scenario,
)
from tests.broker.inside import publish


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_what_is_durable_reaches_the_store_in_its_order(loop: str) -> None:
    async def play(made: Feeding) -> None:
        await made.publish(*numbered(50))
        await made.until_confirmed(50)
        assert made.store.payloads() == numbered(50)
        assert made.store.link.config["instance"] == made.broker.engine.feeds.instance(NAME)
        figures = made.pump.figures()
        assert (figures.state, figures.is_up, figures.rows) == (CONNECTED, True, 50)
        assert figures.lag_s == 0
        assert figures.rows_behind == 0
        assert figures.batch_seconds.count == len(made.store.link.sizes)
        assert made.changes == [True]

    scenario(play, loop=loop)


def test_events_and_messages_come_in_one_order() -> None:
    async def play(made: Feeding) -> None:
        await made.publish(b"0")
        await made.until(lambda: len(made.store.rows) == 2)
        connected, message = made.store.rows
        assert isinstance(connected, FeedEvent) and connected.kind == feed_rows.CONNECTED
        assert isinstance(message, Message) and message.payload == b"0"

    scenario(play, kinds=EVERYTHING)


def test_batches_are_limited_and_so_are_those_that_wait_for_an_answer() -> None:
    store = Store()
    store.answers = False

    async def play(made: Feeding) -> None:
        count = BATCH_ROWS * (UNANSWERED_MAX + 2)
        publisher = await made.broker.connect("p")
        for first in range(0, count, 500):
            payloads = [b"%d" % (first + each) for each in range(500)]
            publisher.send(*(publish("t", payload) for payload in payloads))
            for _ in payloads:
                await publisher.receive(Puback)
        await made.until(lambda: len(store.link.waiting) == UNANSWERED_MAX)
        await made.until(lambda: made.pump.figures().rows_behind == count)
        assert len(store.link.waiting) == UNANSWERED_MAX
        assert made.pump.figures().lag_s > 0
        store.answers = True
        store.link.work()
        await made.until_confirmed(count)
        assert max(store.link.sizes) == BATCH_ROWS
        assert store.payloads() == numbered(count)

    scenario(play, store)


def test_a_process_that_takes_nothing_gets_nothing_more_until_it_does() -> None:
    async def play(made: Feeding) -> None:
        await made.until(lambda: made.store.link.run is not None)
        made.store.link.is_full = True
        await made.publish(*numbered(5))
        await made.until(lambda: made.pump.figures().lag_s > 0.1)
        assert made.store.rows == []
        made.store.link.is_full = False
        await made.until_confirmed(5)

    scenario(play)


def test_what_the_store_has_already_is_not_sent_again() -> None:
    async def play(made: Feeding) -> None:
        await made.publish(*numbered(5))
        await made.until_confirmed(5)
        made.store.answers = False
        await made.publish(*numbered(3))
        await made.until(lambda: sum(len(each.rows) for each in made.store.link.waiting) == 3)
        link = made.store.link
        link.answered = lambda answer: None  # it applies them, and dies before it can say so
        link.work()
        link.die("signal 9")
        made.store.answers = True
        await made.until(made.is_confirmed)
        assert made.store.payloads() == numbered(5) + numbered(3)
        assert made.pump.figures().rewinds == 0
        assert made.pump.figures().retries == 1
        (told,) = made.events("backend_failed")
        assert told["message"] == "signal 9; it is started again"

    scenario(play)


def test_rows_on_their_way_when_the_connection_is_lost_are_sent_again() -> None:
    async def play(made: Feeding) -> None:
        made.store.answers = False
        await made.publish(*numbered(3))
        link = made.store.link
        await made.until(lambda: sum(len(each.rows) for each in link.waiting) == 3)
        link.say({"state": "disconnected", "why": "refused"})
        assert not made.pump.is_up and made.pump.figures().state == "disconnected"
        link.say({"state": "connecting", "why": ""})
        assert not made.pump.is_up
        made.store.answers = True
        link.connect()  # old batches are passed over
        await made.until_confirmed(3)
        assert made.store.payloads() == numbered(3)
        assert [run for run, _ in link.runs] == [1, 2]
        assert made.changes == [True, False, True]
        (told,) = made.events("backend_disconnected")
        assert told["message"] == "refused"

    scenario(play)


def test_a_store_that_lost_its_newest_rows_gets_them_again() -> None:
    async def play(made: Feeding) -> None:
        for number in range(4):
            await made.publish(b"%d" % number)
            await made.until_confirmed(number + 1)
        made.store.forget(2)
        made.store.link.die("gone")
        await made.until_confirmed(4)
        assert made.store.payloads() == numbered(4)
        assert made.pump.figures().rewinds == 1
        assert made.pump.figures().gaps == 0
        assert len(made.events("backend_rewound")) == 1

    scenario(play)


def test_a_store_that_was_emptied_gets_what_is_kept() -> None:
    async def play(made: Feeding) -> None:
        await made.publish(*numbered(4))
        await made.until_confirmed(4)
        made.store.cursor = made.store.instance = None
        made.store.rows.clear()
        made.store.link.die("gone")
        await made.until_confirmed(4)
        assert made.store.payloads() == numbered(4)
        figures = made.pump.figures()
        assert (figures.rewinds, figures.gaps) == (1, 1)  # nobody knows what it had before

    scenario(play)


def test_an_older_database_goes_on_under_a_new_mark_once_that_is_durable() -> None:
    store = Store()

    async def play(made: Feeding) -> None:
        outlet = made.broker.engine.feeds
        await made.until(lambda: store.link.run is not None)
        before = outlet.instance(NAME)
        store.cursor, store.instance = (1000, 1000), before
        store.link.die("gone")
        await made.until(lambda: store.instance not in (None, before))
        assert store.instance == outlet.instance(NAME)
        assert made.broker.engine.durable > 0
        assert len(made.events("backend_ahead")) == 1
        await made.publish(*numbered(3))
        await made.until_confirmed(3)
        assert store.payloads() == numbered(3)

    scenario(play, store)


@pytest.mark.parametrize(
    "answer",
    [
        {"done": None, "run": 1, "rows": 1, "ms": 1},
        {"done": [9, 9], "run": 1, "rows": 1, "ms": 1},
        {"cursor": "nonsense", "instance": None},
        {"cursor": [1, 2]},
    ],
)
def test_an_answer_that_makes_no_sense_ends_the_process_and_nothing_else(answer: Answer) -> None:
    async def play(made: Feeding) -> None:
        await made.publish(*numbered(2))
        await made.until_confirmed(2)
        first = made.store.link
        first.say(answer)
        assert first.is_killed
        assert made.broker.counters.internal_errors == 1
        await made.publish(*numbered(2))
        await made.until_confirmed(4)
        assert made.store.link is not first
        assert made.store.payloads() == numbered(2) * 2

    scenario(play)


def test_a_process_that_cannot_be_started_is_tried_again() -> None:
    store = Store()
    store.failures = 2

    async def play(made: Feeding) -> None:
        await made.publish(*numbered(2))
        await made.until_confirmed(2)
        told = made.events("backend_failed")
        assert [each["message"] for each in told] == ["no memory; it is started again"] * 2
        assert 0.05 <= told[0]["retry_s"] <= 0.1 <= told[1]["retry_s"] <= 0.2

    scenario(play, store)


def test_how_soon_a_process_is_started_again_is_an_option() -> None:
    store = Store()
    store.failures = 6

    async def play(made: Feeding) -> None:
        await made.until(lambda: made.pump.is_up)
        waits = [each["retry_s"] for each in made.events("backend_failed")]
        assert len(waits) == 6 and all(0.01 <= each <= 0.02 for each in waits)

    scenario(play, store, retry_first_ms=20, retry_max_ms=20)


def test_an_error_of_the_process_is_told() -> None:
    async def play(made: Feeding) -> None:
        await made.until(lambda: bool(made.store.links))
        made.store.link.say({"error": "redis is not installed"})
        made.store.link.die("the process has ended with status 1")
        figures = made.pump.figures()
        assert (figures.state, figures.why) == (FAILED, "redis is not installed")
        (told,) = made.events("backend_failed")
        assert told["message"] == "redis is not installed; it is started again"

    scenario(play)


def test_while_it_is_paused_rows_wait() -> None:
    async def play(made: Feeding) -> None:
        await made.until(lambda: made.store.link.run is not None)
        made.pump.pause()
        await made.publish(*numbered(3))
        await made.until(lambda: made.pump.figures().lag_s > 0.1)
        assert made.store.rows == []
        assert made.pump.figures().is_paused
        made.pump.resume()
        await made.until_confirmed(3)

    scenario(play)


def test_the_age_of_what_waits_is_known_before_the_store_is_ever_reached() -> None:
    store = Store()
    store.failures = 1000

    async def play(made: Feeding) -> None:
        await made.publish(*numbered(3))
        await made.until(lambda: made.pump.figures().lag_s > 0.1)
        figures = made.pump.figures()
        assert (figures.is_up, figures.rows_behind, figures.rows) == (False, 3, 0)

    scenario(play, store)


def test_an_idle_broker_pays_nothing() -> None:
    async def play(made: Feeding) -> None:
        await made.publish(*numbered(3))
        await made.until_confirmed(3)
        commits, batches = made.broker.counters.commits, len(made.store.ends)
        looks = 0
        look = made.pump._work

        def counted() -> None:
            nonlocal looks
            looks += 1
            look()

        made.pump._work = counted  # type: ignore[method-assign]
        await made.until(lambda: made.broker.counters.commits >= commits + 2)
        commits = made.broker.counters.commits - commits  # heartbeats
        assert len(made.store.ends) == batches
        assert looks <= commits + 1

    scenario(play)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_fails_the_store_has_every_message_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)

    async def play(made: Feeding) -> None:
        store, number = made.store, 0
        for _ in range(30):
            what = chance.choice(("publish", "publish", "die", "lose", "cut", "refuse", "nonsense"))
            link = store.link
            if what == "publish":
                count = chance.randint(1, 20)
                await made.publish(*(b"%d" % each for each in range(number, number + count)))
                number += count
            elif what == "refuse":  # no answer until the next failure
                store.answers = False
            elif link.config and not link.is_killed:
                if what == "lose":
                    store.forget(chance.randint(1, 3))
                store.answers = True
                if what == "nonsense":
                    link.say({"done": [1, 2, 3]})
                elif what == "cut":
                    link.say({"state": "disconnected", "why": "cut"})
                    link.connect()
                else:
                    link.die("killed")
            for _ in range(chance.choice((1, 10, 300))):
                await asyncio.sleep(0)
        store.answers = True
        store.link.work()
        await made.publish(b"%d" % number)
        await made.until_confirmed(number + 1)
        assert store.payloads() == numbered(number + 1)
        assert made.pump.figures().gaps == 0

    scenario(play)
