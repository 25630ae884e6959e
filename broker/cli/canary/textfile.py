"""What a canary has seen, for the textfile collector of Prometheus' node exporter."""

import os
from typing import Final

from broker.cli.canary.books import Sums

_METRICS: Final = (
    ("published_total", "counter", "messages that were sent", "published"),
    ("acknowledged_total", "counter", "messages that were acknowledged", "acknowledged"),
    ("received_total", "counter", "messages that readers got", "received"),
    ("lost_total", "counter", "messages that a reader did not get in time", "lost"),
    ("doubled_total", "counter", "messages that a reader got twice", "doubled"),
    ("problems_total", "counter", "problems of all kinds", "problems"),
    ("connections_total", "counter", "connections that were made", "connections"),
    ("round_trip_seconds", "gauge", "from PUBLISH to PUBLISH, newest message", "round_trip_s"),
    ("round_trip_max_seconds", "gauge", "the longest one so far", "round_trip_max_s"),
)


def text_of(sums: Sums, *, waiting: int, is_connected: bool) -> str:
    """Return the metrics in Prometheus' text format."""
    lines = []
    for name, kind, text, field in _METRICS:
        value = getattr(sums, field)
        lines += _metric(name, kind, text, f"{value:.6f}" if isinstance(value, float) else value)
    lines += _metric("waiting", "gauge", "messages that a reader still waits for", waiting)
    lines += _metric("up", "gauge", "1 if all clients that should be are connected", +is_connected)
    return "\n".join(lines) + "\n"


def write(path: str, text: str) -> None:
    """Replace the file at once: the collector never reads half of it. Raises `OSError`."""
    scratch = f"{path}.tmp"
    with open(scratch, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(scratch, path)


def _metric(name: str, kind: str, text: str, value: object) -> list[str]:
    full = f"holdfast_canary_{name}"
    return [f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full} {value}"]
