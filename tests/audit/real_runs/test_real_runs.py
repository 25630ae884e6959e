"""A few runs of real brokers and foreign clients, judged by one audit."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from audit.run import run
from tests.audit.real_runs.runs import LEVELS, PLANTED_EVERY, draw, live, problems
from tests.audit.real_runs.steps import STEPS

RUNS = 20  # of the command
SEEDS = (0, 3, 19)  # of the suite: one with a planted loss, and one at a lower level


def test_a_seed_draws_the_same_script_and_many_seeds_draw_every_step_and_level() -> None:
    scripts = [draw(seed) for seed in range(RUNS)]
    assert scripts == [draw(seed) for seed in range(RUNS)]
    assert {step for script in scripts for step in script.steps} == set(STEPS)
    assert {script.level for script in scripts} == set(LEVELS)
    assert sum(script.is_planted for script in scripts) == RUNS // PLANTED_EVERY
    assert {draw(seed).level for seed in SEEDS} > {"full"}
    assert any(draw(seed).is_planted for seed in SEEDS)


@pytest.mark.ci
@pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None, reason="Debian's mosquitto-clients is not installed"
)
def test_the_audit_says_what_the_clients_of_every_run_saw(
    spark: SparkSession, tmp_path: Path
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    lived = [live(draw(seed), tmp_path, whole) for seed in SEEDS]
    verdict = run(spark, str(whole), str(out), progress=lambda line: None)
    assert problems(lived, verdict.document, whole, out) == []
    assert verdict.status == "violated"  # what was planted
