"""Planted bugs of gaps: what a limit that keeps the oldest messages has dropped.

Read next: `session.lifetime.trimming`, `storage.log.gaps`.
"""

from typing import Any

from session.delivery.backlog import Backlog
from session.lifetime.collection import Collection
from session.lifetime.trimming import OfflineDrops
from session.state.session import Session
from storage.log.gaps import NO_GAPS
from storage.log.message_log import MessageLog
from tests.simulation.planting import Patcher, mutant


@mutant("overflow", in_history=True)
def a_gap_is_not_durable(patcher: Patcher) -> None:
    """What was dropped and told of is owed again: the record does not have the gap."""
    patcher.set(Session, "gaps_behind", lambda self: ())


@mutant("overflow")
def a_gap_begins_one_too_early(patcher: Patcher) -> None:
    """The newest message that is kept is in the gap, and nobody is told of it."""

    def around(original: Any, self: Any, session: Session, plan: Any, upto: int) -> Any:
        plan.keep_until = max(session.position, plan.keep_until - 1)
        return original(self, session, plan, upto)

    patcher.wrap(OfflineDrops, "leave_out", around)


@mutant("overflow")
def a_gap_ends_one_too_late(patcher: Patcher) -> None:
    """A gap reaches beyond what was dropped and told of."""

    def around(original: Any, self: Any, session: Session, plan: Any, upto: int) -> Any:
        return original(self, session, plan, upto + 1)

    patcher.wrap(OfflineDrops, "leave_out", around)


@mutant("overflow")
def a_session_that_comes_back_does_not_pass_over_gaps(patcher: Patcher) -> None:
    """A session gets messages that were dropped for it, where they are not gone yet."""

    def around(original: Any, self: Backlog, *arguments: Any) -> Any:
        log = self._log

        class Unaware:
            def __getattr__(self, name: str) -> Any:
                return getattr(log, name)

            def cursor(self, streams: Any, position: int, until: int = 0, gaps: Any = ()) -> Any:
                return log.cursor(streams, position, until, NO_GAPS)

        self._log = Unaware()  # type: ignore[assignment,misc]
        try:
            return original(self, *arguments)
        finally:
            self._log = log  # type: ignore[misc]

    patcher.wrap(Backlog, "_cursor", around)


@mutant("overflow")
def a_gap_of_one_session_is_taken_for_one_of_all(patcher: Patcher) -> None:
    """A generation goes that a second session needs: it is looked at with the gaps of another."""
    last: list[Any] = [NO_GAPS]

    def around(
        original: Any, self: Collection, key: bytes, streams: Any, position: int, gaps: Any = ()
    ) -> Any:
        if gaps:
            last[0] = gaps
        return original(self, key, streams, position, last[0])

    patcher.wrap(Collection, "_pin_by_streams", around)


@mutant("overflow")
def a_sweep_does_not_pass_over_the_room_between_gaps(patcher: Patcher) -> None:
    """All behind the first gap counts as not owed, also what came when there was room again."""

    def around(original: Any, self: MessageLog, *arguments: Any, **named: Any) -> Any:
        gaps = named.get("gaps", NO_GAPS)
        if gaps:
            named["gaps"] = ((gaps[0][0], 1 << 60),)
        return original(self, *arguments, **named)

    patcher.wrap(MessageLog, "first_owed", around)
