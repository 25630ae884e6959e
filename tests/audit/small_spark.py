"""Spark for histories of tests: of a few rows, planning and compiling cost more than running."""

from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import audit.spark
from audit import pace
from audit.run import PARTS, Part

SETTINGS: Final = {**pace.SMALL, "spark.sql.shuffle.partitions": "1"}
# A verdict, and what became of each delivery: no other tables, and no batch follows.
JUDGING: Final = tuple(
    Part(part.name, part.check, tables=part.tables if part.name == "deliveries" else None)
    for part in PARTS
    if part.name != "numbers"
)


def small_spark(name: str, scratch: Path | None = None, *, threads: int = 2) -> SparkSession:
    """Return a Spark session with 1 GB, which keeps its files in `scratch`."""
    places = {}
    if scratch is not None:
        places = {
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        }
    return audit.spark.session(
        name,
        master=f"local[{threads}]",
        memory="1g",
        conf={**SETTINGS, **places},
        small=True,
    )
