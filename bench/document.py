"""Write the measured parts of docs/performance.md and README.md, and the plots, from results.

    python bench/run.py --document bench/results/NAME.json [bench/results/NAME-curves.json]

replaces the text between `<!-- bench: PART: FILE -->` and `<!-- end -->`; the rest is written by
hand. tests/bench checks that the documents match the files they name. Nothing is measured here.
Read next: `bench.table`, `bench.plot`.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench import cluster_table, curves, plot, slow_disk, table
from bench.brokers import MOSQUITTO, OURS, ROOT
from bench.goals import WORKS, entries, ratio

PLOTS: Final = "docs/plots"
PARTS: Final = re.compile(
    r"<!-- bench: (?P<part>[a-z]+): (?P<file>\S+) -->\n.*?<!-- end -->", re.DOTALL
)
DOCUMENTS: Final = ("docs/performance.md", "README.md")

Results = Mapping[str, Any]


def ratios_plot(document: Results) -> str:
    """Return the plot of throughput relative to mosquitto, with the goals marked."""
    found = entries(document["cells"])
    rows: list[tuple[str, Mapping[str, float], float | None]] = []
    for work in WORKS:
        kinds = found.get(work.key, {})
        if work.main != "rate" or MOSQUITTO not in kinds:
            continue
        values: dict[str, float] = {
            kind: value
            for kind in OURS
            if kind in kinds and (value := ratio(kinds[kind], kinds[MOSQUITTO], "rate"))
        }
        goal = next((g.bound for g in work.goals if g.over == MOSQUITTO and g.is_floor), None)
        if values:
            rows.append((work.title.removesuffix(", durable"), values, goal))
    return plot.bars("Throughput over mosquitto in memory (marks: the goals)", rows)


def curve_plots(document: Results) -> dict[str, str]:
    """Return every plot of the curves that were measured, by file name."""
    made = {}
    for curve in curves.CURVES:
        for metric, title, up in curve.plots:
            found = curves.series(document["points"], curve.key, metric)
            if found:
                made[f"{curve.key}-{metric}.svg"] = plot.curves(title, curve.across, up, found)
    return made


def _curve_lines(document: Results) -> list[str]:
    about = document["about"]
    lines = [
        f"{about['machine']}; " + "; ".join(about["versions"]) + f"; load average before the run "
        f"{about['load_average']}; `{about['command']}`. Both scales are logarithmic.",
        "",
    ]
    for name in curve_plots(document):
        title = next(
            f"{title}, by {curve.across}"
            for curve in curves.CURVES
            for metric, title, _ in curve.plots
            if name == f"{curve.key}-{metric}.svg"
        )
        lines.append(f"![{title}](plots/{name})")
    bad = [p for p in document["points"] if not p["ok"]]
    for point in bad:
        lines += ["", f"{point['curve']} {point['x']} {point['broker']}: {point['trouble']}"]
    return lines


def part_lines(part: str, document: Results) -> list[str]:
    """Return the lines of one generated part of a document."""
    if part == "results":
        lines = ["![Throughput over mosquitto](plots/ratios.svg)", "", *table.report(document)]
        if document["slow_disk"]:
            lines += ["", *slow_disk.rows(document["slow_disk"])]
        return lines
    if part == "curves":
        return _curve_lines(document)
    if part == "cluster":
        return cluster_table.report(document)
    assert part == "readme"
    return table.readme(document)


def part_of(document: Results) -> tuple[str, ...]:
    """Return the document parts that are made from a results file."""
    if "takeovers" in document:
        return ("cluster",)
    return ("results", "readme") if "cells" in document else ("curves",)


def filled_in(text: str, name: str, document: Results) -> str:
    """Return a document's text with the parts made from `document` replaced."""

    def replace(found: re.Match[str]) -> str:
        part = found["part"]
        if part not in part_of(document):
            return found[0]
        lines = "\n".join(part_lines(part, document))
        return f"<!-- bench: {part}: {name} -->\n\n{lines}\n\n<!-- end -->"

    return PARTS.sub(replace, text)


def write(paths: list[Path]) -> list[str]:
    """Update documents and plots from results files; return what was written."""
    done = []
    for path in paths:
        document = json.loads(path.read_text())
        name = path.resolve().relative_to(ROOT).as_posix()
        is_ratios = "results" in part_of(document)
        plots = {"ratios.svg": ratios_plot(document)} if is_ratios else {}
        plots |= curve_plots(document) if "points" in document else {}
        folder = ROOT / PLOTS
        folder.mkdir(exist_ok=True)
        for file, text in plots.items():
            (folder / file).write_text(text)
            done.append(f"{PLOTS}/{file}")
        for file in DOCUMENTS:
            text = (ROOT / file).read_text()
            new = filled_in(text, name, document)
            if new != text:
                (ROOT / file).write_text(new)
                done.append(file)
    return done
