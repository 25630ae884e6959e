"""The audit as a stream: Structured Streaming finds the new segments, a run audits them.

Spark's file source remembers in its checkpoint which segments it has handed out. Each of its
micro-batches becomes one run over exactly those segments; a run keys its tables by its own batch
and counts only when its state is written, so a micro-batch that Spark plays again after a crash
either finishes what it began, over its own files, or finds all its segments consumed.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from audit import run as runs
from audit.files import join
from audit.input.batch_view import Settings
from audit.run import Part, Progress

# Names of segments, as a pattern of Hadoop; other files are left alone.
SEGMENTS: Final = f"*-{'[0-9]' * 8}-{'[0-9]' * 16}-{'[0-9]' * 16}.parquet"
# What Spark's source of whole files has to be told; the content is never read.
FILE_SCHEMA: Final = "path string, modificationTime timestamp, length long, content binary"

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

    `done` is told each verdict document and its exit code. Raises what a run raises, and Spark's
    StreamingQueryException if it is the stream itself that fails.
    """
    failed: list[Exception] = []

    def audit(batch: DataFrame, number: int) -> None:
        """Audit one micro-batch; what fails would be buried in a stack of Spark's."""
        try:
            audit_segments(batch, number)
        except (PySparkException, Py4JError, OSError, ValueError) as problem:
            failed.append(problem)
            # Spark passes on every line of a stack, and chokes on long ones.
            raise RuntimeError("the run failed") from None

    def audit_segments(batch: DataFrame, number: int) -> None:
        names = frozenset(row.path.rpartition("/")[2] for row in batch.collect())
        if not names:
            return
        progress(f"micro-batch {number}: {len(names)} segments")
        verdict = runs.run(
            spark, history_dir, out_dir,
            progress=progress, settings=settings, only=names, parts=parts,
        )  # fmt: skip
        done(verdict.document, verdict.exit_code)

    # Only names are asked for, so no file is opened here: a torn one is the run's to judge.
    source = (
        spark.readStream.format("binaryFile")
        .schema(FILE_SCHEMA)
        .option("pathGlobFilter", SEGMENTS)
        .option("recursiveFileLookup", "true")
        .load(history_dir)
        .select("path")
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
    except StreamingQueryException:
        if failed:
            raise failed[0] from None
        raise
    except KeyboardInterrupt:
        progress("stopping")
        query.stop()
