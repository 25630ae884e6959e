"""The plots of the benchmark are XML that stands alone, and show what they were given."""

from xml.etree import ElementTree

import pytest

from bench import plot

SVG = "{http://www.w3.org/2000/svg}"
ROWS = [
    ("QoS 0 <1:1> & more", {"holdfast": 3.6, "holdfast compiled": 14.2}, 10.0),
    ("fan-in", {"holdfast": 0.5}, None),
]
SERIES = {"mosquitto": [(100.0, 12.0), (1000.0, 13.0)], "holdfast": [(100.0, 4.0)]}


def parsed(text: str) -> ElementTree.Element:
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    return root


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_bars_show_each_value_and_a_mark_per_goal() -> None:
    root = parsed(plot.bars("title & <so on>", ROWS))
    title = root.find(f"{SVG}title")
    assert title is not None
    assert title.text == "title & <so on>"
    shown = texts(root)
    assert "QoS 0 <1:1> & more" in shown
    assert {"3.6x", "14.2x", "0.5x"} <= set(shown)
    marks = [line for line in root.iter(f"{SVG}line") if line.get("stroke-width") == "2"]
    assert len(marks) == 1


def test_a_longer_bar_is_a_greater_value() -> None:
    root = parsed(plot.bars("t", [("a", {"one": 2.0, "two": 20.0, "three": 0.2}, None)]))
    widths = [
        float(rect.get("width", "0"))
        for rect in root.iter(f"{SVG}rect")
        if rect.get("x") == str(plot.LEFT)
    ]
    assert widths[2] < widths[0] < widths[1]


def test_curves_have_a_point_per_measurement_inside_the_frame() -> None:
    root = parsed(plot.curves("t", "subscriptions", "microseconds", SERIES))
    dots = list(root.iter(f"{SVG}circle"))
    assert len(dots) == 3
    for dot in dots:
        x, y = float(dot.get("cx", "-1")), float(dot.get("cy", "-1"))
        assert plot.CURVE_LEFT <= x <= plot.WIDTH - plot.CURVE_RIGHT
        assert plot.TOP <= y <= plot.TOP + plot.CURVE_HEIGHT
    assert {"subscriptions", "microseconds", "mosquitto", "holdfast"} <= set(texts(root))


def test_curves_go_from_left_to_right_whatever_the_order_of_the_points() -> None:
    backwards = {name: found[::-1] for name, found in SERIES.items()}
    assert plot.curves("t", "a", "b", backwards) == plot.curves("t", "a", "b", SERIES)


@pytest.mark.parametrize("series", [{}, {"none": []}, {"zero": [(1.0, 0.0)]}])
def test_nothing_to_show_is_a_plot_too(series: dict[str, list[tuple[float, float]]]) -> None:
    parsed(plot.curves("t", "a", "b", series))


def test_plots_stand_alone() -> None:
    for text in (plot.bars("t", ROWS), plot.curves("t", "a", "b", SERIES)):
        assert "href" not in text
        assert "<script" not in text


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.05, "0.05"), (1.0, "1"), (14.17, "14.2"), (2000.0, "2k"), (1.3e6, "1.3M"), (1e9, "1G")],
)
def test_an_axis_has_short_numbers(value: float, shown: str) -> None:
    assert plot.short(value) == shown


def test_a_scale_puts_powers_of_ten_at_even_distances() -> None:
    scale = plot.Scale([1.0, 1000.0], 0.0, 300.0)
    assert [scale(tick) for tick in scale.ticks()] == pytest.approx([0.0, 100.0, 200.0, 300.0])
    assert scale(0.0) == 0.0
