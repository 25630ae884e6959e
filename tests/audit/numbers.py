"""The numbers of the scenario, counted in one batch and in two: fixtures for who reads them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from audit.analytics import tables
from audit.checks import open_rows
from audit.run import Part, run

NUMBERS = (
    Part("deliveries", lambda view: [], open_rows.carry),
    Part("numbers", tables.check, tables.carry, tables.tables),
)


@dataclass(frozen=True)
class Numbers:
    """What the numbers of the scenario came to: the folder of results, and the last verdict."""

    out: Path
    document: dict[str, Any]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table, all batches together, without the batch."""
        found: list[dict[str, Any]] = pq.read_table(self.out / "tables" / name).to_pylist()
        return [{key: value for key, value in row.items() if key != "batch"} for row in found]


def _counted(spark: SparkSession, folder: Path, *, halves: bool) -> Numbers:
    from tests.audit.scenario import scenario

    history, hidden = folder / "history", folder / "hidden"
    last = scenario().write(history)[-1]
    out = folder / "out"
    if halves:
        last.rename(hidden)
        run(spark, str(history), str(out), progress=lambda _: None, parts=NUMBERS)
        hidden.rename(last)
    verdict = run(spark, str(history), str(out), progress=lambda _: None, parts=NUMBERS)
    return Numbers(out, verdict.document)


@pytest.fixture(scope="session")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    """The numbers of the scenario, counted in one batch."""
    return _counted(spark, tmp_path_factory.mktemp("whole"), halves=False)


@pytest.fixture(scope="session")
def halves(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    """The numbers of the scenario, counted in two batches: a boot each."""
    return _counted(spark, tmp_path_factory.mktemp("halves"), halves=True)
