"""The verdicts of the last runs: a strip, what changed since the run before, and curves. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from audit.report import charts
from audit.report.rendering import render
from audit.report.summary import Picture, Run
from audit.report.text import moment

RUNS_MAX: Final = 60  # shown, and read from OUT/verdicts


def run_of(document: Mapping[str, Any]) -> Run:
    """Return one run of its verdict.json."""
    found = document["invariants"]
    return Run(
        document["batch"],
        document["status"],
        round(datetime.fromisoformat(document["to"]).timestamp() * 1e6),
        document["rows"],
        sum(each["violated"] - each.get("suppressed", 0) for each in found.values()),
        sum(each["unknown"] for each in found.values()),
        {name: each["status"] for name, each in found.items()},
    )


def changes(runs: Sequence[Run]) -> list[str]:
    """Return what is otherwise than in the run before, as sentences."""
    if len(runs) < 2:
        return []
    before, now = runs[-2].statuses, runs[-1].statuses
    return [
        f"{name}: {status}, {before[name]} before"
        for name, status in now.items()
        if name in before and before[name] != status
    ]


def section(picture: Picture) -> str:
    """Return the section; empty if there was one run only."""
    runs = picture.runs[-RUNS_MAX:]
    if len(runs) < 2:
        return render("nothing")
    return render(
        "trend",
        runs=[(run, f"{moment(run.to_us):%Y-%m-%d %H:%M:%S}") for run in runs],
        since=changes(runs),
        curves=[
            (title, numbers[-1], max(numbers), charts.spark(
                list(enumerate(numbers)), begin=0, end=len(numbers), top=max(numbers), tone=tone,
            ))
            for title, tone, numbers in _numbers(runs)
        ],
    )  # fmt: skip


def _numbers(runs: Iterable[Run]) -> list[tuple[str, str, list[int]]]:
    shown = list(runs)
    return [
        ("violated", "violated", [run.violated for run in shown]),
        ("unknown", "expired", [run.unknown for run in shown]),
        ("events", "ok", [run.rows for run in shown]),
    ]
