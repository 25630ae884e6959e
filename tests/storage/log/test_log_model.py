"""Does the message log agree with a plain-Python model, whatever happens in whatever order?

A run is decided by its seed: batches of appends, rotations (to any layout) and drops; syncs, and
crashes that keep any prefix of what was not synced; readers that live through all of it. Again and
again the log has to hold and to give out exactly what the model says.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtt.topics import matches
from storage.api import Batch, Store
from storage.local.memory import MemoryStore
from storage.local.rocks import RocksStore
from storage.log.message_log import END_OF_STREAM, Cursor, MessageLog, Stream, report_generations
from storage.tables.tables import META
from tests.storage.log_cases import LAYOUT_NAMES, message

FILTERS = ("a", "b", "a/#", "+/x", "+", "#", "b/x", "none")
TOPICS = ("a", "b", "a/x", "b/x", "a/y/z", "c", "$sys/x")
STEPS = 120

# One change a batch made: ("append", topic) | ("add", layout) | ("drop", number) | ("hold", filter)
Change = tuple[str, str | int]


class Model:
    """What the log must hold, computed anew from the batches it was given."""

    def __init__(self, batches: list[list[Change]]) -> None:
        self.topics: dict[int, str] = {}  # offset -> topic, dropped ones included
        self.generation_of: dict[int, int] = {}
        self.generations: dict[int, tuple[str, int]] = {}  # number -> (layout, first offset)
        self.held: dict[str, Stream] = {}
        self.end = 0
        for batch in batches:
            for kind, what in batch:
                self.apply(kind, what)

    def apply(self, kind: str, what: str | int) -> None:
        if kind == "append":
            self.end += 1
            self.topics[self.end] = str(what)
            self.generation_of[self.end] = max(self.generations)
        elif kind == "add":
            number = max(self.generations, default=0) + 1
            self.generations[number] = (str(what), self.end + 1)
        elif kind == "drop":
            del self.generations[int(what)]
        else:
            self.held[str(what)] = Stream(len(self.held) + 1, str(what), self.end)

    def stored(self) -> list[int]:
        return [o for o in self.topics if self.generation_of[o] in self.generations]

    def owed(self, streams: list[Stream], position: int) -> list[int]:
        return [
            offset
            for offset in self.stored()
            if offset > position
            and any(
                offset > stream.since and matches(stream.topic_filter, self.topics[offset])
                for stream in streams
            )
        ]


class Reading:
    """A cursor and how far it has come."""

    def __init__(self, cursor: Cursor, streams: list[Stream], position: int) -> None:
        self.cursor = cursor
        self.streams = streams
        self.last = position


class Run:
    """One log, its model, and the verbs that change both."""

    def __init__(self, seed: int, store: Store, reopen: Callable[[Store, int], Store]) -> None:
        self.random = random.Random(seed)
        self.store = store
        self.reopen = reopen
        self.batches: list[list[Change]] = []  # written, in order
        self.synced = 0  # of `batches`
        self.changes: list[Change] = []  # of the batch that is being filled
        self.batch: Batch = []
        self.readings: list[Reading] = []
        self.now_ms = 0
        self.open()

    def open(self) -> None:
        layout = self.random.choice(LAYOUT_NAMES)
        self.log = MessageLog(self.store, layout=layout)
        self.log.open(self.now_ms)
        generations = self.log.list_generations()
        known = Model(self.batches).generations
        if generations[-1].number not in known:  # the first one, or one with the wanted layout
            self.batches.append([("add", layout)])
        assert generations[-1].layout == layout
        self.readings.clear()

    def model(self) -> Model:
        return Model(self.batches)

    def pending_model(self) -> Model:
        return Model([*self.batches, self.changes])

    # --- steps ---

    def append(self) -> None:
        held = self.pending_model().held
        for _ in range(self.random.choice((1, 1, 3, 30))):
            topic = self.random.choice(TOPICS)
            ids = [s.filter_id for s in held.values() if matches(s.topic_filter, topic)]
            self.log.append(self.batch, message(topic), ids)
            self.changes.append(("append", topic))

    def hold(self) -> None:
        free = [f for f in FILTERS if f not in self.pending_model().held]
        if free:
            self.changes.append(("hold", self.random.choice(free)))

    def rotate(self) -> None:
        layout = self.random.choice(LAYOUT_NAMES)
        self.log.add_generation(self.batch, self.now_ms, layout)
        self.changes.append(("add", layout))

    def drop(self) -> None:
        closed = [g.number for g in self.log.list_generations() if g.is_closed]
        if closed and self.random.random() < 0.3:
            number = self.random.choice(closed)
            self.log.drop_generation(self.batch, number)
            self.changes.append(("drop", number))

    def write(self) -> None:
        if self.batch or self.changes:
            self.log.seal(self.batch)
            self.store.write(self.batch)
            self.batch = []
            self.batches.append(self.changes)
            self.changes = []

    def sync(self) -> None:
        self.write()
        self.store.sync()
        self.synced = len(self.batches)
        self.log.reclaim()

    def restart(self) -> None:
        """Crash: what was not written is gone, of what was not synced a prefix is kept."""
        kept = self.random.randint(self.synced, len(self.batches))
        if isinstance(self.store, RocksStore):
            kept = len(self.batches)
        self.store = self.reopen(self.store, kept - self.synced)
        del self.batches[kept:]
        self.batch, self.changes = [], []
        self.open()
        self.store.sync()
        self.synced = len(self.batches)

    def begin_reading(self) -> None:
        model = self.pending_model()
        held = list(model.held.values())
        chosen = self.random.sample(held, self.random.randint(0, len(held)))
        streams = [
            Stream(s.filter_id, s.topic_filter, self.random.randint(s.since, model.end))
            for s in chosen
        ]
        position = self.random.randint(0, model.end)
        cursor = self.log.cursor(streams, position)
        self.readings.append(Reading(cursor, streams, position))
        if len(self.readings) > 4:
            del self.readings[0]

    def read(self) -> None:
        model = self.visible_model()
        for reading in self.readings:
            owed = model.owed(reading.streams, reading.last)
            count = self.random.choice((1, 2, 10, 100))
            if self.random.random() < 0.2:
                skipped = reading.cursor.skip(count)
                assert skipped <= count
                assert (skipped == 0) == (not owed)
                given = owed[:skipped]
            else:
                given = [m.offset for m in reading.cursor.next(count)]
                assert given == owed[: len(given)]
                assert bool(given) == bool(owed)
                assert len(given) <= count
            reading.last = max([reading.last, *given])
            assert reading.cursor.position >= reading.last
            assert not [o for o in owed[len(given) :] if o <= reading.cursor.position]

    def visible_model(self) -> Model:
        """What a reader sees: what is written, without what is dropped even if that is not."""
        drops = [change for change in self.changes if change[0] == "drop"]
        written = self.model().generations
        return Model([*self.batches, [d for d in drops if d[1] in written]])

    # --- what must hold ---

    def check(self) -> None:
        model = self.model()
        assert self.log.end == model.end
        assert list(self.log.invariants()) == []
        listed = [(g.number, g.layout, g.first_offset) for g in self.log.list_generations()]
        assert listed == [(n, *rest) for n, rest in model.generations.items()]
        every = list(range(model.end + 2))
        stored = set(model.stored())
        found = self.log.get_many(every)
        assert {m.offset: m.topic for m in found if m is not None} == {
            offset: model.topics[offset] for offset in stored
        }
        self.check_owed(model)
        self.check_streams(model)
        rows = {r.generation.number: r.rows for r in report_generations(self.store, exact=True)}
        for number in model.generations:
            assert rows[number] == sum(model.generation_of[o] == number for o in stored)

    def check_owed(self, model: Model) -> None:
        streams = list(model.held.values())
        position = self.random.randint(0, model.end)
        owed = model.owed(streams, position)
        for number in model.generations:
            expected = next((o for o in owed if model.generation_of[o] == number), None)
            assert self.log.first_owed(streams, position, generation=number) == expected

    def check_streams(self, model: Model) -> None:
        self.log.held_filters = model.held
        topic_filter = self.random.choice(FILTERS)
        found: list[int] = []
        for stream in self.log.get_streams(topic_filter, 0):
            iterator = self.log.make_iterator(stream)
            while True:
                iterator, messages = self.log.next(iterator, 7)
                if messages is END_OF_STREAM or not messages:
                    break
                found += [m.offset for m in messages]
        assert found == model.owed([Stream(0, topic_filter, 0)], 0)

    def play(self, steps: int) -> None:
        verbs = (
            [self.append] * 6
            + [self.write] * 4
            + [self.read] * 4
            + [self.begin_reading] * 2
            + [self.hold, self.rotate, self.drop, self.sync, self.restart]
        )
        for _ in range(steps):
            self.now_ms += self.random.randint(0, 1000)
            self.random.choice(verbs)()
            if self.random.random() < 0.1:
                self.write()
                self.check()
        self.write()
        self.check()
        self.read()


@pytest.mark.parametrize("seed", range(60))
def test_the_log_agrees_with_the_model_in_memory(seed: int) -> None:
    def reopen(store: Store, keep: int) -> Store:
        assert isinstance(store, MemoryStore)
        return store.crash(keep)

    Run(seed, MemoryStore([META]), reopen).play(STEPS)


@pytest.mark.parametrize("seed", range(4))
def test_the_log_agrees_with_the_model_in_rocksdb(seed: int, tmp_path: Path) -> None:
    def reopen(store: Store, keep: int) -> Store:
        store.close()
        return RocksStore(tmp_path / "db", families=[META])

    run = Run(seed, RocksStore(tmp_path / "db", families=[META]), reopen)
    run.play(STEPS)
    run.store.close()
