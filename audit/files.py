"""Small files of an audit, local or remote: list, read, and replace atomically.

A place with a scheme (`s3a://`, `hdfs://`, `gs://`) is accessed with Hadoop through Spark's JVM, so
everything that Spark can read can be listed. Everything else is on the local disk, and can be read
before Spark is there (None).
"""

import os
from pathlib import Path

from pyspark.sql import SparkSession


def is_local(place: str) -> bool:
    """Return whether a place is on the local disk."""
    return "://" not in place or place.startswith("file://")


def local_path(place: str) -> Path:
    """Return the path of a local place."""
    return Path(place.removeprefix("file://"))


def join(place: str, *names: str) -> str:
    """Return the place `names` below `place`."""
    return "/".join([place.rstrip("/"), *names])


def list_files(spark: SparkSession | None, place: str, suffix: str) -> list[str]:
    """Return all files below `place` that end with `suffix`, sorted; none if it does not exist.

    Ignores names that start with a dot or an underscore, like Spark.
    """
    if is_local(place):
        found = [str(path) for path in local_path(place).rglob(f"*{suffix}") if path.is_file()]
    else:
        path, system = _hadoop(spark, place)
        found = []
        if system.exists(path):
            files = system.listFiles(path, True)
            while files.hasNext():
                name = files.next().getPath().toString()
                if name.endswith(suffix):
                    found.append(name)
    return sorted(name for name in found if name.rpartition("/")[2][0] not in "._")


def read_text(spark: SparkSession | None, place: str) -> str:
    """Return the text of a small file."""
    if is_local(place):
        return local_path(place).read_text(encoding="utf-8")
    path, system = _hadoop(spark, place)
    stream = system.open(path)
    try:
        utils = spark.sparkContext._jvm.org.apache.hadoop.io.IOUtils  # type: ignore[union-attr]
        content = bytes(utils.readFullyToByteArray(stream))
    finally:
        stream.close()
    return content.decode()


def write_text(spark: SparkSession, place: str, text: str) -> None:
    """Replace a small file atomically. Durable on return."""
    if is_local(place):
        _write_local(local_path(place), text.encode())
        return
    path, system = _hadoop(spark, place)
    stream = system.create(path, True)  # object stores show a file only when it is closed
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def _write_local(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.tmp")
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _hadoop(spark: SparkSession | None, place: str):  # type: ignore[no-untyped-def] # objects of the JVM
    """Return the Hadoop path and file system of a place."""
    assert spark is not None
    context = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)  # type: ignore[union-attr]
    configuration = context._jsc.hadoopConfiguration()
    return path, path.getFileSystem(configuration)


def remove(spark: SparkSession, place: str) -> None:
    """Remove a folder with everything in it, if it exists."""
    path, system = _hadoop(spark, place)
    system.delete(path, True)
