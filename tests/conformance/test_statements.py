"""The list of statements is complete, and each one is checked or listed as not testable."""

import re

import pytest

from conformance.check import REGISTRY
from conformance.reports.chapters import chapter_name
from conformance.runner import discover
from conformance.statements import VERSIONS, Statement, load

# How many numbered statements the two standards have, and how many X-rules apply.
NUMBERED = {4: 141, 5: 251}
RULES = {4: 12, 5: 43}


def everything() -> list[Statement]:
    return [statement for version in VERSIONS for statement in load(version)]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_statement_of_the_standard_is_listed_once(version: int) -> None:
    ids = [statement.id for statement in load(version)]
    assert len(ids) == len(set(ids))
    assert sum(identifier.startswith("MQTT-") for identifier in ids) == NUMBERED[version]
    assert sum(identifier.startswith("X-") for identifier in ids) == RULES[version]


def test_the_order_is_that_of_the_text() -> None:
    for version in VERSIONS:
        numbered = [s.id for s in load(version) if s.id.startswith("MQTT-")]
        keys = [[int(part) for part in re.findall(r"\d+", identifier)] for identifier in numbered]
        assert keys == sorted(keys)


def test_the_columns_hold_what_they_may() -> None:
    for statement in everything():
        assert re.fullmatch(r"MQTT-\d+\.\d+\.\d+-\d+|X-\d\d", statement.id)
        assert statement.binds in ("server", "client", "both")
        assert statement.testable in ("yes", "indirect", "no")
        assert bool(statement.sentence) is (statement.testable == "no"), statement.id


def test_every_chapter_has_a_name() -> None:
    for statement in everything():
        name = chapter_name(statement.version, statement.chapter)
        assert name.removeprefix(statement.chapter).strip(), statement.chapter


def test_every_testable_statement_has_a_check_and_no_other_has_one() -> None:
    assert discover(VERSIONS) == []
    statements = {statement.key: statement for statement in everything()}
    missing = [k for k, s in statements.items() if s.testable != "no" and k not in REGISTRY]
    unknown = [key for key in REGISTRY if key not in statements]
    superfluous = [k for k, s in statements.items() if s.testable == "no" and k in REGISTRY]
    assert (missing, unknown, superfluous) == ([], [], [])


def test_every_check_says_what_it_asks_for_in_a_sentence() -> None:
    discover(VERSIONS)
    for check in REGISTRY.values():
        assert check.sentence, check.statement
        assert check.sentence[0].isupper() or not check.sentence[0].isalpha(), check.sentence
        assert check.sentence.endswith("."), check.sentence
