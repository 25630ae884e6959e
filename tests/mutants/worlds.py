"""The last judge of a mutant: the same simulated worlds each time; exit 1 if one of them fails."""

import sys
from typing import Final

from tests.simulation.command import run_many

WORLDS: Final = 60


def judge(worlds: int = WORLDS) -> int:
    """Run that many worlds from seed 0; returns the exit code. Rare states need more of them."""
    failures, _ = run_many(0, worlds, 1, None)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(judge())
