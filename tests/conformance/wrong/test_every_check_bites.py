"""Is there, for every check, a wrong broker that it finds out?"""

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from conformance.check import PATIENCE_S, REGISTRY
from conformance.runner import discover
from conformance.statements import VERSIONS
from tests.conformance.wrong.mutants import MUTANTS
from tests.conformance.wrong.search import attempt, is_kill, load

# The man in the middle himself, who has to be innocent.
PROVE_NOTHING: Final = {"none"}
# For the quick tier: one broker per kind of fault, few checks each.
SAMPLE: Final = ("session_always_present", "ignores_no_local", "never_says_dup", "swaps_pubacks")
AT_A_TIME: Final = 4  # they mostly wait

TABLE: Final = load()
USED: Final = {mutant for mutant, _ in TABLE.values()}
discover(VERSIONS)


def missed(mutant: str) -> list[str]:
    """Return the checks that do not find this broker out although the table says so."""
    found = []
    for strict in (False, True):
        keys = [key for key, killer in TABLE.items() if killer == (mutant, strict)]
        for (version, identifier), result in attempt(mutant, keys, strict=strict).items():
            if not is_kill(result):
                said = f"{result.outcome} {result.reason}".strip()
                found.append(f"{identifier} ({version}): {said}: {MUTANTS[mutant].sentence}")
    return found


def test_every_check_has_a_wrong_broker() -> None:
    assert sorted(set(REGISTRY) - set(TABLE)) == [], "no wrong broker in killers.toml"
    assert sorted(set(TABLE) - set(REGISTRY)) == [], "in killers.toml, but no check"


def test_the_table_names_brokers_there_are_and_all_of_them() -> None:
    assert sorted(USED - set(MUTANTS)) == []
    assert USED & PROVE_NOTHING == set()
    assert sorted(set(MUTANTS) - USED - PROVE_NOTHING) == [], "prove nothing: remove them"


@pytest.mark.parametrize("mutant", SAMPLE)
def test_a_sample_of_wrong_brokers_is_found_out(mutant: str) -> None:
    assert missed(mutant) == []


@pytest.mark.slow
def test_every_wrong_broker_is_found_out_by_the_checks_it_is_for() -> None:
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        found = [line for lines in pool.map(missed, sorted(USED)) for line in lines]
    assert found == []


@pytest.mark.slow
def test_the_man_in_the_middle_is_innocent() -> None:
    results = attempt("none", REGISTRY, patience=PATIENCE_S)
    assert {key: found.reason for key, found in results.items() if found.is_bad} == {}
