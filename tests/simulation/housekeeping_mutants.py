"""Planted bugs of the work that gives disk space back: sweeps, trimmed backlogs.

Read next: `session.lifetime.collection`, `session.lifetime.trimming`.
"""

from typing import Any

from session.lifetime.collection import Collection
from session.lifetime.sweep import Sweep
from session.lifetime.trimming import Trimming
from session.routing.retained import Retained
from session.state.session import Session
from tests.simulation.planting import Patcher, mutant


@mutant("absent", seeds=400, start=380)
def sweep_forgets_what_is_in_flight(patcher: Patcher) -> None:
    """A session that comes and goes during a sweep counts as needing only what it did not read."""

    def around(original: Any, self: Sweep, session: Session) -> None:
        if session.position < self.last():
            original(self, session)

    patcher.wrap(Sweep, "session_offline", around)


@mutant("absent", seeds=100)
def sweep_does_not_look_at_groups(patcher: Patcher) -> None:
    """What a shared subscription has not read goes with its generation."""

    def around(original: Any, self: Collection, groups: list[Any]) -> None:
        groups.clear()

    patcher.wrap(Collection, "_sweep_groups", around)


@mutant("absent", seeds=100, start=325)
def sweep_takes_only_the_oldest_in_flight(patcher: Patcher) -> None:
    """Of the messages in flight only the oldest keeps its generation."""

    def around(original: Any, self: Sweep, session: Session, key: bytes) -> None:
        kept = dict(list(session.in_flight.items())[:1])
        session.in_flight, whole = kept, session.in_flight
        original(self, session, key)
        session.in_flight = whole

    patcher.wrap(Sweep, "pin_in_flight", around)


@mutant("absent", seeds=200, start=404)
def trimming_drops_one_too_many(patcher: Patcher) -> None:
    """A backlog is cut to one message less than its limit."""

    def around(original: Any, self: Trimming, job: Any) -> None:
        was_counting = job.cursor is None
        original(self, job)
        if was_counting and job.cursor is not None:
            job.left += 1

    patcher.wrap(Trimming, "_go_on", around)


@mutant("absent")
def trimmed_messages_are_not_counted(patcher: Patcher) -> None:
    """What is dropped while a session is away is told to nobody."""

    def around(original: Any, self: Trimming, job: Any, cursor: Any) -> None:
        before = dict(self.drops._counters.dropped)
        original(self, job, cursor)
        self.drops._counters.dropped.update(before)

    patcher.wrap(Trimming, "_drop_next", around)


@mutant("due")
def will_goes_with_what_it_replaced(patcher: Patcher) -> None:
    """A message that expires takes along the retained will that replaced it in the same slice."""

    def around(original: Any, self: Retained, key: bytes, now: int) -> bool:
        self._unwritten.pop(key, None)
        return bool(original(self, key, now))

    patcher.wrap(Retained, "expire", around)
