"""Planted bugs of sessions: rows that miss the batch, wills, expiry.

Read next: `session.lifetime`.
"""

from collections.abc import Callable
from typing import Any

import session.delivery.redelivery
import session.lifetime.connect
import session.lifetime.disconnect
import session.lifetime.repository
import session.state.records
from session.administration import Administration
from session.delivery.mailbox import Mailbox
from session.delivery.retained_replay import RetainedReplay
from session.delivery.shared.distribution import Distribution
from session.engine import Engine
from session.errands.banned import BannedClients
from session.lifetime.connect import ConnectHandler
from session.lifetime.disconnect import DisconnectHandler
from session.lifetime.repository import Sessions
from session.lifetime.trimming import OfflineDrops
from session.lifetime.wills import Wills
from session.live.connection import Connection
from session.live.connection_states import SENT_AWAY
from session.live.tick import Tick
from session.routing.retained import Retained
from session.scheduling.bans import Bans
from session.state.in_flight import RELEASED
from session.state.session import Session
from session.tick_writer import TickWriter
from storage.tables.tables import INCOMING, MAILBOX, RETAINED, SESSIONS, SUBSCRIPTIONS
from storage.tables.timers import SESSION, WILL, Due
from tests.simulation.planting import Patcher, mutant

# Changes that miss the batch


def _without(patcher: Patcher, owner: Any, name: str, family: str, sets: bool) -> None:
    """Drop the rows of a family that `name` sets (or deletes) from the batch."""

    def around(original: Any, self: Any, *arguments: Any, **named: Any) -> Any:
        batch = self._tick.batch
        before = len(batch)
        result = original(self, *arguments, **named)
        added = batch[before:]
        del batch[before:]
        batch.extend(
            change for change in added if change[0] != family or (change[2] is None) is sets
        )
        return result

    patcher.wrap(owner, name, around)


@mutant("qos2")
def packet_id_not_in_the_batch(patcher: Patcher) -> None:
    """The message is durable, its inbound QoS 2 packet id is not (CVE-2026-8741)."""
    _without(patcher, Sessions, "receive_begun", INCOMING, True)


@mutant("qos2", seeds=100)
def incoming_ids_not_loaded(patcher: Patcher) -> None:
    """A resumed session does not know which inbound QoS 2 ids wait."""

    def around(original: Any, self: Sessions, loaded: Session) -> None:
        original(self, loaded)
        loaded.incoming.clear()

    patcher.wrap(Sessions, "load_rest", around)


@mutant("qos2", seeds=100)
def incoming_id_never_deleted(patcher: Patcher) -> None:
    """An inbound id is forgotten in memory only."""
    _without(patcher, Sessions, "receive_ended", INCOMING, False)


@mutant("retained")
def retained_row_not_in_the_batch(patcher: Patcher) -> None:
    """A retained message is acknowledged and never written."""
    _without(patcher, Retained, "keep", RETAINED, True)


@mutant("retained")
def retained_is_not_cleared(patcher: Patcher) -> None:
    """An empty retained message clears nothing."""

    def around(original: Any, self: Retained, message: Any) -> Any:
        return original(self, message) if message.payload else False

    patcher.wrap(Retained, "keep", around)


@mutant("retained", seeds=200)
def mailbox_is_lost(patcher: Patcher) -> None:
    """A retained message under way to a session is kept in memory only."""
    _without(patcher, RetainedReplay, "send", MAILBOX, True)


@mutant("replays", seeds=100)
def replays_are_not_stored(patcher: Patcher) -> None:
    """What a SUBSCRIBE still owes of retained messages is not in the record."""

    def around(original: Any, record: Session) -> bytes:
        replays, record.replays = record.replays, {}
        try:
            return original(record)  # type: ignore[no-any-return]
        finally:
            record.replays = replays

    patcher.wrap(session.lifetime.repository, "encode_session", around)


@mutant("unsubscribing")
def unsubscribed_filter_is_resurrected(patcher: Patcher) -> None:
    """UNSUBSCRIBE is forgotten with the process: no row goes."""

    def around(original: Any, self: Sessions, *what: Any) -> Any:
        batch = self._tick.batch
        before = len(batch)
        result = original(self, *what)
        del batch[before:]
        return result

    patcher.wrap(Sessions, "unsubscribe", around)


@mutant("sessions")
def clean_start_leaves_subscriptions(patcher: Patcher) -> None:
    """Ending a session leaves its subscriptions' rows: the next session of that name has them."""
    _without(patcher, Sessions, "end", SUBSCRIPTIONS, False)


@mutant("sessions")
def session_row_is_left(patcher: Patcher) -> None:
    """Ending a session leaves its record."""
    _without(patcher, Sessions, "end", SESSIONS, False)


@mutant("gates", seeds=300)
def clean_start_leaves_the_mailbox(patcher: Patcher) -> None:
    """Ending a session leaves the retained messages that were under way to it."""
    patcher.set(Mailbox, "drop_all", lambda self, owner: None)


@mutant("sessions", seeds=200)
def clean_start_leaves_in_flight(patcher: Patcher) -> None:
    """Clean Start begins with what the old session had in flight."""
    left: dict[str, dict[int, int]] = {}

    def inherit(original: Any, self: ConnectHandler, old: Session | None, *rest: Any) -> Any:
        in_flight = dict(old.in_flight) if old is not None else {}
        result = original(self, old, *rest)
        if result is None and old is not None and not old.leases:
            left[old.client_id] = in_flight
        return result

    def begin(
        original: Any, self: ConnectHandler, connection: Any, new: Session, *rest: Any, **named: Any
    ) -> Any:
        kept = left.pop(new.client_id, None)
        if kept and not new.in_flight:
            new.in_flight.update(kept)
        return original(self, connection, new, *rest, **named)

    def attach(original: Any, self: Sessions, connection: Connection) -> None:
        original(self, connection)
        assert connection.session is not None
        if connection.session.in_flight and not connection.resend and connection.connack_waits():
            for packet_id, entry in connection.session.in_flight.items():
                if not entry & RELEASED:
                    connection.send_later(packet_id)

    patcher.wrap(ConnectHandler, "_inherit", inherit)
    patcher.wrap(ConnectHandler, "_begin", begin)
    patcher.wrap(Sessions, "attach", attach)


# Wills


def _after_the_write(patcher: Patcher, postponed: list[Callable[[], None]]) -> None:
    def around(original: Any, self: TickWriter) -> bool:
        done: bool = original(self)
        if done and postponed:
            actions = list(postponed)
            postponed.clear()
            for action in actions:
                action()
        return done

    patcher.wrap(TickWriter, "write", around)

    def start(original: Any, *arguments: Any, **named: Any) -> Any:
        postponed.clear()
        return original(*arguments, **named)

    patcher.wrap(Engine, "start", start)


@mutant("gates", seeds=800, slow=True)
def will_deleted_after_its_publication(patcher: Patcher) -> None:
    """A due will is published in one batch and its row deleted in the next."""
    postponed: list[Callable[[], None]] = []
    _after_the_write(patcher, postponed)

    def remove(original: Any, self: Due, batch: Any, at_ms: int, kind: int, name: bytes) -> None:
        if kind != WILL:
            original(self, batch, at_ms, kind, name)
            return
        from storage.tables.timers import due_key

        key = due_key(at_ms, kind, name)
        self._removed.add(key)
        tick = ticks[-1]

        def later() -> None:
            self._removed.add(key)
            tick.batch.append(("due", key, None))

        postponed.append(later)

    ticks: list[Tick] = []

    def build(original: Any, self: Tick, *arguments: Any) -> None:
        original(self, *arguments)
        ticks[:] = [self]

    patcher.wrap(Tick, "__init__", build)
    patcher.wrap(Due, "remove", remove)


@mutant("gates", seeds=1500, slow=True)
def will_published_after_its_deletion(patcher: Patcher) -> None:
    """A due will's row is deleted in one batch and the will published in the next."""
    postponed: list[Callable[[], None]] = []
    _after_the_write(patcher, postponed)

    def around(original: Any, self: Wills, *entry: Any) -> None:
        postponed.append(lambda: original(self, *entry))

    patcher.wrap(Wills, "fire_due", around)


@mutant("sessions")
def will_is_not_stored_at_connect(patcher: Patcher) -> None:
    """The will of a connected client is in memory only."""

    def around(
        original: Any, identity: str, stored: bool, at: int, expiry: int, will: Any, number: int
    ) -> Any:
        return original(identity, stored, at, expiry, None if at else will, number)

    patcher.wrap(session.lifetime.connect, "ConnectionRecord", around)


@mutant("sessions")
def disconnect_does_not_cancel_the_will(patcher: Patcher) -> None:
    """DISCONNECT publishes the will."""

    def around(
        original: Any, self: DisconnectHandler, connection: Any, reason: int, **named: Any
    ) -> None:
        named["publish_will"] = True
        original(self, connection, reason, **named)

    patcher.wrap(DisconnectHandler, "_leave", around)


@mutant("sessions", seeds=100)
def resume_does_not_cancel_the_will(patcher: Patcher) -> None:
    """A delayed will fires although its session was resumed."""

    def around(original: Any, self: ConnectHandler, revived: Session) -> None:
        revived.will_due_ms = 0
        original(self, revived)

    patcher.wrap(ConnectHandler, "_revive", around)


@mutant("sessions")
def will_delay_is_ignored(patcher: Patcher) -> None:
    """A delayed will fires at once."""

    def around(original: Any, self: Wills, owner: Session, will: Any, closed_at: int) -> None:
        self._fire(owner.client_id, owner.identity, will, owner.incarnation)

    patcher.wrap(Wills, "arm", around)


@mutant("sessions")
def crashed_connections_are_not_recovered(patcher: Patcher) -> None:
    """Nobody notices that a crash ended connections: no wills, no expiry."""
    patcher.set(DisconnectHandler, "recover", lambda self, *arguments: None)


# What an operator asks


@mutant("operator")
def an_operator_ends_nothing(patcher: Patcher) -> None:
    """The session that an operator has ended is there again, with all that waits for it."""
    patcher.set(Administration, "_end_stored", lambda self, *arguments: True)


@mutant("operator")
def a_kick_forgets_the_will(patcher: Patcher) -> None:
    """Nobody gets the will of a client whose connection an operator has ended."""

    def around(
        original: Any, self: Any, connection: Any, event: str, *rest: Any, **named: Any
    ) -> Any:
        if event == SENT_AWAY:
            named["publish_will"] = False
        return original(self, connection, event, *rest, **named)

    patcher.wrap(DisconnectHandler, "end", around)


@mutant("operator", seeds=200, start=40)
def a_purge_is_not_counted(patcher: Patcher) -> None:
    """Messages that an operator has dropped are missing, and no counter tells of them."""
    patcher.set(OfflineDrops, "messages", lambda self, session, messages, reason: len(messages))


@mutant("operator", seeds=200, start=40)
def a_purge_by_topic_takes_what_comes_later(patcher: Patcher) -> None:
    """What an operator has dropped of a topic reaches beyond the end of the log."""

    def around(original: Any, self: Any, session: Any) -> bytes:
        for each in session.purged or ():
            each.upto += 1000
        written: bytes = original(self, session)
        return written

    patcher.wrap(OfflineDrops, "write", around)


@mutant("operator", seeds=200, start=26)
def a_purge_of_a_group_passes_over_the_rest_of_the_log(patcher: Patcher) -> None:
    """What it should keep of a shared subscription no member gets."""

    def around(original: Any, self: Any, group: Any, upto: int) -> None:
        group.owed.clear()
        original(self, group, upto)

    patcher.wrap(Distribution, "move", around)


@mutant("operator")
def a_banned_client_is_accepted(patcher: Patcher) -> None:
    """A ban is kept, and nobody asks for it."""
    patcher.set(ConnectHandler, "_is_banned", lambda self, *arguments: False)


@mutant("operator", seeds=200)
def a_ban_is_forgotten_by_the_next_start(patcher: Patcher) -> None:
    """Who is banned may connect after a crash."""
    patcher.set(Bans, "open", lambda self: None)


@mutant("operator")
def a_ban_spares_who_is_connected(patcher: Patcher) -> None:
    """The connection of a client that is banned goes on."""
    patcher.set(BannedClients, "look_at", lambda self, connection: None)


# Expiry


@mutant("sessions")
def expired_session_is_resumed(patcher: Patcher) -> None:
    """A session past its time is resumed if nobody has collected it yet."""
    patcher.set(Session, "is_expired", lambda self, now: False)
    patcher.set(DisconnectHandler, "expire", lambda self, client_id, due_ms: None)


@mutant("sessions", seeds=200)
def expiry_clock_restarts_with_the_broker(patcher: Patcher) -> None:
    """Every offline session gets its whole interval again when the broker starts."""

    def around(original: Any, self: Engine, now: int, **named: Any) -> Any:
        result = original(self, now, **named)
        due = self._housekeeping._due
        for entry in due.come(now + (1 << 40), 10_000):
            if entry.kind != SESSION or due.is_removed(entry.key):
                continue
            loaded = self._sessions.load(entry.name.decode())
            if loaded is None:
                continue
            due.remove(self._tick.batch, entry.at_ms, SESSION, entry.name)
            loaded.expiry_due_ms = loaded.expires_at(now)
            due.add(self._tick.batch, loaded.expiry_due_ms, SESSION, entry.name)
            self._sessions.write(loaded)
        self._writer.write()
        due.open()
        return result

    patcher.wrap(Engine, "start", around)


@mutant("sessions")
def session_expires_early(patcher: Patcher) -> None:
    """Intervals are half a second short."""

    def around(original: Any, self: Session, disconnected_at_ms: int) -> int:
        return original(self, disconnected_at_ms - 500)  # type: ignore[no-any-return]

    patcher.wrap(Session, "expires_at", around)


@mutant("sessions", seeds=200)
def heart_does_not_beat(patcher: Patcher) -> None:
    """A crash counts as having happened when the broker was started."""
    patcher.set(Engine, "_beat", lambda self, now: None)


@mutant("sessions", seeds=200)
def crash_is_dated_by_the_heartbeat(patcher: Patcher) -> None:
    """A crash counts as having happened at the last heartbeat, up to a period too early."""
    patcher.set(session.lifetime.disconnect, "crash_time", lambda alive_ms, period_ms: alive_ms)


@mutant("disk", seeds=800, start=8200, slow=True)
def life_beside_the_store_is_ignored(patcher: Patcher) -> None:
    """A crash on a full disk counts as having happened when the disk filled up."""

    def around(original: Any, self: Engine, now: int, *, alive_ms: int = 0) -> Any:
        return original(self, now)

    patcher.wrap(Engine, "start", around)
