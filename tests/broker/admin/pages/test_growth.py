"""How what is owed has changed in the last hour."""

from broker.admin.pages.growth import POINTS_MAX, Growth, Point


def grown(*points: tuple[float, int, int]) -> Growth:
    growth = Growth()
    for point in points:
        growth.add(Point(*point))
    return growth


def test_points_older_than_an_hour_go() -> None:
    growth = grown((0, 1, 1), (1800, 2, 2), (3601, 3, 3))
    assert growth.columns() == [[1800, 3601], [2, 3], [2, 3]]


def test_only_so_many_points_are_kept() -> None:
    growth = grown(*((at, at, at) for at in range(POINTS_MAX + 5)))
    assert len(growth.columns()[0]) == POINTS_MAX


def test_after_a_step_of_the_clock_it_begins_anew() -> None:
    assert grown((1000, 1, 1), (500, 2, 2)).columns()[0] == [500]


def test_the_sentence_says_what_was_and_what_is() -> None:
    assert "from now on" in grown((0, 5, 5)).sentence()
    assert grown((0, 1000, 4096), (600, 3000, 2048)).sentence() == (
        "In 10 min: +2,000 messages, -2.00 KiB. Then 1,000, now 3,000."
    )
    assert grown((0, 7, 5), (600, 7, 5)).sentence() == "Unchanged for 10 min: 7 messages."
