"""H1: the time of a broker never goes back within a boot, whatever the wall clock does.

Segments have their rows in order, so each worker compares a row with the one before it in the same
task: one pass without a sort. Where two tasks meet, and between segments, nothing is compared here;
the runs of `audit.input.batch_view` have the first and last time of their rows.
"""

import sys
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import functions as F

from audit.input.batch_view import View
from audit.input.events import boot_of, seq_of

_OUT: Final = "node string, gseq long, back_us long"


def steps_back(view: View) -> list[tuple[str, int, int, int]]:
    """Return the first places where the time goes back: (node, boot, seq, by how many us)."""
    rows = view.events.where(~F.col("carried")).select("node", "gseq", F.unix_micros("ts"))
    # Workers of a cluster get this module with the job: they need pyarrow, not Holdfast.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call] # untyped
    found = rows.mapInArrow(compare, _OUT).orderBy("node", "gseq")
    return [
        (row.node, boot_of(row.gseq), seq_of(row.gseq), row.back_us)
        for row in found.take(view.settings.witnesses_max)
    ]


def compare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows (node, gseq, us) whose time is before that of the row before them."""
    last = None  # the last row of the batch before
    for batch in batches:
        if not batch.num_rows:
            continue
        table = pa.Table.from_batches([batch] if last is None else [last, batch])
        last = batch.slice(batch.num_rows - 1)
        node, gseq, us = (table.column(index) for index in range(3))
        same = pc.equal(node.slice(1), node.slice(0, len(node) - 1)).to_numpy()
        places, times = gseq.to_numpy(), us.to_numpy()
        follows = same & (places[1:] >> 40 == places[:-1] >> 40) & (places[1:] > places[:-1])
        at = np.flatnonzero(follows & (times[1:] < times[:-1])) + 1
        columns = [node.take(at).combine_chunks(), places[at], times[at - 1] - times[at]]
        arrays = [pa.array(column) for column in columns]
        yield pa.RecordBatch.from_arrays(arrays, ["node", "gseq", "back_us"])
