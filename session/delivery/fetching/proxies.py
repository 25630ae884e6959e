"""What external stores subscribe clients to, as far as it is asked for and remembered.

Applications keep a list of topic filters for a client in a store (a proxy subscription). At CONNECT
a request for the list is added; only a CONNECT whose rule says so has waited for it. Which
subscriptions a store has begun is kept in a row each, until the client subscribes or unsubscribes
itself: then it is the client's own. What the client does while a request is under way is newer than
the answer, and so is a change that a store tells of by itself. Decides and subscribes nothing. Read
next: `session.packets.proxy`, which does, `session.delivery.fetching.awaited_lists`, and
`storage.tables.fetch_rows`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from session.delivery.context import DeliveryContext
from session.delivery.fetching.awaited_lists import PAGE, AwaitedList, AwaitedLists
from session.delivery.fetching.requests import Asking, FetchRequest, Requests
from session.live.connection import Connection
from session.settings import Proxying
from session.state.session import Session
from storage.errors import DamagedRows
from storage.tables.fetch_rows import (
    PROXIED,
    PROXY_ROWS,
    SUBSCRIPTIONS,
    decode_fetch,
    encode_fetch,
    fetch_key,
    split_fetch_key,
)
from storage.tables.tables import FETCHES, client_prefix, prefix_end, scan_all

# Characters of the filters that change while the store is asked for a list, 64 more for each. With
# more of them the list is asked for anew.
LEFT_CHARACTERS_MAX: Final = 65_536
_LEFT_EACH: Final = 64


class Lookup(Asking):
    """The list of one client in one store, which is asked for."""

    __slots__ = ("after", "left", "left_characters", "owner", "rule")

    def __init__(self, owner: "Proxied", backend: str, rule: Proxying) -> None:
        super().__init__(backend)
        self.owner: Final = owner
        self.rule: Final = rule
        self.after: str = ""  # the list is dealt with up to this filter
        self.left: Final[set[str]] = set()  # what has changed since it is asked for
        self.left_characters: int = 0

    def is_ready(self) -> bool:
        """Can subscriptions be stored now?"""
        return not self.owner.session.is_stored or not self.owner.proxies.refuses()

    def question(self) -> FetchRequest:
        """Return what is asked."""
        client_id = self.owner.session.client_id
        return FetchRequest(self.number, SUBSCRIPTIONS, client_id, "", self.after, PAGE)

    def is_alive(self) -> bool:
        """Is the session there?"""
        return self.owner.proxies.state_of(self.owner.session) is self.owner


class Proxied:
    """A connected session that stores subscribe."""

    __slots__ = ("connection", "filters", "lookups", "proxies", "session")

    def __init__(self, proxies: "Proxies", connection: Connection, session: Session) -> None:
        self.proxies: Final = proxies
        self.connection: Final = connection
        self.session: Final = session
        self.filters: Final[dict[str, str]] = {}  # those that a store has begun, and which one
        self.lookups: Final[dict[str, Lookup]] = {}  # by store


class Proxies:
    """All connected sessions that stores subscribe."""

    def __init__(self, context: DeliveryContext, requests: Requests) -> None:
        self._tick: Final = context.tick
        self._store: Final = context.store
        self._damage: Final = context.damage
        self._requests: Final = requests
        self._rules: Final = {
            feed.name: feed.proxying for feed in context.settings.feeds if feed.proxying is not None
        }
        self.awaited: Final = AwaitedLists(context.tick, requests)
        self._has_waits: Final = any(rule.wait_ms for rule in self._rules.values())
        self.is_on: Final = requests.is_on  # if no store is asked, nothing here may be called
        self._states: Final[dict[str, Proxied]] = {}  # by client identifier
        self._left: Proxied | None = None  # of the session that was detached last
        # What stores messages is made later, and what subscribes; they set these.
        self.refuses: Callable[[], bool] = _never
        self.take_awaited: Callable[[Lookup, AwaitedList], None] = _unused

    def rule(self, backend: str) -> Proxying | None:
        """Return how a store subscribes clients, None if it does not."""
        return self._rules.get(backend)

    # Sessions

    def awaited_by(self, client_id: str, *, is_new: bool) -> list[tuple[str, Proxying]]:
        """Return the stores whose lists a CONNECT waits for. The caller has written the batch."""
        if not self._has_waits:
            return []
        return [
            (name, rule)
            for name, rule in self._rules.items()
            if rule.wait_ms
            and (
                rule.asks == "always"
                or (rule.asks == "new" and is_new)
                or self._store.get(FETCHES, fetch_key(client_id, name, SUBSCRIPTIONS, ""))
            )
        ]

    def connected(
        self, connection: Connection, had: Mapping[str, AwaitedList], *, is_new: bool
    ) -> list[tuple[Lookup, AwaitedList]]:
        """Ask for what a client is subscribed to. The caller has written the batch.

        The lists in `had` are there already; returns those that are wanted, for the caller to take.
        """
        session = connection.session
        assert session is not None
        state = Proxied(self, connection, session)
        owed = set() if is_new else self._load(state)
        there: list[tuple[Lookup, AwaitedList]] = []
        for name, rule in self._rules.items():
            is_wanted = rule.asks == "always" or (rule.asks == "new" and is_new)
            if not is_wanted and name not in owed:
                continue
            lookup = state.lookups[name] = Lookup(state, name, rule)
            if rule.asks == "new" and name not in owed:
                self._write(session, name, SUBSCRIPTIONS, "")  # no later CONNECT asks for it
            found = had.get(name)
            if found is None:
                self._requests.want(lookup)
                continue
            if not is_new:
                lookup.left.update(found.left)
            there.append((lookup, found))
        if state.lookups or state.filters:
            self._states[session.client_id] = state
        return there

    def _load(self, state: Proxied) -> set[str]:
        """Load what stores have begun for a session; return those that have to be asked."""
        session = state.session
        prefix = client_prefix(session.client_id)
        owed: set[str] = set()
        damages: list[DamagedRows] = []
        for key, value in scan_all(self._store, FETCHES, prefix, prefix_end(prefix), damages):
            self._tick.work += 1
            _, name, kind, topic_filter = split_fetch_key(key)
            if kind not in PROXY_ROWS:
                continue
            try:
                decode_fetch(value)
            except DamagedRows as problem:
                self._damage.note("fetch", problem, session.client_id)
                # It is still owed; but a subscription is the client's own rather than a store's.
                is_known = kind == SUBSCRIPTIONS
            else:
                is_known = True
            subscription = session.subscriptions.get(topic_filter)
            if not is_known or name not in self._rules:
                self._tick.batch.append((FETCHES, key, None))
            elif kind == SUBSCRIPTIONS:
                owed.add(name)
            elif subscription is None:
                self._tick.batch.append((FETCHES, key, None))
            else:
                state.filters[subscription.topic_filter] = name
        self._damage.note_all("fetch", damages)
        return owed

    def state_of(self, session: Session) -> Proxied | None:
        """Return what is known of a connected session, None if no store subscribes it."""
        state = self._states.get(session.client_id)
        return state if state is not None and state.session is session else None

    def detached(self, session: Session) -> None:
        """Ask for nothing more: the connection of a session is over."""
        state = self._left = self._states.pop(session.client_id, None)
        if state is not None:
            for lookup in state.lookups.values():
                self._requests.forget(lookup)

    def ended(self, session: Session) -> None:
        """Delete the rows of a session that ends. If it was connected, it was just detached."""
        left, self._left = self._left, None
        if not session.is_stored:
            return
        if left is not None and left.session is session:
            for topic_filter, name in left.filters.items():
                self._delete(session, name, PROXIED, topic_filter)
            for name in left.lookups:
                self._delete(session, name, SUBSCRIPTIONS, "")
            return
        prefix = client_prefix(session.client_id)
        damages: list[DamagedRows] = []
        for key, _ in scan_all(self._store, FETCHES, prefix, prefix_end(prefix), damages):
            if split_fetch_key(key)[2] in PROXY_ROWS:
                self._tick.batch.append((FETCHES, key, None))
        self._damage.note_all("fetch", damages)

    # Subscriptions

    def begun(self, session: Session, topic_filter: str, backend: str) -> None:
        """Note that a store has begun a subscription of a session, connected or not."""
        state = self.state_of(session)
        if state is not None:
            state.filters[topic_filter] = backend
        self._write(session, backend, PROXIED, topic_filter)

    def known(self, connection: Connection, session: Session) -> Proxied:
        """Return what is known of a connected session, from now on if nothing is."""
        state = self.state_of(session)
        if state is None:
            state = self._states[session.client_id] = Proxied(self, connection, session)
        return state

    def is_begun_by(self, session: Session, topic_filter: str, backend: str) -> bool:
        """Has this store begun a subscription of a session that is not connected?"""
        key = fetch_key(session.client_id, backend, PROXIED, topic_filter)
        return self._store.get(FETCHES, key) is not None

    def over(self, session: Session, topic_filter: str, backend: str) -> None:
        """Note that a store has ended a subscription that it had begun."""
        state = self.state_of(session)
        if state is not None:
            state.filters.pop(topic_filter, None)
        self._delete(session, backend, PROXIED, topic_filter)

    def client_subscribed(self, session: Session, topic_filter: str) -> None:
        """Note that a subscription is the client's own from now on."""
        state = self.state_of(session)
        name = None if state is None else state.filters.pop(topic_filter, None)
        if name is not None:
            self._delete(session, name, PROXIED, topic_filter)

    def client_unsubscribed(self, session: Session, topic_filter: str) -> None:
        """Note that the client wants no messages of a filter: an older list does not matter."""
        if self._has_waits:
            self.awaited.client_unsubscribed(session.client_id, topic_filter)
        state = self.state_of(session)
        if state is None:
            return
        name = state.filters.pop(topic_filter, None)
        if name is not None:
            self._delete(session, name, PROXIED, topic_filter)
        self._settled(state, topic_filter)

    def store_told(self, session: Session, topic_filter: str) -> None:
        """Note that a store has told of a change: an older list does not matter."""
        state = self.state_of(session)
        if state is not None:
            self._settled(state, topic_filter)

    def _settled(self, state: Proxied, topic_filter: str) -> None:
        """Let the lists that are asked for say nothing about a filter."""
        for lookup in state.lookups.values():
            if topic_filter in lookup.left:
                continue
            lookup.left.add(topic_filter)
            lookup.left_characters += len(topic_filter) + _LEFT_EACH
            if lookup.left_characters > LEFT_CHARACTERS_MAX:
                self._requests.forget(lookup)
                lookup.left.clear()
                lookup.left_characters = 0
                lookup.after = ""
                self._requests.want(lookup)

    # Requests

    def answered(self, number: int) -> Lookup | AwaitedList | None:
        """Return what a request was for; None if its session is gone or nobody waits for it."""
        lookup = self._requests.answered(number)
        assert lookup is None or isinstance(lookup, (Lookup, AwaitedList))
        return lookup

    def go_on(self, lookup: Lookup, after: str) -> None:
        """Ask for the list behind a filter."""
        lookup.after = after
        self._requests.want(lookup)

    def done(self, lookup: Lookup, *, is_answered: bool) -> None:
        """End a request. If it was not answered, the next CONNECT asks again."""
        session = lookup.owner.session
        del lookup.owner.lookups[lookup.backend]
        if is_answered and lookup.rule.asks == "new":
            self._delete(session, lookup.backend, SUBSCRIPTIONS, "")

    # Rows

    def _write(self, session: Session, backend: str, kind: int, topic_filter: str) -> None:
        if session.is_stored:
            key = fetch_key(session.client_id, backend, kind, topic_filter)
            self._tick.batch.append((FETCHES, key, encode_fetch(0, "")))

    def _delete(self, session: Session, backend: str, kind: int, topic_filter: str) -> None:
        if session.is_stored:
            key = fetch_key(session.client_id, backend, kind, topic_filter)
            self._tick.batch.append((FETCHES, key, None))

    def invariants(self) -> Iterator[str]:
        """Yield what must hold of proxy subscriptions and does not."""
        for client_id, state in self._states.items():
            if state.connection.session is not state.session:
                yield f"{client_id}: is gone and is subscribed by stores"
            for topic_filter in state.filters:
                if topic_filter not in state.session.subscriptions:
                    yield f"{client_id}: a store holds {topic_filter!r}, which is no subscription"


def _never() -> bool:
    return False


def _unused(lookup: Lookup, found: AwaitedList) -> None:
    raise AssertionError("nothing is connected yet")
