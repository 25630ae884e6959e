"""The audit as a stream: Structured Streaming finds the new segments, a run audits them.

Spark's file source remembers in its checkpoint which segments it has handed out. Each of its
micro-batches becomes one run over exactly those segments; a run keys its tables by its own batch
and counts only when its state is written, so a micro-batch that Spark plays again after a crash
either finishes what it began, over its own files, or finds all its segments consumed.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from audit import run as runs
from audit.events import SCHEMA
from audit.files import join
from audit.run import Part, Progress
from audit.view import Settings

Done = Callable[[dict[str, Any], int], None]


def watch(
    spark: SparkSession,
    history_dir: str,
    out_dir: str,
    *,
    every_s: int | None,
    progress: Progress,
    settings: Settings | None = None,
    done: Done,
    parts: Sequence[Part] = runs.PARTS,
) -> None:
    """Audit what is there and, with `every_s`, what comes, until interrupted.

    `done` is told each verdict document and its exit code. Raises what a run raises, wrapped in
    Spark's StreamingQueryException.
    """

    def audit(batch: DataFrame, number: int) -> None:
        """Audit the segments of one micro-batch."""
        names = frozenset(row.file_name for row in batch.distinct().collect())
        if not names:
            return
        progress(f"micro-batch {number}: {len(names)} segments")
        verdict = runs.run(
            spark, history_dir, out_dir,
            progress=progress, settings=settings, only=names, parts=parts,
        )  # fmt: skip
        done(verdict.document, verdict.exit_code)

    source = (
        spark.readStream.schema(SCHEMA)
        .option("pathGlobFilter", "*.parquet")
        .option("recursiveFileLookup", "true")
        .parquet(history_dir)
        .select("_metadata.file_name")  # a batch of a stream does not tell its files otherwise
    )
    writer = source.writeStream.foreachBatch(audit).option(
        "checkpointLocation", join(out_dir, "state", "stream")
    )
    if every_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{every_s} seconds")
    query = writer.start()
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        progress("stopping")
        query.stop()
