"""What of the feed goes to a store when, and what becomes of it when something fails.

A stand-in for the process has a store in memory, which applies a batch only after the cursor that
it has.
"""

import asyncio
import base64
import json
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from broker.backends import pump as pumping
from broker.backends.link import Answer, LinkFailed
from broker.backends.pump import Pump
from broker.backends.rows import (
    BATCH,
    CHANGED,
    CONFIG,
    FETCH,
    HEAD,
    START,
    Cursor,
    Row,
    RowBatch,
    decode_batch,
    decode_start,
)
from broker.observe.backend_figures import CONNECTED, FAILED
from mqtt.message import Message
from mqtt.packets import Puback, Suback
from session.feed.dead_letters import decode_dead_letter
from session.settings import Feed, Fetching, OnFull, Proxying, Settings
from storage.tables import feed_rows
from storage.tables.feed_rows import FeedEvent
from storage.tables.tables import DEAD_LETTERS, scan_all
from tests.broker.inside import InsideBroker, publish, run, subscribe

NAME = "cache"
EVERYTHING = sum(1 << kind for kind in feed_rows.KINDS)


class Store:
    """A store and the processes that write to it, in memory."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.ends: list[tuple[Cursor, int]] = []  # the cursor behind each batch, and rows then
        self.cursor: Cursor | None = None
        self.instance: str | None = None
        self.links: list[FakeProcess] = []
        self.answers = True  # to batches, at once
        self.failures = 0  # starts that fail
        self.poison: dict[bytes, str] = {}  # payloads that it refuses
        self.refused: list[dict[str, Any]] = []

    def make(self, answered: Callable[[Answer], None], ended: Callable[[str], None]) -> Any:
        self.links.append(FakeProcess(self, answered, ended))
        return self.links[-1]

    @property
    def link(self) -> "FakeProcess":
        return self.links[-1]

    def forget(self, batches: int) -> None:
        """Lose the newest batches."""
        del self.ends[-batches:]
        self.cursor, count = self.ends[-1] if self.ends else ((0, 0), 0)
        del self.rows[count:]

    def payloads(self) -> list[bytes]:
        return [row.payload for row in self.rows if isinstance(row, Message)]


class FakeProcess:
    """The link to a process that applies batches to a `Store`."""

    def __init__(
        self, store: Store, answered: Callable[[Answer], None], ended: Callable[[str], None]
    ) -> None:
        self.store = store
        self.answered = answered
        self.ended = ended
        self.config: dict[str, Any] = {}
        self.run: int | None = None
        self.runs: list[tuple[int, Cursor]] = []
        self.waiting: list[RowBatch] = []
        self.questions: list[dict[str, Any]] = []
        self.changes: list[int] = []  # those that are dealt with
        self.sizes: list[int] = []
        self.is_full = False
        self.is_killed = False

    async def open(self) -> None:
        if self.store.failures:
            self.store.failures -= 1
            raise LinkFailed("no memory")

    def has_room(self) -> bool:
        return not self.is_full

    def send(self, frame: bytes) -> None:
        kind, size = HEAD.unpack_from(frame)
        body = frame[HEAD.size :]
        assert len(body) == size
        if kind == CONFIG:
            self.config = json.loads(body)
            self.connect()
        elif kind == START:
            start = decode_start(body)
            store = self.store
            self.run = start.run
            self.runs.append((start.run, start.cursor))
            if store.cursor is None or store.instance != self.config["instance"]:
                store.cursor, store.instance = start.cursor, self.config["instance"]
        elif kind == FETCH:
            self.questions.append(json.loads(body))
        elif kind == CHANGED:
            self.changes += json.loads(body)
        elif kind == BATCH:
            self.waiting.append(decode_batch(body))
            if self.store.answers:
                asyncio.get_running_loop().call_soon(self.work)

    def connect(self) -> None:
        """Say that the store can be reached, and what it has."""
        self.run = None
        self.say({"state": "connected", "why": ""})
        store = self.store
        self.say({"cursor": store.cursor, "instance": store.instance, "refused": store.refused})

    def work(self) -> None:
        """Apply and answer what waits."""
        while self.waiting and not self.is_killed:
            batch = self.waiting.pop(0)
            if batch.run == self.run:
                self.apply(batch)

    def apply(self, batch: RowBatch) -> None:
        store = self.store
        assert store.cursor == batch.after, "the fence"
        dead = []
        for row in batch.rows:
            if isinstance(row, Message) and row.payload in store.poison:
                at = (row.offset, batch.after[1])
                why = store.poison[row.payload]
                body = base64.b64encode(row.payload).decode()
                dead.append({"at": at, "rule": 1, "why": why, "row": body})
            else:
                store.rows.append(row)
        store.cursor = batch.upto
        store.ends.append((batch.upto, len(store.rows)))
        self.sizes.append(len(batch.rows))
        for each in dead:
            told = {key: value for key, value in each.items() if key != "row"}
            store.refused.append({**told, "upto": batch.upto})
        answer = {"done": batch.upto, "run": batch.run, "rows": len(batch.rows), "ms": 2.5}
        self.say({**answer, "dead": dead})

    def say(self, answer: Answer) -> None:
        if not self.is_killed:
            self.answered(json.loads(json.dumps(answer)))

    def die(self, why: str) -> None:
        self.is_killed = True
        self.ended(why)

    def kill(self) -> None:
        self.is_killed = True

    async def wait_gone(self) -> None:
        assert self.is_killed


class Feeding:
    """A broker with a backend."""

    def __init__(self, broker: InsideBroker, store: Store, options: dict[str, Any]) -> None:
        self.broker = broker
        self.store = store
        self.changes: list[bool] = []
        self.pump = Pump(
            NAME,
            broker.engine,
            broker.driver,
            {"name": NAME, "options": options},
            store.make,
            broker.log,
            changed=lambda: self.changes.append(self.pump.is_up),
        )
        broker.driver.commits_durable = self.pump.commits_durable
        self.sent = 0

    async def publish(self, *payloads: bytes) -> None:
        """Have messages stored, one after the other."""
        publisher = await self.broker.connect("p")
        for payload in payloads:
            publisher.send(publish("t", payload))
            await publisher.receive(Puback)
        self.sent += len(payloads)

    async def until(self, condition: Callable[[], bool]) -> None:
        await self.broker.until(condition)

    async def until_confirmed(self, count: int) -> None:
        """Wait until the store has so many messages, and the broker knows it."""
        await self.until(lambda: len(self.store.payloads()) >= count and self.is_confirmed())

    def is_confirmed(self) -> bool:
        outlet = self.broker.engine.feeds
        return outlet.cursor(NAME) == self.store.cursor

    async def letters(self, count: int) -> list[bytes]:
        """Wait until so many dead letters are in the store; return their rows."""

        def stored() -> list[bytes]:
            found = scan_all(self.broker.store, DEAD_LETTERS, b"", None)
            return [decode_dead_letter(value).row for _, value in found]

        await self.until(lambda: len(stored()) >= count)  # the commit may still be under way
        return stored()

    def events(self, name: str) -> list[dict[str, Any]]:
        return self.broker.events(name)


def scenario(
    play: Callable[[Feeding], Coroutine[Any, Any, None]],
    store: Store | None = None,
    *,
    kinds: int = 0,
    filters: tuple[str, ...] = ("t",),
    keep_ms: int = 60_000,
    loop: str = "asyncio",
    fetches: tuple[Fetching, ...] = (),
    limit: int = 0,
    on_full: OnFull = "drop_oldest",
    proxying: Proxying | None = None,
    **options: Any,
) -> None:
    """Play with a broker that feeds `store`; `options` are those of the backend."""
    settings = Settings()
    settings.feeds = (Feed(NAME, filters, kinds, keep_ms, fetches, limit, on_full, proxying),)

    async def main(broker: InsideBroker) -> None:
        feeding = Feeding(broker, store or Store(), options)
        feeding.pump.start()
        try:
            await play(feeding)
            assert broker.failures == []
        finally:
            await feeding.pump.close()

    run(main, settings=settings, loop=loop)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


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
        count = pumping.BATCH_ROWS * (pumping.UNANSWERED_MAX + 2)
        publisher = await made.broker.connect("p")
        for first in range(0, count, 500):
            payloads = [b"%d" % (first + each) for each in range(500)]
            publisher.send(*(publish("t", payload) for payload in payloads))
            for _ in payloads:
                await publisher.receive(Puback)
        await made.until(lambda: len(store.link.waiting) == pumping.UNANSWERED_MAX)
        await made.until(lambda: made.pump.figures().rows_behind == count)
        assert len(store.link.waiting) == pumping.UNANSWERED_MAX
        assert made.pump.figures().lag_s > 0
        store.answers = True
        store.link.work()
        await made.until_confirmed(count)
        assert max(store.link.sizes) == pumping.BATCH_ROWS
        assert store.payloads() == numbered(count)

    scenario(play, store)


def test_how_many_rows_a_batch_has_is_an_option() -> None:
    async def play(made: Feeding) -> None:
        made.pump.pause()
        await made.publish(*numbered(20))
        made.pump.resume()
        await made.until_confirmed(20)
        assert max(made.store.link.sizes) == 3
        assert made.store.payloads() == numbered(20)

    scenario(play, batch_rows=3)


def test_rows_wait_for_others_as_long_as_they_are_told_to() -> None:
    async def play(made: Feeding) -> None:
        await made.until(lambda: made.store.link.run is not None)
        began = made.broker.loop.time()
        for number in range(5):  # each in a commit of its own
            await made.publish(b"%d" % number)
        await made.until_confirmed(5)
        assert made.broker.loop.time() - began >= 1.0
        assert len(made.store.link.sizes) < 5

    scenario(play, linger_ms=1000)


def test_a_full_batch_waits_for_nothing() -> None:
    async def play(made: Feeding) -> None:
        await made.until(lambda: made.store.link.run is not None)
        await made.publish(b"0")
        await made.until(lambda: made.pump.figures().lag_s > 0)
        await made.publish(b"1", b"2", b"3")
        await made.until_confirmed(4)
        assert made.store.link.sizes == [2, 2]

    scenario(play, batch_rows=2, linger_ms=600_000)


def test_a_batch_is_limited_in_bytes() -> None:
    async def play(made: Feeding) -> None:
        large = bytes(pumping.BATCH_BYTES // 2 + 1)
        made.store.answers = False
        await made.publish(large, large, large, b"small")
        await made.until(lambda: sum(len(each.rows) for each in made.store.link.waiting) == 4)
        assert max(len(each.rows) for each in made.store.link.waiting) <= 2

    scenario(play)


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
        made.pump._tell_gap_row(gap)
        (told,) = made.events("backend_gap")
        assert told["message"] == "dropped (events 1 to 2, too); the store does not get them"
        assert outlet.drops(NAME) == 0

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
    monkeypatch.setattr(pumping, "DEAD_LETTERS_MAX", 3)
    monkeypatch.setattr(pumping, "DEAD_LETTER_BYTES_MAX", 10)
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


def test_what_others_wanted_is_passed_over_and_the_store_learns_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pumping, "PASS_S", 0.05)

    async def play(made: Feeding) -> None:
        publisher = await made.broker.connect("p")
        subscriber = await made.broker.connect("s", expiry=3600)
        subscriber.send(subscribe("other", 1))
        await subscriber.receive(Suback)
        for _ in range(3):
            publisher.send(publish("other"))
            await publisher.receive(Puback)
        end = made.broker.engine.feeds.end()
        await made.until(lambda: made.store.cursor == end and made.is_confirmed())
        assert made.store.rows == []

    scenario(play)


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
