"""H1: the history itself. Rows without holes, boots that follow each other, nothing unwritten.

A hole that the history accounts for (the broker threw rows away, and said so) is `unknown`; one
that nobody accounts for is a violation, and so is a row that is there twice. The gravest: the next
boot found less on its disk than was exported, so the disk lost what had been promised.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pyspark.sql import functions as F

from audit.checks.verdict import Outcome
from audit.input.batch_view import View
from audit.input.events import boot_of, gseq, seq_of
from audit.input.gaps import HOLE, Boot
from audit.input.kept_rows import Kept

# Messages of so many that the disk lost are named.
NAMED_MAX: Final = 100
PROMISES: Final = ("pub_acked", "msg_persisted")
# A disk that loses rows loses the last ones. They are kept for so long.
LATE_PROMISES_US: Final = 5_000_000


@dataclass(frozen=True)
class DiskLoss:
    """Rows of a boot that were exported as durable, but that the next boot does not have."""

    node: str
    boot: int
    from_seq: int
    to_seq: int


def disk_losses(view: View) -> list[DiskLoss]:
    """Return what each new boot found missing on its disk, of what had been exported before."""
    return [
        DiskLoss(before.node, before.boot, after.claimed + 1, before.last_seq)
        for before, after in _new_pairs(view)
        if after.claimed is not None and after.boot == before.boot + 1
        if after.claimed < before.last_seq
    ]


def lost_messages(view: View, loss: DiskLoss) -> list[int]:
    """Return the messages whose durability was promised by rows that the disk lost, 100 at most."""
    rows = view.of(*PROMISES, columns=["node", "gseq", "msg"]).where(
        (F.col("node") == loss.node)
        & F.col("gseq").between(gseq(loss.boot, loss.from_seq), gseq(loss.boot, loss.to_seq))
        & F.col("msg").isNotNull()
    )
    return [row.msg for row in rows.select("msg").distinct().orderBy("msg").take(NAMED_MAX)]


def check(view: View) -> list[Outcome]:
    """Return H1. Counted: each boot, what joins it to the one before, and each hole; once."""
    witnesses: list[dict[str, object]] = []
    unknown = 0
    for gap in view.new_gaps:
        if gap.kind != HOLE:
            continue
        if gap.explained:
            unknown += gap.reason != "before the history begins"
            continue
        witnesses.append(
            {
                "what": "rows are missing",
                "node": gap.node,
                "from": _place(gap.from_gseq),
                "to": _place(gap.to_gseq),
                "reason": gap.reason,
            }
        )
    if view.duplicates:
        witnesses.append({"what": "rows are there more than once", "rows": view.duplicates})
    for loss in disk_losses(view):
        witnesses.append(
            {
                "what": "the disk lost rows that had been durable",
                "node": loss.node,
                "boot": loss.boot,
                "from_seq": loss.from_seq,
                "to_seq": loss.to_seq,
                "messages": lost_messages(view, loss),
            }
        )
    known = {(boot.node, boot.boot) for boot in view.boots_before}
    new = sum((boot.node, boot.boot) not in known for boot in view.boots)
    checked = new + len(_new_pairs(view)) + len(witnesses)
    most = view.settings.witnesses_max
    return [Outcome("H1", checked, len(witnesses), unknown, witnesses[:most])]


def carry(view: View) -> Kept:
    """Return the last promises of each node: the next boot may show that the disk lost them."""
    late = F.lit(False)
    for node in {boot.node for boot in view.boots}:
        since = F.timestamp_micros(F.lit(view.last_us(node) - LATE_PROMISES_US))
        late = late | ((F.col("node") == node) & (F.col("ts") >= since))
    return Kept((view.of(*PROMISES, columns=("node", "gseq", "ts")).where(late),))


def _new_pairs(view: View) -> list[tuple[Boot, Boot]]:
    """Return each boot that earlier batches did not know, after the one before it on its node."""
    known = {(boot.node, boot.boot) for boot in view.boots_before}
    return [
        (before, after)
        for before, after in pairwise(view.boots)
        if before.node == after.node and (after.node, after.boot) not in known
    ]


def _place(place: int) -> dict[str, int]:
    return {"boot": boot_of(place), "seq": seq_of(place)}
