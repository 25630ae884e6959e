"""The command runs worlds, and tells what happened in them and which have failed."""

import pytest

from tests.replication import command
from tests.replication.oracle import Failure
from tests.replication.world import World


def test_a_clean_run_tells_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seeds", "2", "--start", "40"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 worlds from seed 40 in ")
    assert "elections" in said
    assert said.endswith("0 failed\n")


def test_a_failed_world_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(world: World) -> None:
        if world.seed == 41:
            raise Failure("command 7 is lost")

    monkeypatch.setattr(command, "run", fail)
    assert command.main(["--seeds", "3", "--start", "40"]) == 1
    said = capsys.readouterr().out
    assert "seed 41: " in said
    assert "command 7 is lost" in said
    assert said.endswith("1 failed\n")
