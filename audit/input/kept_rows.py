"""The rows that one batch keeps for the next.

Each check finds the places of the rows it wants, reading only the columns it needs. Then the rows
themselves are read, with all columns, in one pass for all checks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from audit.input.batch_view import View
from audit.input.events import NAMES, SCHEMA
from audit.pace import is_small
from audit.spark import frame_of

# Prefix of the names of carried rows that are not events. They have the place of an event.
MADE: Final = "#"

# Up to this size a frame is copied to every task: 40 MB, 200 bytes per row. A larger one is joined
# as a large table.
BROADCAST_ROWS_MAX = 200_000


@dataclass(frozen=True)
class Kept:
    """The rows a check keeps: rows of the history, by `node` and `gseq`, and rows it has made."""

    places: tuple[DataFrame, ...] = ()
    made: tuple[DataFrame, ...] = ()


def are_few(frame: DataFrame) -> bool:
    """Return whether a frame is small enough to be copied to every task; counts its rows."""
    return frame.count() <= BROADCAST_ROWS_MAX


def few(frame: DataFrame) -> DataFrame:
    """Return a frame as one side of a join, copied to every task if it is small enough.

    In a small run nothing is counted, and nothing copied: sorting both sides costs less.
    """
    if is_small(frame.sparkSession):
        return frame
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
        # A segment replaced by a longer one brings carried rows a second time.
        made.append(real.dropDuplicates(["node", "boot", "seq", "ev"]))
    empty = frame_of(view.spark, [], SCHEMA)
    return reduce(DataFrame.unionByName, made, empty)
