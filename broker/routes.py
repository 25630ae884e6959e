"""Who gets a topic: exact filters in a hash map, wildcards in a trie, results cached per topic.

An `Entry` is one distinct topic filter with its connected sessions, its holders in the store and
its shared groups. A `Route` is the answer for one topic; it is kept until the set of filters
changes, and its merged targets until one of its entries changes. Offline sessions appear here only
as a number. Matching is iterative and compares whole levels: no pattern is ever built from client
data. Read next: `broker.delivery`.
"""

from typing import TYPE_CHECKING, Final

from session.subscription import Subscription

if TYPE_CHECKING:
    from broker.connection import Connection
    from broker.groups import Group

# Topics with a cached route. 65,536 routes are about 20 MiB; when full the cache starts afresh.
ROUTES_MAX: Final = 65_536
# Longer topics are matched every time: their number is bounded, their size must be, too.
TOPIC_CACHED_MAX: Final = 256  # characters


class Entry:
    """One distinct topic filter."""

    __slots__ = ("filter_id", "groups", "holders", "live", "topic_filter", "version")

    def __init__(self, topic_filter: str) -> None:
        self.topic_filter: str = topic_filter
        self.filter_id: int = 0  # its stream in the store, 0 = none
        self.holders: int = 0  # sessions and groups whose messages are stored under filter_id
        self.live: dict[Connection, Subscription] = {}  # connected sessions, not the shared ones
        self.groups: dict[str, Group] = {}  # share name -> group
        self.version: int = 0

    def is_idle(self) -> bool:
        """Does nobody want this filter any more?"""
        return not self.live and not self.holders and not self.groups


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
        "stamp",
        "targets",
    )

    def __init__(self, topic: str, entries: list[Entry]) -> None:
        self.levels: int = topic.count("/") + 1
        self.is_reserved: bool = topic.startswith("$")  # the server's [MQTT-4.7.2-1]
        self.entries: list[Entry] = entries
        self.targets: list[Target] = []
        self.filter_ids: list[int] = []  # streams the message has a row in if it is stored
        self.groups: list[Group] = []
        self.stamp: int = -1
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


class _Node:
    __slots__ = ("children", "entry", "hash_entry", "plus")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.plus: _Node | None = None
        self.entry: Entry | None = None  # a filter that ends here
        self.hash_entry: Entry | None = None  # a filter that ends with '#' below here

    def is_empty(self) -> bool:
        return not self.children and self.plus is None and not self.entry and not self.hash_entry


class Routes:
    """All distinct topic filters of the broker."""

    def __init__(self) -> None:
        self._exact: dict[str, Entry] = {}
        self._wild: dict[str, Entry] = {}
        self._root = _Node()
        self._cache: dict[str, Route] = {}
        self._version = 0

    def __len__(self) -> int:
        return len(self._exact) + len(self._wild)

    def find(self, topic_filter: str) -> Entry | None:
        """Return the entry of a filter, or None."""
        return self._exact.get(topic_filter) or self._wild.get(topic_filter)

    def entries(self) -> list[Entry]:
        """Return all entries."""
        return [*self._exact.values(), *self._wild.values()]

    def ensure(self, topic_filter: str) -> Entry:
        """Return the entry of a filter, made if there was none. The filter is valid."""
        entry = self.find(topic_filter)
        if entry is not None:
            return entry
        entry = Entry(topic_filter)
        if "+" in topic_filter or "#" in topic_filter:
            self._wild[topic_filter] = entry
            self._insert(topic_filter, entry)
        else:
            self._exact[topic_filter] = entry
        self._cache.clear()
        return entry

    def changed(self, entry: Entry) -> None:
        """Take note that somebody joined, left or changed at `entry`; forget it when it is idle."""
        entry.version += 1
        self._version += 1
        if entry.is_idle():
            topic_filter = entry.topic_filter
            if self._exact.pop(topic_filter, None) is None:
                self._wild.pop(topic_filter, None)
                self._remove(topic_filter)
            self._cache.clear()

    def match(self, topic: str) -> Route:
        """Return who gets `topic`, up to date. The answer is valid until the next change."""
        route = self._cache.get(topic)
        if route is None:
            route = Route(topic, self._matching(topic))
            if len(self._cache) >= ROUTES_MAX:
                self._cache.clear()
            if len(topic) <= TOPIC_CACHED_MAX:
                self._cache[topic] = route
        if route.checked != self._version:
            route.refresh(self._version)
        return route

    def _matching(self, topic: str) -> list[Entry]:
        found: list[Entry] = []
        exact = self._exact.get(topic)
        if exact is not None:
            found.append(exact)
        if not self._wild:
            return found
        nodes = [self._root]
        levels = topic.split("/")
        # A filter that starts with a wildcard does not match a $ topic [MQTT-4.7.2-1].
        plain = not topic.startswith("$")
        for depth, level in enumerate(levels):
            following: list[_Node] = []
            for node in nodes:
                wildcards = plain or depth > 0
                if wildcards and node.hash_entry is not None:
                    found.append(node.hash_entry)
                child = node.children.get(level)
                if child is not None:
                    following.append(child)
                if wildcards and node.plus is not None:
                    following.append(node.plus)
            nodes = following
            if not nodes:
                break
        for node in nodes:
            if node.entry is not None:
                found.append(node.entry)
            if node.hash_entry is not None:  # `a/#` matches its parent `a` too
                found.append(node.hash_entry)
        return found

    def _insert(self, topic_filter: str, entry: Entry) -> None:
        node = self._root
        for level in topic_filter.split("/"):
            if level == "#":
                node.hash_entry = entry
                return
            if level == "+":
                if node.plus is None:
                    node.plus = _Node()
                node = node.plus
            else:
                node = node.children.setdefault(level, _Node())
        node.entry = entry

    def _remove(self, topic_filter: str) -> None:
        path: list[tuple[_Node, str]] = []
        node = self._root
        levels = topic_filter.split("/")
        for level in levels:
            if level == "#":
                node.hash_entry = None
                break
            path.append((node, level))
            child = node.plus if level == "+" else node.children.get(level)
            assert child is not None
            node = child
        else:
            node.entry = None
        while path and node.is_empty():
            node, level = path.pop()
            if level == "+":
                node.plus = None
            else:
                del node.children[level]
