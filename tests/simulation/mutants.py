"""Planted bugs: small patches of the real engine that the oracle must notice.

A mutant proves that a property is judged and that worlds reach the states where it can break. Each
names its danger, the kind of world that finds it and how many seeds that may take. Patches of
classes are applied for one run and then undone. Read next: `tests.simulation.planting`, then
`tests/simulation/test_mutants.py`.
"""

from collections.abc import Callable
from typing import Any

import session.delivery.redelivery
import session.lifetime.connect
import session.lifetime.disconnect
import session.lifetime.repository
import session.state.records
from session.delivery.backlog_page import TopicOptions
from session.delivery.delivery import Delivery
from session.delivery.live import LiveDelivery
from session.delivery.mailbox import Mailbox
from session.delivery.outgoing import Outgoing
from session.delivery.retained_replay import RetainedReplay
from session.delivery.sender import Sender
from session.delivery.shared.distribution import Distribution
from session.delivery.window import SendWindow
from session.engine import Engine
from session.lifetime.collection import Collection
from session.lifetime.connect import ConnectHandler
from session.lifetime.disconnect import DisconnectHandler
from session.lifetime.repository import Sessions
from session.lifetime.wills import Wills
from session.live.commit_gate import CommitGate
from session.live.connection import CLOSED, CLOSING, Connection, Pending
from session.live.subscribers import FilterEntry, Group
from session.live.tick import Tick
from session.packets.acknowledge import AcknowledgeHandler
from session.packets.publish import PublishHandler
from session.packets.subscribe import SubscribeHandler
from session.publish.accept import CHANGED, Publishing
from session.routing.retained import Retained
from session.routing.router import Router
from session.state.in_flight import QOS_MASK, RELEASED, STORED_MASK
from session.state.session import Session
from session.tick_writer import TickWriter
from storage.errors import Recoverable
from storage.tables.tables import INCOMING, MAILBOX, RETAINED, SESSIONS, SUBSCRIPTIONS
from storage.tables.timers import SESSION, WILL, Due
from tests.simulation.planting import MUTANTS, Patcher, mutant

__all__ = ["MUTANTS"]

# Replies that leave before their commit

_wait = CommitGate._wait


def _leak(self: CommitGate, connection: Connection, data: bytes, acks: int, messages: int) -> None:
    """Send at once what should wait for the commit (unless even CONNACK has not left)."""
    if connection.connack_waits():
        _wait(self, connection, data, acks, messages)
        return
    connection.inbound_open -= acks
    self._leave(connection, data)


def _leaking(patcher: Patcher, owner: Any, name: str, when: Callable[..., bool]) -> None:
    """Let everything that waits because of `name` leave at once."""

    def around(original: Any, *arguments: Any, **named: Any) -> Any:
        if not when(*arguments):
            return original(*arguments, **named)
        CommitGate._wait = _leak  # type: ignore[method-assign]
        try:
            return original(*arguments, **named)
        finally:
            CommitGate._wait = _wait  # type: ignore[method-assign]

    patcher.wrap(owner, name, around)


def _always(*arguments: Any) -> bool:
    return True


@mutant("gates", seeds=200)
def puback_before_sync(patcher: Patcher) -> None:
    """PUBACK leaves before the message is durable."""
    _leaking(patcher, PublishHandler, "_acknowledge", lambda _, c, s, packet, *a: packet.qos == 1)


@mutant("bursts", seeds=300)
def pubacks_of_a_run_before_sync(patcher: Patcher) -> None:
    """The PUBACKs of messages that came together leave before these are durable."""
    _leaking(patcher, PublishHandler, "publish_run", _always)


@mutant("bursts", seeds=1000)
def run_overtakes_a_backlog(patcher: Patcher) -> None:
    """Messages that came together are sent at once, although the session is behind."""

    def around(original: Any, self: LiveDelivery, target: Any, *arguments: Any) -> Any:
        connection = target.connection
        is_lagging, connection.is_lagging = connection.is_lagging, False
        try:
            return original(self, target, *arguments)
        finally:
            connection.is_lagging = is_lagging

    patcher.wrap(LiveDelivery, "_send_run", around)


@mutant("gates", seeds=200)
def pubrec_before_sync(patcher: Patcher) -> None:
    """PUBREC leaves before the message and its packet id are durable."""
    _leaking(patcher, PublishHandler, "_acknowledge", lambda _, c, s, packet, *a: packet.qos == 2)


@mutant("gates", seeds=200)
def pubrel_before_released_is_durable(patcher: Patcher) -> None:
    """PUBREL leaves before the phase is durable: after a crash the PUBLISH is sent again."""
    _leaking(patcher, AcknowledgeHandler, "pubrec", _always)


@mutant("gates", seeds=300)
def pubcomp_before_deletion_is_durable(patcher: Patcher) -> None:
    """PUBCOMP leaves before the id is forgotten: the next message with it is swallowed."""
    _leaking(patcher, PublishHandler, "pubrel", _always)


@mutant("gates", seeds=200)
def publish_before_binding_is_durable(patcher: Patcher) -> None:
    """A QoS 2 PUBLISH leaves before its packet id is durable."""
    _leaking(patcher, LiveDelivery, "publish", _always)
    _leaking(patcher, Sender, "send_bound", _always)


@mutant("gates", seeds=200)
def suback_before_durable(patcher: Patcher) -> None:
    """SUBACK leaves before the subscription is durable."""
    _leaking(patcher, SubscribeHandler, "subscribe", _always)


@mutant("gates", seeds=400)
def unsuback_before_durable(patcher: Patcher) -> None:
    """UNSUBACK leaves before the subscription is gone for good."""
    _leaking(patcher, SubscribeHandler, "unsubscribe", _always)


def _answer_at_once(patcher: Patcher, present: bool) -> None:
    def around(
        original: Any,
        self: ConnectHandler,
        connection: Connection,
        owner: Any,
        connack: Any,
        *rest: Any,
        **named: Any,
    ) -> None:
        original(self, connection, owner, connack, *rest, **named)
        waiting = connection.waiting
        if connack.session_present is present and waiting is not None and waiting.has_connack:
            assert waiting.unwritten is not None
            connection.waiting = None
            self._gate._unwritten.remove(waiting.unwritten)
            for data in waiting.unwritten.data:
                self._gate.send(connection, data)

    patcher.wrap(ConnectHandler, "_answer", around)


@mutant("gates", seeds=200)
def connack_before_record_is_durable(patcher: Patcher) -> None:
    """CONNACK of a new session leaves before the session is durable."""
    _answer_at_once(patcher, present=False)


@mutant("gates", seeds=3_000, slow=True)
def connack_forgets_an_unsynced_end(patcher: Patcher) -> None:
    """A second clean start is answered at once while the first one is not durable yet."""

    nothing: dict[str, int] = {}
    patcher.set(Tick, "ended", property(lambda self: dict(nothing), lambda self, value: None))


@mutant("gates", seeds=200)
def resume_from_unsynced_memory(patcher: Patcher) -> None:
    """A resumed session is sent what a crash can still take back."""
    _answer_at_once(patcher, present=True)
    _leaking(patcher, Delivery, "resume", _always)


@mutant("gates", seeds=200)
def close_before_disconnect_is_durable(patcher: Patcher) -> None:
    """The client sees its DISCONNECT answered before the will is gone for good."""

    def around(original: Any, self: DisconnectHandler, connection: Connection, packet: Any) -> Any:
        result = original(self, connection, packet)
        if connection.state == CLOSING:
            self._gate.close(connection)
        return result

    patcher.wrap(DisconnectHandler, "disconnect", around)


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


@mutant("gates", seeds=300)
def replays_are_not_stored(patcher: Patcher) -> None:
    """What a SUBSCRIBE still owes of retained messages is not in the record."""

    def around(original: Any, record: Session) -> bytes:
        replays, record.replays = record.replays, {}
        try:
            return original(record)  # type: ignore[no-any-return]
        finally:
            record.replays = replays

    patcher.wrap(session.lifetime.repository, "encode_session", around)


@mutant("sessions", seeds=100)
def unsubscribed_filter_is_resurrected(patcher: Patcher) -> None:
    """UNSUBSCRIBE leaves the subscription's row."""

    def around(original: Any, self: Sessions, connection: Any, topic_filter: str) -> Any:
        batch = self._tick.batch
        before = len(batch)
        result = original(self, connection, topic_filter)
        added = [c for c in batch[before:] if c[0] != SUBSCRIPTIONS]
        batch[before:] = added
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


@mutant("sessions", seeds=200)
def client_that_just_left_is_read_from_the_store_of_before(patcher: Patcher) -> None:
    """A session is loaded although the batch that changed it is not written yet."""
    patcher.wrap(TickWriter, "settle_for", lambda original, self, client_id: True)


@mutant("backlog", seeds=60)
def page_leaves_before_its_commit(patcher: Patcher) -> None:
    """A page of a backlog leaves before the packet ids of its messages are durable."""
    _leaking(patcher, CommitGate, "send_messages_after_commit", _always)


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
        return self.holders == 1 and not self.live and not self.groups

    patcher.wrap(FilterEntry, "may_rest", around)


@mutant(seeds=100)
def new_wildcard_is_not_seen_by_known_topics(patcher: Patcher) -> None:
    """A route stays as it is although a wildcard filter that matches has come."""
    patcher.wrap(Router, "_is_concerned", lambda original, *arguments: False)


@mutant(seeds=100)
def late_progress_is_never_written(patcher: Patcher) -> None:
    """QoS 1 acknowledgements reach the record only by accident."""
    patcher.set(Tick, "mark_late", lambda self, owner: None)


@mutant("backlog", seeds=100)
def lagging_session_skips_what_was_pending(patcher: Patcher) -> None:
    """When a queue overflows, what was in it is forgotten."""

    def around(original: Any, self: SendWindow, connection: Connection, item: Pending) -> None:
        original(self, connection, item)
        assert connection.session is not None
        if connection.is_lagging:
            connection.session.position = item.message.offset

    patcher.wrap(SendWindow, "queue", around)


@mutant("mixed", seeds=200)
def since_offset_is_ignored(patcher: Patcher) -> None:
    """A new subscription gets what its session's other streams hold from before it."""

    def around(original: Any, self: Sessions, connection: Any, subscription: Any) -> Any:
        result = original(self, connection, subscription)
        subscription.since = 0
        return result

    patcher.wrap(Sessions, "subscribe", around)


@mutant("backlog", seeds=100)
def generation_is_dropped_too_early(patcher: Patcher) -> None:
    """A generation goes although offline sessions are owed messages in it."""
    patcher.set(Collection, "_pins", lambda self, *arguments: False)


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


@mutant("disk", seeds=2500, slow=True)
def life_beside_the_store_is_ignored(patcher: Patcher) -> None:
    """A crash on a full disk counts as having happened when the disk filled up."""

    def around(original: Any, self: Engine, now: int, *, alive_ms: int = 0) -> Any:
        return original(self, now)

    patcher.wrap(Engine, "start", around)


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

    def around(original: Any, self: Publishing, message: Any, *rest: Any) -> Any:
        accepted = original(self, message, *rest)
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
