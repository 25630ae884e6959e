"""How full the disk is, and how long it lasts."""

import pytest

from broker.admin.figures import Figure
from broker.admin.pages.views import storage
from broker.admin.records import Generation, Needing, Storage

FIGURES = Storage(log_bytes=3 << 30, generations=7, sessions_stored=12, retained_messages=1)


def kept(*points: tuple[str, int | None]) -> list[Figure]:
    return [Figure(f"2026-11-27T{at}Z", size is not None, log_bytes=size) for at, size in points]


@pytest.mark.parametrize(
    ("points", "text"),
    [
        ([], ""),
        ([("12:00:00", 0), ("12:05:00", 100)], ""),  # too short to say anything
        ([("11:00:00", 500), ("12:00:00", 500)], "it does not grow"),
        ([("11:00:00", 900), ("12:00:00", 500)], "it does not grow"),
        ([("11:00:00", 0), ("11:30:00", None), ("12:00:00", 1000)], "10 h"),
        ([("11:00:00", 0), ("12:00:00", 1)], "10,000 h"),
    ],
)
def test_how_long_it_lasts_is_told_of_the_growth_of_the_last_hour(
    points: list[tuple[str, int | None]], text: str
) -> None:
    expected = "416 d" if text == "10,000 h" else text
    assert storage.days_left(10_000, kept(*points)) == expected
    assert storage.days_left(10**9, kept(("11:00:00", 0), ("12:00:00", 1))) == "over 999 d"


def test_without_the_disk_its_tiles_are_left_out() -> None:
    words = [
        each["word"]
        for each in storage.context(FIGURES, None, [], [], pins_problem="", may_act=True)["tiles"]
    ]
    assert words == ["Log", "Generations", "Sessions", "Retained messages"]
    tiles = storage.context(FIGURES, (50 << 30, 12 << 30), [], [], pins_problem="", may_act=True)[
        "tiles"
    ]
    assert {"word": "Free on the disk", "value": "12.0 GiB", "note": "of 50.0 GiB"} in tiles


def test_a_generation_says_who_needs_it() -> None:
    needed = Generation(
        7, "open", None, 5, 1, 9, 9, 900, sessions=12, groups=1, backends=0, unreadable=2,
        largest_sessions=[Needing("boat", 9)], largest_groups=[], largest_backends=[],
    )  # fmt: skip
    pin = storage.pin(needed)
    assert pin["needed_by"] == ("12 sessions, 1 shared group, 2 sessions that cannot be read")
    assert (pin["clients"], pin["is_open"]) == (["boat"], True)
    free = Generation(6, "closed", None, 5, 1, 9, 9, 900, 0, 0, 0, 0, [], [], [])
    assert storage.pin(free)["needed_by"] == "nobody"
