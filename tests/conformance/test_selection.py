"""-k: which statements an expression takes."""

import pytest

from conformance.selection import SelectionError, compile_expression

NAME = "MQTT-3.1.2-24 conformance.v50.connect needs restart"


@pytest.mark.parametrize(
    ("expression", "taken"),
    [
        ("", True),
        ("3.1.2-24", True),
        ("3_1_2_24", True),
        ("mqtt-3.1.2", True),
        ("3.1", True),
        ("3", True),
        ("3.1.2-2", False),
        ("3.1.24", False),
        ("1.2-24", False),
        ("CONNECT", True),
        ("v311", False),
        ("not v311", True),
        ("v50 and restart", True),
        ("v50 and kill", False),
        ("kill or restart", True),
        ("kill or restart and v311", False),
        ("(kill or restart) and not v311", True),
        ("not (v50 or v311)", False),
        ("not not v50", True),
    ],
)
def test_an_expression_takes_a_name_or_not(expression: str, taken: bool) -> None:
    assert compile_expression(expression)(NAME) is taken


@pytest.mark.parametrize("expression", ["and", "a and", "(a", "a)", "not", "or b", "a b", "()"])
def test_what_makes_no_sense_is_said_in_one_line(expression: str) -> None:
    with pytest.raises(SelectionError, match="-k"):
        compile_expression(expression)
