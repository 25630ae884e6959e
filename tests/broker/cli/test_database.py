"""The commands that look after a database."""

import json
from pathlib import Path

import pytest

from tests.broker.cli.commands import Run, complaint
from tests.broker.operations.damage.databases import fleet, opened, saved

pytestmark = pytest.mark.full  # starts processes


@pytest.mark.parametrize("command", [("history", "export", "--to"), ("db", "checkpoint")])
def test_copies_are_for_the_owner_alone_wherever_they_are(
    run: Run, history: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """May everybody read the messages in a copy that was made in a directory of everybody?"""
    target = tmp_path / "public"
    target.mkdir(mode=0o755)
    result = run(*command, str(target), "--data-dir", str(history), HOLDFAST__HISTORY__NODE="edge")
    assert (result.returncode, result.stderr) == (0, "")
    made = list(target.rglob("*"))
    assert len(made) > 2
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_a_database_is_checked(run: Run, tmp_path: Path) -> None:
    data = saved(fleet(), tmp_path / "data")
    result = run("db", "check", str(data))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{data}: whole; all ")
    with opened(data) as store:
        store.write([("sessions", b"boat", b"torn")])
    result = run("db", "check", str(data))
    assert (result.returncode, result.stderr) == (1, "")
    assert "sessions concerned: 1" in result.stdout and "'boat'" in result.stdout
    result = run("db", "check", "--json", str(data))
    found = json.loads(result.stdout)
    assert (result.returncode, found["whole"], found["sessions_affected"]) == (1, False, 1)
    assert complaint(run("db", "check", str(tmp_path / "none")), 2).endswith("no database in it")


def test_what_can_be_read_is_saved(run: Run, tmp_path: Path) -> None:
    data = saved(fleet(), tmp_path / "data")
    with opened(data) as store:
        store.write([("sessions", b"boat", b"torn")])
    new = tmp_path / "new"
    result = run("db", "repair", str(data), str(new))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{new}: saved from {data}; a broker can start on it\n")
    assert run("db", "check", str(new)).returncode == 0
    assert complaint(run("db", "repair", str(data), str(new)), 1).endswith(
        "not empty; expected a new directory"
    )
    result = run("db", "repair", "--json", str(data), str(tmp_path / "again"))
    assert [each["client_id"] for each in json.loads(result.stdout)["sessions_lost"]] == ["boat"]
    assert [path for path in new.rglob("*") if path.stat().st_mode & 0o077] == []
