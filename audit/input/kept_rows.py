"""What one batch keeps of the history for the next: the places of rows, read once for all parts.

A part looks for what it wants in the few columns that it needs, and names places. Only then are
the rows themselves read, with all of their columns, in one pass for everybody.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from audit.input.batch_view import View
from audit.input.events import NAMES, SCHEMA
from audit.spark import frame_of

# Begins the names of carried rows that are no events. They have the place of one.
MADE: Final = "#"

# Copied to every task if there are no more: 40 MB, 200 bytes each. Beyond that it is a join of two
# large tables.
BROADCAST_ROWS_MAX = 200_000


@dataclass(frozen=True)
class Kept:
    """What a part keeps: rows of the history, by their `node` and `gseq`, and rows it has made."""

    places: tuple[DataFrame, ...] = ()
    made: tuple[DataFrame, ...] = ()


def are_few(frame: DataFrame) -> bool:
    """Tell whether a frame is small enough to be copied to every task; it is counted for that."""
    return frame.count() <= BROADCAST_ROWS_MAX


def few(frame: DataFrame) -> DataFrame:
    """Return a frame as one side of a join: copied to every task, if it is small enough."""
    return F.broadcast(frame) if are_few(frame) else frame


def rows(view: View, kept: Iterable[Kept]) -> DataFrame:
    """Return the rows, with the columns of the history, each once."""
    wanted = list(kept)
    made = [frame.select(*NAMES) for each in wanted for frame in each.made]
    found = [frame.select("node", "gseq") for each in wanted for frame in each.places]
    if found:
        union = reduce(DataFrame.unionByName, found)
        places = view.keep("places of rows to keep", union.distinct)
        told = view.events.where(~F.startswith("ev", F.lit(MADE)))
        real = told.join(few(places), ["node", "gseq"], "left_semi").select(*NAMES)
        # A segment that is replaced by a longer one brings rows that were carried once more.
        made.append(real.dropDuplicates(["node", "boot", "seq", "ev"]))
    empty = frame_of(view.spark, [], SCHEMA)
    return reduce(DataFrame.unionByName, made, empty)
