"""Planted bugs of retained messages that are looked up in a store.

Read next: `tests.simulation.retained_inbox`, `tests.simulation.planting`.
"""

from typing import Any

from session.delivery.fetching.inbox import Inbox
from session.feed import outlet
from session.publish.accept import Publishing
from session.routing.retained import Retained
from storage.tables.fetch_rows import RETAIN
from storage.tables.tables import FETCHES
from tests.simulation.planting import Patcher, mutant


@mutant(None, seeds=300, start=60)
def a_store_is_believed_to_have_the_newest(patcher: Patcher) -> None:
    """What the store has is sent whatever the broker has, or has sent."""

    def nothing(original: Any, self: Retained, topic: str) -> None:
        return None

    def unnoted(original: Any, self: Inbox, *sent: Any) -> None:
        return

    patcher.wrap(Retained, "newest", nothing)
    patcher.wrap(Inbox, "retained_sent", unnoted)


@mutant(None, seeds=300, start=83)
def a_retained_message_is_taken_twice(patcher: Patcher) -> None:
    """The answer about a retained message is used as often as it comes."""

    def around(original: Any, self: Inbox, number: int, *page: Any, **named: Any) -> None:
        fetch = self._requests._asked.get(number)
        original(self, number, *page, **named)
        if fetch is None or fetch.rule.kind != RETAIN or not page[0]:
            return
        if (fetch.backend, RETAIN, fetch.topic) not in fetch.owner.fetches:
            self._add_lookup(fetch)
            self._requests._asked[number] = fetch
            fetch.number = number
            original(self, number, *page, **named)

    patcher.wrap(Inbox, "fetched", around)


@mutant("retained", seeds=300, start=154)
def what_a_store_has_is_not_kept(patcher: Patcher) -> None:
    """The next one who subscribes gets the older message of the broker."""

    def around(original: Any, self: Publishing, *message: Any) -> bool:
        return False

    patcher.wrap(Publishing, "keep_found", around)


@mutant(None, seeds=300, start=24)
def what_is_kept_goes_back_to_its_store(patcher: Patcher) -> None:
    """A store is told of a retained message that came from there."""

    def around(original: Any, feed: Any, event: Any) -> Any:
        username, event.username = event.username, ""
        wants = original(feed, event)
        event.username = username
        return wants

    patcher.wrap(outlet, "_wants", around)


@mutant(None, seeds=300, start=24)
def a_look_up_stays_when_it_is_answered(patcher: Patcher) -> None:
    """The row of a look-up is not deleted with its answer."""

    def around(original: Any, self: Inbox, fetch: Any) -> None:
        batch = self._tick.batch
        before = len(batch)
        original(self, fetch)
        batch[before:] = [row for row in batch[before:] if row[0] != FETCHES]

    patcher.wrap(Inbox, "_end_lookup", around)


@mutant(None, seeds=400, start=24)
def a_look_up_is_forgotten_with_its_connection(patcher: Patcher) -> None:
    """A resumed session does not ask for the retained message that it is owed."""

    def around(original: Any, self: Inbox, connection: Any) -> None:
        original(self, connection)
        for waiting in self._requests._waiting.values():
            for fetch in list(waiting):
                if fetch.rule.kind == RETAIN and fetch.owner.connection is connection:
                    del waiting[fetch]

    patcher.wrap(Inbox, "connected", around)


@mutant(None, seeds=600, start=83)
def what_was_sent_is_not_noted(patcher: Patcher) -> None:
    """A look-up does not know that the session has got the message meanwhile."""

    def around(original: Any, self: Inbox, *sent: Any) -> None:
        return

    patcher.wrap(Inbox, "retained_sent", around)
