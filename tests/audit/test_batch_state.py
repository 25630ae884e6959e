"""What a run leaves for the next one."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from audit import batch_state
from audit.input.gaps import Boot, Gap
from audit.input.segments import Segment


def _segment(first: int, last: int) -> Segment:
    return Segment(f"d/n-00000001-{first:016}-{last:016}.parquet", "n", 1, first, last, "")


def test_a_state_is_read_as_it_was_saved(spark: SparkSession, tmp_path: Path) -> None:
    out = str(tmp_path)
    assert batch_state.load(spark, out) == batch_state.State()
    boots = [Boot("n", 1, "full", "full", 1, 1, 9, 5, 6, claimed=0)]
    gaps = [Gap("n", 3, 4, "rows are missing", "hole", explained=False)]
    totals = {"H1": {"checked": 3, "violated": 1, "unknown": 0}}
    first = batch_state.State().after([_segment(1, 9)], boots, gaps, totals)
    batch_state.save(spark, out, first)
    heads = {"n": {(1, 9): "ab", (1, 12): "cd"}}
    second = first.after([_segment(10, 12)], boots, [], totals, heads)
    assert second.heads_by_place == heads
    batch_state.save(spark, out, second)
    assert batch_state.load(spark, out) == second
    assert batch_state.load(spark, out, 0) == first
    assert batch_state.batches(spark, out) == [0, 1]


def test_a_state_of_a_version_without_chains_knows_no_heads(
    spark: SparkSession, tmp_path: Path
) -> None:
    batch_state.save(spark, str(tmp_path), batch_state.State().after([], [], [], {}))
    (path,) = (tmp_path / "state").glob("*.json")
    values = json.loads(path.read_text())
    assert values.pop("heads") == {}
    path.write_text(json.dumps(values))
    assert batch_state.load(spark, str(tmp_path)).heads_by_place == {}


def test_a_segment_of_an_older_hour_is_new_until_it_is_consumed() -> None:
    done = batch_state.State().after([_segment(1, 9), _segment(20, 29)], [], [], {})
    assert done.has(_segment(1, 9)) and done.has(_segment(20, 29))
    assert not done.has(_segment(10, 19))
    done = done.after([_segment(10, 19)], [], [], {})
    assert done.has(_segment(10, 19))
    assert done.consumed == {"n/1": [(1, 29)]}


def test_a_state_of_another_version_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    batch_state.save(spark, str(tmp_path), batch_state.State().after([], [], [], {}))
    (path,) = (tmp_path / "state").glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99}))
    with pytest.raises(ValueError, match="a state of version 99, expected 1"):
        batch_state.load(spark, str(tmp_path))


def test_a_damaged_state_is_named(spark: SparkSession, tmp_path: Path) -> None:
    batch_state.save(spark, str(tmp_path), batch_state.State().after([], [], [], {}))
    (path,) = (tmp_path / "state").glob("*.json")
    path.write_text(path.read_text()[:-5])
    with pytest.raises(ValueError, match=r"batch-00000000\.json: damaged"):
        batch_state.load(spark, str(tmp_path))
