"""Plant bugs by patches that are undone, and search for worlds that notice them.

Read next: `tests.simulation.mutants` (the bugs).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.simulation.making import make_world
from tests.simulation.verdict import Violation
from tests.simulation.world import World

MISSING: Final = object()


class Patcher:
    """Replaces attributes and puts them back."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace one attribute, which must be there."""
        assert hasattr(owner, name) or isinstance(value, property), (
            f"{owner.__name__} has no {name}"
        )
        self._before.append((owner, name, owner.__dict__.get(name, MISSING)))
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Replace a function by `around(original, *arguments)`."""
        original = owner.__dict__[name]

        def patched(*arguments: Any, **named: Any) -> Any:
            return around(original, *arguments, **named)

        self.set(owner, name, patched)

    def undo(self) -> None:
        """Put everything back, last first."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


class Mutant:
    """One planted bug."""

    def __init__(
        self,
        patch: Callable[[Patcher], None],
        profile: str | None,
        seeds: int,
        start: int,
        slow: bool,
        in_history: bool,
    ) -> None:
        self.name = patch.__name__
        self.danger = (patch.__doc__ or "").strip()
        self.profile = profile
        self.seeds = seeds  # worlds within which it must be noticed
        self.start = start  # the first of them: a rare bug was last noticed soon behind it
        self.slow = slow
        # Is it one of the history? All others have to be found without it.
        self.in_history = in_history
        self.patch = patch

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug for a while."""
        patcher = Patcher()
        self.patch(patcher)
        try:
            yield
        finally:
            patcher.undo()

    def world(self, seed: int) -> World:
        """Return a world of the kind that finds the bug."""
        return make_world(seed, self.profile, has_history=self.in_history)

    def hunt(self) -> tuple[int, str] | None:
        """Run worlds until one notices; returns (seed, what it said), None if none did.

        Only a broken property counts: a patch that no longer fits the engine raises, too, and a
        bug that kills the broker outright proves nothing about the oracle.
        """
        others: Exception | None = None
        with self.planted():
            for seed in range(self.start, self.start + self.seeds):
                try:
                    self.world(seed).run()
                except Violation as violation:
                    return seed, str(violation)
                except (TypeError, AttributeError, NameError):
                    raise
                except Exception as error:
                    others = error
        if others is not None:
            raise others
        return None


MUTANTS: Final[dict[str, Mutant]] = {}


def mutant(
    profile: str | None = None,
    *,
    seeds: int = 60,
    start: int = 0,
    slow: bool = False,
    in_history: bool = False,
) -> Callable[[Callable[[Patcher], None]], Callable[[Patcher], None]]:
    """Register a planted bug."""

    def register(patch: Callable[[Patcher], None]) -> Callable[[Patcher], None]:
        MUTANTS[patch.__name__] = Mutant(patch, profile, seeds, start, slow, in_history)
        return patch

    return register
