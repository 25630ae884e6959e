"""What a cluster costs, as the document shows it."""

from typing import Any

from bench import cluster_table, document, run, scenarios
from bench.brokers import COMPILED, COMPILED_KAFKA, NATS
from bench.takeover import HAND_OVER, KILL, written

CELL = {"round": 1, "ok": True, "trouble": "", "lines": []}
KILLED: dict[str, Any] = {
    "broker": COMPILED_KAFKA,
    "sessions": 1000,
    "held": 999,
    "how": KILL,
    "detection_s": 3.25,
    "work_s": 0.5,
    "recovery_s": 0.1,
    "connack_s": 3.75,
    "pause_s": 3.8,
    "ok": True,
    "trouble": "",
}
HANDED = {
    **{key: KILLED[key] for key in ("broker", "sessions", "held", "ok", "trouble")},
    **{"how": HAND_OVER, "connack_s": 0.6, "pause_s": 0.9},
}
GONE = {**KILLED, "broker": NATS, "sessions": 100, "ok": False, "trouble": "the session was gone"}


def _cell(kind: str, number: int, **metrics: float) -> dict[str, Any]:
    return {**CELL, "work": "turn1", "broker": kind, "round": number, "metrics": metrics}


CELLS = [
    _cell(COMPILED, 1, rate=1000.0, us=50.0, ack50_ms=0.5, ack_ms=2.0),
    _cell(COMPILED_KAFKA, 1, rate=200.0, us=80.0, peers_us=40.0, log_us=300.0),
    _cell(COMPILED_KAFKA, 2, rate=300.0, us=80.0, peers_us=40.0, log_us=300.0),
]
DOCUMENT: dict[str, Any] = {
    "about": {
        "machine": "2 cores",
        "cores": 2,
        "load_average": "0.1",
        "sync_ms": {"p50": 0.1, "p99": 0.2},
        "versions": ["holdfast"],
        "rounds": 2,
        "seconds": 3.0,
        "command": "x",
    },
    "cells": CELLS,
    "takeovers": [KILLED, {**KILLED, "detection_s": 3.75}, HANDED, GONE],
}


def test_a_cluster_is_compared_with_the_same_build_alone() -> None:
    lines = cluster_table.report(DOCUMENT)
    (alone,) = (line for line in lines if f"| {COMPILED} | 1,000/s" in line)
    assert alone.endswith("| - | 0.50, 2.00 ms | 50.0 | - | - | - |")
    (cluster,) = (line for line in lines if f"| {COMPILED_KAFKA} | 250/s" in line)
    assert cluster.endswith("| 250/s (200/s to 300/s) | 0.25 | - | 80.0 | 40.0 | 300.0 | - |") or (
        "(200 to 300) | 0.25 | - | 80.0 | 40.0 | 300.0 | - |" in cluster
    )


def test_only_what_was_measured_promises() -> None:
    rows = cluster_table.promises({"cells": CELLS, "takeovers": []})
    assert len(rows) == 4
    assert not any(NATS in row for row in rows)


def test_a_takeover_is_the_median_of_its_turns() -> None:
    rows = cluster_table.takeovers(DOCUMENT["takeovers"])
    assert (
        f"| {COMPILED_KAFKA} | 1,000 (999) | 3.50 s | 0.50 s | 0.10 s | 3.80 s | 0.60 s | 0.90 s |"
        in rows
    )


def test_what_went_wrong_is_said_in_its_row_and_at_the_end() -> None:
    lines = cluster_table.report(DOCUMENT)
    assert any(line.startswith(f"| {NATS} | 100 | **NOT OK**: the session") for line in lines)
    assert lines[-1] == "In all 3 runs the session was gone."


def test_the_results_of_a_cluster_fill_their_own_part() -> None:
    assert document.part_of(DOCUMENT) == ("cluster",)
    assert document.part_lines("cluster", DOCUMENT) == cluster_table.report(DOCUMENT)


def test_the_works_of_a_cluster_are_measured_on_all_of_them() -> None:
    by_key = {scenario.key: scenario for scenario in scenarios.ALL}
    for key in cluster_table.KEYS:
        assert set(cluster_table.ORDER) <= set(by_key[key].kinds)


def test_a_turn_is_told_in_a_line() -> None:
    assert "1,000 sessions, 999 connected: detection 3.25 s" in written(KILLED)
    assert written(GONE).endswith("NOT OK: the session was gone")
    assert run.CLUSTER_ROUNDS >= 2
