"""What to do now: the order, the causes and the commands."""

import shlex

import pytest

from audit.checks.verdict import INVARIANTS
from audit.command import build_parser
from audit.report import advice
from tests.audit import pictures


def test_lost_state_comes_before_the_rest() -> None:
    assert [step.id for step in advice.steps(pictures.violated())] == ["S5", "L2", "D3"]


def test_a_history_without_a_violation_needs_nothing() -> None:
    assert advice.steps(pictures.busy()) == []


@pytest.mark.parametrize("name", sorted(INVARIANTS))
def test_every_invariant_has_causes_of_its_own(name: str) -> None:
    assert advice.CAUSES[name]


def test_an_invariant_of_the_future_has_a_cause_too() -> None:
    assert advice.causes("Z9") == advice.UNKNOWN_CAUSE


def test_the_first_command_is_about_the_message_or_else_the_session() -> None:
    witness: dict[str, object] = {"node": "n 1", "msg": 7, "session": 9, "client_id": "a'b"}
    first, second, check = advice.commands("L2", [witness], "/var/h")
    assert first == "holdfast audit explain --history /var/h --message 7 --node 'n 1'"
    assert second == "holdfast why 'a'\"'\"'b'"
    assert check == "holdfast db check"
    del witness["msg"]
    assert "--session 9" in advice.commands("L2", [witness], "/var/h")[0]
    assert advice.commands("F1", [{}], "/var/h") == ()


def test_the_commands_of_a_page_can_be_typed() -> None:
    command = advice.steps(pictures.violated())[0].commands[0]
    words = shlex.split(command)
    assert words[:3] == ["holdfast", "audit", "explain"]
    options = build_parser("holdfast audit").parse_args(words[2:])
    assert options.message == 991000


def test_a_name_that_controls_a_terminal_is_in_no_command() -> None:
    witness: dict[str, object] = {"node": "n1", "session": 3, "client_id": "a\x1b[2J"}
    assert len(advice.commands("S1", [witness], "h")) == 1
