"""A cache of frames that several parts of a run need: each is computed once and stored as files.

Files instead of Spark's cache, because a cached frame puts the whole plan that made it into every
plan that uses it: with a dozen frames built on each other, one plan had 44 MB of text and took half
of the driver's memory (2 GB, 10 million events, 2026-11-22). Only the needed columns of a file are
read, and a cluster that loses an executor loses nothing.

In a small run (`audit.pace`) the files would cost more than the frames, so these are in memory: as
rows, without the plans that made them. Several threads may use one shelf.
"""

from collections import defaultdict
from collections.abc import Callable
from threading import Lock
from typing import Any, Final, TypeVar

from pyspark.sql import DataFrame, SparkSession

from audit.files import join, remove

T = TypeVar("T")


class Shelf:
    """A folder of frames by name, and of values that are known of them."""

    def __init__(self, spark: SparkSession, place: str, *, in_memory: bool = False) -> None:
        """Use the folder `place`, which must have no other user, or, instead, memory."""
        self._spark = spark
        self._place = place
        self.in_memory: Final = in_memory
        self._lock = Lock()
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)  # by name: one thread makes a frame
        self._frames: dict[str, DataFrame] = {}
        self._values: dict[str, Any] = {}
        self._shelves: dict[str, Shelf] = {}

    def keep(self, name: str, make: Callable[[], DataFrame]) -> DataFrame:
        """Return the frame `name`; compute and store it if it does not exist."""
        with self._lock:
            own = self._locks[name]
        with own:
            if name not in self._frames:
                self._frames[name] = self._stored(name, make())
            return self._frames[name]

    def value(self, name: str, make: Callable[[], T]) -> T:
        """Return the value `name`, which is small; compute it if it is not there."""
        with self._lock:
            own = self._locks[name]
        with own:
            if name not in self._values:
                self._values[name] = make()
            found: T = self._values[name]
            return found

    def _stored(self, name: str, made: DataFrame) -> DataFrame:
        if self.in_memory:
            return made.localCheckpoint(eager=True)
        place = join(self._place, name.replace(" ", "-"))
        made.write.parquet(place)
        return self._spark.read.schema(made.schema).parquet(place)

    def below(self, name: str) -> "Shelf":
        """Return a shelf of its own, cleared with this one; the same for the same name."""
        with self._lock:
            if name not in self._shelves:
                place = join(self._place, name.replace(" ", "-"))
                self._shelves[name] = Shelf(self._spark, place, in_memory=self.in_memory)
            return self._shelves[name]

    def clear(self) -> None:
        """Remove all frames."""
        self._frames.clear()
        self._values.clear()
        self._shelves.clear()
        if not self.in_memory:
            remove(self._spark, self._place)
