"""Which tests judge a mutant, cheapest first: its module's own, its room's, its package's, worlds.

Tests mirror the tree, so the path of a module names them. Tests that need Spark are left out
unless they are asked for; a module that runs in Spark then has no judge.
"""

import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

SIMULATED: Final = frozenset({"mqtt", "session", "storage"})
# A module's own tests may start processes; those of the rest of its package would take too long.
QUICK: Final = "not full and not ci and not slow"
OWN: Final = "not ci and not slow"
WITH_SPARK: Final = "not slow"


@dataclass(frozen=True, slots=True)
class Stage:
    """Tests that run together, and how to run them; `level` counts from the module's own."""

    level: int
    name: str
    command: tuple[str, ...]


def stages(root: Path, path: str, *, spark: bool = False, level_max: int = 4) -> list[Stage]:
    """Return the stages for the module at the path up to a level, but the first in any case."""
    known = _all_stages(root, path, spark=spark)
    return known[:1] + [stage for stage in known[1:] if stage.level <= level_max]


def _all_stages(root: Path, path: str, *, spark: bool) -> list[Stage]:
    module = PurePosixPath(path)
    package = module.parts[0]
    room = PurePosixPath("tests", *module.parts[:-1])
    own = [str(room / f"test_{module.stem}.py")]
    own += sorted(
        found.relative_to(root).as_posix()
        for found in (root / room).glob(f"test_{module.stem}_*.py")
    )
    own = [name for name in own if (root / name).exists()]
    result = []
    if own:
        result.append(Stage(1, "own tests", _pytest(WITH_SPARK if spark else OWN, *own)))
    if len(module.parts) > 2 and (root / room).is_dir():
        result.append(Stage(2, f"tests of {'/'.join(room.parts[1:])}", _pytest(QUICK, str(room))))
    if (root / "tests" / package).is_dir():
        result.append(Stage(3, f"tests of {package}", _pytest(QUICK, f"tests/{package}")))
    if package in SIMULATED and (root / "tests/mutants/worlds.py").exists():
        result.append(Stage(4, "simulation", (sys.executable, "-m", "tests.mutants.worlds")))
    return result


def _pytest(tier: str, *names: str) -> tuple[str, ...]:
    options = ("-q", "-x", "-p", "no:cacheprovider", "-m", tier)
    return (sys.executable, "-m", "pytest", *options, *names)
