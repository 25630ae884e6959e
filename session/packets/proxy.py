"""Subscribes clients to what external stores say, and ends such subscriptions (proxy subscription).

What a store says is a SUBSCRIBE of its client that nobody acknowledges: the same checks, the same
durable rows, the retained messages of a new one. The client comes first: a filter that it has
subscribed itself is left as it is, and one that it has just left is not begun again. A long list
is taken in pages, each with the rows that say how far it has come. Must never trust an answer. Read
next: `session.delivery.fetching.proxies`, `session.packets.subscribe`.
"""

from collections.abc import Sequence
from typing import Final

from mqtt import reasons
from mqtt.packets import Subscription as Request
from session.delivery.delivery import Delivery
from session.delivery.fetching.awaited_lists import PAGE, AwaitedList
from session.delivery.fetching.proxies import Lookup
from session.lifetime.context import ClientContext
from session.lifetime.repository import Sessions
from session.live.connection import ACTIVE, Connection
from session.live.tick import STEPS_SHIFT
from session.packets.subscribe import SubscribeHandler
from session.publish.accept import Publishing
from session.state.session import Session
from storage.errors import DamagedRows

# What becomes of a change that a store tells of by itself.
DONE: Final = "done"
UNCHANGED: Final = "unchanged"  # it is so already, or the client has decided it itself
UNKNOWN: Final = "unknown"  # there is no such session, or it cannot be read
REFUSED: Final = "refused"
LATER: Final = "later"  # the database takes no writes now


class Refusal:
    """A subscription that a client must not have."""

    __slots__ = ("client_id", "reason_code", "topic_filter")

    def __init__(self, client_id: str, topic_filter: str, reason_code: int) -> None:
        self.client_id: Final = client_id
        self.topic_filter: Final = topic_filter
        self.reason_code: Final = reason_code


class ProxyHandler:
    """Takes what stores say of the subscriptions of clients."""

    def __init__(
        self,
        context: ClientContext,
        sessions: Sessions,
        delivery: Delivery,
        publishing: Publishing,
        subscriptions: SubscribeHandler,
    ) -> None:
        self._tick: Final = context.tick
        self._damage: Final = context.damage
        self._counters: Final = context.counters
        self._settle_for: Final = context.settle_for
        self._sessions: Final = sessions
        self._proxies: Final = delivery.proxies
        self._publishing: Final = publishing
        self._subscriptions: Final = subscriptions
        # Of lists that a CONNECT has waited for, while the last of them is taken.
        self._refused_early: list[Refusal] | None = None
        self._proxies.refuses = self._refuses
        self._proxies.take_awaited = self._awaited

    def _refuses(self) -> bool:
        return self._publishing.refuses_writes

    def listed(
        self, number: int, rows: Sequence[tuple[str, int]], *, more: bool, is_refused: bool = False
    ) -> list[Refusal]:
        """Take a page of the list of a client, filters with their QoS; return what is refused.

        It has all filters up to the greatest one of the page, or with `more` False, all that there
        are behind the last page. `is_refused`: the store will never answer. An answer to a request
        that is not under way, of a session that is gone for example, is ignored.
        """
        lookup = self._proxies.answered(number)
        if isinstance(lookup, AwaitedList):
            found: list[Refusal] = []
            self._refused_early = found
            self._proxies.awaited.take(lookup, rows, more=more, is_refused=is_refused)
            self._refused_early = None
            return found
        if lookup is None or lookup.owner.connection.state != ACTIVE:
            return []
        if is_refused:
            self._proxies.done(lookup, is_answered=False)
            return []
        return self._take(lookup, rows, more=more, changes_max=PAGE)

    def _awaited(self, lookup: Lookup, found: AwaitedList) -> None:
        """Take a list that its CONNECT has waited for: it is in the batch of the CONNACK."""
        rows = found.gathered()
        refused = self._take(lookup, rows, more=found.has_more, changes_max=len(rows) + PAGE)
        if self._refused_early is not None:
            self._refused_early += refused

    def _take(
        self, lookup: Lookup, rows: Sequence[tuple[str, int]], *, more: bool, changes_max: int
    ) -> list[Refusal]:
        if not lookup.is_ready():
            self._proxies.go_on(lookup, lookup.after)
            return []
        wanted = {each: qos for each, qos in rows if each > lookup.after}
        upto = max(wanted) if more and wanted else None
        changes = sorted([*wanted, *self._gone(lookup, wanted, upto)])
        refused: list[Refusal] = []
        for topic_filter in changes[:changes_max]:
            if topic_filter not in lookup.left:
                self._change(lookup, topic_filter, wanted.get(topic_filter), refused)
        if len(changes) > changes_max:
            self._proxies.go_on(lookup, changes[changes_max - 1])
        elif upto is not None:
            self._proxies.go_on(lookup, upto)
        else:
            self._proxies.done(lookup, is_answered=True)
        return refused

    def _gone(self, lookup: Lookup, wanted: dict[str, int], upto: str | None) -> list[str]:
        """Return what the store has begun and has no more, as far as the page goes."""
        filters = lookup.owner.filters
        if not lookup.rule.mirrors:
            return []
        self._tick.work += len(filters) >> STEPS_SHIFT
        return [
            each
            for each, name in filters.items()
            if name == lookup.backend
            and each > lookup.after
            and (upto is None or each <= upto)
            and each not in wanted
        ]

    def _change(
        self, lookup: Lookup, topic_filter: str, qos: int | None, refused: list[Refusal]
    ) -> None:
        session, connection = lookup.owner.session, lookup.owner.connection
        if qos is None:
            self._end(session, connection, topic_filter, lookup.backend)
            return
        reason_code = self._begin(
            session,
            connection,
            topic_filter,
            qos,
            lookup.backend,
            is_ours=lookup.owner.filters.get(topic_filter) == lookup.backend,
            bypasses_policy=lookup.rule.bypasses_policy,
        )
        if reason_code > 0:
            refused.append(Refusal(session.client_id, topic_filter, reason_code))

    def store_is(self, name: str, *, is_up: bool) -> None:
        """Note whether a store can be reached: no CONNECT waits for one that is known to be down.

        Call it at the start of an event. A store of which nothing is known yet is waited for.
        """
        self._proxies.awaited.store_is(name, is_up=is_up)

    def changed(self, backend: str, client_id: str, topic_filter: str, qos: int | None) -> str:
        """Take a change that a store tells of by itself; `qos` None ends a subscription.

        Only one that a store has begun is ended. The client need not be connected, if its session
        is stored. Returns what became of it; if that is not `LATER`, it is durable with the next
        commit. Call it at the start of an event.
        """
        rule = self._proxies.rule(backend)
        assert rule is not None
        self._proxies.awaited.told(client_id, backend, topic_filter, qos)
        connection = self._sessions.live.get(client_id)
        if connection is None and not self._settle_for(client_id):
            return LATER
        session = self._load(client_id) if connection is None else connection.session
        if session is None:
            self._counters.proxy_subscriptions["unknown_client"] += 1
            return UNKNOWN
        if session.is_stored and self._refuses():
            return LATER
        if connection is not None:
            begun_by = self._proxies.known(connection, session).filters.get(topic_filter)
            is_ours = begun_by == backend
        else:
            is_ours = self._proxies.is_begun_by(session, topic_filter, backend)
        if qos is None:
            self._proxies.store_told(session, topic_filter)
            if not is_ours or topic_filter not in session.subscriptions:
                return UNCHANGED
            self._end(session, connection, topic_filter, backend)
            return DONE
        reason_code = self._begin(
            session,
            connection,
            topic_filter,
            qos,
            backend,
            is_ours=is_ours,
            bypasses_policy=rule.bypasses_policy,
        )
        if reason_code > 0:
            return f"{REFUSED}: {reasons.name(reason_code)}"
        self._proxies.store_told(session, topic_filter)
        return UNCHANGED if reason_code else DONE

    def _load(self, client_id: str) -> Session | None:
        """Return the stored session of a client that is not connected, None if there is none."""
        try:
            session = self._sessions.load(client_id)
            if session is None or session.is_expired(self._tick.now):
                return None
            self._sessions.load_rest(session)
        except DamagedRows as problem:
            self._damage.note("session", problem, client_id)
            return None
        return session

    def _begin(
        self,
        session: Session,
        connection: Connection | None,
        topic_filter: str,
        qos: int,
        backend: str,
        *,
        is_ours: bool,
        bypasses_policy: bool,
    ) -> int:
        """Begin a subscription; return why not, 0 if it was begun, -1 if nothing is to be done."""
        held = session.subscriptions.get(topic_filter)
        if held is not None:
            is_same = held.qos == qos and held.bypasses_policy == bypasses_policy
            if is_same or not is_ours:
                return -1
        request = Request(topic_filter, qos, retain_handling=1)
        reason_code = self._subscriptions.grant(
            session, connection, request, bypasses_policy=bypasses_policy
        )
        if reason_code:
            self._counters.proxy_subscriptions["refused"] += 1
            if held is not None and held.bypasses_policy and not bypasses_policy:
                # The store is trusted no more, and what it was trusted with goes.
                self._end(session, connection, topic_filter, backend)
            return reason_code
        self._counters.proxy_subscriptions["begun"] += 1
        self._proxies.begun(session, topic_filter, backend)
        return 0

    def _end(
        self, session: Session, connection: Connection | None, topic_filter: str, backend: str
    ) -> None:
        self._counters.proxy_subscriptions["ended"] += 1
        self._subscriptions.revoke(session, connection, topic_filter)
        self._proxies.over(session, topic_filter, backend)
