"""Wherever a leader ends, and however: what was acknowledged is there, and QoS 2 exactly once.

`HOLDFAST_CRASH_POINTS=all` tries every combination (8,000 lives, minutes).
"""

import os
from collections import Counter
from typing import Final

import pytest

from tests.takeover.nodes import LOST, Cluster
from tests.takeover.points import ENDINGS, GONE, Case, Life, all_cases, cases, steps

ALL: Final = os.environ.get("HOLDFAST_CRASH_POINTS", "") == "all"
NAMES: Final = (
    "written",
    "sync of the tail begun",
    "synced in the tail",
    "in the log",
    "acknowledged by the log",
    "read back",
    "applied",
    "released",
    "sent",
    "synced in the database",
)


@pytest.fixture(scope="module")
def points() -> int:
    return len(steps(Case()))


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_acknowledged_is_lost(ending: str, points: int) -> None:
    first = 1 + ENDINGS.index(ending)
    for case in all_cases(ending, points) if ALL else cases(ending, points, first, every=3):
        try:
            Life(case).run()
        except AssertionError as failure:
            raise AssertionError(f"{case}: {failure}") from failure


def test_the_points_are_all_steps_between_the_write_and_the_database() -> None:
    """Each many times: in a life are sessions, subscriptions, both QoS, acknowledgements, wills."""
    found = Counter(steps(Case()))
    assert set(found) == set(NAMES)
    assert min(found.values()) > 15, found


class ReleasedWhenWritten(Cluster):
    """A planted bug: replies leave when the batch is on its way."""

    def _commit(self) -> None:
        self.engine.committed(self.engine.written, self.now)
        self.engine.end_tick(self.now)
        self.on_step("sent")
        super()._commit()


class ReleasedWhenInTheTail(Cluster):
    """A planted bug: replies leave when this machine has the batch."""

    def _to_tail(self) -> None:
        super()._to_tail()
        self.engine.committed(self.engine.written, self.now)
        self.engine.end_tick(self.now)
        self.on_step("sent")


@pytest.mark.parametrize("planted", [ReleasedWhenWritten, ReleasedWhenInTheTail])
def test_a_planted_bug_is_found(planted: type[Cluster], points: int) -> None:
    for point in range(points // 2, points):  # where messages are sent
        try:
            Life(Case(point, GONE, LOST, True, False, True, planted)).run()
        except AssertionError:
            return
    raise AssertionError(f"{planted.__name__} was not found")
