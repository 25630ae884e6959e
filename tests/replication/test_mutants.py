"""Does some world notice every planted bug within its number of worlds?"""

import pytest

from storage.replicated import replica
from storage.replicated.batch_codec import BadBatch
from tests.replication.mutants import MUTANTS, planted
from tests.replication.run import run

pytestmark = pytest.mark.skipif(
    not (replica.__file__ or "").endswith(".py"), reason="compiled code cannot be patched"
)


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_found(name: str) -> None:
    mutant = MUTANTS[name]
    found = None
    with planted(mutant):
        for seed in range(mutant.start, mutant.start + mutant.seeds):
            try:
                run(mutant.world(seed))
            except (AssertionError, BadBatch) as error:
                found = seed, str(error)
                break
    assert found is not None, f"{name} survived {mutant.seeds} worlds"


def test_a_planted_bug_leaves_nothing_behind() -> None:
    before = replica.counts
    with planted(MUTANTS["claim of any index"]):
        assert replica.counts is not before
    assert replica.counts is before
