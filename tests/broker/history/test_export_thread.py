"""The frontier gives each row to one taker, and the thread brings rows to whoever writes them."""

import itertools
import os
import queue
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from broker.history.export_thread import (
    Counted,
    Damaged,
    Ended,
    Exported,
    ExportThread,
    Frontier,
    Report,
)
from broker.history.segment_process_link import Sealed, SegmenterFailed
from storage.history.packed_rows import history_key
from storage.local.rocks import RocksStore
from storage.tables.export_row import ExportProgress, Key
from storage.tables.tables import HISTORY

NOTHING = ExportProgress()


class Shelf:
    """Segments in memory: a link that fails when it is told to."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, bytes]] = []
        self.sealed: list[list[Key]] = []
        self.opened = self.ended = self.failures = 0
        self.head = ""
        self.before = NOTHING  # what the last process was told

    def open(self, before: ExportProgress) -> "Shelf":
        self.before = before
        self.opened += 1
        self.sent = []
        return self

    def send(self, rows: Iterable[tuple[int, int, bytes]]) -> None:
        self.sent += rows

    def seal(self) -> Sealed:
        if self.failures:
            self.failures -= 1
            raise SegmenterFailed("no space")
        self.sealed.append([(boot, first_seq) for boot, first_seq, _ in self.sent])
        self.sent = []
        boot, last_seq = self.sealed[-1][-1]
        self.head = sha256(f"{len(self.sealed)}".encode()).hexdigest()
        chain = (boot, last_seq, self.head)
        return Sealed(1, len(self.sealed[-1]), chain=chain)

    def end(self) -> None:
        self.ended += 1

    def kill(self) -> None:
        raise AssertionError("it does not hang")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    opened = RocksStore(tmp_path / "db", families=[HISTORY])
    yield opened
    opened.close()


def put(store: RocksStore, boot: int, *first_seqs: int) -> None:
    """Have rows of ten bytes in the store."""
    store.write([(HISTORY, history_key(boot, seq), b"x" * 10) for seq in first_seqs])


def keys(rows: list[tuple[Key, bytes]] | None) -> list[Key]:
    assert rows is not None
    return [key for key, _ in rows]


def test_every_row_is_taken_once_up_to_the_limit(store: RocksStore) -> None:
    put(store, 1, *range(1, 81))
    put(store, 2, 1, 5)
    frontier = Frontier(store, [].append)
    taken = []
    while rows := frontier.take((2, 1)):
        taken += keys(rows)
    assert taken == [*((1, seq) for seq in range(1, 81)), (2, 1)]
    assert keys(frontier.take((2, 5))) == [(2, 5)]
    assert frontier.take((9, 9)) == []


def test_what_is_thrown_away_is_never_taken_not_even_after_a_failure(store: RocksStore) -> None:
    put(store, 1, *range(1, 41))
    frontier = Frontier(store, [].append)
    assert keys(frontier.take((1, 10))) == [(1, seq) for seq in range(1, 11)]
    assert keys(frontier.take_away(5)) == [(1, seq) for seq in range(11, 16)]
    frontier.put_back((1, 1))
    assert keys(frontier.take_away(3)) == [(1, seq) for seq in range(1, 4)]
    rest = []
    while rows := frontier.take((1, 40)):
        rest += keys(rows)
    assert rest == [(1, seq) for seq in (*range(4, 11), *range(16, 41))]
    assert frontier.take_away(3) == []


class Running:
    """A thread and what it reports."""

    def __init__(
        self,
        store: RocksStore,
        *,
        boot: int = 2,
        seal_events: int = 1000,
        progress: ExportProgress = NOTHING,
    ) -> None:
        self.reports: queue.Queue[Report] = queue.Queue()
        self.shelf = Shelf()
        self.thread = ExportThread(
            store,
            self.shelf.open,
            self.reports.put,
            inherited_before=boot,
            seal_events=seal_events,
            progress=progress,
        )

    def next(self) -> Report:
        return self.reports.get(timeout=30)


def test_an_order_is_exported_in_jobs_of_bounded_size(store: RocksStore) -> None:
    put(store, 1, *range(1, 101))
    put(store, 2, 1, 2)
    running = Running(store, seal_events=64)
    counted = running.next()
    assert isinstance(counted, Counted)
    assert counted.size == 1000
    running.thread.order((2, 2))
    exported: list[Key] = []
    while isinstance(report := running.next(), Exported):
        exported += report.job.keys
        assert report.job.total == 10 * len(report.job.keys) == sum(report.job.sizes)
        assert len(report.job.keys) <= 64 + 32
    assert isinstance(report, Ended)
    assert report.problem == ""
    assert exported == [*((1, seq) for seq in range(1, 101)), (2, 1), (2, 2)]
    assert list(itertools.chain.from_iterable(running.shelf.sealed)) == exported
    running.thread.close()
    assert (running.shelf.opened, running.shelf.ended) == (1, 1)


def test_what_another_machine_has_exported_is_passed_over(store: RocksStore) -> None:
    put(store, 1, *range(1, 51))
    progress = ExportProgress((1, 50), (1, 40), (1, 49), "head")
    running = Running(store, progress=progress)
    assert isinstance(running.next(), Counted)
    running.thread.order((1, 50))
    exported: list[Key] = []
    while isinstance(report := running.next(), Exported):
        exported += report.job.keys
        assert (report.sealed.chain is None) == (report.job.keys[-1] <= (1, 40))
    assert exported == [(1, seq) for seq in range(1, 51)]
    assert running.shelf.sealed == [[(1, seq) for seq in range(41, 51)]]
    assert running.shelf.before == progress
    running.thread.close()


def test_a_failure_is_reported_and_the_next_order_begins_where_it_was(store: RocksStore) -> None:
    put(store, 2, *range(1, 11))
    running = Running(store)
    assert isinstance(running.next(), Counted)
    running.shelf.failures = 1
    running.thread.order((2, 10))
    failed = running.next()
    assert isinstance(failed, Ended)
    assert failed.problem == "no space"
    running.thread.order((2, 10))
    report = running.next()
    assert isinstance(report, Exported)
    assert report.job.keys == [(2, seq) for seq in range(1, 11)]
    assert isinstance(running.next(), Ended)
    running.thread.close()
    running.thread.close()
    assert running.shelf.opened == 2


def test_a_closed_store_is_a_failure_and_no_end_of_the_thread(store: RocksStore) -> None:
    running = Running(store)
    assert isinstance(running.next(), Counted)
    store.close()
    for _ in range(2):
        running.thread.order((2, 10))
        report = running.next()
        assert isinstance(report, Ended)
        assert "is closed" in report.problem
    running.thread.close()


def test_what_is_thrown_away_for_long_is_remembered_in_little_space(store: RocksStore) -> None:
    put(store, 1, *range(1, 41))
    frontier = Frontier(store, [].append)
    for first_seq in (1, 11):
        assert keys(frontier.take_away(10)) == [
            (1, seq) for seq in range(first_seq, first_seq + 10)
        ]
    assert len(frontier._discarded) == 1
    assert keys(frontier.take((1, 25))) == [(1, seq) for seq in range(21, 26)]
    frontier.take_away(5)
    assert len(frontier._discarded) == 2
    frontier.sealed((1, 25))
    assert frontier._discarded == [((1, 26), (1, 30))]


def test_a_mistake_of_ours_is_reported_like_a_failure(store: RocksStore) -> None:
    put(store, 2, 1)
    running = Running(store)
    assert isinstance(running.next(), Counted)
    opened = running.shelf.open

    def fail(before: ExportProgress) -> Shelf:
        running.thread._open_link = opened  # type: ignore[misc]
        raise RuntimeError("a bug")

    running.thread._open_link = fail  # type: ignore[misc]
    running.thread.order((2, 1))
    report = running.next()
    assert isinstance(report, Ended)
    assert report.problem == "RuntimeError: a bug"
    running.thread.order((2, 1))
    assert isinstance(running.next(), Exported)
    running.thread.close()


def test_rows_that_cannot_be_read_are_passed_over_and_told_once(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", families=[HISTORY])
    store.write([(HISTORY, history_key(1, seq), os.urandom(500)) for seq in range(1, 101)])
    store.flush()
    store.close()
    table = max((tmp_path / "db").glob("*.sst"), key=lambda each: each.stat().st_size)
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)

    store = RocksStore(tmp_path / "db")
    told: list[Report] = []
    frontier = Frontier(store, told.append)
    taken = []
    while rows := frontier.take((1, 100)):
        taken += [seq for (_, seq), _ in rows]
    lost = sorted(set(range(1, 101)) - set(taken))
    assert 1 < lost[0] and lost[-1] < 100 and len(lost) == lost[-1] - lost[0] + 1 < 20
    assert frontier.count(2) == 500 * len(taken)
    (damaged,) = told
    assert isinstance(damaged, Damaged) and "Corruption" in damaged.problem
    store.close()
