"""Histories of simulated worlds, judged by the audit: what the worlds did right is not accused."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.simulation.audited import Tally, audit_worlds, write_worlds

pytestmark = pytest.mark.ci

# These showed mistakes of the audit or of the history: positions of sessions with packet ids bound
# ahead, rows discarded over the end of a start, a client that does not want to hear its own will.
ONCE_WRONG = (6, 36, 110, 135)
MORE = 8


def test_nobody_is_accused_in_a_world_that_judged_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    history, tally = tmp_path / "history", Tally()
    for seed in ONCE_WRONG:
        assert write_worlds(seed, 1, None, history) == []
    assert write_worlds(200, MORE, None, history) == []
    audit_worlds(spark, history, tmp_path / "out", tally)
    assert tally.accused == []
    for invariant in ("H1", "L1", "L2", "L3", "D1", "D2", "S1", "S2", "S5", "O1", "W1"):
        assert tally.counts[invariant]["checked"], invariant
