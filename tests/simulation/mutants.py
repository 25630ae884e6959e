"""All planted bugs: small patches of the real engine that the oracle must notice.

A mutant proves that a property is judged and that worlds reach the states where it can break. Each
names its danger, the kind of world that finds it and how many seeds that may take. Patches of
classes are applied for one run and then undone. Read next: `tests.simulation.planting`, then
`tests/simulation/test_mutants.py`.
"""

# Each module plants its bugs in MUTANTS when it is imported.
from tests.simulation import (  # noqa: F401
    ahead_mutants,
    damage_mutants,
    delivery_mutants,
    feed_mutants,
    gap_mutants,
    history_mutants,
    housekeeping_mutants,
    proxy_mutants,
    retained_mutants,
    session_mutants,
    waiting_mutants,
)
from tests.simulation.cluster import mutants as cluster_mutants  # noqa: F401
from tests.simulation.planting import MUTANTS

__all__ = ["MUTANTS"]
