"""An attack: what it does to a true history, and what else would name it where the audit cannot."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tests.audit.deceptions.tale import Tale

CLIENTS: Final = "the clients' own logs"
CHAIN: Final = "a chain of the segments with a witness elsewhere"
FINDINGS: Final = "the table `findings`: books that differ from the rows"
BOTH: Final = f"{CLIENTS}, or {CHAIN}"


@dataclass(frozen=True)
class Attack:
    """One attack; `node` is the name of the broker whose history is falsified."""

    what: str
    do: Callable[[Tale], None]
    group: str
    # Where the audit alone names nothing: which other evidence would, and why it cannot.
    needs: str = ""
    why: str = ""

    @property
    def node(self) -> str:
        """Return the name of the node that has this history."""
        return self.do.__name__


def later(row: dict[str, object], seconds: float) -> None:
    """Move the time of a row."""
    moment = timedelta(seconds=seconds)
    row["ts"] += moment  # type: ignore[operator]
    row["mono_ns"] += int(seconds * 1e9)  # type: ignore[operator]


class Attacks:
    """A list of attacks of one group."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.all: list[Attack] = []

    def __call__(
        self, what: str, *, needs: str = "", why: str = ""
    ) -> Callable[[Callable[[Tale], None]], Callable[[Tale], None]]:
        """Return the decorator that adds an attack."""

        def add(do: Callable[[Tale], None]) -> Callable[[Tale], None]:
            self.all.append(Attack(what, do, self.group, needs, why))
            return do

        return add
