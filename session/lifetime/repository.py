"""The sessions: loads them from the store and writes their rows. Nobody else writes these rows.

An offline session takes no memory except for its filters: it is loaded when its client connects and
dropped from memory when the client leaves. All writes go into the tick's batch. Loads read the
store only, so the batch is written before them (`TickWriter.settle`). Knows nothing of packets.
Read next: `session.lifetime.connect`.
"""

from itertools import islice
from typing import Final

from mqtt.topics import split_shared
from session.delivery.delivery import Delivery
from session.history.history import History
from session.lifetime.sweep import Sweep
from session.live.connection import Connection
from session.live.core import Core, Database
from session.live.subscribers import Group
from session.live.tick import ATTACH_WORK, FILTER_WORK
from session.publish.storage_quota import Quota
from session.routing.holders import Holders
from session.routing.loading import FilterLoad
from session.routing.router import Router
from session.state.records import decode_session, encode_session
from session.state.session import NO_LIMITS, Session
from session.state.subscription import Subscription, decode_subscription
from storage.errors import CorruptRecord
from storage.tables.tables import (
    INCOMING,
    META,
    SESSIONS,
    SUBSCRIPTIONS,
    TOTALS_KEY,
    client_prefix,
    group_holder,
    incoming_key,
    scan_prefix,
    seal,
    session_holder,
    subscription_key,
    unseal,
)
from storage.tables.timers import SESSION

# Records of late progress in one batch, 8 microseconds each: every session may have one.
LATE_MAX: Final = 1024
# An incarnation is the boot's number and, below it, the session's number within the boot. If the
# broker dies before a boot's row is durable, the next boot has the same number and may repeat
# incarnations. Those sessions were never durable, and no client or history was told of them.
INCARNATION_SHIFT: Final = 40


class Sessions:
    """All sessions of the broker; the connected ones by client_id."""

    def __init__(
        self,
        core: Core,
        database: Database,
        routes: Router,
        filters: FilterLoad,
        delivery: Delivery,
        quota: Quota,
        sweep: Sweep,
        history: History,
        holders: Holders,
        live: dict[str, Connection],
    ) -> None:
        """Keep the connections in `live`, which is empty; the history reads it too."""
        self._tick: Final = core.tick
        self._store: Final = database.store
        self._log: Final = database.log
        self._due: Final = database.due
        self._totals: Final = database.totals
        self._routes: Final = routes
        self._filters: Final = filters
        self._backlog: Final = delivery.backlog
        self._mailbox: Final = delivery.mailbox
        self._inbox: Final = delivery.inbox
        self._proxies: Final = delivery.proxies
        self._groups: Final = delivery.groups
        self._shared: Final = delivery.shared
        self._quota: Final = quota
        self._sweep: Final = sweep
        self._session_events: Final = history.sessions
        self._holders: Final = holders
        self._last_incarnation = database.boot << INCARNATION_SHIFT
        self.live: Final = live  # client_id -> its connection
        self.left_behind: int = 0  # how often a session went offline with a backlog
        self.unsubscribed_away: int = 0  # how often a subscription of one that is away has ended

    def open(self) -> None:
        """Load the durable filters, the only memory that offline sessions take."""
        self._filters.finish(self._store)

    # Loading

    def load(self, client_id: str) -> Session | None:
        """Return the stored session of a client without its subscriptions, or None.

        Raises `CorruptRecord` if it cannot be read; the row stays for an operator.
        """
        value = self._store.get(SESSIONS, client_id.encode())
        return None if value is None else self.decode(client_id, value)

    def decode(self, client_id: str, value: bytes) -> Session:
        """Return the session of a row without its subscriptions; raises `CorruptRecord`."""
        try:
            return decode_session(client_id, unseal(value, f"session {client_id!r}"))
        except ValueError as error:
            raise CorruptRecord(str(error)) from error

    def is_unknown(self, client_id: str) -> bool:
        """Has this client no stored session, neither in the store nor in the open batch?

        Reads the whole batch: use it only while the store refuses writes.
        """
        key = client_id.encode()
        if self._store.get(SESSIONS, key) is not None:
            return False
        live = self.live.get(client_id)
        if live is not None and live.session is not None and live.session.is_stored:
            return False
        return all(change[1] != key or change[0] != SESSIONS for change in self._tick.batch)

    def load_rest(self, session: Session) -> None:
        """Load a session's subscriptions and the inbound QoS 2 ids that wait for PUBREL."""
        prefix = client_prefix(session.client_id)
        for key, value in scan_prefix(self._store, SUBSCRIPTIONS, prefix):
            topic_filter = key[len(prefix) :].decode()
            shared = split_shared(topic_filter)
            share_name, stream_filter = shared if shared else (None, topic_filter)
            try:
                subscription = decode_subscription(
                    topic_filter, share_name, stream_filter, unseal(value, "subscription")
                )
            except ValueError as error:
                raise CorruptRecord(str(error)) from error
            session.add(subscription)
        for key, _ in scan_prefix(self._store, INCOMING, prefix):
            session.incoming.add(int.from_bytes(key[len(prefix) :], "big"))

    # Writing

    def next_incarnation(self) -> int:
        """Return a number for a new session, stored or not, that no other session has."""
        self._last_incarnation += 1
        return self._last_incarnation

    def write(self, session: Session) -> bytes:
        """Put the session's record into the batch, and return it."""
        if not session.incarnation:
            session.incarnation = self.next_incarnation()  # its record was of version 1
        value = seal(encode_session(session))
        self._tick.batch.append((SESSIONS, session.client_id.encode(), value))
        return value

    def write_dirty(self, now: int) -> None:
        """Put the records that changed into the batch, and late progress if it is due."""
        tick = self._tick
        dirty = tick.dirty
        late = tick.late
        if tick.late_due_ms is not None and tick.late_due_ms <= now:
            # The rest is still due, and goes with the next batches.
            dirty.update(dict.fromkeys(islice(late, LATE_MAX)))
        for session in dirty:
            self.write(session)
            if late:
                late.pop(session, None)
        dirty.clear()
        if not late:
            tick.late_due_ms = None
        self._groups.write_dirty()
        if tick.totals_changed:
            tick.batch.append((META, TOTALS_KEY, self._totals.encode()))
            tick.totals_changed = False

    def create(self, session: Session) -> None:
        """Make a session a stored one; its record is written with this batch."""
        session.is_stored = True
        session.position = self._log.end
        self._totals.sessions += 1
        self._tick.totals_changed = True
        self._tick.mark(session)

    def receive_begun(self, session: Session, packet_id: int) -> None:
        """Note that an inbound QoS 2 id waits for its PUBREL [MQTT-4.3.3-10]."""
        session.incoming.add(packet_id)
        if session.is_stored:
            key = incoming_key(session.client_id, packet_id)
            self._tick.batch.append((INCOMING, key, b"\x01"))

    def receive_ended(self, session: Session, packet_id: int) -> bool:
        """Free an inbound QoS 2 id at its PUBREL; False if it was not waiting."""
        if packet_id not in session.incoming:
            return False
        session.incoming.remove(packet_id)
        if session.is_stored:
            key = incoming_key(session.client_id, packet_id)
            self._tick.batch.append((INCOMING, key, None))
        return True

    # Subscriptions

    def subscribe(
        self, session: Session, connection: Connection | None, subscription: Subscription
    ) -> bool:
        """Add or replace a subscription; True if the session did not have the filter before.

        A replaced one keeps its since-offset, so no message is lost or sent twice [MQTT-3.8.4-3].
        A session without a connection must be stored, and was just loaded.
        """
        old = session.subscriptions.get(subscription.topic_filter)
        if old is not None:
            subscription.since = old.since
        if subscription.share_name is not None:
            self._subscribe_shared(connection, session, subscription, is_new=old is None)
        else:
            self._subscribe_stream(connection, session, subscription, old)
        session.add(subscription)
        if connection is None:
            self._tick.parted.add(session.client_id)
        if old is None or not _is_repeated(old, subscription):
            stream, since = self._stream_of(session, subscription)
            asks = _asks_retained(subscription, is_new=old is None)
            self._session_events.subscribed(
                connection, session, subscription, stream, since, asks_retained=asks
            )
        if session.is_stored:
            key = subscription_key(session.client_id, subscription.topic_filter)
            self._tick.batch.append((SUBSCRIPTIONS, key, seal(subscription.encode())))
            if old is None:
                self._totals.subscriptions += 1
                self._tick.totals_changed = True
        return old is None

    def streams_of(self, session: Session) -> set[int]:
        """Return the streams whose messages are stored for a loaded session, not for a group."""
        found = {
            self._routes.filter_id(each.stream_filter)
            for each in session.subscriptions.values()
            if each.holds and each.share_name is None
        }
        return found - {0}

    def _stream_of(self, session: Session, subscription: Subscription) -> tuple[int, int]:
        """Return the stream of a subscription, 0 = none, and the offset after which it begins."""
        if subscription.share_name is not None:
            group = self._groups.find((subscription.share_name, subscription.stream_filter))
            if group is not None and group.is_stored:
                return group.entry.filter_id, group.since
            return 0, self._log.end
        entry = self._routes.find(subscription.stream_filter)
        if entry is None or not subscription.holds:
            return 0, subscription.since
        return entry.filter_id, subscription.since

    def _subscribe_stream(
        self,
        connection: Connection | None,
        session: Session,
        subscription: Subscription,
        old: Subscription | None,
    ) -> None:
        entry = self._routes.ensure(subscription.stream_filter)
        if old is None:
            subscription.since = self._log.end
        held = old is not None and old.holds
        subscription.holds = session.is_stored and subscription.qos > 0
        lags = connection is None or connection.is_lagging or connection.has_queued()
        if held and not subscription.holds and lags:
            subscription.holds = True  # the session still has to get its backlog
        if subscription.holds and not held:
            subscription.since = self._log.end
            self._holders.add(entry, session_holder(session.client_id), subscription.since)
        elif held and not subscription.holds:
            self._holders.remove(entry, session_holder(session.client_id))
        if connection is not None:
            entry.join(connection, subscription)
            connection.cursor = None
        self._routes.changed(entry)

    def _subscribe_shared(
        self,
        connection: Connection | None,
        session: Session,
        subscription: Subscription,
        *,
        is_new: bool,
    ) -> None:
        assert subscription.share_name is not None
        group = self._groups.ensure(subscription.share_name, subscription.stream_filter)
        if session.is_stored and is_new:
            if not group.is_stored:
                self._holders.add(group.entry, group_holder(group.share_name), self._log.end)
                self._groups.store(group)
                self._routes.changed(group.entry)  # its messages are stored from now on
            group.stored_members += 1
            self._tick.dirty_groups[group] = None
        if connection is not None:
            self._groups.join(group, connection, subscription)
            self._shared.hand_out_waiting(group)

    def unsubscribe(
        self, session: Session, connection: Connection | None, topic_filter: str
    ) -> bool:
        """Remove a subscription; False if the session does not have it [MQTT-3.10.4-2].

        A session without a connection must be stored, and was just loaded.
        """
        subscription = session.remove(topic_filter)
        if subscription is None:
            return False
        stream, _ = self._stream_of(session, subscription)
        self._session_events.unsubscribed(connection, session, subscription, stream)
        self._remove_subscription(session, subscription, connection)
        if self._inbox.is_on:
            self._inbox.unsubscribed(session, topic_filter, is_here=connection is not None)
        if connection is not None:
            self._backlog.filter_removed(connection)
        else:
            self._tick.parted.add(session.client_id)
            self.unsubscribed_away += 1
            if session.gaps_at != NO_LIMITS:
                session.make_room()  # what it was owed of this filter takes none any more
                self.write(session)
        return True

    def _remove_subscription(
        self, session: Session, subscription: Subscription, connection: Connection | None
    ) -> None:
        if session.is_stored:
            key = subscription_key(session.client_id, subscription.topic_filter)
            self._tick.batch.append((SUBSCRIPTIONS, key, None))
            self._totals.subscriptions -= 1
            self._tick.totals_changed = True
        if subscription.share_name is not None:
            self._leave_group(session, subscription, connection)
            return
        entry = self._routes.find(subscription.stream_filter)
        if entry is None:
            return
        if connection is not None:
            entry.leave(connection)
        if subscription.holds:
            self._holders.remove(entry, session_holder(session.client_id))
        self._routes.changed(entry)

    def _leave_group(
        self, session: Session, subscription: Subscription, connection: Connection | None
    ) -> None:
        assert subscription.share_name is not None
        group = self._groups.find((subscription.share_name, subscription.stream_filter))
        if group is None:
            return
        if connection is not None:
            self._groups.leave(group, connection)
        if session.is_stored:
            group.stored_members -= 1
            self._tick.dirty_groups[group] = None
        self.end_if_empty(group)

    def end_if_empty(self, group: Group) -> None:
        """End a shared subscription that has lost its last session."""
        if not self._groups.is_empty(group):
            return
        if group.is_stored:
            self._holders.remove(group.entry, group_holder(group.share_name))
        self._groups.remove(group)

    # Connections

    def attach(self, connection: Connection) -> None:
        """Add a connected session to routing."""
        session = connection.session
        assert session is not None
        self.live[session.client_id] = connection
        self._tick.work += ATTACH_WORK * len(session.subscriptions)
        for subscription in session.subscriptions.values():
            if subscription.share_name is None:
                entry = self._routes.ensure(subscription.stream_filter)
                entry.join(connection, subscription)
                self._routes.changed(entry)

    def join_groups(self, connection: Connection) -> None:
        """Join the groups of a session. Call it after `Delivery.resume`: old messages go first."""
        session = connection.session
        assert session is not None
        for subscription in session.subscriptions.values():
            if subscription.share_name is not None:
                group = self._groups.ensure(subscription.share_name, subscription.stream_filter)
                self._groups.join(group, connection, subscription)
                self._shared.hand_out_waiting(group)

    def detach(self, connection: Connection) -> None:
        """Remove a connection from routing; its session's state stays as it is."""
        session = connection.session
        assert session is not None
        if self._inbox.is_on:
            self._inbox.detached(session)
            self._proxies.detached(session)
        if session.is_stored:
            self._tick.parted.add(session.client_id)
        if self.live.get(session.client_id) is connection:
            del self.live[session.client_id]
        self._tick.work += ATTACH_WORK * len(session.subscriptions)
        for subscription in session.subscriptions.values():
            if subscription.share_name is None:
                entry = self._routes.find(subscription.stream_filter)
                if entry is not None:
                    entry.leave(connection)
                    self._routes.changed(entry)
            else:
                group = self._groups.find((subscription.share_name, subscription.stream_filter))
                if group is not None:
                    self._groups.leave(group, connection)
        if session.is_stored and not connection.is_lagging and not connection.has_queued():
            session.position = max(session.position, self._log.end)
        connection.pending.clear()
        connection.resend.clear()
        connection.clear_ahead()
        session.reserved = None
        connection.cursor = None
        connection.arrivals = None
        self._tick.readers.pop(connection, None)
        if session.is_stored:
            if session.position < self._log.end:
                self.left_behind += 1
                if self._quota.has_budgets:
                    self._note_backlog(session)
            self._sweep.session_offline(session)

    def _note_backlog(self, session: Session) -> None:
        """Tell the quota what a session that goes offline still has to get."""
        for subscription in session.subscriptions.values():
            if subscription.share_name is None and subscription.holds:
                filter_id = self._routes.filter_id(subscription.stream_filter)
                start = max(session.position, subscription.since)
                self._quota.reader_offline(filter_id, session.client_id, start, session.gaps)

    def end(
        self,
        session: Session,
        connection: Connection | None,
        ending: int,
        *,
        is_found: bool = False,
    ) -> None:
        """End a session: delete all its rows, and give its group messages back to the group.

        `connection` is its connection if that is still part of routing. `ending` says why
        (`session.history.session_events`); `is_found` says that its client's CONNECT found it
        expired. Both are for the history.
        """
        self._session_events.ended(session, ending, is_found=is_found)
        if self._inbox.is_on:
            self._inbox.ended(session)
            self._proxies.ended(session)
        self._tick.work += FILTER_WORK * len(session.subscriptions) + len(session.incoming)
        for subscription in session.subscriptions.values():
            self._remove_subscription(session, subscription, connection)
        self._shared.session_ended(session, connection)
        if connection is not None and self.live.get(session.client_id) is connection:
            del self.live[session.client_id]
        self._tick.forget(session)
        if not session.is_stored:
            return
        batch = self._tick.batch
        client_id = session.client_id
        batch.append((SESSIONS, client_id.encode(), None))
        self._tick.ending.append(client_id)
        self._tick.parted.add(client_id)
        for packet_id in session.incoming:
            batch.append((INCOMING, incoming_key(client_id, packet_id), None))
        self._mailbox.drop_all(session)
        if session.expiry_due_ms:
            self._due.remove(batch, session.expiry_due_ms, SESSION, client_id.encode())
        self._totals.sessions -= 1
        self._tick.totals_changed = True
        session.is_stored = False


def _asks_retained(subscription: Subscription, *, is_new: bool) -> bool:
    """Is a SUBSCRIBE answered with retained messages [MQTT-3.3.1-9..11]?"""
    handling = subscription.retain_handling
    return subscription.share_name is None and (handling == 0 or (handling == 1 and is_new))


def _is_repeated(old: Subscription, new: Subscription) -> bool:
    """Does a SUBSCRIBE change nothing that the history records?"""
    return old.qos == new.qos and old.no_local == new.no_local and old.holds == new.holds
