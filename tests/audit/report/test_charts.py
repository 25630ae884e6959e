"""Charts: scales, ticks, shapes, and what is said of them."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from audit.report import charts
from audit.report.charts import HEIGHT, Mark, Series
from audit.report.summary import Histogram

MINUTE = 60_000_000


@pytest.mark.parametrize(
    ("value", "top"),
    [(0, 1), (1, 1), (1.1, 2), (7, 8), (9, 10), (10, 10), (11, 20), (3300, 4000), (0.3, 0.3)],
)
def test_an_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert charts.nice_ceiling(value) == pytest.approx(top)


def test_ticks_of_a_morning_are_hours() -> None:
    begin = 1_793_520_000_000_000  # 08:00
    labels = [label for _, label in charts.time_ticks(begin, begin + 240 * MINUTE)]
    assert labels == ["08:00", "09:00", "10:00", "11:00", "12:00"]


def test_ticks_of_two_days_name_the_day_once() -> None:
    begin = 1_793_520_000_000_000
    labels = [label for _, label in charts.time_ticks(begin, begin + 2 * 1440 * MINUTE)]
    assert labels[0] == "01 Nov 12:00"
    assert "00:00" in labels[1] and "02 Nov" in labels[1]
    assert labels[2] == "12:00"


@pytest.mark.parametrize("length", [6, 360])
def test_ticks_of_many_days_are_whole_days_apart(length: int) -> None:
    begin = 1_793_520_000_000_000
    span = length * 1440 * MINUTE
    ticks = charts.time_ticks(begin, begin + span)
    days = [(begin + share * span) / (1440 * MINUTE) for share, _ in ticks]
    assert all(day == pytest.approx(round(day), abs=1e-6) for day in days)
    assert len({round(after - before) for before, after in pairwise(days)}) == 1
    assert all(":" not in label for _, label in ticks)


@pytest.mark.parametrize("span", [1, MINUTE, 1440 * MINUTE, 400 * 1440 * MINUTE])
def test_there_are_never_many_ticks(span: int) -> None:
    ticks = charts.time_ticks(1_793_520_000_123_456, 1_793_520_000_123_456 + span)
    assert len(ticks) <= 7
    assert all(0 <= share <= 1 for share, _ in ticks)


def chart(**more: object) -> str:
    """Draw three minutes and, after a hole, a fourth."""
    times = [0, MINUTE, 2 * MINUTE, 9 * MINUTE]
    areas = [Series("done", "ok", [1, 2, 0, 1]), Series("open", "open", [0, 1, 0, 0])]
    step = Series("owed", "expected", [1, 3, 0, 2])
    return charts.over_time(times, areas, step=step, bin_s=60, label="Books.", **more)  # type: ignore[arg-type]


def svg(html: str) -> ElementTree.Element:
    """Return the chart's drawing, which has to be well-formed."""
    found = re.search(r"<svg.*?</svg>", html, re.S)
    assert found is not None
    return ElementTree.fromstring(found.group(0))


def test_nothing_is_drawn_across_a_hole() -> None:
    path = next(p for p in svg(chart()) if p.get("class") == "step expected")
    assert path.get("d", "").count("M") == 2


def test_areas_lie_on_each_other() -> None:
    paths = {path.get("class"): path.get("d", "") for path in svg(chart())}
    # In the second minute: done 2 of 3, open the third, so the pile reaches the top.
    assert f"100.0 {HEIGHT - 2 / 3 * (HEIGHT - 4):.2f}" in paths["area ok"]
    assert "100.0 4.0" in paths["area open"]


def test_a_chart_says_what_it_shows() -> None:
    html = chart()
    assert 'role="img"' in html and 'aria-label="Books."' in html
    assert '<th scope="row">01 Jan 00:01</th><td>3</td><td>2</td><td>1</td>' in html


def test_names_in_a_chart_are_escaped() -> None:
    html = charts.over_time(
        [0], [Series("<i>", "ok", [1])], bin_s=60, label='"><script>', unit="<u>",
        marks=[Mark(0, "crash", "<b>")],
    )  # fmt: skip
    assert not re.search(r"<(i|b|u|script)>", html)


def test_an_empty_chart_is_a_sentence() -> None:
    assert charts.over_time([], [], bin_s=60, label="x").startswith("<p")
    assert charts.histogram(Histogram(), label="x", tone="ok", unit="y").startswith("<p")


def test_a_single_duration_beside_a_million_can_be_seen() -> None:
    html = charts.histogram(Histogram({0: 1_000_000, 9: 1}), label="x", tone="ok", unit="y")
    heights = sorted(float(bar.get("height", 0)) for bar in svg(html) if bar.tag == "rect")
    assert len(heights) == 2
    assert heights[0] >= 1.5


def test_a_curve_holds_until_its_next_point() -> None:
    html = charts.spark([(0, 0), (50, 10)], begin=0, end=100, top=10, tone="open")
    assert 'd="M0.0 98.0H500.0V4.0H1000"' in html
