"""A run over a tiny tree: what is noticed, what is not, and what the command answers."""

from pathlib import Path

import pytest

from tests.mutants import choice
from tests.mutants.command import main

# `limit` is tested at its boundary; nobody asks `doubled` for anything.
MODULE = """
def limit(count: int) -> bool:
    return count < 3


def doubled(count: int) -> int:
    total = count + count
    return total
"""
TESTS = """
from mqtt import a


def test_a_limit_is_where_it_should_be() -> None:
    assert [a.limit(count) for count in (2, 3)] == [True, False]
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with a module and its tests."""
    for name, text in {
        "mqtt/__init__.py": "",
        "mqtt/a.py": MODULE,
        "tests/mqtt/test_a.py": TESTS,
        "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['full', 'ci', 'slow']\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    names = ["mqtt/__init__.py", "mqtt/a.py", "pyproject.toml", "tests/mqtt/test_a.py"]
    monkeypatch.setattr(choice, "files", lambda _root: names)
    return tmp_path


def test_a_mistake_at_a_tested_boundary_is_killed_by_the_modules_own_tests(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mqtt/a.py:3", "--stages", "1"], root) == 0
    out = capsys.readouterr().out
    assert "killed by own tests  mqtt/a.py:3  count < 3 -> count <= 3\n" in out
    assert out.splitlines()[-1] == "5 of 5 mutants killed (100.0%), 0 survived"
    assert (root / "mqtt/a.py").read_text() == MODULE


def test_a_mistake_that_no_test_notices_survives_and_fails_the_run(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mqtt/a.py:7", "--stages", "1"], root) == 1
    out = capsys.readouterr().out
    assert "SURVIVED  mqtt/a.py:7  count + count -> count - count\n" in out
    assert out.splitlines()[-1] == "0 of 1 mutants killed (0.0%), 1 survived"


def test_tests_that_fail_already_judge_nothing(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "tests/mqtt/test_a.py").write_text("def test_it() -> None:\n    assert False\n")
    with pytest.raises(SystemExit) as stopped:
        main(["mqtt/a.py:3", "--stages", "1"], root)
    assert stopped.value.code == 2
    assert "fails on the unchanged tree" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--sample", "0"], ["nowhere"], ["mqtt/a.py:x"]])
def test_wrong_use_is_told(root: Path, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(wrong, root)
    assert stopped.value.code == 2


def test_a_list_runs_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mqtt/a.py:7", "--list"], root) == 0
    assert capsys.readouterr().out == "mqtt/a.py:7  count + count -> count - count\n"
