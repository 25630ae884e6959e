"""The tables of docs/security.md: every class has a row in both, and its tests exist."""

import ast
import functools
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENT: Final = ROOT / "docs" / "security.md"
CLASSES: Final = [f"C{number}" for number in range(1, 22)]
COLUMNS: Final = {"classes": 4, "tests": 2}
CELL_BREAK: Final = re.compile(r"(?<!\\)\|")


def table(part: str) -> dict[str, list[str]]:
    """Return the cells of each row behind its class, of the table of classes or that of tests."""
    rows: dict[str, list[str]] = {}
    classes, _, tests = DOCUMENT.read_text().partition("\n## Appendix: the tests\n")
    for line in (classes if part == "classes" else tests).splitlines():
        if re.match(r"\| C\d+ ", line):
            name, *cells = [cell.strip() for cell in CELL_BREAK.split(line)[1:-1]]
            assert name not in rows, f"{name} has two rows"
            rows[name] = cells
    return rows


@functools.cache
def written() -> dict[str, Path]:
    """Return the tests for a class, wherever they stand in tests/security."""
    found: dict[str, Path] = {}
    for path in sorted((ROOT / "tests" / "security").glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("test_"):
                    assert node.name not in found, f"{node.name} in {path} and {found[node.name]}"
                    found[node.name] = path
    return found


def named(cells: list[str]) -> list[str]:
    return re.findall(r"`(\w+)`", cells[-1])


@pytest.mark.parametrize("part", sorted(COLUMNS))
def test_every_class_has_a_row_and_every_cell_says_something(part: str) -> None:
    rows = table(part)
    assert list(rows) == CLASSES
    for name, cells in rows.items():
        assert len(cells) == COLUMNS[part] - 1, name
        assert all(cells), f"{name} has an empty cell"


@pytest.mark.parametrize("name", CLASSES)
def test_a_row_names_tests_that_exist_and_bear_its_number(name: str) -> None:
    prefix = f"test_c{int(name[1:]):02}_"
    names = named(table("tests")[name])
    assert names, f"{name} has no test"
    assert len(names) == len(set(names)), f"{name} names a test twice"
    for test in names:
        assert test in written(), f"{name}: tests/security has no {test}"
        assert test.startswith(prefix), f"{name}: {test} is of another class"


def test_every_test_is_in_the_table() -> None:
    listed = {test for cells in table("tests").values() for test in named(cells)}
    missing = [f"{path.name}: {test}" for test, path in written().items() if test not in listed]
    assert not missing, "docs/security.md does not name\n" + "\n".join(missing)
