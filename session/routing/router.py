"""Who gets a topic: the filters that match it, cached per topic.

A `Route` is the answer for one topic. It is kept until a filter that matches its topic comes or
goes, and its merged targets until one of its entries changes: what others subscribe to meanwhile
costs it a look at some numbers. Offline sessions appear here only as a number. Read next:
`session.routing.filter_index` (matching), `session.delivery.delivery`.
"""

from itertools import islice
from typing import Final

from session.live.connection import Connection
from session.live.subscribers import FilterEntry, Group
from session.routing.filter_index import TopicFilterIndex, is_wild
from session.state.subscription import Subscription

# Topics with a cached route. 65,536 routes are about 40 MiB; when full the oldest make room.
ROUTES_MAX: Final = 65_536
ROUTES_EVICTED: Final = 1024  # at once, which takes about a millisecond
# Longer topics are matched every time: their number is bounded, their size must be, too.
TOPIC_CACHED_MAX: Final = 256  # characters
# Beginnings of wildcard filters that came or went, remembered with when they did.
STAMPS_MAX: Final = 65_536


class Target:
    """One connected session that gets a topic once, with its matching subscriptions merged."""

    __slots__ = ("connection", "identifiers", "no_local", "qos", "retain_as_published")

    def __init__(self, connection: "Connection", subscription: Subscription) -> None:
        self.connection = connection
        self.qos: int = subscription.qos  # the highest granted [MQTT-3.3.4-2]
        session = connection.session
        assert session is not None
        self.retain_as_published: bool = session.keeps_retain(subscription)
        self.no_local: bool = session.is_no_local(
            subscription
        )  # any of them: look closer if it is its own
        identifier = subscription.identifier
        self.identifiers: tuple[int, ...] = (identifier,) if identifier else ()

    def merge(self, subscription: Subscription) -> None:
        """Add another matching subscription of the same session [MQTT-3.3.4-4]."""
        if subscription.qos > self.qos:
            self.qos = subscription.qos
        session = self.connection.session
        assert session is not None
        self.retain_as_published |= session.keeps_retain(subscription)
        self.no_local |= session.is_no_local(subscription)
        if subscription.identifier:
            self.identifiers = (*self.identifiers, subscription.identifier)


class Route:
    """Everybody who gets one topic."""

    __slots__ = (
        "checked",
        "entries",
        "filter_ids",
        "groups",
        "is_reserved",
        "levels",
        "matched",
        "stamp",
        "targets",
    )

    def __init__(self, topic: str, entries: list[FilterEntry]) -> None:
        self.levels: int = topic.count("/") + 1
        self.is_reserved: bool = topic.startswith("$")  # the server's [MQTT-4.7.2-1]
        self.entries: list[FilterEntry] = entries
        self.targets: list[Target] = []
        self.filter_ids: list[int] = []  # streams the message has a row in if it is stored
        self.groups: list[Group] = []
        self.stamp: int = -1
        self.matched: int = 0  # the version of all wildcard filters at which `entries` was right
        self.checked: int = -1  # the version of all routes at which `stamp` was right

    def refresh(self, checked: int) -> None:
        """Bring the merged view up to date; cheap when no entry of this route changed."""
        self.checked = checked
        stamp = 0
        for entry in self.entries:
            stamp += entry.version
        if stamp == self.stamp:
            return
        self.stamp = stamp
        self.filter_ids = [entry.filter_id for entry in self.entries if entry.holders]
        self.groups = [group for entry in self.entries for group in entry.groups.values()]
        if len(self.entries) == 1:
            live = self.entries[0].live.items()
            self.targets = [Target(connection, subscription) for connection, subscription in live]
            return
        merged: dict[Connection, Target] = {}
        for entry in self.entries:
            for connection, subscription in entry.live.items():
                target = merged.get(connection)
                if target is None:
                    merged[connection] = Target(connection, subscription)
                else:
                    target.merge(subscription)
        self.targets = list(merged.values())


class Router:
    """Finds all who get a topic, and the entry of a filter to change.

    Between asking for an entry and `changed` nothing else may be asked: it might go to rest.
    """

    def __init__(self) -> None:
        self._filters = TopicFilterIndex()
        self._cache: dict[str, Route] = {}
        self.routes_max: int = ROUTES_MAX
        self._version = 0
        # When a wildcard filter came or went last, of all and by what is before their wildcards:
        # only topics that begin like that could be concerned.
        self._wild_version = 0
        self._stamps: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._filters)

    def load(self, topic_filter: str, filter_id: int, holders: int) -> None:
        """Take in a filter of the store. Before all else, and each once."""
        if holders == 1:
            self._filters.lay(topic_filter, filter_id)
        else:
            self._filters.add(FilterEntry(topic_filter, filter_id, holders))

    def find(self, topic_filter: str) -> FilterEntry | None:
        """Return the entry of a filter, to be changed, or None. The caller calls `changed`."""
        return self._filters.wake(topic_filter)

    def ensure(self, topic_filter: str) -> FilterEntry:
        """Return the entry of a filter, to be changed, made if there was none.

        The filter is valid. The caller calls `changed`.
        """
        entry = self._filters.wake(topic_filter)
        if entry is None:
            entry = FilterEntry(topic_filter)
            self._filters.add(entry)
            self._invalidate(topic_filter)
        return entry

    def filter_id(self, topic_filter: str) -> int:
        """Return the number of a filter's stream, 0 if it has none."""
        return self._filters.filter_id(topic_filter)

    def changed(self, entry: FilterEntry) -> None:
        """Take note that somebody joined, left or changed at `entry`; forget it when it is idle."""
        entry.version += 1
        self._version += 1
        if entry.is_idle():
            self._filters.remove(entry.topic_filter)
            self._invalidate(entry.topic_filter)
        elif entry.may_rest():
            self._filters.rest(entry)

    def match(self, topic: str) -> Route:
        """Return who gets `topic`, up to date. The answer is valid until the next change."""
        route = self._cache.get(topic)
        if route is None:
            route = self._make(topic)
        elif route.matched != self._wild_version:
            self._match_again(topic, route)
        if route.checked != self._version:
            route.refresh(self._version)
        return route

    def _make(self, topic: str) -> Route:
        is_kept = len(topic) <= TOPIC_CACHED_MAX
        route = Route(topic, self._filters.match(topic, wakes=is_kept))
        if not is_kept:
            return route
        for entry in route.entries:  # before others are released: what both have must not rest
            entry.routes += 1
        cache = self._cache
        if len(cache) >= self.routes_max:
            for oldest in list(islice(cache, ROUTES_EVICTED)):
                self._release(cache.pop(oldest).entries)
        route.matched = self._wild_version
        cache[topic] = route
        return route

    def _match_again(self, topic: str, route: Route) -> None:
        """Wildcard filters came or went: see whether that concerns this route."""
        if self._is_concerned(topic, route.matched):
            entries = self._filters.match(topic, wakes=True)
            if entries != route.entries:
                for entry in entries:
                    entry.routes += 1
                before, route.entries = route.entries, entries
                self._release(before)
                route.stamp = route.checked = -1
        route.matched = self._wild_version

    def _is_concerned(self, topic: str, version: int) -> bool:
        """Has a filter come or gone since `version` whose beginning is one of the topic?"""
        stamps = self._stamps
        if stamps.get("", 0) > version or stamps.get(topic, 0) > version:
            return True
        end = topic.find("/")
        while end >= 0:
            if stamps.get(topic[:end], 0) > version:
                return True
            end = topic.find("/", end + 1)
        return False

    def _invalidate(self, topic_filter: str) -> None:
        """A filter came or went: no cached route may hide that."""
        if not is_wild(topic_filter):
            route = self._cache.pop(topic_filter, None)
            if route is not None:
                self._release(route.entries)
            return
        self._wild_version += 1
        if len(self._stamps) >= STAMPS_MAX:
            self._stamps = {"": self._wild_version}
            return
        self._stamps[_beginning(topic_filter)] = self._wild_version

    def _release(self, entries: list[FilterEntry]) -> None:
        """A cached route needs these entries no more."""
        for entry in entries:
            entry.routes -= 1
            if entry.may_rest():
                self._filters.rest(entry)


def _beginning(topic_filter: str) -> str:
    """Return what all topics that match a wildcard filter begin with, as whole levels."""
    wildcard = topic_filter.find("+")
    if wildcard < 0:
        wildcard = topic_filter.find("#")
    return topic_filter[: max(0, wildcard - 1)]
