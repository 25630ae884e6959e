"""Does the command fail when a world fails, or a rare state was never reached?"""

import pytest

from tests.simulation import command, rare


def run(monkeypatch: pytest.MonkeyPatch, missing: list[str], *options: str) -> int:
    """Run the command on one world, whatever the worlds are that it asks for."""
    monkeypatch.setattr(command, "run_many", lambda *_: (0, missing))
    monkeypatch.setattr(command, "run_seed", lambda *_: None)
    return command.main(list(options))


@pytest.mark.parametrize(
    ("missing", "options", "status"),
    [
        ([], ("--seeds", str(rare.WORLDS_MIN)), 0),
        (["takeover"], ("--seeds", str(rare.WORLDS_MIN)), 1),
        (["takeover"], ("--seeds", str(rare.WORLDS_MIN - 1)), 0),
        (["takeover"], ("--seeds", str(rare.WORLDS_MIN), "--fresh"), 0),
        (["takeover"], ("--seeds", str(rare.WORLDS_MIN), "--profile", "mixed"), 0),
    ],
)
def test_a_rare_state_that_no_world_reached_fails_a_long_fixed_run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    missing: list[str],
    options: tuple[str, ...],
    status: int,
) -> None:
    assert run(monkeypatch, missing, *options) == status
    said = capsys.readouterr().out
    assert ("FAILED, never reached: takeover" in said) is bool(status)


def test_real_worlds_name_what_they_did_not_reach() -> None:
    failed, missing = command.run_many(0, 1, 1, "mixed")
    assert failed == 0
    assert "refused_for_damage" in missing
    assert len(missing) < len(rare.RARE)
