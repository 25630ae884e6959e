"""The last verdict as metrics for Prometheus: a file for node_exporter's textfile collector.

The file is replaced at once, so a collector never reads half of it. What is there after a failed
audit is the verdict before: alert on its age.
"""

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

STATUSES: Final = ("ok", "violated", "unknown")

# Metric -> its help. All are gauges.
METRICS: Final[dict[str, str]] = {
    "holdfast_audit_verdict_timestamp_seconds": "when the last verdict was reached",
    "holdfast_audit_history_timestamp_seconds": "the time of the newest event that was judged",
    "holdfast_audit_status": "1 for the status of the last verdict, 0 for the others",
    "holdfast_audit_batch": "number of the last run",
    "holdfast_audit_events": "events judged by the last run",
    "holdfast_audit_invariant_status": "the same for each invariant",
    "holdfast_audit_violated": "violations of an invariant in the last run, suppressed ones too",
    "holdfast_audit_unknown": "what the last run could not tell",
    "holdfast_audit_suppressed": "violations that a rule says do not count",
    "holdfast_audit_suppressions_expired": "rules that have expired, and suppress nothing",
}


def lines(document: Mapping[str, Any], made_us: int) -> list[str]:
    """Return the metrics of a verdict."""
    found = document["invariants"]
    until = datetime.fromisoformat(document["to"]).timestamp()
    rules = document.get("suppressions", [])
    values: dict[str, list[tuple[str, float]]] = {
        "holdfast_audit_verdict_timestamp_seconds": [("", made_us / 1e6)],
        "holdfast_audit_history_timestamp_seconds": [("", until)],
        "holdfast_audit_status": _statuses("", document["status"]),
        "holdfast_audit_batch": [("", document["batch"])],
        "holdfast_audit_events": [("", document["rows"])],
        "holdfast_audit_invariant_status": [
            each
            for name, one in found.items()
            for each in _statuses(f'invariant="{name}",', one["status"])
        ],
        "holdfast_audit_suppressions_expired": [
            ("", sum(rule["state"] == "expired" for rule in rules))
        ],
    }
    for key in ("violated", "unknown", "suppressed"):
        values[f"holdfast_audit_{key}"] = [
            (f'invariant="{name}"', one.get(key, 0)) for name, one in found.items()
        ]
    return [line for name in METRICS for line in _metric(name, values[name])]


def _statuses(labels: str, status: str) -> list[tuple[str, float]]:
    return [(f'{labels}status="{each}"', int(each == status)) for each in STATUSES]


def _metric(name: str, values: Iterable[tuple[str, float]]) -> list[str]:
    told = [f"{name}{f'{{{labels}}}' if labels else ''} {value}" for labels, value in values]
    return [f"# HELP {name} {METRICS[name]}", f"# TYPE {name} gauge", *told]


def write(path: Path, document: Mapping[str, Any], made_us: int) -> None:
    """Replace the file atomically; raise OSError if it cannot be written."""
    text = "\n".join(lines(document, made_us)) + "\n"
    scratch = path.with_name(f".{path.name}.{os.getpid()}")  # not *.prom: no collector reads it
    try:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.chmod(0o644)  # whoever collects is somebody else
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
