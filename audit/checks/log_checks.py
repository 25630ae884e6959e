"""H1: the history itself. Rows without holes, consecutive boots, no durable rows lost.

A hole that the history explains (the broker deleted rows and recorded it) is time that could not be
tested. Any other hole is a violation, and so is a duplicate row: a finding names node, rows and
files. The worst case: a boot found fewer
rows on its disk than were exported before, so the disk lost what was durable.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pyspark.sql import functions as F

from audit.checks.clock_check import steps_back
from audit.checks.verdict import Outcome
from audit.input import facts
from audit.input.batch_view import View
from audit.input.events import boot_of, gseq, seq_of
from audit.input.gaps import HOLE, Boot
from audit.input.kept_rows import Kept
from audit.input.segments import Segment

# Number of lost messages listed per loss.
NAMED_MAX: Final = 100
FILES_MAX: Final = 10  # named per finding
PROMISES: Final = ("pub_acked", "msg_persisted")
# A disk that loses rows loses the last ones, so the promises of this time are carried.
LATE_PROMISES_US: Final = 5_000_000


@dataclass(frozen=True)
class DiskLoss:
    """Rows of a boot that were exported as durable, but that the next boot did not find."""

    node: str
    boot: int
    from_seq: int
    to_seq: int

    @property
    def interval(self) -> facts.Interval:
        """Return the node, and from where to where (gseq) its rows are lost."""
        return self.node, gseq(self.boot, self.from_seq), gseq(self.boot, self.to_seq)


def disk_losses(view: View) -> list[DiskLoss]:
    """Return the exported rows that each new boot did not find on its disk."""
    return [
        DiskLoss(before.node, before.boot, after.claimed + 1, before.last_seq)
        for before, after in _new_pairs(view)
        if after.claimed is not None and after.boot == before.boot + 1
        if after.claimed < before.last_seq
    ]


def lost_messages(view: View, loss: DiskLoss) -> list[int]:
    """Return at most 100 messages that were reported durable in rows that the disk lost."""
    rows = view.of(*PROMISES, columns=["node", "gseq", "msg"]).where(
        (F.col("node") == loss.node)
        & F.col("gseq").between(gseq(loss.boot, loss.from_seq), gseq(loss.boot, loss.to_seq))
        & F.col("msg").isNotNull()
    )
    return [row.msg for row in rows.select("msg").distinct().orderBy("msg").take(NAMED_MAX)]


def check(view: View) -> list[Outcome]:
    """Return H1. It counts each boot, each transition between boots and each hole once."""
    witnesses: list[dict[str, object]] = []
    for gap in view.new_gaps:
        if gap.kind != HOLE or gap.explained:
            continue
        witnesses.append(
            {
                "what": "rows are missing",
                "node": gap.node,
                "from": _place(gap.from_gseq),
                "to": _place(gap.to_gseq),
                "reason": gap.reason,
                "files": _files(view, gap.node, gap.from_gseq, gap.to_gseq),
            }
        )
    for doubled in view.duplicates:
        first, last = (gseq(doubled.boot, seq) for seq in (doubled.first_seq, doubled.last_seq))
        witnesses.append(
            {
                "what": "rows are there more than once",
                "node": doubled.node,
                "from": _place(first),
                "to": _place(last),
                "rows": doubled.rows,
                "files": _files(view, doubled.node, first, last),
            }
        )
    for node, boot, seq, back_us in steps_back(view):
        place = gseq(boot, seq)
        witnesses.append(
            {
                "what": "the time goes back",
                "node": node,
                "from": _place(place - 1),
                "to": _place(place),
                "back_us": back_us,
                "files": _files(view, node, place - 1, place),
            }
        )
    for loss in disk_losses(view):
        witnesses.append(
            {
                "what": "the disk lost rows that had been durable",
                "node": loss.node,
                "boot": loss.boot,
                "from_seq": loss.from_seq,
                "to_seq": loss.to_seq,
                "messages": lost_messages(view, loss),
                "files": _files(
                    view, loss.node, gseq(loss.boot, loss.from_seq), gseq(loss.boot, loss.to_seq)
                ),
            }
        )
    known = {(boot.node, boot.boot) for boot in view.boots_before}
    new = sum((boot.node, boot.boot) not in known for boot in view.boots)
    checked = new + len(_new_pairs(view)) + len(witnesses)
    most = view.settings.witnesses_max
    return [Outcome("H1", checked, len(witnesses), 0, witnesses[:most])]


def carry(view: View) -> Kept:
    """Return the last promises of each node, which the next boot may show to be lost."""
    since = {node: last_us - LATE_PROMISES_US for node, last_us in view.lasts_us.items()}
    late = F.unix_micros("ts") >= facts.of_node(F.col("node"), since)
    return Kept((view.of(*PROMISES, columns=("node", "gseq", "ts")).where(late),))


def _new_pairs(view: View) -> list[tuple[Boot, Boot]]:
    """Return (boot before, boot) for each boot of a node that earlier batches did not know."""
    known = {(boot.node, boot.boot) for boot in view.boots_before}
    return [
        (before, after)
        for before, after in pairwise(view.boots)
        if before.node == after.node and (after.node, after.boot) not in known
    ]


def _files(view: View, node: str, start: int, end: int) -> list[str]:
    """Return the names of the new segments with the rows `start`..`end` of a node (gseqs).

    If none has them, they are missing between two segments, which are named then.
    """
    mine = [segment for segment in view.segments if segment.node == node]

    def first(segment: Segment) -> int:
        return gseq(segment.boot, segment.first_seq)

    def last(segment: Segment) -> int:
        return gseq(segment.boot, segment.last_seq)

    inside = [each for each in mine if first(each) <= end and last(each) >= start]
    if not inside:
        inside += sorted((each for each in mine if last(each) < start), key=last)[-1:]
        inside += sorted((each for each in mine if first(each) > end), key=first)[:1]
    return [segment.name for segment in sorted(inside, key=first)[:FILES_MAX]]


def _place(place: int) -> dict[str, int]:
    return {"boot": boot_of(place), "seq": seq_of(place)}
