"""Makes the world of a seed and a profile. Read next: `tests.simulation.world`."""

from tests.simulation.cluster.world import ClusterWorld
from tests.simulation.profiles import PROFILES
from tests.simulation.world import World


def make_world(seed: int, profile: str | None = None, *, has_history: bool = True) -> World:
    """Return a world; without history nothing is recorded, nor judged by it."""
    is_cluster = profile is not None and PROFILES[profile].nodes
    kind = ClusterWorld if is_cluster else World
    return kind(seed, profile, has_history=has_history)
