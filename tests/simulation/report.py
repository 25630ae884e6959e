"""Format the report of a failing world, and its trace.

Read next: `tests.simulation.world`.
"""

import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mqtt.packets import NAMES
from tests.simulation.verdict import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

TAIL: Final = 60  # events a failure shows


def failure(world: "World", error: Exception, tail: int = TAIL) -> str:
    """Say what went wrong, the end of the trace and how to see all of it."""
    if isinstance(error, Violation):
        what = f"{error.name}: {error.what}"
    else:
        what = "no_crash: " + "".join(traceback.format_exception(error)).strip()
    lines = [f"seed {world.seed} ({world.profile.name}): {what}"]
    if tail:
        lines.extend(readable(world, tail))
    profile = f" --profile {world.forced_profile}" if world.forced_profile else ""
    lines.append(f"replay: scripts/sim {world.seed}{profile}")
    return "\n".join(lines)


def readable(world: "World", tail: int = 0) -> Iterator[str]:
    """Yield the trace, one event a line: time in ms since the start, who, what."""
    events = world.trace[-tail:] if tail else world.trace
    for at, *event in events:
        if len(event) == 4 and event[1] in ("<", ">") and isinstance(event[2], int):
            event[2] = NAMES[event[2]]
        yield f"{at:>7} " + " ".join(str(field) for field in event)
