"""Small or large: what a run over few rows does otherwise than one over many. Results are the same.

For a history of some ten thousand rows, planning hundreds of queries and compiling a program for
each costs far more than running them. So a small run interprets its queries, plans each once, with
as many partitions as a laptop has cores, copies no table to all tasks (each copy is a job), keeps
shared results in memory, and works at several queries at once. A large run does none of this: its
queries are compiled, planned again as sizes become known, and shared results are files.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession

# Beyond this, interpreting costs more than it saves: 900,000 rows took 194 s of CPU time, where ten
# million take 250 s compiled (2 cores, 2026-11-28; 37,000 rows take 70 s interpreted, or 101 s).
SMALL_ROWS_MAX: Final = 200_000
THREADS: Final = 4  # queries at once in a small run: some wait for Python workers

_FLAG: Final = "holdfast.audit.small"
SMALL: Final[dict[str, str]] = {
    _FLAG: "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # What finds a better plan, or shares a result, for more time than it saves here.
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
    # Otherwise each query is also written down, at length, for a page that is not there.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.debug.maxToStringFields": "1",
}

_T = TypeVar("_T")


@contextmanager
def paced(spark: SparkSession, rows: int) -> Iterator[bool]:
    """Set up Spark for a run over so many rows, and restore its settings; give whether it is small.

    On a cluster no run is small: what is in the memory of an executor is lost with it.
    """
    small = rows <= SMALL_ROWS_MAX and (spark.sparkContext.master or "").startswith("local")
    wanted = SMALL if small else {_FLAG: "false"}
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield small
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def is_small(spark: SparkSession) -> bool:
    """Return whether a small run is under way."""
    return spark.conf.get(_FLAG, "false") == "true"


def in_few_files(frame: DataFrame) -> DataFrame:
    """Return a frame to be written: by one task in a small run, else by as many as it has data for.

    One writer for all would grow with the fleet, and one for each partition leaves tiny files.
    """
    return frame.coalesce(1) if is_small(frame.sparkSession) else frame.hint("rebalance")


def together(spark: SparkSession, calls: Sequence[Callable[[], _T]]) -> Iterator[_T]:
    """Yield the results of all calls in order: at once in a small run, else one after the other.

    An error is raised in its place, after all calls have ended.
    """
    if not is_small(spark) or len(calls) < 2:
        for call in calls:
            yield call()
        return
    with ThreadPoolExecutor(THREADS) as pool:
        # Each thread has a thread of the JVM, which must get the properties of this one.
        inherited = inheritable_thread_target(spark)
        running = [pool.submit(inherited(call)) for call in calls]
        for each in running:
            yield each.result()
