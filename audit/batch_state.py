"""The state that one run leaves for the next: consumed segments, boots, gaps, totals.

A batch is a run over segments that no earlier batch has consumed. Its outputs are keyed by its
number. It is complete when `state/batch-N.json` exists, which is written last and atomically. If a
run is killed before that, the next one repeats the batch and overwrites its outputs.

Consumed segments are stored as ranges of seq per boot. That is small, and a segment of an older
hour that arrives late is still recognised as new. Rows needed again (of what is still open) are
stored as rows, in `state/rows/batch=N`.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from pyspark.sql import SparkSession

from audit.files import join, list_files, read_text, write_text
from audit.input.gaps import Boot, Gap
from audit.input.segments import Segment
from storage.history.chain import Place

STATE_VERSION: Final = 1
_NAME: Final = re.compile(r"batch-(\d+)\.json$")

Ranges = dict[str, list[tuple[int, int]]]  # "node/boot" -> ranges of seq, both ends included


@dataclass(frozen=True)
class State:
    """The state after a batch; batch -1 is before the first."""

    batch: int = -1
    segments: tuple[str, ...] = ()  # names of those this batch consumed
    consumed: Ranges = field(default_factory=dict)  # by this batch and all before it
    boots: tuple[Boot, ...] = ()
    gaps: tuple[Gap, ...] = ()
    totals: dict[str, dict[str, int]] = field(default_factory=dict)
    # Of the newest segments by node, which the next ones follow: boot, last seq and head.
    heads: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)

    @property
    def heads_by_place(self) -> dict[str, dict[Place, str]]:
        """Return the heads by node, and by the place where their segment ends."""
        return {
            node: {(boot, last_seq): head for boot, last_seq, head in heads}
            for node, heads in self.heads.items()
        }

    def has(self, segment: Segment) -> bool:
        """Return whether a batch has consumed the segment."""
        return any(
            first <= segment.first_seq and segment.last_seq <= last
            for first, last in self.consumed.get(segment.key, ())
        )

    def after(self, segments: Sequence[Segment], boots: Sequence[Boot], gaps: Sequence[Gap],
              totals: dict[str, dict[str, int]],
              heads: Mapping[str, Mapping[Place, str]] | None = None) -> "State":  # fmt: skip
        """Return the state after consuming these segments, too."""
        consumed = {key: list(ranges) for key, ranges in self.consumed.items()}
        for segment in segments:
            consumed.setdefault(segment.key, []).append((segment.first_seq, segment.last_seq))
        return State(
            self.batch + 1,
            tuple(segment.name for segment in segments),
            {key: _joined(ranges) for key, ranges in consumed.items()},
            tuple(boots),
            tuple(gaps),
            totals,
            {
                node: [(*place, head) for place, head in mine.items()]
                for node, mine in (heads or {}).items()
            },
        )


def rows_place(out: str, batch: int) -> str:
    """Return the place of the rows that a batch keeps for the next."""
    return join(out, "state", "rows", f"batch={batch}")


def load(spark: SparkSession | None, out: str, batch: int | None = None) -> State:
    """Return the state after a batch, by default the last; the empty state if there is none.

    Raises ValueError if the file is damaged or of an unknown version.
    """
    if batch is None:
        batch = max(batches(spark, out), default=-1)
    if batch < 0:
        return State()
    place = _place(out, batch)
    try:
        values: dict[str, Any] = json.loads(read_text(spark, place))
    except ValueError as problem:
        raise ValueError(f"{place}: damaged ({problem}); begin anew with another --out") from None
    version = values.pop("version", None)
    if version != STATE_VERSION:
        raise ValueError(
            f"{place}: a state of version {version}, expected {STATE_VERSION}; "
            "begin anew with another --out"
        )
    consumed = {
        key: [(first, last) for first, last in ranges]
        for key, ranges in values.pop("consumed").items()
    }
    boots = tuple(Boot(**boot) for boot in values.pop("boots"))
    gaps = tuple(Gap(**gap) for gap in values.pop("gaps"))
    segments = tuple(values.pop("segments"))
    heads = {
        node: [(boot, seq, head) for boot, seq, head in mine]
        for node, mine in values.pop("heads", {}).items()
    }
    known = replace(State(**values), segments=segments, consumed=consumed)
    return replace(known, boots=boots, gaps=gaps, heads=heads)


def batches(spark: SparkSession | None, out: str) -> list[int]:
    """Return the numbers of the complete batches."""
    names = list_files(spark, join(out, "state"), ".json")
    return sorted(int(match[1]) for name in names if (match := _NAME.search(name)))


def save(spark: SparkSession, out: str, state: State) -> None:
    """Write the state, which completes its batch. Durable on return."""
    text = json.dumps({"version": STATE_VERSION, **asdict(state)}, indent=1)
    write_text(spark, _place(out, state.batch), text)


def _place(out: str, batch: int) -> str:
    return join(out, "state", f"batch-{batch:08}.json")


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges with adjacent ones joined."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined
