"""Which mistakes are planted, and that each is one change in a module that still compiles."""

import ast
from pathlib import Path

import pytest

from tests.mutants.mutations import mutants

ROOT = Path(__file__).resolve().parents[2]


def changes(source: str) -> list[str]:
    return [one.change for one in mutants("m.py", source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", "a < b -> a <= b"),
        ("x = a == b", "a == b -> a != b"),
        ("x = a and b", "a and b -> a or b"),
        ("x = a or b", "a or b -> a"),
        ("x = a or b", "a or b -> b"),
        ("x = not a", "not a -> a"),
        ("x = a - b", "a - b -> a + b"),
        ("x = 7", "7 -> 8"),
        ("x = 7", "7 -> 6"),
        ("x = a if b else c", "a if b else c -> c if b else a"),
        ("x = min(a, b)", "min(a, b) -> max(a, b)"),
        ("a.append(b)", "a.append(b) -> a.insert(0, b)"),
        ("a.appendleft(b)", "a.appendleft(b) -> a.append(b)"),
        ("f()", "drop f()"),
        ("a.b = c", "drop a.b = c"),
        ("del a[b]", "drop del a[b]"),
        ("while a:\n    break", "break -> continue"),
        ("def f() -> bool:\n    return a", "return a -> return True"),
        ("a += b", "a += b -> a -= b"),
    ],
)
def test_a_mistake_is_planted(source: str, expected: str) -> None:
    assert expected in changes(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""Say 1 + 1."""',
        "x: Final = 5",
        "x: Final[dict[str, int]] = {'a': 1}",
        "def f(x: Literal[1]) -> Literal[2]: ...",
        "assert a < b",
        "raise ValueError(1 + 2)",
        "x = f'{a + 1}'",
        "self._log.warning('low', 1 + 1)",
        "__slots__ = (1, 2)",
        "if TYPE_CHECKING:\n    a.b = 1",
        "x = 'a' + b",
        "def __repr__(self):\n    return a < b",
        "return_code = EXIT",
    ],
)
def test_what_no_behaviour_rests_on_is_left_alone(source: str) -> None:
    assert changes(source) == []


def test_a_change_is_made_where_it_stands_beyond_letters_of_several_bytes() -> None:
    source = 'name = "éü"; x = [a < b,\n     c < d]  # why\n'
    second = mutants("m.py", source)[-1]
    assert second.line == 2
    assert second.applied(source) == 'name = "éü"; x = [a < b,\n     (c <= d)]  # why\n'


def test_every_change_of_a_large_module_compiles_and_changes_it() -> None:
    path = "session/packets/publish.py"
    source = (ROOT / path).read_text()
    found = mutants(path, source)
    assert len(found) > 100
    before = ast.dump(ast.parse(source))
    for one in found:
        assert ast.dump(ast.parse(one.applied(source))) != before, one
