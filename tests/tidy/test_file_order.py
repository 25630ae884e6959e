"""Are files run in the order that was drawn, whole, and the same one again for its number?"""

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests import file_order
from tests.file_order import SHARED_SERVERS, VARIABLE


def items_of(*files: str) -> list[Any]:
    """Return two tests of each file, as pytest collects them."""
    return [
        SimpleNamespace(path=Path(file), name=f"{file}::{number}")
        for file in files
        for number in (1, 2)
    ]


FILES = [f"tests/{letter}.py" for letter in "abcdefgh"]


def order(patch: pytest.MonkeyPatch, wanted: str) -> list[str]:
    """Return the names of the tests in the order for a value of the variable."""
    patch.setenv(VARIABLE, wanted)
    items = items_of(*FILES)
    file_order.settle()
    file_order.arrange(items)
    return [item.name for item in items]


def test_without_a_wish_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    items = items_of(*reversed(FILES))
    before = list(items)
    file_order.settle()
    file_order.arrange(items)
    assert items == before
    assert file_order.header() is None


def test_a_number_is_an_order_of_whole_files(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = [order(monkeypatch, number) for number in ("1", "2", "1")]
    assert orders[0] == orders[2] != orders[1]
    for names in orders:
        assert sorted(names) == [each.name for each in items_of(*FILES)]
        assert [name.partition("::")[2] for name in names] == ["1", "2"] * len(FILES)
        firsts = [name.partition("::")[0] for name in names[::2]]
        assert firsts == [name.partition("::")[0] for name in names[1::2]]


def module_with(**values: object) -> ModuleType:
    """Return a module of tests with these names in it."""
    module = ModuleType("tests.some")
    vars(module).update(values)
    return module


@pytest.mark.parametrize("wanted", [None, "1", "2", "3"])
def test_files_that_share_a_server_come_first_and_together(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None
) -> None:
    (name,) = SHARED_SERVERS
    shared = SimpleNamespace(__module__=name)
    if wanted is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, wanted)
    items = items_of(*FILES)
    for item in items:
        if item.path.stem in "cg":
            item.module = module_with(shared=shared)
        elif item.path.stem == "e":
            item.module = module_with(server=ModuleType(name))
        else:
            item.module = module_with(unrelated=1, list=list)
    file_order.arrange(items)
    names = [item.name for item in items]
    assert sorted(names[:6]) == [each.name for each in items_of(*(FILES[at] for at in (2, 4, 6)))]
    assert sorted(names) == sorted(item.name for item in items_of(*FILES))
    if wanted is None:
        rest = [file for at, file in enumerate(FILES) if at not in (2, 4, 6)]
        assert names[6:] == [item.name for item in items_of(*rest)]


def test_the_header_names_the_order_that_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = order(monkeypatch, "random")
    header = file_order.header()
    assert header is not None
    number = header.rpartition(f"{VARIABLE}=")[2]
    assert order(monkeypatch, number) == drawn


def test_anything_else_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pytest.UsageError, match="expected 'random' or a number"):
        order(monkeypatch, "shuffled")
