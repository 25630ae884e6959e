"""Count stored messages for the ranges of offsets that external stores were told of.

Runs in Spark's workers, on batches of rows with node, gseq, msg and topic. Each distinct topic of a
batch is matched once; the rest is arithmetic on columns.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from audit.checks.topic_matching import Trie
from storage.history.events import CHECK_BITS, CHECK_ROOT_BITS, SHORTENED

Numbers = npt.NDArray[np.int64]

_MASK: Final = (1 << CHECK_BITS) - 1
_ROOT: Final = (1 << CHECK_ROOT_BITS) - 1
_HALF_BITS: Final = 31
_HALF: Final = (1 << _HALF_BITS) - 1
_SCHEMA: Final = pa.schema(
    [("story", pa.int32()), ("range", pa.int32())]
    + [(name, pa.int64()) for name in ("count", "check1", "check2", "doubtful", "low", "high")]
)
_OPEN: Final = pa.schema([("node", pa.string()), ("gseq", pa.int64())])
NEVER: Final = 1 << 62


@dataclass
class Wanted:
    """What one store of one node wants."""

    node: str
    ranges: list[tuple[int, int, int]]  # first, last, number of its statement
    gaps: list[tuple[int, int]]  # these messages do not count
    statements: list[dict[str, int]]  # filters, each with the offset behind which it reads


@dataclass
class _Tally:
    count: int = 0
    check1: int = 0
    check2: int = 0
    doubtful: int = 0
    low: int = NEVER
    high: int = -1


@dataclass
class _Story:
    wanted: Wanted
    firsts: Numbers
    lasts: Numbers
    order: Numbers
    tallies: dict[int, _Tally] = field(default_factory=dict)


class Counting:
    """The tallies of one worker."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._stories = [_story(each) for each in wanted]
        names: dict[str, int] = {}
        for each in wanted:
            for statement in each.statements:
                for topic_filter in statement:
                    names.setdefault(topic_filter, len(names))
        self._names = list(names)
        self._trie = Trie(names.items())
        self._shortened = re.compile(SHORTENED)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the messages of a batch of rows."""
        node, gseq, msg, topic = _columns(batch)
        for story in self._stories:
            own = node == story.wanted.node
            if not own.any():
                continue
            at = _range_of(story, msg[own])
            _bound(story, at, gseq[own])
            self._count(story, at, msg[own], topic[own])

    def _count(self, story: _Story, at: Numbers, msg: Numbers, topic: Any) -> None:
        topics, which = np.unique(topic, return_inverse=True)
        counts = ~_within(msg, story.wanted.gaps)
        for number, text in enumerate(topics):
            is_short = bool(self._shortened.match(str(text)))
            matching = {self._names[found] for found in self._trie.match(str(text))}
            here = (which == number) & counts
            for part in np.unique(at[here]):
                mine = here & (at == part)
                since = self._since(story, int(part), matching)
                tally = story.tallies.setdefault(int(part), _Tally())
                if is_short:
                    tally.doubtful += int(mine.sum())
                elif since is not None:
                    _add(tally, msg[mine & (msg > since)])

    def _since(self, story: _Story, part: int, matching: set[str]) -> int | None:
        """Return the offset behind which a topic is wanted in a range, None = it is not."""
        statement = _statement(story.wanted, part)
        return min((statement[name] for name in matching if name in statement), default=None)

    def waiting(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the places of those messages that a store wants and was not told of yet."""
        node, gseq, msg, topic = _columns(batch)
        found = np.zeros(len(msg), np.bool_)
        for story in self._stories:
            size = len(story.wanted.ranges)
            own = (node == story.wanted.node) & (_range_of(story, msg) == size)
            own &= ~_within(msg, story.wanted.gaps)
            for text in np.unique(topic[own]):
                matching = {self._names[number] for number in self._trie.match(str(text))}
                since = self._since(story, size, matching)
                if since is not None:
                    found |= own & (topic == text) & (msg > since)
        columns = [pa.array(node[found], pa.string()), pa.array(gseq[found], pa.int64())]
        return pa.RecordBatch.from_arrays(columns, schema=_OPEN)

    def table(self) -> pa.RecordBatch:
        """Return all tallies."""
        rows = [
            (number, part, tally.count, tally.check1 & _MASK, tally.check2 & _MASK,
             tally.doubtful, tally.low, tally.high)
            for number, story in enumerate(self._stories)
            for part, tally in story.tallies.items()
        ]  # fmt: skip
        columns = list(zip(*rows, strict=True)) or [()] * len(_SCHEMA)
        arrays = [
            pa.array(column, each.type) for column, each in zip(columns, _SCHEMA, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _story(wanted: Wanted) -> _Story:
    """Return a story with its ranges in the order of their offsets: some may overlap."""
    firsts = np.array([first for first, _, _ in wanted.ranges], np.int64)
    lasts = np.array([last for _, last, _ in wanted.ranges], np.int64)
    order = np.argsort(firsts, kind="stable")
    return _Story(wanted, firsts[order], lasts[order], order.astype(np.int64))


def _columns(batch: pa.RecordBatch) -> tuple[Any, Numbers, Numbers, Any]:
    node = np.array(batch.column(0).to_pylist(), object)
    topic = np.array([text or "" for text in batch.column(3).to_pylist()], object)
    gseq = np.asarray(batch.column(1).to_numpy(zero_copy_only=False), np.int64)
    msg = np.asarray(batch.column(2).to_numpy(zero_copy_only=False), np.int64)
    return node, gseq, msg, topic


def _range_of(story: _Story, msg: Numbers) -> Numbers:
    """Return the range of each message: -1 is before all, their number behind all.

    A message between two ranges is in none, and counts as -1: it has no place.
    """
    size = len(story.firsts)
    if not size:
        return np.zeros(len(msg), np.int64)
    at = np.searchsorted(story.firsts, msg, side="right") - 1
    inside = (at >= 0) & (msg <= story.lasts[np.maximum(at, 0)])
    found = np.where(inside, story.order[np.maximum(at, 0)], -1)
    return np.where(msg > story.lasts.max(), size, found).astype(np.int64)


def _bound(story: _Story, at: Numbers, gseq: Numbers) -> None:
    for part in np.unique(at):
        tally = story.tallies.setdefault(int(part), _Tally())
        places = gseq[at == part]
        tally.low = min(tally.low, int(places.min()))
        tally.high = max(tally.high, int(places.max()))


def _statement(wanted: Wanted, part: int) -> dict[str, int]:
    """Return the filters that were in force for a range; behind the last one, the newest."""
    if part == -1 or not wanted.statements:
        return {}
    number = wanted.ranges[part][2] if part < len(wanted.ranges) else -1
    if part < len(wanted.ranges) and number < 0:
        return {}
    return wanted.statements[number]


def _within(msg: Numbers, gaps: Sequence[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(msg), np.bool_)
    for first, last in gaps:
        found |= (msg >= first) & (msg <= last)
    return found


def _add(tally: _Tally, offsets: Numbers) -> None:
    """Add messages."""
    root = offsets & _ROOT
    tally.count += len(offsets)
    tally.check1 = (tally.check1 + _sum(offsets)) & _MASK
    tally.check2 = (tally.check2 + _sum(root * root)) & _MASK


def _sum(values: Numbers) -> int:
    """Return a sum of numbers of up to 62 bits; the sums of their halves do not overflow."""
    return int((values & _HALF).sum()) + (int((values >> _HALF_BITS).sum()) << _HALF_BITS)
