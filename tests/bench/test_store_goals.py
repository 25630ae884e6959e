"""How the runs of bench/stores.py are compared and judged."""

import pytest

from bench.goals import MET, MISSED, UNKNOWN
from bench.store_goals import (
    ABSENT,
    AGAIN,
    BASELINE,
    GONE,
    HANGS,
    NO_BACKEND,
    NO_MATCH,
    PROCESS_DIES,
    RUNS,
    instruction_rows,
    judge_instructions,
    judge_outage,
    outage_rows,
    price_rows,
    ratios,
    spread,
    throughput_rows,
)


def latencies(ack: float, delivery: float) -> dict[str, dict[str, float]]:
    return {
        name: {"p50": value / 2, "p99": value, "max": value * 2}
        for name, value in (("ack_ms", ack), ("delivery_ms", delivery))
    }


# A machine that is three times slower in the second round.
ROUNDS = {
    ABSENT: [latencies(2, 1), latencies(6, 3), latencies(2, 1)],
    AGAIN: [latencies(2, 1.1), latencies(5, 3), latencies(2, 1)],
    RUNS: [latencies(8, 4), latencies(24, 12), latencies(8, 4)],
    HANGS: [latencies(2.2, 1.3), latencies(6.6, 3.9), latencies(9, 9)],
    GONE: [latencies(2, 1), latencies(6, 3), latencies(2, 1)],
}


def test_a_ratio_is_taken_within_its_round() -> None:
    assert ratios(ROUNDS, RUNS, ABSENT, "ack_ms", "p99") == [4, 4, 4]


def test_the_median_of_the_rounds_decides_about_a_store_that_is_stopped() -> None:
    judged = {each.what: each for each in judge_outage("redis", ROUNDS)}
    assert {what: each.verdict for what, each in judged.items()} == {
        f"redis {HANGS}: PUBACK p99 over that without it": MET,
        f"redis {HANGS}: delivery p99 over that without it": MISSED,
        f"redis {GONE}: PUBACK p99 over that without it": MET,
        f"redis {GONE}: delivery p99 over that without it": MET,
    }
    missed = judged[f"redis {HANGS}: delivery p99 over that without it"]
    assert missed.ratio == pytest.approx(1.3)
    assert missed.text() == f"missed: {missed.what}: 1.300, at most 1.2"


def test_kills_of_the_process_are_compared_with_a_store_that_runs() -> None:
    rounds = {**ROUNDS, PROCESS_DIES: [latencies(9, 5), latencies(27, 15), latencies(9, 5)]}
    judged = {each.what: each for each in judge_outage("redis", rounds)}
    acks = judged[f"redis {PROCESS_DIES}: PUBACK p99 over that without kills"]
    assert (acks.ratio, acks.verdict) == (1.125, MET)
    deliveries = judged[f"redis {PROCESS_DIES}: delivery p99 over that without kills"]
    assert (deliveries.ratio, deliveries.verdict) == (1.25, MISSED)


def test_nothing_is_judged_where_the_same_differs_as_much_from_itself() -> None:
    restless = {**ROUNDS, AGAIN: [latencies(1, 1), latencies(9, 3), latencies(2, 1)]}
    judged = [(each.what, each.verdict) for each in judge_outage("redis", restless)]
    assert {verdict for what, verdict in judged if "PUBACK" in what} == {UNKNOWN}
    assert UNKNOWN not in {verdict for what, verdict in judged if "delivery" in what}
    (first, *_) = judge_outage("redis", restless)
    assert first.text().startswith("not judged: redis hangs")
    assert first.text().endswith("; the same again: 1.500")


def test_latencies_are_shown_with_the_ratios_of_every_state() -> None:
    head, _, absent, _, runs, *_ = outage_rows("redis", ROUNDS)
    assert head.startswith("| redis |")
    even = "1.00 (1.00 to 1.00)"
    assert absent == f"| {ABSENT} | 1.0, 2.0, 4.0 | {even} | 0.5, 1.0, 2.0 | {even} |"
    assert "| 4.00 (4.00 to 4.00) |" in runs


def test_without_a_backend_instructions_may_be_one_hundredth_more() -> None:
    counted = {
        "window 100": {BASELINE: 1000.0, NO_BACKEND: 1010.0, NO_MATCH: 1010.0},
        "window 1": {NO_BACKEND: 1000.0, NO_MATCH: 1051.0},
    }
    assert [(each.ratio, each.verdict) for each in judge_instructions(counted)] == [
        (1.01, MET),
        (1.0, MET),
        (1.051, MISSED),
    ]


def test_instructions_are_shown_beside_those_of_the_first_case() -> None:
    counted = {"window 1": {NO_BACKEND: 50_000.0, NO_MATCH: 50_100.0}}
    assert list(instruction_rows(counted))[2] == "| window 1 | 50,000 (1.000) | 50,100 (1.002) |"


def test_prices_are_shown_with_the_spread_of_their_ratios() -> None:
    runs = {
        NO_BACKEND: [{"per_s": 1000, "us": 2.0}, {"per_s": 2000, "us": 1.0}],
        NO_MATCH: [{"per_s": 900, "us": 2.2}, {"per_s": 2000, "us": 1.0}],
    }
    assert list(price_rows("QoS 1", runs))[3] == (
        f"| {NO_MATCH} | 1,450 | 0.95 (0.90 to 1.00) | 1.60 | 1.05 (1.00 to 1.10) |"
    )


def test_one_round_has_no_spread() -> None:
    assert spread([1.25]) == "1.25"


def test_throughput_is_shown_for_each_store() -> None:
    keys = ("accepted_per_s", "mirrored_per_s", "broker_us", "process_us", "store_us")
    line = dict(zip(keys, (9000, 800, 7, 6, 5), strict=True))
    assert list(throughput_rows({"redis": [line]}))[2] == "| redis | 9,000 | 800 | 7 | 6 | 5 |"
