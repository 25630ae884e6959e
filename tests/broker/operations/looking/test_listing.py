"""Which rows of a list are shown, in which order, and as what text."""

import csv
import json
from collections.abc import Iterator

import pytest

from broker.operations.looking.listing import MORE, Asked, Listing, Row

BOATS = Listing(
    (("NAME", "name"), ("OWED", "owed"), ("AWAY", "away"), ("UNTIL", "until")),
    name="name",
    fields=("name", "owed", "away", "until", "port"),
    cells={"until": lambda moment: moment or "never"},
)
ROWS: tuple[Row, ...] = (
    {"name": "brig", "owed": 7, "away": False, "until": None, "port": "x"},
    {"name": "ark", "owed": None, "away": True, "until": "2026-02-01T00:00:00Z", "port": None},
    {"name": "cog", "owed": 30, "away": True, "until": "2026-01-01T00:00:00Z", "port": "a,b"},
)


def names(asked: Asked) -> list[str]:
    told = json.loads("\n".join(BOATS.lines(asked._replace(output="json"), ROWS)))
    return [row["name"] for row in told]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Asked(), ["brig", "ark", "cog"]),
        (Asked(sort="name"), ["ark", "brig", "cog"]),
        (Asked(sort="owed"), ["cog", "brig", "ark"]),  # the most first; unknown is last
        (Asked(sort="away"), ["ark", "cog", "brig"]),  # yes first, equal ones as they come
        (Asked(sort="until"), ["cog", "ark", "brig"]),  # the next first; never is last
        (Asked(sort="owed", limit=1), ["cog"]),
        (Asked(limit=2), ["brig", "ark"]),
        (Asked(match="*r*"), ["brig", "ark"]),
        (Asked(match="*r*", sort="name", limit=1), ["ark"]),
        (Asked(match="BRIG"), []),
        (Asked(match="[bc]*"), ["brig", "cog"]),
    ],
)
def test_rows_match_are_ordered_and_limited(asked: Asked, expected: list[str]) -> None:
    assert names(asked) == expected


def test_a_table_has_the_columns_and_says_where_there_are_more() -> None:
    assert [line.split() for line in BOATS.lines(Asked(), ROWS)] == [
        ["NAME", "OWED", "AWAY", "UNTIL"],
        ["brig", "7", "no", "never"],
        ["ark", "-", "yes", "2026-02-01T00:00:00Z"],
        ["cog", "30", "yes", "2026-01-01T00:00:00Z"],
    ]
    for sort in (None, "name"):
        *lines, last = BOATS.lines(Asked(limit=2, sort=sort), ROWS)
        assert (len(lines), last) == (3, MORE)
        assert len(list(BOATS.lines(Asked(limit=3, sort=sort), ROWS))) == 4
    assert list(BOATS.lines(Asked(limit=1, match="cog"), ROWS))[-1] != MORE


def test_csv_has_all_fields() -> None:
    rows = list(csv.DictReader(BOATS.lines(Asked(output="csv", sort="name"), ROWS)))
    assert [row["port"] for row in rows] == ["", "x", "a,b"]
    assert rows[0]["owed"] == ""


def test_it_can_be_sorted_by_each_column() -> None:
    assert BOATS.orders == ("name", "owed", "away", "until")
    assert all(len(names(Asked(sort=order))) == 3 for order in BOATS.orders)


def test_without_an_order_no_more_is_read_than_is_shown() -> None:
    def endless() -> Iterator[Row]:
        while True:
            yield ROWS[0]

    assert len(list(BOATS.lines(Asked(limit=2), endless()))) == 4


def test_names_cannot_disturb_the_terminal() -> None:
    row = {**ROWS[0], "name": "a\x1b[31m\n"}
    for output in ("table", "json", "csv"):
        assert all(
            part.isprintable()
            for line in BOATS.lines(Asked(output=output), [row])
            for part in line.split("\n")
        )
