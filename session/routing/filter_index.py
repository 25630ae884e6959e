"""All distinct topic filters: exact ones in a hash map, wildcard filters in a tree of levels.

A `FilterEntry` is one filter with its connected sessions, its stored holders and its shared groups.
A filter that only one offline session holds *rests*: only the number of its stream is kept, and its
entry is made again when it is needed. So a million offline sessions need about 150 bytes each.
Matching is iterative and compares whole levels: no pattern is ever built from client data. Read
next: `session.routing.router`.
"""

from typing import Final, TypeAlias

from session.live.subscribers import FilterEntry

_PLUS: Final = "+"
_HASH: Final = "#"
_END: Final = "/"  # key of the filter that ends at a node: no level contains a slash


# A node maps levels to nodes, or to the only filter below, which is an entry, or a string while it
# rests: the number of its stream and its remaining levels ("7/+/#").
_Node: TypeAlias = dict[str, object]


class TopicFilterIndex:
    """All distinct topic filters of the broker, awake or resting."""

    __slots__ = ("_exact", "_root", "_wild_count", "visited")

    def __init__(self) -> None:
        self._exact: Final[dict[str, FilterEntry | int]] = {}
        self._root: Final[_Node] = {}
        self._wild_count = 0
        self.visited: int = 0  # nodes that `match` has looked at so far: its cost

    def __len__(self) -> int:
        return len(self._exact) + self._wild_count

    def lay(self, topic_filter: str, filter_id: int) -> None:
        """Add a new filter that rests."""
        if is_wild(topic_filter):
            self._put(topic_filter, None, filter_id)
            self._wild_count += 1
        else:
            self._exact[topic_filter] = filter_id

    def add(self, entry: FilterEntry) -> None:
        """Add a new filter with its entry."""
        if is_wild(entry.topic_filter):
            self._put(entry.topic_filter, entry, 0)
            self._wild_count += 1
        else:
            self._exact[entry.topic_filter] = entry

    def wake(self, topic_filter: str) -> FilterEntry | None:
        """Return the entry of a filter, made if it rests; None if there is no such filter."""
        if is_wild(topic_filter):
            found = self._find(topic_filter)
            if found is None or isinstance(found, FilterEntry):
                return found
            entry = FilterEntry(topic_filter, found, 1)
            self._put(topic_filter, entry, 0)
            return entry
        known = self._exact.get(topic_filter)
        if known is None or isinstance(known, FilterEntry):
            return known
        entry = FilterEntry(topic_filter, known, 1)
        self._exact[topic_filter] = entry
        return entry

    def filter_id(self, topic_filter: str) -> int:
        """Return the number of a filter's stream, 0 if it has none; a resting one keeps resting."""
        if is_wild(topic_filter):
            found = self._find(topic_filter)
        else:
            found = self._exact.get(topic_filter)
        if found is None:
            return 0
        return found.filter_id if isinstance(found, FilterEntry) else found

    def rest(self, entry: FilterEntry) -> None:
        """Let a filter rest that `may_rest`; its entry must not be used any more."""
        if is_wild(entry.topic_filter):
            self._put(entry.topic_filter, None, entry.filter_id)
        else:
            self._exact[entry.topic_filter] = entry.filter_id

    def remove(self, topic_filter: str) -> None:
        """Remove a filter of the index."""
        if not is_wild(topic_filter):
            del self._exact[topic_filter]
            return
        self._wild_count -= 1
        path: list[tuple[_Node, str]] = []
        node = self._root
        for level in topic_filter.split("/"):
            path.append((node, level))
            child = node[level]
            if not isinstance(child, dict):
                break
            node = child
        else:
            path.append((node, _END))
        node, key = path.pop()
        del node[key]
        while path and not node:
            node, key = path.pop()
            del node[key]

    # Matching

    def match(self, topic: str, *, wakes: bool) -> list[FilterEntry]:
        """Return the entries of all filters that match a topic.

        With `wakes` the resting ones among them stop resting. Without it their entries are
        temporary and must not be changed or kept.
        """
        found: list[FilterEntry] = []
        known = self._exact.get(topic)
        if known is not None:
            if isinstance(known, FilterEntry):
                found.append(known)
            else:
                entry = FilterEntry(topic, known, 1)
                if wakes:
                    self._exact[topic] = entry
                found.append(entry)
        if self._wild_count:
            self._match_wild(topic.split("/"), wakes, found)
        return found

    def _match_wild(self, levels: list[str], wakes: bool, found: list[FilterEntry]) -> None:
        nodes: list[_Node] = [self._root]
        pluses: list[int] = [0]  # of each node: bits of the levels above it that are a `+`
        # A filter that starts with a wildcard does not match a $ topic [MQTT-4.7.2-1].
        wildcards = not levels[0].startswith("$")
        for depth, level in enumerate(levels):
            self.visited += len(nodes)
            following: list[_Node] = []
            following_pluses: list[int] = []
            for index, node in enumerate(nodes):
                way = pluses[index]
                child = node.get(level)
                if isinstance(child, dict):
                    following.append(child)
                    following_pluses.append(way)
                elif child is not None:
                    self._reach(node, level, levels, depth, way, wakes, found)
                if not wildcards:
                    continue
                child = node.get(_PLUS)
                if isinstance(child, dict):
                    following.append(child)
                    following_pluses.append(way | 1 << depth)
                elif child is not None:
                    self._reach(node, _PLUS, levels, depth, way, wakes, found)
                if _HASH in node:
                    self._reach(node, _HASH, levels, depth, way, wakes, found)
            nodes, pluses = following, following_pluses
            if not nodes:
                return
            wildcards = True
        for index, node in enumerate(nodes):
            way = pluses[index]
            if _END in node:
                self._reach(node, _END, levels, len(levels), way, wakes, found)
            if _HASH in node:  # `a/#` matches its parent `a` too
                self._reach(node, _HASH, levels, len(levels), way, wakes, found)

    def _reach(
        self,
        node: _Node,
        key: str,
        levels: list[str],
        depth: int,
        way: int,
        wakes: bool,
        found: list[FilterEntry],
    ) -> None:
        """Add the only filter below `key` at `depth` to `found` if its other levels match."""
        leaf = node[key]
        passed = 0 if key in (_HASH, _END) else 1  # 1 = levels after the key must match
        if isinstance(leaf, FilterEntry):
            if passed and not _fits(leaf.topic_filter.split("/"), depth + 1, levels, depth + 1):
                return
            found.append(leaf)
            return
        assert isinstance(leaf, str)
        number, slash, rest = leaf.partition("/")
        tail = rest.split("/") if slash else []
        if passed and not _fits(tail, 0, levels, depth + 1):
            return
        texts = [_PLUS if way >> at & 1 else levels[at] for at in range(depth)]
        if key != _END:
            texts.append(key)
        entry = FilterEntry("/".join(texts + tail), int(number), 1)
        if wakes:
            node[key] = entry
        found.append(entry)

    # The tree

    def _find(self, topic_filter: str) -> FilterEntry | int | None:
        """Return a wildcard filter: its entry, the number of its stream if it rests, or None."""
        levels = topic_filter.split("/")
        node = self._root
        for depth, level in enumerate(levels):
            child = node.get(level)
            if child is None:
                return None
            if not isinstance(child, dict):
                return _known(child) if _is_that(child, levels, depth + 1) else None
            node = child
        child = node.get(_END)
        return None if child is None else _known(child)

    def _put(self, topic_filter: str, entry: FilterEntry | None, filter_id: int) -> None:
        """Set a wildcard filter: its entry, or if that is None the number of its stream."""
        levels = topic_filter.split("/")
        node = self._root
        for depth, level in enumerate(levels):
            child = node.get(level)
            if child is None or (
                not isinstance(child, dict) and _is_that(child, levels, depth + 1)
            ):
                node[level] = entry or _resting(filter_id, levels[depth + 1 :])
                return
            if not isinstance(child, dict):
                child = node[level] = _below(child, depth + 1)
            node = child
        node[_END] = entry or _resting(filter_id, [])


def is_wild(topic_filter: str) -> bool:
    """Return whether a valid topic filter has a wildcard."""
    return _PLUS in topic_filter or _HASH in topic_filter


def _resting(filter_id: int, tail: list[str]) -> str:
    """Return the string of a resting filter whose remaining levels are `tail`."""
    return "/".join([str(filter_id), *tail])


def _known(leaf: object) -> FilterEntry | int:
    if isinstance(leaf, FilterEntry):
        return leaf
    assert isinstance(leaf, str)
    return int(leaf.partition("/")[0])


def _tail_of(leaf: object, depth: int) -> list[str]:
    """Return the levels from `depth` on of a filter that is alone there."""
    if isinstance(leaf, FilterEntry):
        return leaf.topic_filter.split("/")[depth:]
    assert isinstance(leaf, str)
    return leaf.split("/")[1:]


def _is_that(leaf: object, levels: list[str], depth: int) -> bool:
    """Return whether `leaf`, which agrees up to `depth`, is the filter with these levels."""
    return _tail_of(leaf, depth) == levels[depth:]


def _below(leaf: object, depth: int) -> _Node:
    """Return a node to replace `leaf`, with `leaf` one level below."""
    tail = _tail_of(leaf, depth)
    key = tail[0] if tail else _END
    if isinstance(leaf, FilterEntry):
        return {key: leaf}
    assert isinstance(leaf, str)
    return {key: _resting(int(leaf.partition("/")[0]), tail[1:])}


def _fits(tail: list[str], at: int, levels: list[str], depth: int) -> bool:
    """Return whether a filter's levels from `at` match the topic's from `depth`."""
    count, depths = len(tail), len(levels)
    while at < count:
        level = tail[at]
        if level == _HASH:
            return True
        if depth == depths or (level != _PLUS and level != levels[depth]):
            return False
        at += 1
        depth += 1
    return depth == depths
