"""No test replaces a part of the standard library: other threads of the process use it, too.

Finds `setattr` and `delattr` (of pytest's MonkeyPatch, or the built-in ones) and assignments whose
object or dotted string leads to the standard library, also through the imports of our modules.
`tests.stand_in.replace_in` is what to write instead.
"""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.tidy.test_tidy import FILES, ROOT

TESTS: Final = [path for path in FILES if path.suffix == ".py" and ROOT / "tests" in path.parents]
SETTERS: Final = frozenset({"setattr", "delattr"})


def imported(tree: ast.AST) -> dict[str, str]:
    """Return what each imported name stands for, dotted."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole, first = alias.name, alias.name.partition(".")[0]
                names[alias.asname or first] = whole if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


@functools.cache
def imports_of(module: str) -> dict[str, str] | None:
    """Return what the names in a module of this checkout stand for, None if it is not one."""
    path = ROOT.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return imported(parsed(file))
    return None


def is_standard(dotted: str) -> bool:
    """Return whether a dotted name is of the standard library, or leads there."""
    words = dotted.split(".")
    for count in range(len(words), 0, -1):
        names = imports_of(".".join(words[:count]))
        if names is not None:
            further = words[count:]
            if not further or further[0] not in names:
                return False
            return is_standard(".".join([names[further[0]], *further[1:]]))
    return words[0] in sys.stdlib_module_names


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` as text, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def changed(node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the objects that a statement or call changes, and whether names are in it as text."""
    if isinstance(node, ast.Call) and node.args:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
        if called in SETTERS:
            yield node.args[0], True
    elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Attribute):
                yield target.value, False


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


def patches(tree: ast.Module) -> list[int]:
    """Return the lines of a module that change a part of the standard library."""
    names = imported(tree)
    found = []
    for node in ast.walk(tree):
        for owner, may_be_text in changed(node):
            if may_be_text and isinstance(owner, ast.Constant) and isinstance(owner.value, str):
                name = owner.value.rpartition(".")[0]
            else:
                first, *rest = dotted(owner).split(".")
                name = ".".join([names[first], *rest]) if first in names else ""
            if name and is_standard(name):
                found.append(owner.lineno)
    return found


@pytest.mark.parametrize(
    "statement",
    [
        'import time\npatch.setattr(time, "sleep", wait)',
        'import time as clock\npatch.setattr(clock, "sleep", wait)',
        'import importlib.util\npatch.setattr(importlib.util, "find_spec", wait)',
        'from importlib import metadata\nmonkeypatch.setattr(metadata, "version", wait)',
        'from pathlib import Path\nmonkeypatch.setattr(Path, "unlink", wait)',
        'import socket\nmonkeypatch.delattr(socket.socket, "settimeout")',
        'monkeypatch.setattr("time.sleep", wait)',
        'monkeypatch.setattr("storage.history.segment_names.os.listdir", wait)',
        'from broker.history import export_copy\npatch.setattr(export_copy.os, "link", wait)',
        'import broker.history.export_copy as copy\nsetattr(copy.os, "link", wait)',
        "import sys\nsys.stdout = wait",
    ],
)
def test_what_replaces_a_part_of_the_standard_library_is_found(statement: str) -> None:
    assert patches(ast.parse(statement)) == [statement.count("\n") + 1]


@pytest.mark.parametrize(
    "statement",
    [
        'from broker.history import export_copy\npatch.setattr(export_copy, "os", wait)',
        'monkeypatch.setattr("broker.history.export_copy.os", wait)',
        'from broker.history.reader import History\npatch.setattr(History, "events_of", wait)',
        'patch.setattr(broker.store, "sync", wait)',
        'import time\nreplace_in(patch, queries, "time", sleep=wait)',
        "import time\nself.time = time.sleep",
    ],
)
def test_what_changes_our_own_objects_is_not(statement: str) -> None:
    assert patches(ast.parse(statement)) == []


def test_no_test_replaces_a_part_of_the_standard_library() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}" for path in TESTS for line in patches(parsed(path))]
    assert not found, "write tests.stand_in.replace_in instead:\n" + "\n".join(found)


def test_no_test_uses_the_mocks_of_the_standard_library() -> None:
    named = [
        path.relative_to(ROOT)
        for path in TESTS
        for name in imported(parsed(path)).values()
        if name.startswith("unittest") or name == "mock"
    ]
    assert not named


def test_the_tests_are_seen() -> None:
    assert Path(__file__) in TESTS and len(TESTS) > 100
