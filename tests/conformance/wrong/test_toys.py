"""Can a server that is no broker pass a check? Only one whose statement it really keeps."""

import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import pytest

from conformance.check import PATIENCE_S, REGISTRY
from conformance.results import Result
from conformance.runner import discover
from conformance.statements import VERSIONS
from tests.conformance.wrong.mutant import TOYS
from tests.conformance.wrong.search import SECTIONS, Key, attempt, passed_itself

TABLE: Final = Path(__file__).with_name("toys.toml")
# What a toy says it says at once; nearly all checks wait in vain for something it never says.
HURRY_S: Final = 0.3
# What a toy keeps it answers at once; only a busy machine makes it late.
BUSY_S: Final = 4 * PATIENCE_S
LINES_SHOWN: Final = 40
T = TypeVar("T")

discover(VERSIONS)


def may_pass(toy: str) -> set[Key]:
    """Return the checks whose statements this toy keeps, by the table."""
    sections = tomllib.loads(TABLE.read_text("utf-8"))[toy]
    return {(version, key) for version in VERSIONS for key in sections[SECTIONS[version]]}


def outcomes(toy: str, keys: set[Key], patience: float) -> dict[Key, Result]:
    """Run checks against this toy; none may end with an error of the suite itself."""
    results = attempt(toy, keys, strict=True, patience=patience)
    assert {key: found.reason for key, found in results.items() if found.outcome == "error"} == {}
    return results


def passed(toy: str, keys: set[Key], patience: float) -> set[Key]:
    """Return which of these checks this toy passes."""
    return {key for key, found in outcomes(toy, keys, patience).items() if passed_itself(found)}


def not_passed(toy: str, keys: set[Key], patience: float) -> dict[Key, str]:
    """Return which of these checks this toy does not pass, what they say, and what was sent."""
    results = outcomes(toy, keys, patience)
    return {key: story(found) for key, found in results.items() if not passed_itself(found)}


def story(found: Result) -> str:
    """Return a result with the last of its exchange."""
    lines = [f"{line.seconds:.3f} {line.client} {line.arrow} {line.text}" for line in found.lines]
    return "\n".join([found.reason, *lines[-LINES_SHOWN:]])


def with_each(work: Callable[[str], T]) -> dict[str, T]:
    """Do something with each toy that talks, at the same time: it is mostly waiting."""
    talking = sorted(set(TOYS) - {"mute"})
    with ThreadPoolExecutor(len(talking)) as pool:
        return dict(zip(talking, pool.map(work, talking), strict=True))


def test_a_mute_server_passes_nothing() -> None:
    results = attempt("mute", REGISTRY, strict=True, patience=HURRY_S)
    assert {found.outcome for found in results.values()} == {"fail"}


def test_a_toy_passes_the_checks_whose_statements_it_keeps() -> None:
    failed = with_each(lambda toy: not_passed(toy, may_pass(toy), BUSY_S))
    assert failed == {toy: {} for toy in failed}


@pytest.mark.slow
def test_a_toy_passes_no_other_check() -> None:
    extra = with_each(lambda toy: passed(toy, set(REGISTRY) - may_pass(toy), HURRY_S))
    assert extra == {toy: set() for toy in extra}
