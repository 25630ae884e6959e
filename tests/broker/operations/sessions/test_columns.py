"""Rows become tables, CSV and JSON, without being held and without controlling a terminal."""

import csv
import json
from collections.abc import Iterator

from broker.operations.sessions.columns import (
    ALIGNED_ROWS,
    csv_lines,
    json_lines,
    moment,
    table,
)
from broker.operations.sessions.inventory import Inventory
from storage.local.memory import MemoryStore

HOSTILE = 'a\x1b]0;owned\x07\r\n,"\u202eb'


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_are_on_the_right() -> None:
    assert list(table(("A", "N", "B"), [("long", "1", "x"), ("s", "100", "")], right=("N",))) == [
        "A       N  B",
        "long    1  x",
        "s     100",
    ]


def test_a_table_without_rows_is_its_header() -> None:
    assert list(table(("A", "B"), [])) == ["A  B"]


def test_names_cannot_control_a_terminal() -> None:
    (_, line) = table(("A",), [(HOSTILE,)])
    assert line == 'a\\x1b]0;owned\\x07\\r\\n,"\\u202eb'
    (_, line) = csv_lines(("a", "b"), [{"a": HOSTILE, "b": None}])
    assert line.isprintable()
    assert next(csv.reader([line])) == ['a\\x1b]0;owned\\x07\\r\\n,"\\u202eb', ""]
    assert all(line.replace("\n", "").isprintable() for line in json_lines([{"a": HOSTILE}]))


def test_rows_are_taken_when_they_are_printed() -> None:
    taken = 0

    def rows() -> Iterator[tuple[str, str]]:
        nonlocal taken
        while True:
            taken += 1
            yield ("x" * (1 + taken // (ALIGNED_ROWS + 1)), "y")

    lines = table(("A", "B"), rows())
    assert [next(lines) for _ in range(10)][1:] == ["x  y"] * 9
    assert taken == ALIGNED_ROWS
    for _ in range(ALIGNED_ROWS - 9):
        next(lines)
    assert next(lines) == "xx  y"  # wider than all that decided the width


def test_csv_has_the_fields_of_its_header_in_that_order() -> None:
    rows = [{"b": 1, "a": True, "c": 3}, {"a": False, "b": "x y", "c": 3}]
    assert list(csv_lines(("a", "b"), rows)) == ["a,b", "true,1", "false,x y"]


def test_json_is_one_array() -> None:
    for objects in ([], [{"a": 1}], [{"a": [1, {}]}, {"b": "ü"}, {}]):
        lines = list(json_lines(objects))
        assert json.loads("\n".join(lines)) == objects
        assert "\n".join(lines) == json.dumps(objects, indent=2)


def test_a_time_is_in_utc_and_none_is_none() -> None:
    inventory = Inventory(MemoryStore())
    assert moment(inventory, 1_700_000_000_000) == "2023-11-14T22:13:20Z"
    assert moment(inventory, 0) is None
