"""Finds the subscribers of a topic: the filters that match it, cached per topic.

A `Route` is the result for one topic. It is valid until a filter that matches the topic is added or
removed, and its merged targets until one of its entries changes. Other subscriptions only cost it a
comparison of versions. Offline sessions appear here only as a number. Read next:
`session.routing.filter_index` (matching), `session.delivery.delivery`.
"""

from itertools import islice
from typing import Final

from session.live.connection import Connection
from session.live.subscribers import FilterEntry, Group
from session.live.tick import GROUP_WORK, STEPS_SHIFT, Tick
from session.routing.filter_index import TopicFilterIndex, is_wild
from session.state.subscription import Subscription

# Topics with a cached route. 98,304 routes are about 40 MiB; when full the oldest are removed.
ROUTES_MAX: Final = 98_304
ROUTES_EVICTED: Final = 1024  # removed at once, in about a millisecond
# While the cache is full, one of so many new routes gets in: a topic that comes often is soon one
# of them. If every topic is new, or there are more than fit, to keep a route and to remove another
# one costs as much as to find it.
ADMITTED_EVERY: Final = 8
# Longer topics are matched every time, so that the size of the cache is bounded.
TOPIC_CACHED_MAX: Final = 256  # characters
# Prefixes of wildcard filters that were added or removed, kept with the version of the change.
STAMPS_MAX: Final = 65_536

# Shared by all routes and targets without any: the fewer objects a route has, the more routes are
# in a processor's cache. Nothing is ever added to them.
NO_TARGETS: Final[list["Target"]] = []
NO_FILTERS: Final[list[int]] = []
NO_IDENTIFIERS: Final[list[int]] = []
NO_GROUPS: Final[list[Group]] = []


class Target:
    """One connected session that gets a topic, with its matching subscriptions merged."""

    __slots__ = ("connection", "found", "identifiers", "no_local", "qos", "retain_as_published")

    def __init__(self, connection: "Connection", subscription: Subscription) -> None:
        self.connection = connection
        self.qos: int = subscription.qos  # the highest granted [MQTT-3.3.4-2]
        session = connection.session
        assert session is not None
        self.retain_as_published: bool = session.keeps_retain(subscription)
        self.no_local: bool = session.is_no_local(subscription)  # of any of the subscriptions
        identifier = subscription.identifier
        self.identifiers: tuple[int, ...] = (identifier,) if identifier else ()
        # All identifiers, if `merge` found more than one subscription. Most targets need no list.
        self.found: list[int] = NO_IDENTIFIERS

    def merge(self, subscription: Subscription) -> None:
        """Add another matching subscription of the same session [MQTT-3.3.4-4].

        Call `merged` after the last one.
        """
        if subscription.qos > self.qos:
            self.qos = subscription.qos
        session = self.connection.session
        assert session is not None
        self.retain_as_published |= session.keeps_retain(subscription)
        self.no_local |= session.is_no_local(subscription)
        if subscription.identifier:
            if not self.found:
                self.found = list(self.identifiers)
            self.found.append(subscription.identifier)

    def merged(self) -> None:
        """Take over the identifiers of all subscriptions: once, for a client may have thousands."""
        if self.found:
            self.identifiers = tuple(self.found)
            self.found = NO_IDENTIFIERS


class Route:
    """All subscribers of one topic."""

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
        "wants_qos0",
        "weight",
    )

    def __init__(self, topic: str, entries: list[FilterEntry]) -> None:
        self.levels: int = topic.count("/") + 1
        self.is_reserved: bool = topic.startswith("$")  # the server's [MQTT-4.7.2-1]
        self.entries: list[FilterEntry] = entries
        self.targets: list[Target] = NO_TARGETS
        self.filter_ids: list[int] = NO_FILTERS  # streams the message has a row in if it is stored
        self.groups: list[Group] = NO_GROUPS
        self.wants_qos0: bool = False  # is some external store told of messages with QoS 0?
        self.weight: int = 0  # work of a message: index rows, deliveries, shared subscriptions
        self.stamp: int = -1  # sum of the versions of the entries
        self.matched: int = 0  # version of the wildcard filters for which `entries` is valid
        self.checked: int = -1  # version of all entries for which `stamp` is valid

    def refresh(self, checked: int) -> int:
        """Update the merged targets; cheap if no entry of this route changed.

        Returns the number of entries and subscriptions looked at.
        """
        self.checked = checked
        stamp = 0
        for entry in self.entries:
            stamp += entry.version
        if stamp == self.stamp:
            return len(self.entries)
        steps = self._merge()
        self.stamp = stamp
        self.weight = len(self.filter_ids) + len(self.targets) + GROUP_WORK * len(self.groups)
        return steps

    def _merge(self) -> int:
        if len(self.entries) == 1:
            return self._take_over(self.entries[0])
        if not self.entries:
            self.targets, self.filter_ids, self.groups = NO_TARGETS, NO_FILTERS, NO_GROUPS
            self.wants_qos0 = False
            return 0
        self.filter_ids = [entry.filter_id for entry in self.entries if entry.holders]
        self.groups = [group for entry in self.entries for group in entry.groups.values()]
        self.wants_qos0 = any([entry.wants_qos0 for entry in self.entries])
        steps = len(self.entries)
        merged: dict[Connection, Target] = {}
        for entry in self.entries:
            live = entry.live()
            steps += len(live)
            for connection, subscription in live:
                target = merged.get(connection)
                if target is None:
                    merged[connection] = Target(connection, subscription)
                else:
                    target.merge(subscription)
        self.targets = list(merged.values())
        for target in self.targets:
            target.merged()
        return steps

    def _take_over(self, entry: FilterEntry) -> int:
        """Do as `_merge`, for the only entry."""
        self.filter_ids = [entry.filter_id] if entry.holders else NO_FILTERS
        self.groups = list(entry.groups.values()) if entry.groups else NO_GROUPS
        self.wants_qos0 = entry.wants_qos0
        alone, subscription = entry.alone, entry.subscription
        if alone is not None and subscription is not None:
            self.targets = [Target(alone, subscription)]
        elif entry.together:
            together = entry.together.items()
            self.targets = [Target(connection, found) for connection, found in together]
        else:
            self.targets = NO_TARGETS
        return len(self.targets)


class Router:
    """Finds the subscribers of a topic, and the entry of a filter to change.

    Between a request for an entry and `changed` no other method may be called: the entry might be
    put to rest.
    """

    def __init__(self, tick: Tick, filters: TopicFilterIndex) -> None:
        """Route by `filters`, and change them; those of the store are there before all else."""
        self._tick: Final = tick
        self._filters = filters
        self._cache: dict[str, Route] = {}
        self.routes_max: int = ROUTES_MAX
        self.admitted_every: int = ADMITTED_EVERY
        self._passed_over: int = 0  # new routes that were not kept, since one was
        self._version = 0
        # Version of the last change of a wildcard filter: of all, and by the levels before the
        # first wildcard. Only topics with that prefix can be affected.
        self._wild_version = 0
        self._stamps: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._filters)

    def find(self, topic_filter: str) -> FilterEntry | None:
        """Return the entry of a filter to change it, or None; call `changed` afterwards."""
        return self._filters.wake(topic_filter)

    def ensure(self, topic_filter: str) -> FilterEntry:
        """Return the entry of a valid filter to change it, made if there was none.

        Call `changed` afterwards.
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
        """Invalidate routes after a change of `entry`, and remove it if it is idle."""
        entry.version += 1
        self._version += 1
        if entry.is_idle():
            self._filters.remove(entry.topic_filter)
            self._invalidate(entry.topic_filter)
        elif entry.may_rest():
            self._filters.rest(entry)

    def match(self, topic: str) -> Route:
        """Return the route of `topic`, which is valid until the next change.

        What it takes to make or renew the route counts as work of this tick.
        """
        route = self._cache.get(topic)
        if route is None:
            route = self._make(topic)
        elif route.matched != self._wild_version:
            self._match_again(topic, route)
        if route.checked != self._version:
            self._tick.work += route.refresh(self._version) >> STEPS_SHIFT
        return route

    def _make(self, topic: str) -> Route:
        is_kept = len(topic) <= TOPIC_CACHED_MAX and self._admits()
        route = Route(topic, self._match(topic, wakes=is_kept))
        if not is_kept:
            return route
        for entry in route.entries:  # before the release of others: shared entries must not rest
            entry.routes += 1
        cache = self._cache
        if len(cache) >= self.routes_max:
            for oldest in list(islice(cache, ROUTES_EVICTED)):
                self._release(cache.pop(oldest).entries)
        route.matched = self._wild_version
        cache[topic] = route
        return route

    def _admits(self) -> bool:
        """Return whether the next new route is kept."""
        if len(self._cache) + ROUTES_EVICTED < self.routes_max:
            return True
        self._passed_over += 1
        if self._passed_over < self.admitted_every:
            return False
        self._passed_over = 0
        return True

    def _match(self, topic: str, *, wakes: bool) -> list[FilterEntry]:
        """Match a topic with all filters, and count the work."""
        filters = self._filters
        visited = filters.visited
        entries = filters.match(topic, wakes=wakes)
        self._tick.work += (filters.visited - visited + 4 * len(entries)) >> STEPS_SHIFT
        return entries

    def _match_again(self, topic: str, route: Route) -> None:
        """Update a route after changes of wildcard filters."""
        if self._is_concerned(topic, route.matched):
            entries = self._match(topic, wakes=True)
            if entries != route.entries:
                for entry in entries:
                    entry.routes += 1
                before, route.entries = route.entries, entries
                self._release(before)
                route.stamp = route.checked = -1
        route.matched = self._wild_version

    def _is_concerned(self, topic: str, version: int) -> bool:
        """Return whether a filter with a prefix of the topic changed since `version`."""
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
        """Invalidate the cached routes that a new or removed filter may affect."""
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
        """Release the entries of a cached route; those of no other route may rest."""
        for entry in entries:
            entry.routes -= 1
            if entry.may_rest():
                self._filters.rest(entry)


def _beginning(topic_filter: str) -> str:
    """Return the levels of a wildcard filter before its first wildcard."""
    wildcard = topic_filter.find("+")
    if wildcard < 0:
        wildcard = topic_filter.find("#")
    return topic_filter[: max(0, wildcard - 1)]
