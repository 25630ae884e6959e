"""H1: the history itself. Rows without holes, boots that follow each other, nothing unwritten.

A hole that the history accounts for (the broker threw rows away, and said so) is `unknown`; one
that nobody accounts for is a violation, and so is a row that is there twice. The gravest: the next
boot found less on its disk than was exported, so the disk lost what had been promised.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import functions as F

from audit.events import boot_of, gseq, seq_of
from audit.gaps import HOLE, Boot
from audit.outcome import Outcome
from audit.view import View

# Messages of so many that the disk lost are named.
NAMED_MAX = 100


@dataclass(frozen=True)
class DiskLoss:
    """Rows of a boot that were exported as durable, but that the next boot does not have."""

    node: str
    boot: int
    from_seq: int
    to_seq: int


def disk_losses(view: View) -> list[DiskLoss]:
    """Return what each boot found missing on its disk, of what had been exported before."""
    return [
        DiskLoss(before.node, before.boot, after.claimed + 1, before.last_seq)
        for before, after in _pairs(view)
        if after.claimed is not None and after.boot == before.boot + 1
        if after.claimed < before.last_seq
    ]


def lost_messages(view: View, loss: DiskLoss) -> list[int]:
    """Return the messages whose durability was promised by rows that the disk lost, 100 at most."""
    rows = view.of("pub_acked", "msg_persisted", columns=["node", "gseq", "msg"]).where(
        (F.col("node") == loss.node)
        & F.col("gseq").between(gseq(loss.boot, loss.from_seq), gseq(loss.boot, loss.to_seq))
        & F.col("msg").isNotNull()
    )
    return [row.msg for row in rows.select("msg").distinct().orderBy("msg").take(NAMED_MAX)]


def check(view: View) -> list[Outcome]:
    """Return H1. Counted: rows' boots, what joins them, and each hole."""
    witnesses: list[dict[str, object]] = []
    unknown = 0
    for gap in view.gaps:
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
    checked = len(view.boots) + sum(1 for _ in _pairs(view)) + len(witnesses)
    most = view.settings.witnesses_max
    return [Outcome("H1", checked, len(witnesses), unknown, witnesses[:most])]


def _pairs(view: View) -> Iterator[tuple[Boot, Boot]]:
    """Yield each boot with the one after it on its node."""
    for before, after in zip(view.boots, view.boots[1:], strict=False):
        if before.node == after.node:
            yield before, after


def _place(place: int) -> dict[str, int]:
    return {"boot": boot_of(place), "seq": seq_of(place)}
