"""Violations that count no more, because somebody has said why: a TOML file of rules. Pure.

A rule names an invariant and at least one of node, session and message, a reason, and the day on
which it ends. What it matches is still shown, with the reason. Only violations with a witness can
be matched; all others of an invariant count. Bad files raise SuppressionError, one line each.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, Final

from audit.checks.verdict import INVARIANTS, Outcome, overall

TABLE: Final = "suppress"
WHOM: Final = ("node", "session", "message")
KEYS: Final = ("invariant", *WHOM, "reason", "expires")
REASON_MAX: Final = 400


class SuppressionError(Exception):
    """A file of rules that says something else than expected: key, what was found, what was not."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `expires` is the last day on which it holds, UTC."""

    invariant: str
    reason: str
    expires: date
    node: str | None = None
    session: int | None = None
    message: int | None = None

    @property
    def whom(self) -> str:
        """Return whose violations it is about, as text."""
        named = ((name, getattr(self, name)) for name in WHOM)
        return ", ".join(f"{name} {value}" for name, value in named if value is not None)

    def matches(self, invariant: str, witness: Mapping[str, object]) -> bool:
        """Return whether it is about a witness; what a rule does not name may be anything."""
        if invariant != self.invariant:
            return False
        wanted = (("node", self.node), ("session", self.session), ("msg", self.message))
        return all(value is None or witness.get(name) == value for name, value in wanted)


def parse(text: str) -> list[Rule]:
    """Return the rules of a file."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise SuppressionError(f"no TOML: {problem}") from None
    for key in document:
        if key != TABLE:
            raise SuppressionError(f"{key}: unknown; expected tables [[{TABLE}]]")
    rules = document.get(TABLE, [])
    if not isinstance(rules, list) or not all(isinstance(each, dict) for each in rules):
        raise SuppressionError(f"{TABLE}: expected tables [[{TABLE}]]")
    return [_rule(f"{TABLE}[{number}]", each) for number, each in enumerate(rules, 1)]


def _rule(place: str, given: dict[str, Any]) -> Rule:
    for key in given:
        if key not in KEYS:
            raise SuppressionError(f"{place}.{key}: unknown; expected {', '.join(KEYS)}")
    invariant = _text(place, "invariant", given, f"one of {', '.join(INVARIANTS)}")
    if invariant not in INVARIANTS:
        raise SuppressionError(
            f"{place}.invariant: {invariant!r}; expected one of {', '.join(INVARIANTS)}"
        )
    if not any(key in given for key in WHOM):
        raise SuppressionError(f"{place}: names nobody; expected one of {', '.join(WHOM)}")
    reason = _text(place, "reason", given, "why it does not count")
    if len(reason) > REASON_MAX:
        raise SuppressionError(
            f"{place}.reason: {len(reason)} characters; expected at most {REASON_MAX}"
        )
    expires = given.get("expires")
    if not isinstance(expires, date) or isinstance(expires, datetime):
        found = "missing" if expires is None else repr(expires)
        raise SuppressionError(f"{place}.expires: {found}; expected a day such as 2027-01-31")
    node = _text(place, "node", given, "the name of a node") if "node" in given else None
    numbers = [_whole(place, key, given) for key in ("session", "message")]
    return Rule(invariant, reason, expires, node, *numbers)


def _text(place: str, key: str, given: dict[str, Any], expected: str) -> str:
    value = given.get(key)
    if not isinstance(value, str) or not value.strip():
        found = "missing" if value is None else repr(value)
        raise SuppressionError(f"{place}.{key}: {found}; expected {expected}")
    return value


def _whole(place: str, key: str, given: dict[str, Any]) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SuppressionError(f"{place}.{key}: {value!r}; expected the number of a {key}")
    return value


def apply(
    outcomes: Sequence[Outcome], rules: Sequence[Rule], today: date
) -> tuple[list[Outcome], list[dict[str, Any]]]:
    """Return the outcomes with matched witnesses marked, and what each rule did."""
    alive = [rule for rule in rules if rule.expires >= today]
    did = dict.fromkeys(range(len(alive)), 0)
    applied = []
    for outcome in outcomes:
        witnesses = []
        for witness in outcome.witnesses:
            at = next(
                (n for n, r in enumerate(alive) if r.matches(outcome.invariant, witness)), None
            )
            if at is not None:
                did[at] += 1
                witness = {**witness, "suppressed": alive[at].reason}
            witnesses.append(witness)
        number = min(outcome.violated, sum("suppressed" in each for each in witnesses))
        applied.append(replace(outcome, witnesses=witnesses, suppressed=number))
    numbers = iter(did.values())
    return applied, [
        _told(rule, next(numbers) if rule.expires >= today else None) for rule in rules
    ]


def judged_again(document: Mapping[str, Any], rules: Sequence[Rule], today: date) -> dict[str, Any]:
    """Return a verdict.json as it is with these rules instead of those it was made with."""
    before = [
        Outcome(
            name, found["checked"], found["violated"], found["unknown"],
            [_bare(witness) for witness in found["witnesses"]],
        )
        for name, found in document["invariants"].items()
    ]  # fmt: skip
    after, told = apply(before, rules, today)
    invariants, totals = dict(document["invariants"]), dict(document["totals"])
    for outcome in after:
        name = outcome.invariant
        found = invariants[name]
        fewer = outcome.suppressed - found.get("suppressed", 0)
        if name in totals:
            totals[name] = {**totals[name], "violated": totals[name]["violated"] - fewer}
        invariants[name] = {
            **found,
            "status": outcome.status,
            "suppressed": outcome.suppressed,
            "witnesses": outcome.witnesses,
        }
    return {
        **document,
        "status": overall(after),
        "invariants": invariants,
        "totals": totals,
        "suppressions": told,
    }


def _bare(witness: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in witness.items() if key != "suppressed"}


def _told(rule: Rule, violations: int | None) -> dict[str, Any]:
    state = "expired" if violations is None else "used" if violations else "unused"
    return {
        "invariant": rule.invariant,
        "whom": rule.whom,
        "reason": rule.reason,
        "expires": rule.expires.isoformat(),
        "state": state,
        "violations": violations or 0,
    }
