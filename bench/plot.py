"""Draw SVG plots: bars of ratios, and curves, both on logarithmic scales.

Pure and deterministic. A plot is a few kilobytes, needs no fonts, scripts or links, and has a title
for screen readers. Read next: `bench.document`, which writes the plots into docs/.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 640
BAR: Final = 14
GAP: Final = 14
LEFT: Final = 230
RIGHT: Final = 60
TOP: Final = 44
CURVE_HEIGHT: Final = 300
CURVE_LEFT: Final = 70
CURVE_RIGHT: Final = 150
COLOURS: Final = ("#1f6fb2", "#d1700f", "#4d8b31", "#8a4fa0", "#a03434", "#555555")
INK: Final = "#333333"
FAINT: Final = "#dddddd"

Points = Sequence[tuple[float, float]]


def _document(width: int, height: int, title: str, body: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" font-family="sans-serif" font-size="12">'
    )
    return "\n".join(
        [
            head,
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            _text(12, 20, title, size=14),
            *body,
            "</svg>",
            "",
        ]
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{INK}">{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def short(value: float) -> str:
    """Return the label of a number on an axis: 1, 0.5, 2k, 1M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


class Scale:
    """A logarithmic axis that begins and ends at or near a power of ten."""

    def __init__(self, values: Sequence[float], start: float, stop: float) -> None:
        """Map the span of the positive `values` to pixels from `start` to `stop`."""
        positive = [value for value in values if value > 0] or [1.0]
        self.low = math.floor(math.log10(min(positive)) + 1e-9)
        self.high = max(math.ceil(math.log10(max(positive)) - 1e-9), self.low + 1)
        self._start = start
        self._stop = stop

    def __call__(self, value: float) -> float:
        """Return the position of a value; values not above 0 go to the low end."""
        log = math.log10(value) if value > 0 else self.low
        share = (min(max(log, self.low), self.high) - self.low) / (self.high - self.low)
        return self._start + share * (self._stop - self._start)

    def ticks(self) -> list[float]:
        """Return the powers of ten on the axis."""
        return [10.0**power for power in range(self.low, self.high + 1)]


def bars(
    title: str, rows: Sequence[tuple[str, Mapping[str, float], float | None]], unit: str = "x"
) -> str:
    """Draw a bar per row and series; a row's third value is its goal, drawn as a mark."""
    names = list(dict.fromkeys(name for _, values, _ in rows for name in values))
    everything = [value for _, values, _ in rows for value in values.values()]
    everything += [goal for _, _, goal in rows if goal]
    scale = Scale([*everything, 1.0], LEFT, WIDTH - RIGHT)
    body = []
    y = TOP + 20.0
    bottom = y + sum(len(values) * BAR + GAP for _, values, _ in rows)
    for tick in scale.ticks():
        body.append(_line(scale(tick), TOP + 8, scale(tick), bottom, FAINT))
        body.append(_text(scale(tick), TOP + 4, short(tick) + unit, anchor="middle", size=10))
    for label, values, goal in rows:
        middle = y + len(values) * BAR / 2 + 4
        body.append(_text(LEFT - 8, middle, label, anchor="end"))
        first = y
        for name, value in values.items():
            colour = COLOURS[names.index(name) % len(COLOURS)]
            width = max(scale(value) - LEFT, 1.0)
            body.append(
                f'<rect x="{LEFT}" y="{y:.1f}" width="{width:.1f}" height="{BAR - 2}" '
                f'fill="{colour}"/>'
            )
            body.append(_text(LEFT + width + 4, y + 10, short(value) + unit, size=10))
            y += BAR
        if goal:
            x = scale(goal)
            body.append(
                f'<line x1="{x:.1f}" y1="{first - 3:.1f}" x2="{x:.1f}" y2="{y + 1:.1f}" '
                f'stroke="{INK}" stroke-width="2"/>'
            )
        y += GAP
    body += _legend(names, 12, bottom + 12)
    return _document(WIDTH, int(bottom + 16 + 16 * len(names)), title, body)


def _legend(names: Sequence[str], x: float, y: float) -> list[str]:
    lines = []
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        top = y + 16 * number
        lines.append(f'<rect x="{x}" y="{top - 9:.1f}" width="10" height="10" fill="{colour}"/>')
        lines.append(_text(x + 16, top, name))
    return lines


def curves(title: str, across: str, up: str, series: Mapping[str, Points]) -> str:
    """Draw curves through points with positive coordinates; `across` and `up` name the axes."""
    points = [point for found in series.values() for point in found]
    bottom = TOP + CURVE_HEIGHT
    xs = Scale([x for x, _ in points], CURVE_LEFT, WIDTH - CURVE_RIGHT)
    ys = Scale([y for _, y in points], bottom, TOP + 10)
    body = [_text(12, TOP - 2, up, size=11)]
    for tick in xs.ticks():
        body.append(_line(xs(tick), TOP + 10, xs(tick), bottom, FAINT))
        body.append(_text(xs(tick), bottom + 16, short(tick), anchor="middle", size=10))
    for tick in ys.ticks():
        body.append(_line(CURVE_LEFT, ys(tick), WIDTH - CURVE_RIGHT, ys(tick), FAINT))
        body.append(_text(CURVE_LEFT - 6, ys(tick) + 4, short(tick), anchor="end", size=10))
    middle = (CURVE_LEFT + WIDTH - CURVE_RIGHT) / 2
    body.append(_text(middle, bottom + 34, across, anchor="middle", size=11))
    for number, found in enumerate(series.values()):
        colour = COLOURS[number % len(COLOURS)]
        places = [(xs(x), ys(y)) for x, y in sorted(found)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    body += _legend(list(series), WIDTH - CURVE_RIGHT + 12, TOP + 20)
    return _document(WIDTH, bottom + 44, title, body)
