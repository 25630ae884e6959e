"""Is there, for every check, a wrong broker that it finds out?"""

from typing import Final

import pytest

from conformance.check import REGISTRY
from conformance.runner import discover
from conformance.statements import VERSIONS
from tests.conformance.wrong.mutants import MUTANTS
from tests.conformance.wrong.search import attempt, is_kill, load

# The man in the middle himself, who has to be innocent.
PROVE_NOTHING: Final = {"none"}
# For the quick tier: one broker per kind of fault, few checks each.
SAMPLE: Final = ("session_always_present", "ignores_no_local", "never_says_dup", "swaps_pubacks")

TABLE: Final = load()
USED: Final = {mutant for mutant, _ in TABLE.values()}
discover(VERSIONS)


def prove(mutant: str) -> None:
    for strict in (False, True):
        keys = [key for key, killer in TABLE.items() if killer == (mutant, strict)]
        results = attempt(mutant, keys, strict=strict)
        missed = {key: results[key].reason for key in keys if not is_kill(results[key])}
        assert not missed, f"not found out: a broker that {MUTANTS[mutant].sentence}"


def test_every_check_has_a_wrong_broker() -> None:
    assert sorted(set(REGISTRY) - set(TABLE)) == [], "no wrong broker in killers.toml"
    assert sorted(set(TABLE) - set(REGISTRY)) == [], "in killers.toml, but no check"


def test_the_table_names_brokers_there_are_and_all_of_them() -> None:
    assert sorted(USED - set(MUTANTS)) == []
    assert USED & PROVE_NOTHING == set()
    assert sorted(set(MUTANTS) - USED - PROVE_NOTHING) == [], "prove nothing: remove them"


@pytest.mark.parametrize("mutant", SAMPLE)
def test_a_sample_of_wrong_brokers_is_found_out(mutant: str) -> None:
    prove(mutant)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", sorted(USED - set(SAMPLE)))
def test_a_wrong_broker_is_found_out(mutant: str) -> None:
    prove(mutant)


@pytest.mark.slow
def test_the_man_in_the_middle_is_innocent() -> None:
    results = attempt("none", REGISTRY, patience=4.0)
    assert {key: found.reason for key, found in results.items() if found.is_bad} == {}
