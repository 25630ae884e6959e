"""A cache of frames that several parts of a run need: each is computed once and stored as files.

Files instead of Spark's cache, because a cached frame puts the whole plan that made it into every
plan that uses it: with a dozen frames built on each other, one plan had 44 MB of text and took half
of the driver's memory (2 GB, 10 million events, 2026-11-22). Only the needed columns of a file are
read, and a cluster that loses an executor loses nothing.
"""

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from audit.files import join, remove


class Shelf:
    """A folder of frames by name."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        """Use the folder `place`, which must have no other user."""
        self._spark = spark
        self._place = place
        self._frames: dict[str, DataFrame] = {}
        self._shelves: dict[str, Shelf] = {}

    def keep(self, name: str, make: Callable[[], DataFrame]) -> DataFrame:
        """Return the frame `name`; compute and store it if it does not exist."""
        if name not in self._frames:
            place = join(self._place, name.replace(" ", "-"))
            made = make()
            made.write.parquet(place)
            self._frames[name] = self._spark.read.schema(made.schema).parquet(place)
        return self._frames[name]

    def below(self, name: str) -> "Shelf":
        """Return a shelf of its own, cleared with this one; the same for the same name."""
        if name not in self._shelves:
            self._shelves[name] = Shelf(self._spark, join(self._place, name.replace(" ", "-")))
        return self._shelves[name]

    def clear(self) -> None:
        """Remove all frames."""
        self._frames.clear()
        self._shelves.clear()
        remove(self._spark, self._place)
