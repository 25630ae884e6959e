"""A pump over a real engine, and a stand-in for the process of its store.

The stand-in has a store in memory, which applies a batch only after the cursor that it has.
"""

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine
from typing import Any

from broker.backends.link import Answer, LinkFailed
from broker.backends.pump.pump import Pump
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
from mqtt.message import Message
from mqtt.packets import Puback
from session.feed.dead_letters import decode_dead_letter
from session.settings import Feed, Fetching, OnFull, Proxying, Settings
from storage.tables import feed_rows
from storage.tables.tables import DEAD_LETTERS, scan_all
from tests.broker.inside import InsideBroker, publish, run

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
