"""`holdfast token`: told once, listed without itself, gone when it is removed."""

import json
from pathlib import Path

import pytest

from tests.broker.cli.commands import Run, complaint


@pytest.fixture
def place(tmp_path: Path) -> tuple[str, str]:
    """A data directory."""
    (tmp_path / "data").mkdir()
    return "--data-dir", str(tmp_path / "data")


def test_a_token_is_made_listed_and_removed(run: Run, place: tuple[str, str]) -> None:
    add = ("token", "add", "grafana", "--role", "viewer", "--expires", "90d", "--payloads")
    made = run(*add, *place)
    assert made.returncode == 0, made.stderr
    (text,) = made.stdout.splitlines()
    assert text.startswith("hf_")
    for output in ("table", "json", "csv"):
        told = run("token", "list", "-o", output, *place).stdout
        assert "grafana" in told and "viewer" in told and text not in told
    (row,) = json.loads(run("token", "list", "-o", "json", *place).stdout)
    assert (row["payloads"], row["expired"]) == (True, False)
    assert "there is a token 'grafana' already" in complaint(run(*add, *place), 1)
    assert run("token", "remove", "grafana", *place).returncode == 0
    assert "no token 'grafana'" in complaint(run("token", "remove", "grafana", *place), 1)
    assert json.loads(run("token", "list", "-o", "json", *place).stdout) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--role", "root", "--expires", "1d"), "invalid choice: 'root'"),
        (("--role", "viewer", "--expires", "soon"), "expected a time such as 90d"),
        (("--role", "viewer", "--expires", "4000d"), "expected at most 3660d"),
        (("--role", "viewer"), "--expires"),
        (("--expires", "1d"), "--role"),
    ],
)
def test_what_is_asked_for_in_a_wrong_way_is_named(
    run: Run, place: tuple[str, str], arguments: tuple[str, ...], words: str
) -> None:
    result = run("token", "add", "x", *arguments, *place)
    assert result.returncode == 2
    assert words in result.stderr and "Traceback" not in result.stderr


def test_a_name_that_is_none_and_a_directory_that_is_not_there_are_named(
    run: Run, place: tuple[str, str], tmp_path: Path
) -> None:
    good = ("--role", "viewer", "--expires", "1d")
    assert "expected letters, digits" in complaint(run("token", "add", "a b", *good, *place), 1)
    absent = ("--data-dir", str(tmp_path / "absent"))
    assert "No such file" in complaint(run("token", "add", "a", *good, *absent), 1)
