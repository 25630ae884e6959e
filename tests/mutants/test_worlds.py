"""The worlds that judge a mutant pass when nothing is planted."""

import pytest

from tests.mutants import worlds


def test_worlds_without_a_mistake_pass() -> None:
    assert worlds.judge(3) == 0


def test_a_world_that_fails_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "run_many", lambda *_: (1, []))
    assert worlds.judge() == 1
