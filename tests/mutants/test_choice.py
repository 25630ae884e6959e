"""Which mutants a run tries."""

import subprocess
from pathlib import Path

import pytest

from tests.mutants.choice import (
    candidates,
    changed_lines,
    needs_spark,
    on_lines,
    parse_diff,
    product_modules,
    sample,
)

SOURCE = "x = a < b\ny = c < d\n"


def _git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose branch main has one module in each of two packages."""
    _git(tmp_path, "init", "-b", "main")
    for name in ("mqtt/a.py", "session/b.py", "docs/c.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(SOURCE)
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_only_product_modules_are_mutated(root: Path) -> None:
    assert product_modules(root) == ["mqtt/a.py", "session/b.py"]


def test_lines_that_differ_from_a_revision_are_found_committed_or_not(root: Path) -> None:
    _git(root, "checkout", "-b", "work")
    (root / "mqtt/a.py").write_text("x = a < b\ny = c > d\n")
    _git(root, "commit", "-am", "second")
    (root / "session/b.py").write_text("z = 1\n" + SOURCE)
    (root / "session/new.py").write_text("z = 1\n\n")
    changed = {"mqtt/a.py": {2}, "session/b.py": {1}, "session/new.py": {1, 2}}
    assert changed_lines(root, "main") == changed


def test_a_line_that_only_went_away_is_no_line_of_the_file() -> None:
    diff = "--- a/mqtt/a.py\n+++ b/mqtt/a.py\n@@ -3,2 +2,0 @@\n-x\n-y\n@@ -9 +7,2 @@\n-a\n+b\n+c\n"
    assert parse_diff(diff) == {"mqtt/a.py": {7, 8}}


def test_a_mutant_counts_if_any_of_its_lines_changed(root: Path) -> None:
    (root / "mqtt/a.py").write_text("x = (a <\n    b)\ny = c < d\n")
    found = candidates(root, ["mqtt/a.py"])
    assert [one.line for one in on_lines(found, {"mqtt/a.py": {2}})] == [1]


def test_a_sample_is_spread_and_is_the_same_for_a_seed(root: Path) -> None:
    (root / "mqtt/a.py").write_text("x = a < b\n" * 60)
    (root / "session/b.py").write_text("x = a < b\n" * 40)
    found = candidates(root, product_modules(root))
    chosen = sample(found, 10, 1)
    assert chosen == sample(found, 10, 1) != sample(found, 10, 2)
    assert [one.path for one in chosen] == ["mqtt/a.py"] * 6 + ["session/b.py"] * 4
    assert sample(found, 1000, 1) == found


def test_modules_that_run_in_spark_are_known_by_their_imports() -> None:
    assert needs_spark("import os\nfrom pyspark.sql import functions as F\n")
    assert not needs_spark('"""Without pyspark."""\nimport os\n')
