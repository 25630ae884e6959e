"""What is due comes in time order, once, and is known to be gone before its row is."""

import pytest

from storage.api import Batch
from storage.errors import CorruptRecord, DamagedRows
from storage.local.memory import MemoryStore
from storage.tables.tables import DUE, seal
from storage.tables.timers import LOOKAHEAD_MS, RETAINED, SESSION, WILL, Due, due_key
from tests.storage.log_cases import golden


class Queue:
    """Timers over a store, with a batch that is written when a test says so."""

    def __init__(self) -> None:
        self.store = MemoryStore([DUE])
        self.batch: Batch = []
        self.due = Due(self.store)
        self.due.open()

    def add(self, at_ms: int, kind: int, name: bytes, value: bytes = b"") -> None:
        """Add an entry to the batch."""
        self.due.add(self.batch, at_ms, kind, name, value)

    def remove(self, at_ms: int, kind: int, name: bytes) -> None:
        """Take an entry away in the batch."""
        self.due.remove(self.batch, at_ms, kind, name)

    def write(self) -> None:
        """Write the batch."""
        self.store.write(self.batch)
        self.batch = []
        self.due.written()

    def come(self, now: int, count: int = 100) -> list[tuple[int, int, bytes]]:
        """Return what has come, and remove it."""
        found = []
        for entry in self.due.come(now, count):
            found.append((entry.at_ms, entry.kind, entry.name))
            self.remove(entry.at_ms, entry.kind, entry.name)
        self.write()
        return found


@pytest.mark.parametrize(
    ("case", "key"),
    [
        ("will", due_key(1_763_711_111_111, WILL, b"cl\xc3\xafent")),
        ("session", due_key(1_763_711_111_111, SESSION, b"c")),
        ("retained", due_key(1_763_711_111_111, RETAINED, b"a\0b")),
        ("last of all", due_key(2**64 - 1, 255, b"")),
    ],
)
def test_the_keys_are_those_on_disk(case: str, key: bytes) -> None:
    assert key.hex() == golden("due-keys.hex")[case].hex()


def test_values_are_sealed() -> None:
    queue = Queue()
    queue.add(5, WILL, b"c", b"body")
    assert queue.batch == [(DUE, due_key(5, WILL, b"c"), seal(b"body"))]


def test_entries_come_by_time_and_wills_before_the_ends_of_their_sessions() -> None:
    queue = Queue()
    for at_ms, kind, name in ((300, WILL, b"a"), (100, SESSION, b"b"), (100, WILL, b"c")):
        queue.add(at_ms, kind, name)
    queue.write()
    assert queue.come(99) == []
    assert queue.come(100) == [(100, WILL, b"c"), (100, SESSION, b"b")]
    assert queue.come(1000) == [(300, WILL, b"a")]
    assert queue.come(10_000) == []


def test_an_entry_comes_with_its_value() -> None:
    queue = Queue()
    queue.add(5, WILL, b"c", b"body")
    queue.write()
    (entry,) = queue.due.come(5, 10)
    assert (entry.key, entry.value) == (due_key(5, WILL, b"c"), b"body")
    assert queue.due.get(5, WILL, b"c") == b"body"
    assert queue.due.get(6, WILL, b"c") is None


def test_a_slice_is_no_larger_than_asked_and_the_rest_comes_at_once() -> None:
    queue = Queue()
    for number in range(10):
        queue.add(100, SESSION, b"%d" % number)
    queue.write()
    assert len(queue.come(200, 4)) == 4
    assert queue.due.next_ms is not None and queue.due.next_ms <= 200
    assert len(queue.come(200, 4)) == 4
    assert len(queue.come(200, 4)) == 2
    assert queue.come(200, 4) == []


def test_a_removal_is_known_before_it_is_written() -> None:
    queue = Queue()
    queue.add(100, SESSION, b"c")
    queue.write()
    queue.remove(100, SESSION, b"c")
    assert queue.due.is_removed(due_key(100, SESSION, b"c"))
    assert queue.due.get(100, SESSION, b"c") is None
    queue.add(100, SESSION, b"c")
    assert not queue.due.is_removed(due_key(100, SESSION, b"c"))
    queue.write()
    assert queue.come(100) == [(100, SESSION, b"c")]


def test_removing_what_is_not_there_changes_nothing() -> None:
    queue = Queue()
    queue.remove(100, SESSION, b"c")
    queue.write()
    assert queue.come(1000) == []


@pytest.mark.parametrize("at_ms", [0, 1, 50, 5000, 10**9])
def test_whatever_is_added_comes_no_later_than_it_is_due(at_ms: int) -> None:
    queue = Queue()
    queue.come(1000)  # nothing before is looked at again
    queue.add(at_ms, SESSION, b"c")
    queue.write()
    now = 1000
    while queue.due.next_ms is not None and queue.due.next_ms <= max(at_ms, now):
        now = max(now, queue.due.next_ms)
        found = queue.come(now)
        if found:
            assert found == [(at_ms, SESSION, b"c")]
            assert now == max(at_ms, 1000)
            return
        if at_ms - now > 3 * LOOKAHEAD_MS:
            now = at_ms - LOOKAHEAD_MS  # the loop was asleep
            queue.due.next_ms = now
    raise AssertionError("it never came")


def test_an_empty_queue_looks_again_no_later_than_its_horizon() -> None:
    queue = Queue()
    assert queue.due.next_ms is None
    queue.come(1000)
    assert queue.due.next_ms == 1000 + LOOKAHEAD_MS


def test_a_restart_finds_the_earliest_entry() -> None:
    queue = Queue()
    queue.add(700, SESSION, b"c")
    queue.add(500, WILL, b"d")
    queue.write()
    due = Due(queue.store)
    due.open()
    assert due.next_ms == 500
    assert [entry.name for entry in due.come(1000, 10)] == [b"d", b"c"]


@pytest.mark.parametrize("count", [1, 10])
def test_damaged_entries_are_noticed_and_passed_over(count: int) -> None:
    queue = Queue()
    queue.store.write([(DUE, due_key(5, WILL, b"c"), b"\0\0\0\0body")])
    queue.store.write([(DUE, due_key(6, WILL, b"unreadable"), b"")])
    queue.due.add(queue.batch, 7, WILL, b"whole")
    queue.write()
    queue.store.damage(DUE, [due_key(6, WILL, b"unreadable")])
    assert [entry.name for entry in queue.due.come(10, count)] == [b"whole"]
    assert {type(problem) for problem in queue.due.damages} == {CorruptRecord, DamagedRows}
    queue.due.remove(queue.batch, 7, WILL, b"whole")
    queue.write()
    assert queue.due.come(20, count) == []
    assert queue.due.next_ms is not None and queue.due.next_ms > 20
