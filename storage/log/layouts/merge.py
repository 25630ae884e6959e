"""Merge the index entries of several streams by offset, with bounded read-ahead.

An entry is a number that sorts like its offset; each stream's entries are ascending. Shared by the
layouts with an index. Must never hold more than BUFFERED_MAX entries, or INDEX_PAGE_FIRST per
stream.
Read next: `storage.log.layouts.filters`, `storage.log.layouts.block_reader`.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import Final, Protocol

# Entries that one reader holds at most, unless a first page of each of its streams is more. 4,096
# of them are 160 kB.
BUFFERED_MAX: Final = 4096
INDEX_PAGE_FIRST: Final = 8  # entries in the first page of a stream: most streams have few
# The same for a reader of one stream: a search costs as much as 15 entries, so it should find what
# most backlogs have.
INDEX_PAGE_ALONE: Final = 128
INDEX_PAGE_MAX: Final = 512  # entries in a later page


class Index(Protocol):
    """The source of entries."""

    def page(self, filter_id: int, after: int, upto: int, count: int) -> list[int]:
        """Return the next entries of a filter with after < entry <= upto, ascending.

        At most `count`; fewer mean that there are no more up to `upto`.
        """
        ...


class Lane:
    """One stream being read, with a page of entries read ahead."""

    __slots__ = ("at", "entries", "filter_id", "known", "page_size")

    def __init__(self, filter_id: int, after: int, page_size: int) -> None:
        self.filter_id: int = filter_id
        self.entries: list[int] = []
        self.at: int = 0  # index of the next entry
        # Read up to here: there is no further entry between the last of `entries` and this.
        self.known: int = after
        self.page_size: int = page_size  # of the next page


class Merge:
    """The entries of some streams in order, each once.

    The heap holds the next entry of each lane, or, when its page is used up, the lowest entry that
    could come next. The lane's next page is read only when that bound reaches the top of the heap.
    So a session with one deep stream and a thousand idle ones reads the idle ones once each time
    the end of the log has moved, not once per page of the deep one.
    """

    __slots__ = ("_heap", "_index", "_last", "_page_max", "_stop", "is_paused", "lanes", "searches")

    def __init__(self, index: Index, starts: Sequence[tuple[int, int]], after: int) -> None:
        """`starts` has each filter once, with the entry after which reading begins."""
        self._index: Final = index
        first = INDEX_PAGE_ALONE if len(starts) == 1 else INDEX_PAGE_FIRST
        self.lanes: Final = [Lane(filter_id, start, first) for filter_id, start in starts]
        self._heap: Final = [(lane.known + 1, number) for number, lane in enumerate(self.lanes)]
        heapify(self._heap)
        ahead = BUFFERED_MAX // max(1, len(self.lanes))
        self._page_max: Final = max(INDEX_PAGE_FIRST, min(INDEX_PAGE_MAX, ahead))
        self._last = after  # greatest entry returned
        self.searches: int = 0  # pages read from the index so far
        self._stop = -1  # number of searches at which `take` ends, -1 = no limit
        self.is_paused: bool = False  # it ended there

    @property
    def floor(self) -> int:
        """Return an entry up to which all were returned."""
        return self._heap[0][0] - 1

    def allow(self, searches: int) -> None:
        """Let the next calls of `take` together search the index so often, 0 = without limit."""
        self._stop = self.searches + searches if searches else -1
        self.is_paused = False

    def take(self, count: int, upto: int) -> list[int]:
        """Return at most `count` next entries <= `upto` of all lanes, in order, each once.

        An empty list means that there are no more up to `upto`, which must never shrink, unless
        `is_paused`: then the searches that were allowed are used up.
        """
        lanes = self.lanes
        if len(lanes) == 1:
            return self._page_of_one(lanes[0], count, upto)
        heap = self._heap
        merged: list[int] = []
        last = self._last
        while len(merged) < count and heap:
            entry, number = heap[0]
            if entry > upto:
                break
            lane = lanes[number]
            if lane.at < len(lane.entries):
                if entry != last:
                    merged.append(entry)
                    last = entry
                lane.at += 1
            elif self.searches == self._stop:
                self.is_paused = True
                break
            else:
                self._fill(lane, upto)
            bound = lane.entries[lane.at] if lane.at < len(lane.entries) else lane.known + 1
            heapreplace(heap, (bound, number))
        self._last = last
        return merged

    def buffered(self) -> int:
        """Return how many distinct entries are read ahead."""
        return len({entry for lane in self.lanes for entry in lane.entries[lane.at :]})

    def _page_of_one(self, lane: Lane, count: int, upto: int) -> list[int]:
        if lane.at == len(lane.entries):
            if lane.known >= upto:
                return []
            self._fill(lane, upto)
        start = lane.at
        page = lane.entries[start : start + count]
        lane.at = start + len(page)
        return page

    def _fill(self, lane: Lane, upto: int) -> None:
        """Read the next page of `lane`, which is used up."""
        self.searches += 1
        size = min(lane.page_size, self._page_max)
        lane.entries = self._index.page(lane.filter_id, lane.known, upto, size)
        lane.at = 0
        if len(lane.entries) < size:
            lane.known = upto
        else:
            lane.known = lane.entries[-1]
            lane.page_size = 4 * size
