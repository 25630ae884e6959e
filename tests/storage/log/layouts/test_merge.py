"""Are the entries of several streams merged in order, each once, and with bounded read-ahead?"""

import pytest

from storage.log.layouts.merge import BUFFERED_MAX, INDEX_PAGE_ALONE, INDEX_PAGE_MAX, Merge


class Table:
    """An index in memory that remembers what was asked of it."""

    def __init__(self, entries: dict[int, list[int]]) -> None:
        self.entries = entries
        self.pages: list[tuple[int, int]] = []  # filter_id, entries returned

    def page(self, filter_id: int, after: int, upto: int, count: int) -> list[int]:
        """Return the next entries."""
        found = [e for e in self.entries.get(filter_id, []) if after < e <= upto][:count]
        self.pages.append((filter_id, len(found)))
        return found


def drained(merge: Merge, upto: int, count: int) -> list[int]:
    """Take everything there is up to `upto`."""
    found: list[int] = []
    while page := merge.take(count, upto):
        assert len(page) <= count
        found += page
    return found


@pytest.mark.parametrize("count", [1, 3, 1000])
def test_entries_come_in_order_and_once(count: int) -> None:
    table = Table({1: list(range(0, 900, 2)), 2: list(range(0, 900, 3)), 3: []})
    merge = Merge(table, [(1, 10), (2, 100), (3, 0)], 0)
    expected = sorted({n for n in range(12, 900, 2)} | {n for n in range(102, 900, 3)})
    assert drained(merge, 500, count) == [n for n in expected if n <= 500]
    assert drained(merge, 2000, count) == [n for n in expected if n > 500]


def test_an_idle_stream_is_looked_at_once_per_end() -> None:
    table = Table({1: list(range(1, 5000))})
    merge = Merge(table, [(n, 0) for n in range(1, 101)], 0)
    assert drained(merge, 5000, 64) == list(range(1, 5000))
    idle = [filter_id for filter_id, _ in table.pages if filter_id != 1]
    assert sorted(idle) == list(range(2, 101))


def test_a_reader_of_one_stream_finds_a_usual_backlog_with_one_search() -> None:
    table = Table({1: list(range(1, INDEX_PAGE_ALONE)), 2: list(range(100, 5000))})
    alone = Merge(table, [(1, 0)], 0)
    assert drained(alone, 5000, 20) == list(range(1, INDEX_PAGE_ALONE))
    assert alone.searches == 1
    deep = Merge(table, [(2, 0)], 0)
    assert drained(deep, 5000, 20) == list(range(100, 5000))
    sizes = [size for _, size in table.pages[1:4]]
    assert sizes == [INDEX_PAGE_ALONE, INDEX_PAGE_MAX, INDEX_PAGE_MAX]


def test_what_is_read_ahead_is_bounded() -> None:
    streams = 64
    table = Table({n: list(range(n, 60_000, streams)) for n in range(1, streams + 1)})
    merge = Merge(table, [(n, 0) for n in range(1, streams + 1)], 0)
    assert merge.buffered() == 0
    most = 0
    while page := merge.take(100, 60_000):
        most = max(most, merge.buffered())
        assert len(page) <= 100
    assert BUFFERED_MAX // 2 < most <= BUFFERED_MAX
    assert max(size for _, size in table.pages) <= INDEX_PAGE_MAX


def test_a_limit_of_searches_pauses_and_loses_nothing() -> None:
    entries = {n: list(range(n, 400, 7 * n)) for n in range(1, 30)}
    wanted = sorted({entry for lane in entries.values() for entry in lane})
    table = Table(entries)
    merge = Merge(table, [(n, 0) for n in range(1, 30)], 0)
    found: list[int] = []
    floors = [0]
    while True:
        searched = merge.searches
        merge.allow(3)
        found += merge.take(4, 400)
        assert merge.searches - searched <= 3
        floors.append(merge.floor)
        assert found == wanted[: len(found)]
        assert len(found) >= sum(entry <= merge.floor for entry in wanted)
        if not merge.is_paused and len(found) == len(wanted):
            break
    assert floors == sorted(floors)
    merge.allow(3)
    assert merge.take(4, 400) == [] and not merge.is_paused
    assert merge.searches == len(table.pages)


def test_a_pause_in_the_first_round_says_that_nothing_is_known_yet() -> None:
    merge = Merge(Table({3: [50]}), [(n, 40) for n in (1, 2, 3)], 40)
    for _ in range(2):
        merge.allow(1)
        assert merge.take(9, 60) == [] and merge.is_paused and merge.floor == 40
    merge.allow(1)
    assert merge.take(9, 60) == [50] and not merge.is_paused
