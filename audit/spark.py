"""The Spark session of an audit: every setting that a local run, or a cluster, needs to be right.

The settings are answers to traps, each named beside its line. Besides, Spark's Python workers must
find our packages, which are on the path of our own processes only: workers of this machine are told
where they are, and to a cluster they are sent.
"""

import atexit
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

# Shuffles of a local run: enough that a task of 10 million events sorts in memory on 2 GB, and no
# more than the tiny histories of tests can bear.
LOCAL_SHUFFLES_MIN: Final = 8
# What fails is said once, in one line, by the command; Spark's own pages only if they are wanted.
_LOG_LEVEL: Final = "ERROR" if os.environ.get("HOLDFAST_AUDIT_TRACE") else "FATAL"
LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")

PACKAGES: Final = Path(__file__).resolve().parents[1]  # the folder that holds our packages
SENT: Final = ("audit", "mqtt", "session", "storage")  # to a cluster: `audit`, and what it imports

# A run compiles hundreds of small programs, each for one query. The optimizing compiler took 110 s
# of two cores, more than what it compiled; ten times as patient it takes 77 s, and the whole run
# 258 instead of 291 CPU seconds (10 million events, 2026-11-22).
LATE_COMPILER: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

_ARROW: Final = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "tinyint": pa.int8(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}

# In force everywhere, a cluster too.
SETTINGS: Final[dict[str, str]] = {
    "spark.sql.session.timeZone": "UTC",  # or minutes and dates depend on the machine
    "spark.sql.ansi.enabled": "true",  # an overflow is an error, never a wrong number
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # hour=03 stays "03"
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Histories are 1 byte per event in files, and 30 times that in memory: or Spark takes millions
    # of rows for few, and copies them to every task.
    "spark.sql.sources.fileCompressionFactor": "30.0",
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.ui.showConsoleProgress": "false",
    "spark.executorEnv.PYTHONSAFEPATH": "1",  # or workers import from their working directory first
}

# Only where the driver is the whole cluster.
LOCAL_SETTINGS: Final[dict[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",  # or it listens on the first address of the machine
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",  # or it opens port 4040
    "spark.executorEnv.PYTHONPATH": str(PACKAGES),  # a worker does not get the path of its driver
    # With 2 GB the parallel collector takes 84 s where G1 takes 111 s (10 million events, 2 cores).
    "spark.driver.extraJavaOptions": (
        f"-XX:+UseParallelGC {LATE_COMPILER} -Dlog4j2.configurationFile=file:{LOG_SETTINGS}"
        f" -Dholdfast.spark.log={_LOG_LEVEL}"
    ),
    # Or the sizes of a few hundred segments are asked for by a job of their own.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.sql.ui.retainedExecutions": "1",
}


def session(
    app: str,
    master: str | None = None,
    memory: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the Spark session of this process, started with the settings of an audit.

    `master` is any Spark master; without one it is what spark-submit says, or else `local[*]`.
    `memory` is the driver's ("2g"); it only counts if no JVM runs yet. `conf` goes over everything.
    Raises pyspark's PySparkRuntimeError (JAVA_GATEWAY_EXITED) if there is no Java 17.
    """
    # Or workers run the first `python3` on the PATH, which knows neither pyspark nor pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not submitted:
        master = "local[*]"
    settings = dict(SETTINGS)
    is_local = master is not None and master.partition("[")[0] == "local"
    if master is not None:
        builder = builder.master(master)
        if is_local:
            # Or Spark warns that the name of the machine resolves to a loopback address.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings |= LOCAL_SETTINGS
            settings["spark.sql.shuffle.partitions"] = str(_local_shuffles(master))
    if memory is not None:
        settings["spark.driver.memory"] = memory
    settings |= conf or {}
    for name, value in settings.items():
        builder = builder.config(name, value)
    started: SparkSession = builder.getOrCreate()
    if not is_local:
        started.sparkContext.addPyFile(str(_sent_packages()))
    started.sparkContext.setLogLevel(_LOG_LEVEL if is_local else "ERROR")
    return started


def frame_of(
    spark: SparkSession, rows: Sequence[tuple[object, ...]], schema: str | StructType
) -> DataFrame:
    """Return a few rows as a frame that Spark plans with: no worker is asked for them.

    `schema` is a type, or its DDL ("node string, seq long").
    """
    kind = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(kind, StructType)
    arrow = pa.schema([(each.name, _ARROW[each.dataType.simpleString()]) for each in kind.fields])
    columns = list(zip(*rows, strict=True)) or [()] * len(arrow)
    arrays = [
        pa.array(list(column), each.type) for column, each in zip(columns, arrow, strict=True)
    ]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow))


def _sent_packages() -> Path:
    """Return a new archive of the sources in SENT; it is there until this process ends."""
    directory = tempfile.mkdtemp(prefix="holdfast-audit-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = Path(directory, "holdfast.zip")
    # strict_timestamps: files of a reproducible image may be from 1970, which zip does not know.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for package in SENT:
            for source in sorted(PACKAGES.joinpath(package).rglob("*.py")):
                archive.write(source, source.relative_to(PACKAGES))
    return path


def _local_shuffles(master: str) -> int:
    threads = master.partition("[")[2].partition("]")[0].partition(",")[0]
    cores = int(threads) if threads.isdigit() else (os.cpu_count() or 1)
    return max(LOCAL_SHUFFLES_MIN, 2 * cores)
