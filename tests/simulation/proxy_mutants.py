"""Planted bugs of subscriptions that stores have for clients.

Read next: `tests.simulation.proxied`, `tests.simulation.planting`.
"""

from collections.abc import Callable
from typing import Any

from session.delivery.fetching.awaited_lists import AwaitedLists
from session.delivery.fetching.proxies import Proxies
from session.delivery.fetching.requests import Requests
from session.packets.proxy import ProxyHandler
from session.packets.subscribe import SubscribeHandler
from session.packets.told_changes import ToldChanges
from storage.tables.fetch_rows import PROXIED, SUBSCRIPTIONS
from tests.simulation.planting import Patcher, mutant


def stale_answers(patcher: Patcher, counts: Callable[[Any, Any], bool]) -> None:
    """Take answers that nobody waits for any more: `counts` gets who asked, and who is there."""
    asked: dict[tuple[Any, int], tuple[str, Any]] = {}

    def next_one(original: Any, self: Requests, name: str, reached: Any) -> Any:
        request = original(self, name, reached)
        if request is not None and request.kind == SUBSCRIPTIONS:
            asking = self._asked[request.number]
            if hasattr(asking, "owner"):
                asked[self, request.number] = name, asking.owner.connection
        return request

    def listed(original: Any, self: ProxyHandler, number: int, rows: Any, **named: Any) -> Any:
        requests = self._proxies._requests
        is_stale = number not in requests._asked
        found = original(self, number, rows, **named)
        name, connection = asked.get((requests, number), ("", None))
        if is_stale and connection is not None:
            present = self._sessions.live.get(connection.client_id)
            if counts(connection, present):
                for topic_filter, qos in rows:
                    self.changed(name, connection.client_id, topic_filter, qos)
        return found

    patcher.wrap(Requests, "next", next_one)
    patcher.wrap(ProxyHandler, "listed", listed)


@mutant(None, seeds=300, start=473)
def a_list_is_taken_twice(patcher: Patcher) -> None:
    """An answer counts as often as it comes."""
    stale_answers(patcher, lambda connection, present: connection is present)


@mutant(None, seeds=300, start=337)
def a_list_for_an_earlier_connection_is_taken(patcher: Patcher) -> None:
    """What was asked for one session or connection is given to the next one of the client."""

    def counts(connection: Any, present: Any) -> bool:
        return present is not None and connection is not present

    stale_answers(patcher, counts)


@mutant(None, seeds=300, start=340)
def the_list_of_an_ended_connection_is_taken(patcher: Patcher) -> None:
    """An answer counts for a session that is away."""
    stale_answers(patcher, lambda connection, present: present is None)


@mutant("gates", seeds=300, start=69)
def a_change_is_answered_before_its_commit(patcher: Patcher) -> None:
    """A store hears that a change is made as soon as it is made."""

    def around(original: Any, self: ToldChanges) -> Any:
        made = original(self)
        if made is not None:
            self._made[-1] = (0, self._made[-1][1])
        return made

    patcher.wrap(ToldChanges, "make_next", around)


@mutant(None, seeds=300, start=44)
def a_mirror_ends_what_the_client_has_subscribed(patcher: Patcher) -> None:
    """A subscription that a store has begun stays the store's when the client asks for it."""

    def around(original: Any, self: Proxies, *what: Any) -> None:
        return

    patcher.wrap(Proxies, "client_subscribed", around)


@mutant(None, seeds=300, start=379)
def a_list_overrides_what_the_client_unsubscribes_meanwhile(patcher: Patcher) -> None:
    """A client is subscribed to what it has just left."""

    def around(original: Any, self: Proxies, session: Any, topic_filter: str) -> None:
        state = self.state_of(session)
        lookups = {} if state is None else dict(state.lookups)
        if state is not None:
            state.lookups.clear()
        original(self, session, topic_filter)
        if state is not None:
            state.lookups.update(lookups)

    patcher.wrap(Proxies, "client_unsubscribed", around)


@mutant(None, seeds=300, start=44)
def a_list_overrides_a_change_that_was_told_meanwhile(patcher: Patcher) -> None:
    """What a store tells of counts until the older list comes."""

    def around(original: Any, self: Proxies, *what: Any) -> None:
        return

    patcher.wrap(Proxies, "store_told", around)


@mutant(None, seeds=300, start=28)
def what_is_held_already_is_begun_again(patcher: Patcher) -> None:
    """Each CONNECT subscribes the whole list anew, with its retained messages."""

    def around(original: Any, self: ProxyHandler, session: Any, *what: Any, **named: Any) -> int:
        result: int = original(self, session, *what, **named)
        if result >= 0 or not named["is_ours"]:
            return result
        connection, topic_filter, _, _ = what
        held = session.subscriptions.pop(topic_filter)
        session.subscriptions[topic_filter] = held
        self._subscriptions._sessions.subscribe(session, connection, held)
        return 0

    patcher.wrap(ProxyHandler, "_begin", around)


@mutant(None, seeds=300, start=24)
def who_has_begun_a_subscription_is_not_stored(patcher: Patcher) -> None:
    """After a crash what a store has begun is the client's own."""

    def around(
        original: Any, self: Proxies, session: Any, backend: str, kind: int, *what: Any
    ) -> None:
        if kind != PROXIED:
            original(self, session, backend, kind, *what)

    patcher.wrap(Proxies, "_write", around)


@mutant(None, seeds=300, start=24)
def a_store_may_subscribe_to_anything(patcher: Patcher) -> None:
    """The rules are not asked."""

    def around(original: Any, self: SubscribeHandler, *what: Any, **named: Any) -> int:
        named["bypasses_policy"] = True
        code: int = original(self, *what, **named)
        return code

    patcher.wrap(SubscribeHandler, "grant", around)


@mutant(None, seeds=300, start=39)
def what_a_new_session_is_owed_is_not_stored(patcher: Patcher) -> None:
    """If its first connection ends too early, a session never gets its list."""

    def around(
        original: Any, self: Proxies, session: Any, backend: str, kind: int, *what: Any
    ) -> None:
        if kind != SUBSCRIPTIONS:
            original(self, session, backend, kind, *what)

    patcher.wrap(Proxies, "_write", around)


@mutant(None, seeds=300, start=39)
def a_new_session_is_asked_for_again_and_again(patcher: Patcher) -> None:
    """The list of a new session stays owed when it has come."""

    def around(original: Any, self: Proxies, lookup: Any, *, is_answered: bool) -> None:
        original(self, lookup, is_answered=False)

    patcher.wrap(Proxies, "done", around)


@mutant(None, seeds=300, start=53)
def a_list_that_was_waited_for_is_dropped(patcher: Patcher) -> None:
    """The CONNACK waits, and the subscriptions never come."""

    def around(original: Any, self: ProxyHandler, lookup: Any, found: Any) -> None:
        found.rows.clear()
        found.changes.clear()
        original(self, lookup, found)

    patcher.wrap(ProxyHandler, "_awaited", around)


@mutant(None, seeds=300, start=295)
def what_is_told_while_a_client_waits_is_forgotten(patcher: Patcher) -> None:
    """The list that the CONNECT waits for is older, and overrides it."""

    def around(original: Any, self: AwaitedLists, *what: Any) -> None:
        return

    patcher.wrap(AwaitedLists, "told", around)


@mutant(None, seeds=300, start=95)
def a_required_list_is_done_without(patcher: Patcher) -> None:
    """A client whose list is not to be had is let in."""

    def around(original: Any, self: AwaitedLists, connection: Any, wanted: Any, decide: Any) -> Any:
        def lenient(waiting: Any) -> None:
            waiting.is_refused = False
            decide(waiting)

        waiting = original(self, connection, wanted, lenient)
        waiting.is_refused = False
        return waiting

    patcher.wrap(AwaitedLists, "begin", around)
