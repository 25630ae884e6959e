"""Rules that say which violations do not count."""

from datetime import date

import pytest

from audit.checks.suppressions import Rule, SuppressionError, apply, judged_again, parse
from audit.checks.verdict import Outcome, overall

TODAY = date(2026, 11, 1)
GOOD = """
[[suppress]]
invariant = "L2"
node = "n1"
session = 7
reason = "a test client"
expires = 2026-11-01
"""


def lost(*witnesses: dict[str, object], violated: int | None = None, unknown: int = 0) -> Outcome:
    """Return L2 with these witnesses."""
    count = len(witnesses) if violated is None else violated
    return Outcome("L2", count, count, unknown, list(witnesses))


HERE: dict[str, object] = {"node": "n1", "session": 7, "msg": 1}


def test_what_a_rule_names_does_not_count_and_is_still_shown_with_the_reason() -> None:
    (found,), (told,) = apply([lost(HERE)], parse(GOOD), TODAY)
    assert (found.violated, found.suppressed, found.status) == (1, 1, "ok")
    assert found.witnesses == [{**HERE, "suppressed": "a test client"}]
    assert overall([found]) == "ok"
    assert (told["state"], told["violations"]) == ("used", 1)
    assert told["whom"] == "node n1, session 7"


def test_what_no_rule_names_counts() -> None:
    there = {**HERE, "session": 8}
    (found,), _ = apply([lost(HERE, there)], parse(GOOD), TODAY)
    assert (found.suppressed, found.status) == (1, "violated")
    (found,), _ = apply([lost(HERE, violated=101)], parse(GOOD), TODAY)
    assert found.status == "violated", "a violation without a witness cannot be matched"


def test_what_is_unknown_stays_unknown() -> None:
    (found,), _ = apply([lost(HERE, unknown=3)], parse(GOOD), TODAY)
    assert found.status == "unknown"


def test_an_expired_rule_suppresses_nothing_and_is_told() -> None:
    (found,), (told,) = apply([lost(HERE)], parse(GOOD), date(2026, 11, 2))
    assert (found.suppressed, found.status, told["state"]) == (0, "violated", "expired")


def test_a_rule_of_another_invariant_is_unused() -> None:
    (found,), (told,) = apply([Outcome("D1", 1, 1, 0, [HERE])], parse(GOOD), TODAY)
    assert (found.suppressed, told["state"]) == (0, "unused")


def test_a_rule_about_a_message_matches_it_on_every_node_or_on_one() -> None:
    rule = Rule("L2", "r", TODAY, message=1)
    assert rule.matches("L2", HERE) and not rule.matches("L2", {"msg": 2})
    assert not Rule("L2", "r", TODAY, node="n2", message=1).matches("L2", HERE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[[suppress]]", "[[suppress"), "no TOML"),
        (('invariant = "L2"', 'invariant = "L9"'), "suppress[1].invariant: 'L9'; expected one of"),
        (('invariant = "L2"', ""), "suppress[1].invariant: missing; expected one of H1"),
        (('node = "n1"\nsession = 7', ""), "suppress[1]: names nobody; expected one of node"),
        (('node = "n1"', "node = 3"), "suppress[1].node: 3; expected the name of a node"),
        (("session = 7", "session = '7'"), "suppress[1].session: '7'; expected the number"),
        (("session = 7", "message = true"), "suppress[1].message: True; expected the number"),
        (('reason = "a test client"', ""), "suppress[1].reason: missing; expected why"),
        (('reason = "a test client"', "reason = ' '"), "suppress[1].reason: ' '; expected why"),
        (('"a test client"', f"'{'x' * 401}'"), "suppress[1].reason: 401 characters"),
        (("expires = 2026-11-01", ""), "suppress[1].expires: missing; expected a day such as"),
        (("2026-11-01", "'soon'"), "suppress[1].expires: 'soon'; expected a day"),
        (("2026-11-01", "2026-11-01T10:00:00"), "suppress[1].expires: datetime"),
        (("[[suppress]]", "[[supress]]"), "supress: unknown; expected tables [[suppress]]"),
        (("[[suppress]]", "[suppress]"), "suppress: expected tables [[suppress]]"),
        (("reason", "because"), "suppress[1].because: unknown; expected invariant, node"),
    ],
)
def test_a_bad_file_is_one_line_that_names_the_key_and_what_was_expected(
    change: tuple[str, str], said: str
) -> None:
    with pytest.raises(SuppressionError) as problem:
        parse(GOOD.replace(*change))
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)


def test_an_empty_file_has_no_rule() -> None:
    assert parse("") == []


def test_a_verdict_is_judged_again_with_other_rules_and_back() -> None:
    found = {"status": "violated", "checked": 1, "violated": 1, "unknown": 0, "witnesses": [HERE]}
    before = {
        "status": "violated", "batch": 3, "invariants": {"L2": {**found, "suppressed": 0}},
        "totals": {"L2": {"checked": 5, "violated": 2, "unknown": 0}}, "suppressions": [],
    }  # fmt: skip
    after = judged_again(before, parse(GOOD), TODAY)
    assert (after["status"], after["batch"]) == ("ok", 3)
    assert after["invariants"]["L2"]["suppressed"] == 1
    assert after["totals"]["L2"] == {"checked": 5, "violated": 1, "unknown": 0}
    assert judged_again(after, [], TODAY) == before
