"""`holdfast history` checks segments."""

from pathlib import Path

import pytest

from tests.broker.cli.commands import Run, complaint

pytestmark = pytest.mark.full  # starts processes


def test_segments_are_verified_with_a_line_for_each_problem(run: Run, history: Path) -> None:
    directory = history / "history"
    (segment,) = directory.rglob("*.parquet")
    arguments = ("history", "verify", "--data-dir", str(history))
    sound = run(*arguments)
    summary = f"{directory}: 1 segments of 1 starts of 1 nodes, 5 events: no problems\n"
    assert (sound.returncode, sound.stdout, sound.stderr) == (0, summary, "")
    whole = bytearray(segment.read_bytes())
    whole[100] ^= 1
    segment.write_bytes(whole)
    assert run(*arguments, "--quick").returncode == 0
    damaged = run("history", "verify", "--history", str(directory))
    assert (damaged.returncode, damaged.stderr) == (2, "")
    problem, last = damaged.stdout.splitlines()
    assert problem.startswith(f"history segment {segment}: ")
    assert last.endswith("5 events: 1 problems")


def test_a_directory_that_is_none_cannot_be_verified(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        line = complaint(run("history", "verify", "--history", name), 1)
        assert line == f"holdfast: {name}: not a directory"
