"""The registry of invariants: complete, true of the code, and what the documentation says."""

import ast
import re
from pathlib import Path

import pytest

from audit import registry
from audit.checks.verdict import INVARIANTS
from audit.registry import REGISTRY
from audit.report.page import _GROUPS
from tests.audit import registry_tables

ROOT = Path(__file__).parents[2]


def test_the_documentation_has_the_tables_of_the_registry() -> None:
    text = registry_tables.DOCUMENT.read_text()
    assert registry_tables.written(text) == text, "run: python -m tests.audit.registry_tables"


def test_every_invariant_has_an_entry_and_a_place_on_the_board() -> None:
    assert list(REGISTRY) == list(INVARIANTS)
    letters = {letter for _, _, group in _GROUPS for letter in group}
    assert {name[0] for name in REGISTRY} == letters


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_what_an_entry_names_is_there(name: str) -> None:
    entry = REGISTRY[name]
    assert entry.modules and entry.tests
    for path in (*entry.modules, *entry.tests, registry.GENERATED):
        assert (ROOT / path).is_file(), path
    headings = re.findall(r"^#+ (.+)$", registry_tables.DOCUMENT.read_text(), re.M)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    assert entry.anchor in anchors


def named(path: Path) -> set[str]:
    """Return the strings of a module that may be ids of invariants."""
    tree = ast.parse(path.read_text())
    return {node.value for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)}  # fmt: skip


def test_a_module_that_names_an_invariant_and_counts_for_it_is_among_its_modules() -> None:
    """So a new check cannot be left out: whoever makes an Outcome of an id is listed."""
    for path in sorted((ROOT / "audit" / "checks").glob("*.py")):
        outcomes = set(re.findall(r'Outcome\(\s*"([A-Z]\d)"', path.read_text()))
        for name in outcomes:
            assert f"audit/checks/{path.name}" in REGISTRY[name].modules, (path.name, name)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_one_of_the_modules_or_the_codes_that_they_use_names_the_invariant(name: str) -> None:
    found = set().union(*(named(ROOT / path) for path in REGISTRY[name].modules))
    found |= named(ROOT / "audit" / "checks" / "packed_rows.py")  # the codes of suspicions
    found |= named(ROOT / "audit" / "checks" / "session_checks.py")  # and of folds
    found |= named(ROOT / "audit" / "checks" / "delivery_checks.py")
    assert name in found
