"""Planted bugs of delivery: sending again, positions, shared subscriptions, options, refusals.

Read next: `session.delivery.delivery`.
"""

from typing import Any

import session.delivery.redelivery
import session.lifetime.connect
import session.lifetime.disconnect
import session.lifetime.repository
import session.state.records
from session.delivery.backlog import Backlog
from session.delivery.backlog_page import TopicOptions
from session.delivery.delivery import Delivery
from session.delivery.outgoing import Outgoing
from session.delivery.redelivery import Redelivery
from session.delivery.shared.distribution import Distribution
from session.delivery.window.send_window import SendWindow
from session.lifetime.disconnect import DisconnectHandler
from session.lifetime.repository import Sessions
from session.lifetime.sweep import Sweep
from session.live.connection import CLOSED, Arrivals, Connection, Pending
from session.live.subscribers import FilterEntry, Group
from session.live.tick import Tick
from session.publish.accept import CHANGED, Publishing
from session.routing.router import Router
from session.state.in_flight import QOS_MASK, RELEASED, STORED_MASK
from session.state.session import Session
from session.tick_writer import TickWriter
from storage.errors import Recoverable
from tests.simulation.planting import Patcher, mutant

# Sending again


@mutant("qos2")
def dup_is_not_set(patcher: Patcher) -> None:
    """What is sent again does not say so."""

    def around(original: Any, *arguments: Any, dup: bool, **named: Any) -> Any:
        return original(*arguments, **named)

    patcher.wrap(session.delivery.redelivery, "encode_delivery", around)


@mutant("qos2", seeds=100)
def packet_id_is_reused_in_flight(patcher: Patcher) -> None:
    """The next packet id is taken without looking at those in flight."""

    def take(self: Session) -> int:
        packet_id = self.next_packet_id
        self.next_packet_id = packet_id % 4 + 1
        return packet_id

    patcher.set(Session, "take_packet_id", take)


@mutant("qos2")
def order_is_reversed_on_resume(patcher: Patcher) -> None:
    """What is in flight is sent again last first."""

    def around(original: Any, self: Delivery, connection: Connection) -> None:
        resumed = connection.session
        assert resumed is not None
        resumed.in_flight = dict(reversed(resumed.in_flight.items()))
        original(self, connection)

    patcher.wrap(Delivery, "resume", around)


@mutant("backlog", seeds=100)
def receive_maximum_is_ignored_on_resume(patcher: Patcher) -> None:
    """A resumed session sends as much as it likes."""

    def around(original: Any, self: Session, *limits: int) -> None:
        original(self, *((1_000, 1_000) if self.in_flight else limits))

    patcher.wrap(Session, "begin_connection", around)


@mutant("wraps")
def in_flight_is_loaded_by_packet_id(patcher: Patcher) -> None:
    """A loaded session has in flight first what has the lowest packet id, also after a wrap."""

    def around(original: Any, self: Sessions, client_id: str) -> Any:
        loaded = original(self, client_id)
        if loaded is not None:
            loaded.in_flight = dict(sorted(loaded.in_flight.items()))
        return loaded

    patcher.wrap(Sessions, "load", around)


@mutant("sizes", seeds=100)
def largest_packet_is_not_sent_again(patcher: Patcher) -> None:
    """What is in flight and exactly as large as the client takes counts as too large."""

    def around(original: Any, self: Redelivery, connection: Connection, *rest: Any) -> Any:
        limit = connection.maximum_packet_size
        connection.maximum_packet_size = max(0, limit - 1)
        try:
            return original(self, connection, *rest)
        finally:
            connection.maximum_packet_size = limit

    patcher.wrap(Redelivery, "_resend", around)


@mutant("sizes", start=35)
def largest_packet_is_dropped(patcher: Patcher) -> None:
    """A message exactly as large as its subscriber takes counts as too large."""

    def around(original: Any, self: Outgoing, connection: Connection, *rest: Any, **n: Any) -> Any:
        limit = connection.maximum_packet_size
        connection.maximum_packet_size = max(0, limit - 1)
        try:
            return original(self, connection, *rest, **n)
        finally:
            connection.maximum_packet_size = limit

    patcher.wrap(Outgoing, "encode", around)


@mutant("qos2")
def released_phase_is_not_stored(patcher: Patcher) -> None:
    """The record does not say that PUBREC came."""
    patcher.set(session.state.records, "STORED_MASK", STORED_MASK & ~RELEASED)


@mutant("qos2")
def in_flight_is_not_stored(patcher: Patcher) -> None:
    """What is in flight at QoS 2 is not in the record, but the position is past it."""

    def around(original: Any, record: Session) -> bytes:
        before = record.in_flight
        record.in_flight = {i: e for i, e in before.items() if e & QOS_MASK != 2}
        try:
            return original(record)  # type: ignore[no-any-return]
        finally:
            record.in_flight = before

    patcher.wrap(session.lifetime.repository, "encode_session", around)


# Positions


@mutant("backlog")
def position_ahead_of_what_was_sent(patcher: Patcher) -> None:
    """A session that leaves with a backlog counts as caught up."""

    def around(original: Any, self: Sessions, connection: Connection) -> None:
        original(self, connection)
        assert connection.session is not None
        connection.session.position = self._log.end

    patcher.wrap(Sessions, "detach", around)


@mutant("qos2")
def position_is_not_stored(patcher: Patcher) -> None:
    """A loaded session reads its streams from their beginning."""

    def around(original: Any, self: Sessions, client_id: str) -> Any:
        loaded = original(self, client_id)
        if loaded is not None:
            loaded.position = 0
        return loaded

    patcher.wrap(Sessions, "load", around)


@mutant("leaving", seeds=100, start=15)
def client_that_just_left_is_read_from_the_store_of_before(patcher: Patcher) -> None:
    """A session is loaded although the batch that changed it is not written yet."""
    patcher.wrap(TickWriter, "settle_for", lambda original, self, client_id: True)


@mutant("backlog", seeds=200)
def page_is_sent_without_a_look_at_the_subscriptions(patcher: Patcher) -> None:
    """A page holds messages from before a subscription that asks for more."""

    def around(original: Any, self: TopicOptions, *arguments: Any) -> None:
        original(self, *arguments)
        self.after = 0

    patcher.wrap(TopicOptions, "__init__", around)


@mutant(seeds=100)
def filter_rests_although_a_route_needs_it(patcher: Patcher) -> None:
    """A route keeps the entry of a filter that has another one by now."""

    def around(original: Any, self: FilterEntry) -> bool:
        return self.holders == 1 and not self.is_live() and not self.groups

    patcher.wrap(FilterEntry, "may_rest", around)


@mutant(seeds=100)
def new_wildcard_is_not_seen_by_known_topics(patcher: Patcher) -> None:
    """A route stays as it is although a wildcard filter that matches has come."""
    patcher.wrap(Router, "_is_concerned", lambda original, *arguments: False)


@mutant(seeds=100)
def late_progress_is_never_written(patcher: Patcher) -> None:
    """QoS 1 acknowledgements reach the record only by accident."""
    patcher.set(Tick, "mark_late", lambda self, owner: None)


@mutant("backlog", seeds=200, start=9)
def arrivals_are_not_noted(patcher: Patcher) -> None:
    """What comes while a session with many filters reads its backlog is forgotten."""

    def around(original: Any, self: Arrivals, offset: int) -> None:
        return

    patcher.wrap(Arrivals, "note", around)


@mutant("backlog", seeds=200, start=24)
def arrivals_count_as_complete(patcher: Patcher) -> None:
    """More came than was noted, and the session counts as caught up."""

    def around(original: Any, self: Arrivals, offset: int) -> None:
        original(self, offset)
        self.is_complete = True

    patcher.wrap(Arrivals, "note", around)


@mutant("backlog", seeds=200, start=24)
def cursor_of_before_the_arrivals_is_kept(patcher: Patcher) -> None:
    """The next cursor is one that ends where the last one has ended."""

    def around(original: Any, self: Backlog, connection: Connection, *arguments: Any) -> int:
        cursor = connection.cursor
        done: int = original(self, connection, *arguments)
        if connection.is_lagging:
            connection.cursor = cursor
        return done

    patcher.wrap(Backlog, "_send_arrivals", around)


@mutant("backlog", seeds=100)
def lagging_session_skips_what_was_pending(patcher: Patcher) -> None:
    """When a queue overflows, what was in it is forgotten."""

    def around(original: Any, self: SendWindow, connection: Connection, item: Pending) -> None:
        original(self, connection, item)
        assert connection.session is not None
        if connection.is_lagging:
            connection.session.position = item.message.offset

    patcher.wrap(SendWindow, "queue", around)


@mutant("mixed", seeds=200, start=39)
def since_offset_is_ignored(patcher: Patcher) -> None:
    """A new subscription gets what its session's other streams hold from before it."""

    def around(original: Any, self: Sessions, *who: Any) -> Any:
        result = original(self, *who)
        who[-1].since = 0
        return result

    patcher.wrap(Sessions, "subscribe", around)


@mutant("backlog", seeds=100)
def generation_is_dropped_too_early(patcher: Patcher) -> None:
    """A generation goes although offline sessions are owed messages in it."""
    patcher.set(Sweep, "pin", lambda self, candidate, key: None)


# Shared subscriptions


@mutant("shared", seeds=300)
def redistribution_drops_messages(patcher: Patcher) -> None:
    """What a leaving member had not acknowledged is gone."""

    def around(original: Any, self: Distribution, ended: Session, connection: Any) -> None:
        for packet_id, key in ended.leases.items():
            group = self._groups.get(key)
            if group is not None:
                group.leased.pop(ended.in_flight[packet_id] >> 8, None)
                self._tick.dirty_groups[group] = None
        ended.leases.clear()

    patcher.wrap(Distribution, "session_ended", around)


@mutant("shared", seeds=100)
def group_position_is_not_stored(patcher: Patcher) -> None:
    """After a restart a group begins again."""

    def around(original: Any, self: Group) -> Any:
        record = original(self)
        record.position = record.since
        return record

    patcher.wrap(Group, "record", around)


@mutant("shared", seeds=100)
def message_goes_to_every_member(patcher: Patcher) -> None:
    """A shared message is handed to two members."""

    def around(
        original: Any, self: Distribution, group: Group, connection: Any, message: Any
    ) -> None:
        original(self, group, connection, message)
        other = self._pick(group, message.topic)
        if other is not None and other is not connection:
            original(self, group, other, message)

    patcher.wrap(Distribution, "_hand_out", around)


# Options and refusals


@mutant()
def qos_is_upgraded(patcher: Patcher) -> None:
    """Stored messages are delivered at the granted QoS, whatever they were published with."""

    def around(original: Any, self: Outgoing, owner: Session, message: Any) -> Any:
        found = original(self, owner, message)
        return None if found is None else (2, *found[1:])

    patcher.wrap(Outgoing, "options", around)


@mutant("retained")
def live_message_keeps_its_retain_flag(patcher: Patcher) -> None:
    """RETAIN is forwarded to everybody."""
    from session.routing.router import Target

    def around(original: Any, self: Target, *arguments: Any) -> None:
        original(self, *arguments)
        self.retain_as_published = True

    patcher.wrap(Target, "__init__", around)


@mutant("disk", seeds=100)
def refused_message_is_acknowledged(patcher: Patcher) -> None:
    """With a full disk a message is acknowledged and not stored."""

    def around(original: Any, self: Publishing, *rest: Any, **named: Any) -> Any:
        accepted = original(self, *rest, **named)
        return CHANGED if accepted.reason_code >= 0x80 else accepted

    patcher.wrap(Publishing, "accept", around)


@mutant("disk", seeds=200)
def refused_batch_is_dropped(patcher: Patcher) -> None:
    """A batch that the store refused is not tried again."""
    from storage.local.memory import MemoryStore

    def around(original: Any, self: MemoryStore, batch: Any) -> None:
        try:
            original(self, batch)
        except Recoverable:
            batch.clear()
            raise

    patcher.wrap(MemoryStore, "write", around)


@mutant(seeds=100)
def takeover_forgets_the_old_connection(patcher: Patcher) -> None:
    """The old connection of a client stays in the routes after a takeover."""

    def around(
        original: Any, self: DisconnectHandler, connection: Connection, *rest: Any, **named: Any
    ) -> None:
        if rest and rest[1] == 0x8E:
            connection.state = CLOSED
            return
        original(self, connection, *rest, **named)

    patcher.wrap(DisconnectHandler, "end", around)
