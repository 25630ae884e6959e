"""The Spark session of an audit, with the settings that a local run or a cluster needs.

Each setting avoids a problem, which is named beside it. Spark's Python workers must find our
packages too, which are only on the path of our own processes: workers of this machine are told the
folder, and a cluster is sent an archive.
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

# Shuffle partitions of a local run: enough that tasks for 10 million events sort in 2 GB of memory,
# and few enough for the tiny histories of tests.
LOCAL_SHUFFLES_MIN: Final = 8
# The command prints an error once, in one line. Spark's own log is shown only on request.
_LOG_LEVEL: Final = "ERROR" if os.environ.get("HOLDFAST_AUDIT_TRACE") else "FATAL"
_TRACE: Final = "true" if os.environ.get("HOLDFAST_AUDIT_TRACE") else "false"
LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")

PACKAGES: Final = Path(__file__).resolve().parents[1]  # the folder that holds our packages
SENT: Final = ("audit", "mqtt", "session", "storage")  # to a cluster: `audit`, and what it imports

# A run compiles hundreds of small programs, each for one query. The optimizing compiler took 110 s
# of CPU time, more than the programs themselves; with thresholds ten times as high it takes 77 s,
# and the whole run 258 instead of 291 CPU seconds (10 million events, 2 cores, 2026-11-22).
LATE_COMPILER: Final = (
    # With 2 GB it takes 84 s where G1 takes 111 s (10 million events, 2 cores).
    "-XX:+UseParallelGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

# In a small run nothing is hot for long: the optimizing compiler took 44 of 103 s of CPU time. With
# the default of 21 MB for classes, the collector ran ten times only because of new ones; with that
# of 48 MB for programs, a thread took 2 s to look for some to throw away. Verifying the classes of
# Spark's own archives took 2 of 16 s of a start with three queries (on a busy machine).
ONE_COMPILER: Final = (
    "-XX:+UseSerialGC -Xms400m -XX:NewRatio=1 -XX:TieredStopAtLevel=1 -XX:MetaspaceSize=300m "
    "-XX:ReservedCodeCacheSize=200m -XX:-UseCodeCacheFlushing "
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions "
    "-XX:-BytecodeVerificationRemote"
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

# Settings for every run, also on a cluster.
SETTINGS: Final[dict[str, str]] = {
    "spark.sql.session.timeZone": "UTC",  # otherwise minutes and dates depend on the machine
    "spark.sql.ansi.enabled": "true",  # an overflow is an error, never a wrong number
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # hour=03 stays "03"
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Histories take 1 byte per event in files and 30 in memory. Without this Spark underestimates
    # frames of millions of rows, and copies them to every task.
    "spark.sql.sources.fileCompressionFactor": "30.0",
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.ui.showConsoleProgress": "false",
    # Otherwise every call of a function asks Java several times, to name its line in an error.
    "spark.python.sql.dataFrameDebugging.enabled": _TRACE,
    "spark.sql.dataFrameQueryContext.enabled": _TRACE,
    "spark.sql.lightweightPlanChangeValidation": "false",  # it checks Spark's own rules
    "spark.executorEnv.PYTHONSAFEPATH": "1",  # or workers import from their working directory first
}

# Settings for local runs, where the driver is the whole cluster.
LOCAL_SETTINGS: Final[dict[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",  # otherwise it listens on the machine's first address
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",  # otherwise it opens port 4040
    "spark.executorEnv.PYTHONPATH": str(PACKAGES),  # a worker does not get the path of its driver
    # Otherwise Spark starts a job to get the sizes of a few hundred segments.
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
    *,
    small: bool = False,
) -> SparkSession:
    """Return the Spark session of this process, started with the settings of an audit.

    `master` is any Spark master; the default is that of spark-submit, or else `local[*]`. `memory`
    is the driver's ("2g"). `small` is for a run over few rows (`audit.pace`). Both have an effect
    only if no JVM runs yet. `conf` overrides everything.
    Raises pyspark's PySparkRuntimeError (JAVA_GATEWAY_EXITED) if there is no Java 17.
    """
    # Otherwise workers run the first `python3` on the PATH, which may lack pyspark and pyarrow.
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
            # Otherwise Spark warns that the host name resolves to a loopback address.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings |= LOCAL_SETTINGS
            settings["spark.driver.extraJavaOptions"] = _java_options(small=small)
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
    """Return a few rows as a frame that is part of the plan, so that no worker computes it.

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


def _java_options(*, small: bool) -> str:
    return (
        f"{ONE_COMPILER if small else LATE_COMPILER}"
        f" -Dlog4j2.configurationFile=file:{LOG_SETTINGS} -Dholdfast.spark.log={_LOG_LEVEL}"
    )


def _local_shuffles(master: str) -> int:
    threads = master.partition("[")[2].partition("]")[0].partition(",")[0]
    cores = int(threads) if threads.isdigit() else (os.cpu_count() or 1)
    return max(LOCAL_SHUFFLES_MIN, 2 * cores)
