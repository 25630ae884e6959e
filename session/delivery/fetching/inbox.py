"""What subscriptions fetch from external stores: messages that applications have put there.

A rule names the topics. A SUBSCRIBE to one of them, or a CONNECT that resumes such a subscription,
adds a request; a shell asks the store and calls `fetched` with a page of the answer. Nobody waits
for it. A message of a page, its packet id, its copy in the mailbox and the position behind it are
in one batch, so a session gets it once, whatever crashes when. What has no room in the window is
dropped here and asked for again: nothing waits in memory.

A store is asked only once it has everything that it was told before, so it knows what was
acknowledged. Messages of ours after the subscription come from the log: the shell leaves them out.
Must never trust an answer: it may come late, twice, or from a store that forgot. Read next:
`session.delivery.fetching.retain_lookup`, `session.delivery.mailbox`, `storage.tables.fetch_rows`.
"""

from collections.abc import Iterator
from typing import Final

from mqtt.message import Message
from mqtt.topics import matches
from session.delivery.context import DeliveryContext
from session.delivery.fetching.requests import Asking, FetchRequest, Requests
from session.delivery.fetching.retain_lookup import RetainLookup
from session.delivery.mailbox import Mailbox
from session.delivery.outgoing import Outgoing
from session.delivery.sender import Sender
from session.live.connection import ACTIVE, Connection
from session.settings import Fetching
from session.state.in_flight import FROM_MAILBOX, QOS_MASK, REFERENCE_SHIFT, SOURCE_MASK
from session.state.session import Session
from session.state.subscription import Subscription
from storage.errors import DamagedRows
from storage.tables.fetch_rows import (
    MESSAGE_ID_BYTES_MAX,
    PROXY_ROWS,
    QUEUE,
    RETAIN,
    Copy,
    Origin,
    decode_fetch,
    encode_fetch,
    fetch_key,
    split_fetch_key,
)
from storage.tables.tables import FETCHES, client_prefix, prefix_end, scan_all

# How long a store keeps a message of a queue for the session that asked for it. The answer is used
# in half of that, and the store is told at once who has the message.
LEASE_MS: Final = 60_000
# Subscriptions of one session that are looked up; those beyond are not.
FETCHES_MAX: Final = 1000
# Acknowledgements that wait for one of an earlier message. With more of them nothing is asked for.
ACKED_MAX: Final = 1000
# Messages of a page that other sessions have: a store that forgot offers them. With more of them
# nothing is asked for until the next SUBSCRIBE or CONNECT.
SKIPPED_MAX: Final = 1000
# Messages of queues that sessions have got lately: a store that forgot may offer one again.
HELD_MAX: Final = 10_000


class Fetch(Asking):
    """One subscription that is looked up in one store."""

    __slots__ = ("began_ms", "least_ms", "owner", "position", "rule", "skipped", "topic")

    def __init__(
        self,
        owner: "Fetches",
        backend: str,
        rule: Fetching,
        topic: str,
        began_ms: int,
        position: str,
    ) -> None:
        super().__init__(backend)
        self.owner: Final = owner
        self.rule: Final = rule
        self.topic: Final = topic  # and topic filter: one without wildcards
        self.began_ms: Final = began_ms  # when the subscription began, 0 = not known
        self.position: str = position  # id of the last message that the session got
        self.skipped: int = 0  # messages of a queue that others have, in the last page
        # Of a retained message: an older one is not sent, the session has got a newer one of ours.
        self.least_ms: int = 0

    def is_ready(self) -> bool:
        """Has the session room for messages?"""
        return self.owner.inbox.may_ask(self)

    def question(self) -> FetchRequest:
        """Return what is asked."""
        return self.owner.inbox.question(self)

    def is_alive(self) -> bool:
        """Is the session there, with this subscription?"""
        return self.owner.inbox.is_fetching(self)


class Fetches:
    """What a connected session fetches, and what of that it has in flight."""

    __slots__ = ("acked", "connection", "fetches", "inbox", "session", "taken")

    def __init__(self, inbox: "Inbox", connection: Connection, session: Session) -> None:
        self.inbox: Final = inbox
        self.connection: Final = connection
        self.session: Final = session
        self.fetches: Final[dict[tuple[str, int, str], Fetch]] = {}
        # By number in the mailbox: origin and topic.
        self.taken: Final[dict[int, tuple[Origin, str]]] = {}
        # Of topics with a position: what was acknowledged before earlier messages were.
        self.acked: Final[dict[tuple[str, str], list[tuple[str, int]]]] = {}


class FetchedMessage:
    """A message of an answer."""

    __slots__ = ("expires_ms", "message", "message_id")

    def __init__(self, message_id: str, message: Message, expires_ms: int = 0) -> None:
        self.message_id: Final = message_id
        self.message: Final = message
        self.expires_ms: Final = expires_ms  # until it expires, of a retained one; 0 = never


class Inbox:
    """Fetches for all connected sessions."""

    def __init__(
        self,
        context: DeliveryContext,
        outgoing: Outgoing,
        sender: Sender,
        mailbox: Mailbox,
        lookup: RetainLookup,
        requests: Requests,
    ) -> None:
        self._tick: Final = context.tick
        self._store: Final = context.store
        self._requests: Final = requests
        self._gate: Final = context.gate
        self._damage: Final = context.damage
        self._is_open: Final = context.is_open
        self._deliveries: Final = context.history.deliveries
        self._feed: Final = context.history.feed
        self._outgoing: Final = outgoing
        self._sender: Final = sender
        self._mailbox: Final = mailbox
        self._lookup: Final = lookup
        self._rules: Final = {
            feed.name: feed.fetches for feed in context.settings.feeds if feed.fetches
        }
        self.is_on: Final = requests.is_on  # if no store is asked, nothing here may be called
        self._states: Final[dict[str, Fetches]] = {}  # by client identifier
        self._left: Fetches | None = None  # of the session that was detached last
        self._held: Final[dict[tuple[str, str], None]] = {}
        # Retained messages that connected sessions look up, by topic.
        self._looked_up: Final[dict[str, dict[Fetch, None]]] = {}

    # Sessions

    def subscribed(
        self,
        connection: Connection,
        session: Session,
        subscription: Subscription,
        *,
        is_new: bool,
    ) -> None:
        """Ask for what a SUBSCRIBE wants, if a rule says so."""
        if _is_fetched(subscription):
            self._open(connection, session, subscription, self._tick.now if is_new else 0)
            return
        state = None if is_new else self._states.get(session.client_id)
        if state is not None:  # at QoS 0 now: the position stays
            for fetch in state.fetches.values():
                if fetch.topic == subscription.topic_filter and fetch.rule.kind != RETAIN:
                    self._requests.forget(fetch)

    def _open(
        self, connection: Connection, session: Session, subscription: Subscription, began_ms: int
    ) -> None:
        topic = subscription.topic_filter
        for name, rules in self._rules.items():
            for rule in rules:
                if rule.kind == RETAIN or not matches(rule.topic_filter, topic):
                    continue
                state = self._state(connection, session)
                fetch = state.fetches.get((name, rule.kind, topic))
                if fetch is None:
                    if len(state.fetches) >= FETCHES_MAX:
                        continue
                    fetch = Fetch(state, name, rule, topic, began_ms, "")
                    state.fetches[name, rule.kind, topic] = fetch
                    self._write(fetch)
                self._requests.want(fetch)

    def _state(self, connection: Connection, session: Session) -> Fetches:
        state = self._states.get(session.client_id)
        if state is None:
            state = self._states[session.client_id] = Fetches(self, connection, session)
        return state

    def look_up_retained(
        self, connection: Connection, session: Session, subscription: Subscription
    ) -> None:
        """Ask for the retained message of a topic, for a SUBSCRIBE that gets retained messages.

        One that was asked for an earlier SUBSCRIBE to it is not waited for any more.
        """
        topic = subscription.topic_filter
        if not _is_topic(subscription):
            return
        for name, rules in self._rules.items():
            for rule in rules:
                if rule.kind != RETAIN or not matches(rule.topic_filter, topic):
                    continue
                state = self._state(connection, session)
                fetch = state.fetches.get((name, RETAIN, topic))
                if fetch is None:
                    if len(state.fetches) >= FETCHES_MAX:
                        continue
                    fetch = Fetch(state, name, rule, topic, 0, "")
                    self._add_lookup(fetch)
                self._requests.forget(fetch)
                fetch.least_ms = 0
                self._write(fetch)
                self._requests.want(fetch)
                break

    def _add_lookup(self, fetch: Fetch) -> None:
        fetch.owner.fetches[fetch.backend, RETAIN, fetch.topic] = fetch
        self._looked_up.setdefault(fetch.topic, {})[fetch] = None

    def _end_lookup(self, fetch: Fetch) -> None:
        """Nothing is owed any more for a retained message that was looked up."""
        self._leave(fetch)
        del fetch.owner.fetches[fetch.backend, RETAIN, fetch.topic]
        self._delete(fetch)
        self._tick.work += 1

    def retained_sent(self, session: Session, message: Message) -> None:
        """Note that a session got our own retained message of a topic: none that is older follows.

        It is for the SUBSCRIBE to this topic, not for one to a filter with wildcards.
        """
        state = self._states.get(session.client_id)
        if state is None or message.topic not in self._looked_up:
            return
        for name in self._rules:
            fetch = state.fetches.get((name, RETAIN, message.topic))
            if fetch is not None and fetch.least_ms <= message.accepted_at_ms:
                fetch.least_ms = message.accepted_at_ms + 1
                self._write(fetch)

    def retained_changed(self, topic: str) -> None:
        """Look up the retained message of a topic no longer: a new one is published, or none.

        Whoever has subscribed gets that.
        """
        for fetch in list(self._looked_up.get(topic, ())):
            self._end_lookup(fetch)

    def unsubscribed(self, session: Session, topic_filter: str, *, is_here: bool) -> None:
        """Fetch nothing more for a subscription that ends."""
        if not is_here:
            for row, _, _ in self._rows(session):
                if split_fetch_key(row)[3] == topic_filter:
                    self._tick.batch.append((FETCHES, row, None))
            return
        state = self._states.get(session.client_id)
        if state is None:
            return
        for key, fetch in list(state.fetches.items()):
            if fetch.topic == topic_filter:
                if fetch.rule.kind == RETAIN:
                    self._end_lookup(fetch)
                    continue
                del state.fetches[key]
                self._requests.forget(fetch)
                self._delete(fetch)

    def connected(self, connection: Connection) -> None:
        """Ask for what a resumed session wants. The caller has written the batch."""
        session = connection.session
        assert session is not None
        state = Fetches(self, connection, session)
        self._states[session.client_id] = state
        for key, began_ms, position in self._rows(session):
            _, name, kind, topic = split_fetch_key(key)
            rule = self._rule(name, kind, topic)
            subscription = session.subscriptions.get(topic)
            if rule is None or subscription is None:
                self._tick.batch.append((FETCHES, key, None))
                continue
            fetch = Fetch(state, name, rule, topic, began_ms, position)
            if kind == RETAIN:
                fetch.least_ms = began_ms
                self._add_lookup(fetch)
                self._requests.want(fetch)
            else:
                state.fetches[name, kind, topic] = fetch
        for subscription in session.subscriptions.values():
            if _is_fetched(subscription):
                self._open(connection, session, subscription, 0)
        self._find_taken(session, state.taken)
        if not state.fetches and not state.taken:
            del self._states[session.client_id]

    def is_fetched_for(self, session: Session) -> bool:
        """Return whether a connected session gets messages from a store, or may."""
        return session.client_id in self._states

    def _rows(self, session: Session) -> Iterator[tuple[bytes, int, str]]:
        """Yield key, begin and position of each row of a session that can be read."""
        prefix = client_prefix(session.client_id)
        damages: list[DamagedRows] = []
        for key, value in scan_all(self._store, FETCHES, prefix, prefix_end(prefix), damages):
            self._tick.work += 1
            if split_fetch_key(key)[2] in PROXY_ROWS:
                continue
            try:
                began_ms, position = decode_fetch(value)
            except DamagedRows as problem:
                # What the session got is not known. It is fetched from the store's own position.
                self._damage.note("fetch", problem, session.client_id)
                if split_fetch_key(key)[2] != RETAIN:
                    continue
                began_ms, position = 0, ""  # it is still owed
            yield key, began_ms, position
        self._damage.note_all("fetch", damages)

    def _find_taken(self, session: Session, taken: dict[int, tuple[Origin, str]]) -> None:
        for packet_id, entry in session.in_flight.items():
            if entry & SOURCE_MASK != FROM_MAILBOX:
                continue
            reference = entry >> REFERENCE_SHIFT
            try:
                copy = self._mailbox.load(session, reference)
            except DamagedRows as problem:
                self._damage.note("message", problem, session.client_id, f"packet id {packet_id}")
                continue
            if copy is not None and copy.origin is not None:
                taken[reference] = copy.origin, copy.message.topic

    def _rule(self, name: str, kind: int, topic: str) -> Fetching | None:
        for rule in self._rules.get(name, ()):
            if rule.kind == kind and matches(rule.topic_filter, topic):
                return rule
        return None

    def detached(self, session: Session) -> None:
        """Ask for nothing more: the connection of a session is over."""
        state = self._states.pop(session.client_id, None)
        self._left = state
        if state is not None:
            for fetch in state.fetches.values():
                self._leave(fetch)

    def ended(self, session: Session) -> None:
        """Delete the rows of a session that ends, and give back what it has not acknowledged.

        If it was connected, call `detached` directly before.
        """
        left, self._left = self._left, None
        taken: dict[int, tuple[Origin, str]] = {}
        if left is not None and left.session is session:
            taken = left.taken
            for fetch in left.fetches.values():
                self._delete(fetch)
        elif session.is_stored:
            for key, _, _ in self._rows(session):
                self._tick.batch.append((FETCHES, key, None))
            self._find_taken(session, taken)
        for origin, topic in taken.values():
            self._give_back(session, origin, topic)

    def _give_back(self, session: Session, origin: Origin, topic: str) -> None:
        if origin.kind == QUEUE:
            self._held.pop((origin.backend, origin.message_id), None)
            client_id = session.client_id
            self._feed.fetched_returned(client_id, origin.backend, topic, origin.message_id)

    def acknowledged(self, session: Session, entry: int) -> None:
        """Tell the store of the end of an exchange, if its message came from there."""
        found = self._take_out(session, entry)
        if found is None:
            return
        origin, topic = found
        state = self._states[session.client_id]
        if origin.kind == QUEUE:
            self._tell_acked(state, origin.backend, topic, origin.message_id, entry & QOS_MASK)
            return
        acked = state.acked.setdefault((origin.backend, topic), [])
        acked.append((origin.message_id, entry & QOS_MASK))
        self._tell_in_order(state, origin.backend, topic)

    def _tell_in_order(self, state: Fetches, name: str, topic: str) -> None:
        """Tell of acknowledged messages up to the first one that is still in flight.

        The store keeps one position: behind it nothing may be missing.
        """
        acked = state.acked.get((name, topic))
        if not acked:
            return
        first = ""
        for origin, of_topic in state.taken.values():
            if origin.kind != QUEUE and origin.backend == name and of_topic == topic:
                if not first or origin.message_id < first:
                    first = origin.message_id
        acked.sort()
        count = 0
        for message_id, qos in acked:
            if first and message_id > first:
                break
            self._tell_acked(state, name, topic, message_id, qos)
            count += 1
        del acked[:count]

    def _tell_acked(self, state: Fetches, name: str, topic: str, message_id: str, qos: int) -> None:
        client_id, username = state.session.client_id, state.connection.username
        self._feed.fetched_acked(client_id, username, name, topic, message_id, qos)

    def given_up(self, session: Session, entry: int) -> None:
        """Give a message back that cannot be sent again."""
        found = self._take_out(session, entry)
        if found is not None:
            self._give_back(session, found[0], found[1])
            self._tell_in_order(self._states[session.client_id], found[0].backend, found[1])

    def _take_out(self, session: Session, entry: int) -> tuple[Origin, str] | None:
        state = self._states.get(session.client_id)
        if state is None or entry & SOURCE_MASK != FROM_MAILBOX:
            return None
        return state.taken.pop(entry >> REFERENCE_SHIFT, None)

    # Rows

    def _write(self, fetch: Fetch) -> None:
        if fetch.owner.session.is_stored:
            time_ms = fetch.least_ms if fetch.rule.kind == RETAIN else fetch.began_ms
            value = encode_fetch(time_ms, fetch.position)
            self._tick.batch.append((FETCHES, _key_of(fetch), value))

    def _delete(self, fetch: Fetch) -> None:
        if fetch.owner.session.is_stored:
            self._tick.batch.append((FETCHES, _key_of(fetch), None))

    # Requests

    def _leave(self, fetch: Fetch) -> None:
        """Ask no more, and let nobody find a look-up by its topic."""
        self._requests.forget(fetch)
        of_topic = self._looked_up.get(fetch.topic) if fetch.rule.kind == RETAIN else None
        if of_topic is not None:
            of_topic.pop(fetch, None)
            if not of_topic:
                del self._looked_up[fetch.topic]

    def may_ask(self, fetch: Fetch) -> bool:
        """Has a session room for what it fetches?"""
        acked = fetch.owner.acked.get((fetch.backend, fetch.topic), ())
        return self._has_room(fetch.owner.connection) and len(acked) < ACKED_MAX

    def _has_room(self, connection: Connection) -> bool:
        return connection.has_room() and not self._gate.is_full(connection)

    def question(self, fetch: Fetch) -> FetchRequest:
        """Return what a store is asked for a subscription."""
        session, rule = fetch.owner.session, fetch.rule
        return FetchRequest(
            fetch.number,
            rule.kind,
            session.client_id,
            fetch.topic,
            fetch.position,
            min(rule.count_max, session.send_quota) + fetch.skipped,
            since=session.subscriptions[fetch.topic].since,
            began_ms=fetch.began_ms,
            not_before_ms=fetch.asked_ms - rule.range_ms if rule.range_ms else 0,
        )

    def is_fetching(self, fetch: Fetch) -> bool:
        """Is the session of a fetch there, with its subscription?"""
        state = fetch.owner
        is_here = self._states.get(state.session.client_id) is state
        return is_here and fetch.topic in state.session.subscriptions

    def fetched(
        self, number: int, messages: list[FetchedMessage], upto: str, *, more: bool
    ) -> None:
        """Take a page of an answer: all that there is up to the id `upto`, in the order of ids.

        `more` says that there is more behind it. An answer to a request that is not under way, of a
        session that is gone for example, is ignored.
        """
        fetch = self._requests.answered(number)
        if fetch is None:
            return
        assert isinstance(fetch, Fetch)
        connection = fetch.owner.connection
        if connection.state != ACTIVE:
            return
        if fetch.rule.kind == RETAIN:
            self._take_retained(fetch, messages)
            return
        position = fetch.position
        is_queue = fetch.rule.kind == QUEUE
        is_whole = not is_queue or self._tick.now - fetch.asked_ms <= LEASE_MS // 2
        count = 0
        had = {
            origin.message_id
            for origin, topic in fetch.owner.taken.values()
            if origin.backend == fetch.backend and topic == fetch.topic
        }
        skipped = 0
        count_max = fetch.rule.count_max + fetch.skipped
        for each in messages[:count_max] if is_whole else ():
            if not self._has_room(connection):
                is_whole = False
                break
            if len(each.message_id.encode()) > MESSAGE_ID_BYTES_MAX:
                continue
            is_new = each.message_id not in had
            if is_queue and (not is_new or (fetch.backend, each.message_id) in self._held):
                skipped += 1
            elif is_queue:
                count += self._take(fetch, each)
            elif each.message_id > fetch.position:
                if is_new:
                    self._take(fetch, each)
                fetch.position = each.message_id
        if is_whole and not is_queue and len(messages) <= count_max:
            fetch.position = max(fetch.position, upto)
        if fetch.position != position:
            self._write(fetch)
            count += 1
        is_further = count > 0 or fetch.skipped < skipped < SKIPPED_MAX
        fetch.skipped = skipped if more else 0
        if fetch.is_due or not is_whole or (more and is_further):
            self._requests.want(fetch)

    def _take_retained(self, fetch: Fetch, messages: list[FetchedMessage]) -> None:
        connection, session = fetch.owner.connection, fetch.owner.session
        if messages and not self._has_room(connection):
            self._requests.want(fetch)
            return
        self._end_lookup(fetch)
        for each in messages[:1]:
            sent = self._lookup.found(
                connection,
                session.subscriptions[fetch.topic],
                each.message,
                each.expires_ms,
                fetch.least_ms,
                fetch.backend,
            )
            if sent is not None:  # other stores may have an older one
                self.retained_sent(session, sent)

    def _take(self, fetch: Fetch, fetched: FetchedMessage) -> bool:
        """Send a message to the session that fetched it; False if it must not have it."""
        connection, session = fetch.owner.connection, fetch.owner.session
        message, name = fetched.message, fetch.backend
        origin = Origin(name, fetch.rule.kind, fetched.message_id)
        subscription = session.subscriptions[fetch.topic]
        is_queue = fetch.rule.kind == QUEUE
        if not self._may_have(connection, session, subscription, message):
            self._give_back(session, origin, fetch.topic)
            return False
        qos = min(message.qos, subscription.qos)
        identifier = subscription.identifier
        identifiers = (identifier,) if identifier else ()
        if qos == 0:
            if not self._sender.send_qos0_in_order(
                connection,
                message,
                identifiers,
                retain=False,
                is_retained=True,
                after_commit=session.is_stored,
                message_id=origin.message_id,
            ):
                self._give_back(session, origin, fetch.topic)
                return False
            if is_queue:
                self._hold(name, origin.message_id)
                self._tell_acked(fetch.owner, name, fetch.topic, origin.message_id, 0)
                self._feed.hurry()  # the message waits for a commit with this
            else:
                acked = fetch.owner.acked.setdefault((name, fetch.topic), [])
                acked.append((origin.message_id, 0))
                self._tell_in_order(fetch.owner, name, fetch.topic)
            return True
        reference = self._mailbox.reserve(session)
        packet_id = self._sender.send_bound(
            connection, message, qos, identifiers, reference, FROM_MAILBOX, retain=False
        )
        if not packet_id:
            self._give_back(session, origin, fetch.topic)
            return False
        if self._deliveries.wants_sent:
            self._deliveries.retained(
                connection,
                session,
                message,
                packet_id,
                qos,
                self._tick.now,
                retain=False,
                message_id=origin.message_id,
            )
        fetch.owner.taken[reference] = origin, fetch.topic
        if session.is_stored:
            self._mailbox.keep(session, reference, Copy(message, identifier, origin))
        if is_queue:
            self._hold(name, origin.message_id)
            if session.is_stored:
                client_id = session.client_id
                self._feed.fetched_kept(client_id, name, fetch.topic, origin.message_id, qos)
        return True

    def _may_have(
        self,
        connection: Connection,
        session: Session,
        subscription: Subscription,
        message: Message,
    ) -> bool:
        if message.topic != subscription.topic_filter:
            return False
        if message.publisher == session.client_id and session.is_no_local(subscription):
            return False
        return self._is_open or self._outgoing.may_receive(connection, message)

    def _hold(self, name: str, message_id: str) -> None:
        self._held[name, message_id] = None
        if len(self._held) > HELD_MAX:
            del self._held[next(iter(self._held))]

    def invariants(self) -> Iterator[str]:
        """Yield what must hold of look-ups and does not."""
        for topic, fetches in self._looked_up.items():
            for fetch in fetches:
                if fetch.owner.fetches.get((fetch.backend, RETAIN, topic)) is not fetch:
                    yield f"{fetch.owner.session.client_id}: looks {topic!r} up and does not"


def _is_fetched(subscription: Subscription) -> bool:
    """Are messages fetched for a subscription?"""
    return subscription.qos > 0 and _is_topic(subscription)


def _is_topic(subscription: Subscription) -> bool:
    """Can a subscription be looked up? A store has no index for wildcards."""
    topic_filter = subscription.topic_filter
    return subscription.share_name is None and "+" not in topic_filter and "#" not in topic_filter


def _key_of(fetch: Fetch) -> bytes:
    client_id = fetch.owner.session.client_id
    return fetch_key(client_id, fetch.backend, fetch.rule.kind, fetch.topic)
