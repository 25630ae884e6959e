"""Does the oracle find every planted bug within its number of worlds?"""

import pytest

import session.engine
from tests.simulation.mutants import MUTANTS
from tests.simulation.world import World

pytestmark = pytest.mark.skipif(
    not (session.engine.__file__ or "").endswith(".py"), reason="compiled code cannot be patched"
)


def test_there_are_enough_planted_bugs() -> None:
    assert len(MUTANTS) >= 25
    assert all(mutant.danger for mutant in MUTANTS.values())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if mutant.slow else ())
        for name, mutant in MUTANTS.items()
    ],
)
def test_planted_bug_is_found(name: str) -> None:
    mutant = MUTANTS[name]
    found = mutant.hunt()
    assert found is not None, f"{name} survived {mutant.seeds} worlds: {mutant.danger}"
    seed, what = found
    # Without the bug the same world is clean: it is the bug that was found.
    try:
        mutant.world(seed).run()
    except Exception as error:
        pytest.fail(f"seed {seed} fails without {name} ({what}): {error}")


def test_a_planted_bug_leaves_nothing_behind() -> None:
    before = World(3, "qos2").run()
    with MUTANTS["dup_is_not_set"].planted():
        pass
    assert World(3, "qos2").run() == before
