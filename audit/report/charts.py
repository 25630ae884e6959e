"""Charts as inline SVG. Pure; shapes are drawn here, and a template writes every text.

The shapes of a chart stretch with the window (`preserveAspectRatio="none"`, strokes do not scale).
Its labels are HTML text positioned at percentages of the plot, so they keep their size on every
screen and can be selected, enlarged and printed. For screen readers a chart also has a sentence
(`label`) and a table of numbers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from audit.report.rendering import render
from audit.report.summary import BUCKET_MAX, BUCKET_MIN, Histogram, bucket_start_ms
from audit.report.text import compact, count, duration, moment

WIDTH: Final = 1000  # of the drawing, in SVG units
HEIGHT: Final = 200
TABLE_ROWS_MAX: Final = 120  # more numbers than this are for the Parquet tables

_MINUTE: Final = 60
_STEPS_S: Final = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
    86400, 172800, 604800, 1209600, 2592000,
)  # fmt: skip


@dataclass(slots=True)
class Series:
    """One series of numbers in a chart, with its colour (a CSS class) and its name."""

    name: str
    tone: str
    values: list[float]


@dataclass(slots=True)
class Mark:
    """A time marked by a line across a chart: a crash, an anomaly."""

    at_us: int
    tone: str
    text: str


def nice_ceiling(value: float) -> float:
    """Return the next 1, 2, 3, 4, 5, 6 or 8 times a power of ten that is not below `value`."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for factor in (1, 2, 3, 4, 5, 6, 8, 10):
        if value <= factor * power * (1 + 1e-9):
            return factor * power
    return 10 * power


def time_ticks(from_us: int, to_us: int, wanted: int = 6) -> list[tuple[float, str]]:
    """Return round times between the two as (position from 0 to 1, label)."""
    span_s = max((to_us - from_us) / 1e6, 1e-6)
    step_s = next((step for step in _STEPS_S if span_s / step <= wanted), None)
    if step_s is None:
        step_s = math.ceil(span_s / wanted / 86400) * 86400
    first = math.ceil(from_us / 1e6 / step_s) * step_s
    pattern = "%d %b" if step_s >= 86400 else "%H:%M" if step_s >= _MINUTE else "%H:%M:%S"
    ticks = []
    day = ""
    at_s = first
    while at_s * 1e6 <= to_us:
        at = moment(round(at_s * 1e6))
        label = at.strftime(pattern)
        if step_s < 86400 and span_s > 86400 and at.strftime("%d %b") != day:
            day = at.strftime("%d %b")
            label = f"{day} {label}"
        ticks.append(((at_s * 1e6 - from_us) / (span_s * 1e6), label))
        at_s += step_s
    return ticks


def over_time(
    times: Sequence[int],
    areas: Sequence[Series],
    *,
    bin_s: int,
    label: str,
    step: Series | None = None,
    marks: Sequence[Mark] = (),
    unit: str = "",
    number: Callable[[float], str] = compact,
    table: bool = True,
) -> Markup:
    """Draw stacked areas per bin of time, and over them a step line of the expected values.

    `times` are the starts of the bins, rising; bins that are missing are zero.
    """
    if not times:
        return empty("There are no numbers for this chart.")
    begin, end = times[0], times[-1] + bin_s * 1_000_000
    places = [((at - begin) / (end - begin), bin_s * 1e6 / (end - begin)) for at in times]
    tops = [sum(series.values[i] for series in areas) for i in range(len(times))]
    highest = max([*tops, *(step.values if step else ()), 0])
    top = nice_ceiling(highest)
    shapes = []
    base = [0.0] * len(times)
    for series in areas:
        shapes.append(_area(places, base, series, top))
        base = [low + value for low, value in zip(base, series.values, strict=True)]
    if step is not None:
        shapes.append(_step(places, step, top))
    named = [*([step] if step else []), *areas]
    read = [
        [round(place * 100, 2), _stamp(at, bin_s), *(number(series.values[i]) for series in named)]
        for i, (at, (place, _)) in enumerate(zip(times, places, strict=True))
    ]
    numbers = [
        [_stamp(at, bin_s), *(count(round(series.values[i])) for series in named)]
        for i, at in enumerate(times)
    ]
    return _figure(
        "".join(shapes),
        label=label,
        x_ticks=time_ticks(begin, end),
        y_ticks=_y_ticks(top, number),
        key=named,
        marks=[(mark, (mark.at_us - begin) / (end - begin)) for mark in marks],
        unit=unit,
        read=read,
        table=(["Time (UTC)", *(series.name for series in named)], numbers) if table else None,
    )


def _y_ticks(top: float, number: Callable[[float], str]) -> list[tuple[float, str]]:
    shares = (0.0, 1.0) if top == 1 else (0.0, 0.5, 1.0)  # no tick for half a message
    return [(share, number(top * share)) for share in shares]


def _stamp(at_us: int, bin_s: int) -> str:
    return moment(at_us).strftime("%d %b %H:%M" if bin_s < 86400 else "%d %b %Y")


def _y(value: float, top: float) -> float:
    return round(HEIGHT - min(1.0, value / top) * (HEIGHT - 4), 2)


def _area(places: list[tuple[float, float]], base: list[float], series: Series, top: float) -> str:
    """Return one layer of a stack: its rectangles, joined to one outline per run of bins."""
    parts = []
    for run in _runs(places):
        upper = []
        lower = []
        for i in run:
            left = round(places[i][0] * WIDTH, 2)
            right = round((places[i][0] + places[i][1]) * WIDTH, 2)
            high = _y(base[i] + series.values[i], top)
            low = _y(base[i], top)
            upper.append(f"{left} {high}L{right} {high}")
            lower.append(f"{right} {low}L{left} {low}")
        parts.append(f"M{'L'.join(upper)}L{'L'.join(reversed(lower))}Z")
    return f'<path class="area {series.tone}" d="{"".join(parts)}"/>'


def _step(places: list[tuple[float, float]], series: Series, top: float) -> str:
    parts = []
    for run in _runs(places):
        points = []
        for i in run:
            high = _y(series.values[i], top)
            points.append(
                f"{round(places[i][0] * WIDTH, 2)} {high}"
                f"L{round((places[i][0] + places[i][1]) * WIDTH, 2)} {high}"
            )
        parts.append("M" + "L".join(points))
    return f'<path class="step {series.tone}" d="{"".join(parts)}"/>'


def _runs(places: list[tuple[float, float]]) -> list[list[int]]:
    """Split the bins at missing ones, so that nothing is drawn across a hole."""
    runs: list[list[int]] = []
    for i, (left, width) in enumerate(places):
        if runs and abs(places[i - 1][0] + places[i - 1][1] - left) < width * 0.01:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def histogram(durations: Histogram, *, label: str, tone: str, unit: str) -> Markup:
    """Draw durations in half octaves, with the median and a high percentile marked."""
    filled = [bucket for bucket, number in durations.buckets.items() if number]
    if not filled:
        return empty("Nothing was measured.")
    first = max(BUCKET_MIN, min(filled) - 1)
    last = min(BUCKET_MAX, max(filled) + 1)
    if last - first < 9:  # a chart of a single bar shows nothing
        last = first + 9
    slots = last - first + 1
    top = nice_ceiling(max(durations.buckets[bucket] for bucket in filled))
    shapes = []
    read: list[list[object]] = []
    numbers = []
    for i, bucket in enumerate(range(first, last + 1)):
        number = durations.buckets.get(bucket, 0)
        span = f"{_ms(bucket)} to {_ms(bucket + 1)}"
        read.append([round(i / slots * 100, 2), span, count(number)])
        if number:
            # At least 1.5 units, or a count of one beside a million would be invisible.
            high = min(_y(number, top), HEIGHT - 1.5)
            left = i / slots * WIDTH
            shapes.append(
                f'<rect class="bar {tone}" x="{left + 1:.2f}" y="{high}" '
                f'width="{WIDTH / slots - 2:.2f}" height="{HEIGHT - high:.2f}"/>'
            )
            numbers.append([span, count(number)])
    marks = []
    for share, name in ((0.5, "median"), (0.9, "90 %"), (0.99, "99 %")):
        value = durations.quantile_ms(share)
        if value is not None:
            place = (2 * math.log2(value) - first) / slots
            mark = Mark(0, "quantile", f"{name} {duration(value / 1000)}")
            marks.append((mark, place))
    return _figure(
        "".join(shapes),
        label=label,
        x_ticks=_duration_ticks(first, last + 1),
        y_ticks=_y_ticks(top, compact),
        key=[],
        marks=marks,
        unit=unit,
        read=read,
        table=(["Duration", "Count"], numbers),
    )


def _ms(bucket: int) -> str:
    return duration(bucket_start_ms(bucket) / 1000)


def _duration_ticks(first: int, end: int) -> list[tuple[float, str]]:
    """Return round durations on the logarithmic axis from bucket `first` to bucket `end`."""
    round_s = (
        1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 36000.0, 86400.0, 864000.0,
        8640000.0, 86400000.0,
    )  # fmt: skip
    ticks = []
    for seconds in round_s:
        share = (2 * math.log2(seconds * 1000) - first) / (end - first)
        if 0 <= share <= 1:
            ticks.append((share, duration(seconds)))
    return ticks


def spark(
    points: Sequence[tuple[int, int]], *, begin: int, end: int, top: int, tone: str
) -> Markup:
    """Return a small step curve without axes: each point holds until the next one."""
    span = max(end - begin, 1)
    parts = []
    high = 100.0
    for i, (at, value) in enumerate(points):
        x = round((at - begin) / span * WIDTH, 1)
        high = round(98 - value / max(top, 1) * 94, 1)
        parts.append(f"M{x} {high}" if i == 0 else f"H{x}V{high}")
    line = "".join(parts) + f"H{WIDTH}"
    first = round((points[0][0] - begin) / span * WIDTH, 1)
    return render("spark", width=WIDTH, line=line, first=first, tone=tone)


def empty(text: str) -> Markup:
    """Return the placeholder of a chart without numbers."""
    return Markup('<p class="nothing">{}</p>').format(text)


def _figure(
    shapes: str,
    *,
    label: str,
    x_ticks: Sequence[tuple[float, str]],
    y_ticks: Sequence[tuple[float, str]],
    key: Sequence[Series],
    marks: Sequence[tuple[Mark, float]],
    unit: str,
    read: Sequence[Sequence[object]],
    table: tuple[list[str], list[list[str]]] | None,
) -> Markup:
    lines = "".join(
        f'<path class="grid" d="M0 {_y(share, 1)}H{WIDTH}"/>' for share, _ in y_ticks if share
    )
    across = "".join(
        f'<path class="mark {mark.tone}" d="M{share * WIDTH:.2f} 0V{HEIGHT}"/>'
        for mark, share in marks
    )
    drawn = Markup(f"{lines}{shapes}{across}")  # numbers, and classes of ours
    heads, rows = table or ([], [])
    return render(
        "figure",
        width=WIDTH,
        height=HEIGHT,
        drawn=drawn,
        label=label,
        unit=unit,
        read=read,
        y_ticks=[(f"{share * 98:.1f}", text) for share, text in y_ticks],
        x_ticks=[
            (f"{share * 100:.2f}", " odd" if i % 2 else "", text)
            for i, (share, text) in enumerate(x_ticks)
            if share <= 0.985
        ],
        key=key,
        names=[series.name for series in key],
        marks=[mark for mark, _ in marks if mark.text],
        heads=heads,
        rows=rows[:TABLE_ROWS_MAX],
        rows_total=len(rows),
    )
