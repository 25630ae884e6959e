"""`holdfast history` checks segments."""

from pathlib import Path

import pytest

from storage.history.segment_names import segment_names
from storage.history.segments import examine
from storage.history.witness import Mark, WitnessFile
from tests.broker.cli.commands import Run, complaint

pytestmark = pytest.mark.full  # starts processes


def test_segments_are_verified_with_a_line_for_each_problem(run: Run, history: Path) -> None:
    directory = history / "history"
    (segment,) = directory.rglob("*.parquet")
    arguments = ("history", "verify", "--data-dir", str(history))
    sound = run(*arguments)
    summary = (
        f"{directory}: 1 segments of 1 starts of 1 nodes, 5 events, all chained: no problems\n"
    )
    assert (sound.returncode, sound.stdout, sound.stderr) == (0, summary, "")
    whole = bytearray(segment.read_bytes())
    whole[100] ^= 1
    segment.write_bytes(whole)
    assert run(*arguments, "--quick").returncode == 0
    damaged = run("history", "verify", "--history", str(directory))
    assert (damaged.returncode, damaged.stderr) == (2, "")
    problem, last = damaged.stdout.splitlines()
    assert problem.startswith(f"history segment {segment}: ")
    assert last.endswith("5 events, none chained: 1 problems")


def test_what_a_witness_knows_must_be_there(run: Run, history: Path, tmp_path: Path) -> None:
    directory = history / "history"
    (segment,) = segment_names(directory)
    place = tmp_path / "witness"
    verify = ("history", "verify", "--history", str(directory), "--witness", str(place))
    assert complaint(run(*verify), 1) == f"holdfast: {place}: No such file or directory"
    file = WitnessFile(place, segment.node)
    file.write([Mark(segment.boot, 5, 5, examine(segment)[1].head)])
    assert run(*verify).returncode == 0
    file.write([Mark(segment.boot, 9, 7, "another")])
    found = run(*verify)
    assert (found.returncode, found.stderr) == (2, "")
    problem, last = found.stdout.splitlines()
    assert problem == (
        f"{segment.node} boot {segment.boot}, events 6 to 7: they were exported, and the history "
        f"does not have them: {place}"
    )
    assert last.endswith("5 events, all chained: 1 problems")


def test_a_timeline_of_nothing_was_asked_for_in_a_wrong_way(run: Run) -> None:
    said = "holdfast: timeline of what? expected CLIENT_ID, --message ID, or both"
    assert complaint(run("history", "timeline"), 2) == said


def test_a_directory_that_is_none_cannot_be_verified(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        line = complaint(run("history", "verify", "--history", name), 1)
        assert line == f"holdfast: {name}: not a directory"
