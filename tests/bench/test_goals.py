"""The arithmetic of the benchmark: medians, ratios, limits and whether a goal is met."""

from typing import Any

import pytest

from bench.brokers import COMPILED, FLASHMQ, HOLDFAST, MOSQUITTO
from bench.goals import BY_KEY, MET, MISSED, NAMES, UNITS, UNKNOWN, WORKS, Goal, entries, judge
from bench.goals import limit as limit_of

IDLE = {"broker": 0.2, "broker_total": 0.3, "generator": 0.1}


def cell(work: str, kind: str, number: int = 1, /, *, ok: bool = True, **metrics: float) -> Any:
    return {
        "work": work,
        "broker": kind,
        "round": number,
        "metrics": metrics,
        "ok": ok,
        "trouble": "" if ok else "lost 3",
        "lines": [],
    }


def test_the_median_of_the_rounds_counts_and_the_range_is_kept() -> None:
    found = entries(
        cell("qos1", MOSQUITTO, number, rate=rate, us=us)
        for number, (rate, us) in enumerate([(10.0, 3.0), (90.0, 1.0), (20.0, 2.0)], 1)
    )
    entry = found["qos1"][MOSQUITTO]
    assert entry.metrics == {"rate": 20.0, "us": 2.0}
    assert (entry.low, entry.high, entry.rounds) == (10.0, 90.0, 3)
    assert entry.is_ok


def test_one_bad_round_spoils_the_entry_and_every_goal_of_it() -> None:
    found = entries(
        [
            cell("storm", HOLDFAST, 1, rate=9_000.0),
            cell("storm", HOLDFAST, 2, rate=9_000.0, ok=False),
        ]
    )
    judgement = judge(BY_KEY["storm"].goals[0], "storm", found["storm"], HOLDFAST, 2)
    assert judgement.verdict == MISSED
    assert "lost 3" in judgement.note


def test_a_round_that_could_not_run_leaves_the_others_their_median() -> None:
    found = entries([cell("storm", HOLDFAST, 1, rate=7.0), cell("storm", HOLDFAST, 2, ok=False)])
    assert found["storm"][HOLDFAST].metrics == {"rate": 7.0}


@pytest.mark.parametrize(
    ("goal", "value", "verdict"),
    [
        (Goal("rate", at_least=5_000, unit="CONNACK/s"), 5_000.0, MET),
        (Goal("rate", at_least=5_000, unit="CONNACK/s"), 4_999.0, MISSED),
        (Goal("rate", at_most=10), 10.0, MET),
        (Goal("rate", at_most=10), 10.1, MISSED),
        (Goal("rate", at_least=5, over=MOSQUITTO), 500.0, MET),
        (Goal("rate", at_least=5, over=MOSQUITTO), 499.0, MISSED),
        (Goal("rate", at_most=1 / 3, over=MOSQUITTO), 33.0, MET),
        (Goal("rate", at_most=1 / 3, over=MOSQUITTO), 34.0, MISSED),
    ],
)
def test_a_goal_holds_up_to_its_bound(goal: Goal, value: float, verdict: str) -> None:
    found = entries([cell("qos1", MOSQUITTO, rate=100.0), cell("qos1", HOLDFAST, rate=value)])
    assert judge(goal, "qos1", found["qos1"], HOLDFAST, 2).verdict == verdict


def test_nothing_is_compared_with_a_broker_that_was_not_measured_beside_it() -> None:
    goal = BY_KEY["offline"].goals[0]
    found = entries([cell("offline", COMPILED, rate=1e9)])
    judgement = judge(goal, "offline", found["offline"], COMPILED, 2)
    assert judgement.verdict == UNKNOWN
    assert "was not measured" in judgement.note


def test_a_goal_may_ask_one_build_alone() -> None:
    found = entries([cell("qos1", FLASHMQ, rate=1_000.0), cell("qos1", COMPILED, rate=600.0)])
    goal = next(goal for goal in BY_KEY["qos1"].goals if goal.over == FLASHMQ)
    judgement = judge(goal, "qos1", found["qos1"], COMPILED, 2)
    assert (judgement.verdict, judgement.text, judgement.note) == (MET, "0.60x", "")
    assert judge(goal, "qos1", found["qos1"], HOLDFAST, 2).verdict == UNKNOWN


def test_nothing_is_judged_without_the_broker_it_compares_with() -> None:
    found = entries([cell("qos2", HOLDFAST, rate=1e9)])
    judgement = judge(BY_KEY["qos2"].goals[0], "qos2", found["qos2"], HOLDFAST, 2)
    assert judgement.verdict == UNKNOWN
    assert MOSQUITTO in judgement.note


def test_the_generator_at_its_limit_excuses_only_goals_that_say_so() -> None:
    busy: dict[str, Any] = {"broker": 0.5, "broker_total": 0.5, "generator": 0.95}
    cells = []
    for work in ("qos0", "qos2"):
        cells += [cell(work, MOSQUITTO, rate=100.0), cell(work, HOLDFAST, rate=110.0, **busy)]
    found = entries(cells)
    verdicts = [
        judge(BY_KEY[work].goals[0], work, found[work], HOLDFAST, 4).verdict
        for work in ("qos0", "qos2")
    ]
    assert verdicts == [MET, MISSED]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "waiting"),
        ({"broker": 0.9}, "broker"),
        ({"generator": 0.9}, "generator"),
        ({"broker": 1.0, "generator": 1.0}, "broker and generator"),
        ({"broker_total": 1.8}, "all cores"),
        ({"broker_total": 1.4, "others": 0.4}, "other processes"),
        ({"broker_total": 1.7, "others": 0.1}, "all cores"),
    ],
)
def test_the_limit_is_the_side_without_cpu_to_spare(changes: dict[str, float], said: str) -> None:
    assert limit_of(IDLE | changes, cores=2) == said


def test_a_work_without_shares_has_no_limit() -> None:
    assert limit_of({"ready_s": 1.0}, cores=2) == "-"


def test_every_metric_of_a_work_has_a_name_and_a_unit() -> None:
    assert set(NAMES) == set(UNITS)
    for work in WORKS:
        assert {work.main, *work.extras, *(goal.metric for goal in work.goals)} <= set(NAMES)
        assert all(goal.text() for goal in work.goals)
