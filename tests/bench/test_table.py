"""The tables of the benchmark say what the cells say, and what was not measured."""

from typing import Any

from bench import table
from bench.brokers import COMPILED, HOLDFAST, MOSQUITTO, SINK

ABOUT = {
    "machine": "2 cores",
    "cores": 2,
    "load_average": "0.10",
    "sync_ms": {"p50": 0.4, "p99": 1.0},
    "versions": ["mosquitto 2.0"],
    "durability": "fsync",
    "rounds": 1,
    "seconds": 5.0,
    "command": "python bench/run.py",
    "scaled": {},
}
BUSY = {"broker": 0.99, "broker_total": 1.1, "generator": 0.3}


def cell(work: str, kind: str, /, **metrics: float) -> dict[str, Any]:
    return {
        "work": work,
        "broker": kind,
        "round": 1,
        "metrics": metrics,
        "ok": True,
        "trouble": "",
        "lines": [],
    }


def document(*cells: dict[str, Any], **about: Any) -> dict[str, Any]:
    return {"about": ABOUT | about, "cells": list(cells), "slow_disk": None}


QOS0 = (
    cell("qos0", MOSQUITTO, rate=100_000.0, us=10.0, **BUSY),
    cell("qos0", HOLDFAST, rate=400_000.0, us=2.5, **BUSY),
    cell("qos0", COMPILED, rate=1_200_000.0, us=0.75, **BUSY),
)


def test_a_row_has_the_ratios_to_mosquitto_and_the_limit() -> None:
    lines = table.report(document(*QOS0))
    row = next(line for line in lines if line.startswith("|  | holdfast |"))
    assert row == "|  | holdfast | 400,000/s | 4.00 | 2.50 (0.25) | broker |  |"


def test_every_row_of_a_table_has_its_columns() -> None:
    lines = table.report(document(*QOS0, cell("sessions", COMPILED, ready_s=5.0, rss_mib=300.0)))
    width = 0
    for line in lines:
        if not line.startswith("|"):
            width = 0
            continue
        width = width or line.count("|")
        assert line.count("|") == width, line


def test_goals_are_met_and_missed_interpreted_and_compiled() -> None:
    lines = table.report(document(*QOS0))
    row = next(line for line in lines if "throughput ≥ 10x mosquitto" in line)
    assert row.endswith("| missed: 4.0x | **met** 12x |")


def test_a_work_that_was_scaled_down_says_so() -> None:
    cells = [cell("storm", HOLDFAST, rate=9_000.0, kib_per_connection=4.0)]
    lines = table.report(document(*cells, scaled={"storm": 0.25}))
    rows = [line for line in lines if "CONNACK/s |" in line]
    assert ["**met** 9,000/s (at 25% of the size)" in row for row in rows] == [True]


def test_the_generator_against_the_sink_is_no_broker() -> None:
    lines = table.report(document(*QOS0, cell("qos0", SINK, rate=4e6, us=0.1, **BUSY)))
    assert not [line for line in lines if line.startswith("|") and "sink" in line]
    assert any("4,000,000/s (generator 30% of a core, sink 99%)" in line for line in lines)


def test_a_run_that_lost_something_is_told_everywhere() -> None:
    bad = cell("qos0", HOLDFAST, rate=9e9, us=0.1, **BUSY) | {"ok": False, "trouble": "lost 3"}
    text = "\n".join(table.report(document(QOS0[0], bad)))
    assert text.count("lost 3") >= 3  # its row, its goals, the last line
    assert "nothing lost" not in text


def test_a_work_that_could_not_run_at_all_is_told() -> None:
    bad = cell("storm", HOLDFAST) | {"ok": False, "trouble": "no C compiler"}
    text = "\n".join(table.report(document(*QOS0, bad)))
    assert "no C compiler" in text


def test_the_readme_compares_only_what_all_three_did() -> None:
    rows = table.readme(document(*QOS0, cell("qos1", MOSQUITTO, rate=1.0)))
    assert rows[2:] == [
        "| QoS 0, 1:1, 100 pairs | 100,000 msg/s | 400,000 msg/s (4.0x) | 1,200,000 msg/s (12x) |"
    ]


def test_the_readme_shows_processor_time_where_the_rate_is_given() -> None:
    cells = [
        cell("devices5000x1", kind, us=us, rate=5000.0)
        for kind, us in ((MOSQUITTO, 40.0), (HOLDFAST, 100.0), (COMPILED, 50.0))
    ]
    assert table.readme(document(*cells))[2:] == [
        "| 5,000 devices, a message a second each, QoS 1, durable "
        "| 40.00 µs | 100.00 µs (2.5x) | 50.00 µs (1.2x) |"
    ]


def test_what_a_broker_drops_at_qos_0_is_told() -> None:
    lossy = cell("qos0", HOLDFAST, rate=1.0, us=1.0, lost=0.25, **BUSY)
    text = "\n".join(table.report(document(QOS0[0], lossy)))
    assert "lost**, as QoS 0 may 25.00%" in text
    assert "nothing lost but at QoS 0" in text
