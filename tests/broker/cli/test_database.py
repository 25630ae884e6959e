"""Copies of a database are for their owner alone."""

from pathlib import Path

import pytest

from tests.broker.cli.commands import Run

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
