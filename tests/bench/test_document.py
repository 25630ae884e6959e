"""The documents hold what the results files say that they name."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import curves
from bench import document as documents
from bench.brokers import ROOT
from bench.run import as_json

NAMED = [
    (file, found["part"], found["file"])
    for file in documents.DOCUMENTS
    for found in documents.PARTS.finditer((ROOT / file).read_text())
]
POINTS = {
    "about": {
        "machine": "2 cores",
        "versions": ["holdfast"],
        "load_average": "0.1",
        "command": "x",
    },
    "points": [
        {
            "curve": "fanout",
            "broker": "holdfast",
            "x": x,
            "metrics": {"rate": 10.0 * x},
            "ok": x != 100,
            "trouble": "" if x != 100 else "lost 1",
        }
        for x in (1, 10, 100)
    ],
}


def test_the_documents_name_results() -> None:
    assert {part for _, part, _ in NAMED} == {"results", "curves", "readme", "cluster"}


@pytest.mark.parametrize(("file", "part", "results"), NAMED)
def test_a_document_says_what_its_results_say(file: str, part: str, results: str) -> None:
    """Refresh with: python bench/run.py --document FILE..."""
    text = (ROOT / file).read_text()
    assert documents.filled_in(text, results, json.loads((ROOT / results).read_text())) == text


@pytest.mark.parametrize(
    "path", sorted((ROOT / documents.PLOTS).glob("*.svg")), ids=lambda path: path.name
)
def test_the_plots_are_small_valid_and_shown(path: Path) -> None:
    assert path.stat().st_size < 20_000
    ElementTree.fromstring(path.read_text())
    assert f"(plots/{path.name})" in (ROOT / "docs" / "performance.md").read_text()


def test_only_the_parts_of_a_results_file_are_replaced() -> None:
    text = "a\n<!-- bench: curves: old.json -->\nx\n<!-- end -->\nb <!-- bench: results: r.json -->"
    new = documents.filled_in(text, "new.json", POINTS)
    assert new.startswith("a\n<!-- bench: curves: new.json -->\n\n2 cores; holdfast; load")
    assert new.endswith("<!-- end -->\nb <!-- bench: results: r.json -->")
    assert documents.filled_in(new, "new.json", POINTS) == new


def test_a_point_that_went_wrong_is_told_and_not_plotted() -> None:
    found = curves.series(POINTS["points"], "fanout", "rate")  # type: ignore[arg-type]
    assert found == {"holdfast": [(1, 10.0), (10, 100.0)]}
    assert "fanout 100 holdfast: lost 1" in documents.part_lines("curves", POINTS)


def test_every_curve_plots_something_it_measures() -> None:
    names = [f"{curve.key}-{metric}" for curve in curves.CURVES for metric, _, _ in curve.plots]
    assert len(names) == len(set(names)) >= 5


def test_results_are_json_with_a_run_per_line() -> None:
    result = {"about": {"rounds": 1}, "cells": [{"a": 1}, {"b": 2}], "slow_disk": None}
    text = as_json(result)
    assert json.loads(text) == result
    assert text.count("\n") == 8
