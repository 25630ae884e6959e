"""The audit as a stream: Structured Streaming finds the new segments, a run audits them.

Spark's file source records in its checkpoint which segments it has handed out. Each micro-batch
becomes one run over exactly those segments. A run keys its tables by its own batch number and is
complete only when its state is written. So a micro-batch that Spark repeats after a crash either
overwrites its own files, or finds that all its segments are consumed.
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

# Names of segments, as a Hadoop glob; other files are ignored.
SEGMENTS: Final = f"*-{'[0-9]' * 8}-{'[0-9]' * 16}-{'[0-9]' * 16}.parquet"
# The schema that Spark's source of whole files requires; the content is never read.
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
    wishes: runs.Wishes | None = None,
) -> None:
    """Audit all present segments and, with `every_s`, new ones until interrupted.

    Calls `done` with each verdict document and its exit code. Raises the errors of a run, and
    Spark's StreamingQueryException if the stream itself fails.
    """
    failed: list[Exception] = []

    def audit(batch: DataFrame, number: int) -> None:
        """Audit one micro-batch; keep an error, which Spark would bury in its own stack."""
        try:
            audit_segments(batch, number)
        except (PySparkException, Py4JError, OSError, ValueError) as problem:
            failed.append(problem)
            # Spark forwards every line of a stack, and fails on long ones.
            raise RuntimeError("the run failed") from None

    def audit_segments(batch: DataFrame, number: int) -> None:
        names = frozenset(row.path.rpartition("/")[2] for row in batch.collect())
        if not names:
            return
        progress(f"micro-batch {number}: {len(names)} segments")
        verdict = runs.run(
            spark, history_dir, out_dir,
            progress=progress, settings=settings, only=names, parts=parts,
            wishes=wishes,
        )  # fmt: skip
        done(verdict.document, verdict.exit_code)

    # Only names are selected, so no file is opened here: the run deals with torn files.
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
