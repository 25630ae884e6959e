"""Planted bugs of the history: an event is missing, wrong, or not committed with the state.

No client could notice these bugs; only the comparison of the history with the state on the disk
finds them. Read next: `tests.simulation.retold`.
"""

from typing import Any

from session.feed.told_counts import ToldCounts
from session.history.delivery_events import DeliveryEvents
from session.history.outbox import Outbox
from session.history.recorder import Recorder
from session.history.session_events import SessionEvents
from session.lifetime.census import Census
from session.lifetime.connect import ConnectHandler
from session.lifetime.repository import Sessions
from session.live.connection import Connection
from session.state.session import Session
from storage.api import Batch
from storage.history.events import DEAD_LETTERED
from storage.tables.tables import HISTORY
from tests.simulation.planting import Patcher, mutant


def _silent(patcher: Patcher, owner: Any, name: str) -> None:
    """Record nothing in this case."""
    patcher.set(owner, name, lambda self, *arguments, **named: None)


@mutant("mixed", seeds=60, in_history=True)
def subscription_is_not_recorded(patcher: Patcher) -> None:
    """A subscription is stored and the history does not know it."""
    _silent(patcher, SessionEvents, "subscribed")


@mutant("mixed", seeds=60, in_history=True)
def unsubscription_is_not_recorded(patcher: Patcher) -> None:
    """A subscription goes, and the history has it still."""
    _silent(patcher, SessionEvents, "unsubscribed")


@mutant("sessions", seeds=60, in_history=True)
def session_end_is_not_recorded(patcher: Patcher) -> None:
    """A session ends, and the history has it for ever."""
    _silent(patcher, SessionEvents, "ended")


@mutant("mixed", seeds=60, in_history=True)
def crashed_connection_is_not_recorded(patcher: Patcher) -> None:
    """Who was connected when the broker died stays connected in the history."""
    _silent(patcher, SessionEvents, "crashed")


@mutant("sessions", seeds=60, in_history=True)
def cancelled_will_is_not_recorded(patcher: Patcher) -> None:
    """A will is gone, and the history waits for it."""
    _silent(patcher, SessionEvents, "will_cancelled")


@mutant("retained", seeds=100, in_history=True)
def retained_message_is_not_recorded(patcher: Patcher) -> None:
    """What is retained, or is no more, is not told."""
    _silent(patcher, SessionEvents, "retained_kept")


@mutant("qos2", seeds=60, in_history=True)
def completed_exchange_is_not_recorded(patcher: Patcher) -> None:
    """PUBCOMP frees a packet id, and the history has it in flight."""
    _silent(patcher, DeliveryEvents, "completed")


@mutant("gates", seeds=200, in_history=True)
def history_is_in_another_batch_than_the_state(patcher: Patcher) -> None:
    """The rows of a tick are written with the next one: a crash between tells two stories."""

    def around(original: Any, self: Recorder, batch: Batch, now: int) -> None:
        rows: Batch = []
        original(self, rows, now)
        batch.extend(vars(self).get("held", ()))
        vars(self)["held"] = rows

    patcher.wrap(Recorder, "seal", around)


@mutant("mixed", seeds=60, in_history=True)
def subscription_is_recorded_with_another_offset(patcher: Patcher) -> None:
    """The history has a subscription owed more than it is."""

    def around(original: Any, self: SessionEvents, *arguments: Any, **named: Any) -> None:
        *others, since = arguments
        original(self, *others, since - 1 if since else 1, **named)

    patcher.wrap(SessionEvents, "subscribed", around)


@mutant("sessions", seeds=100, in_history=True)
def incarnation_is_used_again(patcher: Patcher) -> None:
    """A client's next session has the number of the one before."""

    def around(original: Any, self: ConnectHandler, session: Any, old: Any, packet: Any) -> Any:
        inherited = original(self, session, old, packet)
        if session is not None and inherited is None:
            self._sessions._last_incarnation = session.incarnation - 1
        return inherited

    patcher.wrap(ConnectHandler, "_inherit", around)


@mutant("sessions", seeds=100, in_history=True)
def incarnation_changes_when_a_session_is_resumed(patcher: Patcher) -> None:
    """A resumed session gets a number of its own: its history is that of two."""

    def around(original: Any, self: ConnectHandler, session: Session) -> None:
        session.incarnation = self._sessions.next_incarnation()
        original(self, session)

    patcher.wrap(ConnectHandler, "_revive", around)


@mutant("mixed", seeds=60, in_history=True)
def census_passes_over_a_session(patcher: Patcher) -> None:
    """A session that survived the crash is not told, as if it had not."""

    def around(original: Any, self: Census, client_id: str, value: bytes) -> None:
        if not client_id.endswith("0"):
            original(self, client_id, value)

    patcher.wrap(Census, "_look_at", around)


@mutant("mixed", seeds=60, in_history=True)
def a_row_of_the_history_is_dropped(patcher: Patcher) -> None:
    """A row is thrown away: the numbers of its events are missing."""

    def around(original: Any, self: Recorder, batch: Batch, now: int) -> None:
        original(self, batch, now)
        rows = [at for at, change in enumerate(batch) if change[0] == HISTORY]
        if len(rows) > 1:
            del batch[rows[0]]

    patcher.wrap(Recorder, "seal", around)


@mutant("sessions", seeds=100, in_history=True)
def takeover_leaves_the_old_connection_in_the_history(patcher: Patcher) -> None:
    """The end of a connection is told only if its client asked for it or was lost."""

    def around(
        original: Any,
        self: SessionEvents,
        connection: Connection,
        session: Session,
        reason: int,
        **n: Any,
    ) -> None:
        if n["by_client"]:
            original(self, connection, session, reason, **n)

    patcher.wrap(SessionEvents, "disconnected", around)


@mutant("mixed", seeds=100, in_history=True)
def a_subscription_survives_only_in_the_history(patcher: Patcher) -> None:
    """A subscription is told and its row is not written: the crash takes it."""

    def around(original: Any, self: Sessions, *arguments: Any) -> bool:
        before = len(self._tick.batch)
        result: bool = original(self, *arguments)
        batch = self._tick.batch
        batch[before:] = [c for c in batch[before:] if c[0] != "subscriptions"]
        return result

    patcher.wrap(Sessions, "subscribe", around)


@mutant("exports", in_history=True)
def export_forgets_where_the_boot_ended(patcher: Patcher) -> None:
    """Exported rows go, and the next boot cannot tell how many events there were."""

    def around(original: Any, self: Outbox, *arguments: Any) -> None:
        batch = self._tick.batch
        before = len(batch)
        original(self, *arguments)
        batch[before:] = [change for change in batch[before:] if change[0] == HISTORY]

    patcher.wrap(Outbox, "trim", around)


@mutant(None, seeds=60, in_history=True)
def counts_of_a_store_are_in_another_batch_than_its_cursor(patcher: Patcher) -> None:
    """What a store has confirmed is counted with its next confirmation: a crash takes it back."""
    late: list[Any] = []

    def around(original: Any, self: ToldCounts, *confirmed: Any) -> None:
        late.append((self, confirmed))
        if len(late) > 1:
            before, arguments = late.pop(0)
            original(before, *arguments)

    patcher.wrap(ToldCounts, "confirm", around)


@mutant(None, seeds=60, start=10, in_history=True)
def a_dead_letter_is_not_counted(patcher: Patcher) -> None:
    """The history says nothing of a message that a store has refused."""

    def around(original: Any, self: ToldCounts, *message: Any) -> None:
        if message[-1] != DEAD_LETTERED:
            original(self, *message)

    patcher.wrap(ToldCounts, "_count", around)


@mutant(None, seeds=120, start=33, in_history=True)
def what_a_store_lost_counts_twice(patcher: Patcher) -> None:
    """A message that a store is told again counts as if it were another one."""

    def around(
        original: Any, self: ToldCounts, name: str, told: Any, offset: int, *rest: Any
    ) -> None:
        counted, told.counted = told.counted, min(told.counted, offset - 1)
        original(self, name, told, offset, *rest)
        told.counted = counted

    patcher.wrap(ToldCounts, "_count", around)


@mutant(None, seeds=200, start=21, in_history=True)
def what_was_applied_unheard_is_not_counted(patcher: Patcher) -> None:
    """Nobody counts what a store had applied when the broker died."""

    def around(original: Any, self: ToldCounts, name: str, told: Any, *rest: Any) -> None:
        self._reach(told, rest[1])

    patcher.wrap(ToldCounts, "unheard", around)
