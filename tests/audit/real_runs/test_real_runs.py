"""Scripts of real runs; tests/audit/test_many_nodes.py lives through some of them."""

from tests.audit.real_runs.runs import LEVELS, PLANTED_EVERY, draw
from tests.audit.real_runs.steps import STEPS

RUNS = 20  # of the command


def test_a_seed_draws_the_same_script_and_many_seeds_draw_every_step_and_level() -> None:
    scripts = [draw(seed) for seed in range(RUNS)]
    assert scripts == [draw(seed) for seed in range(RUNS)]
    assert {step for script in scripts for step in script.steps} == set(STEPS)
    assert {script.level for script in scripts} == set(LEVELS)
    assert sum(script.is_planted for script in scripts) == RUNS // PLANTED_EVERY
