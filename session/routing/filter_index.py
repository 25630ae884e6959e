"""All distinct topic filters: most in hash maps, some wildcard filters in a tree of levels.

The shape of a wildcard filter is its number of levels and where its wildcards are. Of the filters
of one shape at most one matches a topic, and the topic's levels spell it: it is looked up like an
exact one. In practice there are few shapes, whatever the number of filters. A topic is looked up
once for each shape, so only `SHAPES_MAX` are known at a time, and the filters of others are in the
tree: among a hundred thousand filters each step in a tree is a cache miss, and there are many.

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
# Shapes that are looked up: eight look-ups cost about as much as a topic's way through a tree.
SHAPES_MAX: Final = 8
# Filters of more levels are in the tree: what spells them must not cost much more than the topic.
SHAPED_LEVELS_MAX: Final = 32
_END: Final = "/"  # key of the filter that ends at a node: no level contains a slash


# A node maps levels to nodes, to chains of levels with a node behind them, or to the only filter
# below, which is an entry, or a string while it rests: the number of its stream and its remaining
# levels ("7/+/#"). Every node but the root has at least two children, so there are fewer nodes than
# filters, however many levels these have: a client cannot make memory of levels.
_Node: TypeAlias = dict[str, object]


class _Chain:
    """Levels that all filters of a node share, before that node."""

    __slots__ = ("levels", "node", "pluses")

    def __init__(self, levels: list[str], node: _Node) -> None:
        self.levels: Final = levels
        self.node: Final = node
        pluses = 0
        for at, level in enumerate(levels):
            if level == _PLUS:
                pluses |= 1 << at
        self.pluses: Final = pluses  # bits of the levels that are a `+`


_Filters: TypeAlias = dict[str, FilterEntry | int]  # an entry, or the number of a resting one


class _Shape:
    """The filters with these wildcards, by their text."""

    __slots__ = ("filters", "has_hash", "levels", "pluses")

    def __init__(self, levels: list[str]) -> None:
        self.has_hash: Final = levels[-1] == _HASH
        self.levels: Final = len(levels) - self.has_hash  # without the `#`
        self.pluses: Final = [at for at, level in enumerate(levels) if level == _PLUS]
        self.filters: Final[_Filters] = {}

    def starts_wild(self) -> bool:
        """Return whether the first level is a wildcard."""
        return not self.levels or (len(self.pluses) > 0 and self.pluses[0] == 0)

    def spell(self, topic: str, levels: list[str]) -> str | None:
        """Return the filter of this shape that matches a topic, None if none can."""
        size = self.levels
        if size != len(levels):
            if size > len(levels) or not self.has_hash:
                return None
            levels = levels[:size]
        elif not self.pluses:
            return topic + "/#"  # `a/#` matches its parent `a` too
        else:
            levels = levels.copy()
        for at in self.pluses:
            levels[at] = _PLUS
        if self.has_hash:
            levels.append(_HASH)
        return "/".join(levels)


class TopicFilterIndex:
    """All distinct topic filters of the broker, awake or resting."""

    __slots__ = ("_exact", "_root", "_shapes", "_tree_count", "shapes_max", "visited")

    def __init__(self, shapes_max: int = SHAPES_MAX) -> None:
        self._exact: Final[_Filters] = {}
        self._shapes: Final[dict[int, _Shape]] = {}  # none without filters
        self.shapes_max: int = shapes_max  # with 0 all wildcard filters are in the tree
        self._root: Final[_Node] = {}
        self._tree_count: int = 0
        # What `match` has cost so far: nodes it has looked at, eights of other levels, and shapes.
        self.visited: int = 0

    def __len__(self) -> int:
        shaped = [len(shape.filters) for shape in self._shapes.values()]
        return len(self._exact) + sum(shaped) + self._tree_count

    def lay(self, topic_filter: str, filter_id: int) -> None:
        """Add a new filter that rests."""
        place = self._new_place(topic_filter)
        if place is not None:
            place[topic_filter] = filter_id
        else:
            self._put(topic_filter, None, filter_id)
            self._tree_count += 1

    def add(self, entry: FilterEntry) -> None:
        """Add a new filter with its entry."""
        place = self._new_place(entry.topic_filter)
        if place is not None:
            place[entry.topic_filter] = entry
        else:
            self._put(entry.topic_filter, entry, 0)
            self._tree_count += 1

    def wake(self, topic_filter: str) -> FilterEntry | None:
        """Return the entry of a filter, made if it rests; None if there is no such filter."""
        place = self._place(topic_filter)
        known = None if place is None else place.get(topic_filter)
        is_in_tree = known is None and self._tree_count > 0
        if is_in_tree and is_wild(topic_filter):
            known = self._find(topic_filter)
        if known is None or isinstance(known, FilterEntry):
            return known
        entry = FilterEntry(topic_filter, known, 1)
        if is_in_tree:
            self._put(topic_filter, entry, 0)
        else:
            assert place is not None
            place[topic_filter] = entry
        return entry

    def filter_id(self, topic_filter: str) -> int:
        """Return the number of a filter's stream, 0 if it has none; a resting one keeps resting."""
        place = self._place(topic_filter)
        found = None if place is None else place.get(topic_filter)
        if found is None and self._tree_count and is_wild(topic_filter):
            found = self._find(topic_filter)
        if found is None:
            return 0
        return found.filter_id if isinstance(found, FilterEntry) else found

    def rest(self, entry: FilterEntry) -> None:
        """Let a filter rest that `may_rest`; its entry must not be used any more."""
        place = self._place(entry.topic_filter)
        if place is not None and entry.topic_filter in place:
            place[entry.topic_filter] = entry.filter_id
        else:
            self._put(entry.topic_filter, None, entry.filter_id)

    def _place(self, topic_filter: str) -> _Filters | None:
        """Return the map in which a filter is, unless it is in the tree."""
        if not is_wild(topic_filter):
            return self._exact
        shape = self._shapes.get(_shape_code(topic_filter.split("/")))
        return None if shape is None else shape.filters

    def _new_place(self, topic_filter: str) -> _Filters | None:
        """Return the map for a new filter, None if it belongs into the tree."""
        place = self._place(topic_filter)
        if place is None and len(self._shapes) < self.shapes_max:
            levels = topic_filter.split("/")
            if len(levels) <= SHAPED_LEVELS_MAX:
                shape = self._shapes[_shape_code(levels)] = _Shape(levels)
                return shape.filters
        return place

    def remove(self, topic_filter: str) -> None:
        """Remove a filter of the index."""
        place = self._place(topic_filter)
        if place is not None and topic_filter in place:
            del place[topic_filter]
            if not place and place is not self._exact:
                del self._shapes[_shape_code(topic_filter.split("/"))]
            return
        self._tree_count -= 1
        levels = topic_filter.split("/")
        above, above_key = self._root, ""
        node, key, depth = self._root, levels[0], 1
        child = node[key]
        while isinstance(child, (dict, _Chain)):
            above, above_key = node, key
            if isinstance(child, _Chain):
                depth += len(child.levels)
                node = child.node
            else:
                node = child
            key = levels[depth] if depth < len(levels) else _END
            depth += 1
            child = node[key]
        del node[key]
        if len(node) == 1 and node is not self._root:
            way = above[above_key]
            prefix = way.levels if isinstance(way, _Chain) else []
            for key, child in node.items():
                above[above_key] = _joined(prefix, key, child)

    # Matching

    def match(self, topic: str, *, wakes: bool) -> list[FilterEntry]:
        """Return the entries of all filters that match a topic.

        With `wakes` the resting ones among them stop resting. Without it their entries are
        temporary and must not be changed or kept.
        """
        found: list[FilterEntry] = []
        if self._exact:
            _look_up(self._exact, topic, wakes, found)
        if self._shapes or self._tree_count:
            levels = topic.split("/")
            # A filter that starts with a wildcard does not match a $ topic [MQTT-4.7.2-1].
            is_reserved = topic.startswith("$")
            cost = 1 + (len(topic) >> 8)  # a long one is copied for each shape
            for shape in self._shapes.values():
                self.visited += cost
                if is_reserved and shape.starts_wild():
                    continue
                spelled = shape.spell(topic, levels)
                if spelled is not None:
                    _look_up(shape.filters, spelled, wakes, found)
            if self._tree_count:
                self._match_tree(levels, wakes, found)
        return found

    def _match_tree(self, levels: list[str], wakes: bool, found: list[FilterEntry]) -> None:
        count = len(levels)
        # Nodes to look at, how many levels are above each, and bits of those that are a `+`.
        nodes: list[_Node] = [self._root]
        depths: list[int] = [0]
        ways: list[int] = [0]
        wildcards = not levels[0].startswith("$")
        while nodes:
            node, depth, way = nodes.pop(), depths.pop(), ways.pop()
            self.visited += 1
            if (wildcards or depth) and _HASH in node:  # `a/#` matches its parent `a` too
                self._reach(node, _HASH, levels, depth, way, wakes, found)
            if depth == count:
                if _END in node:
                    self._reach(node, _END, levels, depth, way, wakes, found)
                continue
            key = levels[depth]
            below = way
            while True:
                child = node.get(key)
                if isinstance(child, dict):
                    nodes.append(child)
                    depths.append(depth + 1)
                    ways.append(below)
                elif isinstance(child, _Chain):
                    self.visited += len(child.levels) >> 3
                    if _leads(child.levels, levels, depth + 1):
                        nodes.append(child.node)
                        depths.append(depth + 1 + len(child.levels))
                        ways.append(below | child.pluses << (depth + 1))
                elif child is not None:
                    self._reach(node, key, levels, depth, way, wakes, found)
                if key == _PLUS or not (wildcards or depth):
                    break
                key = _PLUS
                below = way | 1 << depth

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
        self.visited += (len(levels) - depth) >> 3
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
        node, depth = self._root, 0
        while depth < len(levels):
            child = node.get(levels[depth])
            depth += 1
            if child is None:
                return None
            if isinstance(child, dict):
                node = child
            elif isinstance(child, _Chain):
                if _common(child.levels, levels, depth) < len(child.levels):
                    return None
                node = child.node
                depth += len(child.levels)
            else:
                return _known(child) if _tail_of(child, depth) == levels[depth:] else None
        child = node.get(_END)
        return None if child is None else _known(child)

    def _put(self, topic_filter: str, entry: FilterEntry | None, filter_id: int) -> None:
        """Set a wildcard filter: its entry, or if that is None the number of its stream."""
        levels = topic_filter.split("/")
        node, depth = self._root, 0
        while depth < len(levels):
            key = levels[depth]
            depth += 1
            child = node.get(key)
            if isinstance(child, dict):
                node = child
                continue
            if isinstance(child, _Chain):
                shared = _common(child.levels, levels, depth)
                if shared == len(child.levels):
                    node = child.node
                else:
                    fresh: _Node = {
                        child.levels[shared]: _way(child.levels[shared + 1 :], child.node)
                    }
                    node[key] = _way(child.levels[:shared], fresh)
                    node = fresh
                depth += shared
                continue
            tail = levels[depth:] if child is None else _tail_of(child, depth)
            if child is None or tail == levels[depth:]:
                node[key] = entry or _resting(filter_id, tail)
                return
            shared = _common(tail, levels, depth)
            fresh = {}
            if shared < len(tail):
                fresh[tail[shared]] = _leaf(child, tail[shared + 1 :])
            else:
                fresh[_END] = _leaf(child, [])
            node[key] = _way(tail[:shared], fresh)
            node = fresh
            depth += shared
        node[_END] = entry or _resting(filter_id, [])


def is_wild(topic_filter: str) -> bool:
    """Return whether a valid topic filter has a wildcard."""
    return _PLUS in topic_filter or _HASH in topic_filter


def _look_up(place: _Filters, topic_filter: str, wakes: bool, found: list[FilterEntry]) -> None:
    """Add a filter of a map to `found` if it is there."""
    known = place.get(topic_filter)
    if known is None:
        return
    if isinstance(known, FilterEntry):
        found.append(known)
        return
    entry = FilterEntry(topic_filter, known, 1)
    if wakes:
        place[topic_filter] = entry
    found.append(entry)


def _shape_code(levels: list[str]) -> int:
    """Return a number for the shape of a wildcard filter, 0 if it has too many levels for one."""
    size = len(levels)
    if size > SHAPED_LEVELS_MAX:
        return 0
    code = 0
    for at, level in enumerate(levels):
        if level == _PLUS:
            code |= 1 << at
    return (code << 1 | (levels[-1] == _HASH)) << 6 | size


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


def _leaf(leaf: object, tail: list[str]) -> object:
    """Return a filter for a place where `tail` remains of its levels."""
    if isinstance(leaf, FilterEntry):
        return leaf
    assert isinstance(leaf, str)
    return _resting(int(leaf.partition("/")[0]), tail)


def _way(levels: list[str], node: _Node) -> object:
    """Return what leads to a node through these levels."""
    return _Chain(levels, node) if levels else node


def _joined(levels: list[str], key: str, child: object) -> object:
    """Return what leads through these levels to the only child of a node, without the node."""
    if key != _END:
        levels = [*levels, key]
    if isinstance(child, dict):
        return _way(levels, child)
    if isinstance(child, _Chain):
        return _Chain(levels + child.levels, child.node)
    if isinstance(child, FilterEntry):
        return child
    return _leaf(child, levels + _tail_of(child, 0))


def _common(chain: list[str], levels: list[str], depth: int) -> int:
    """Return how many levels of `chain` equal those from `depth` on."""
    count = min(len(chain), len(levels) - depth)
    for at in range(count):
        if chain[at] != levels[depth + at]:
            return at
    return count


def _leads(chain: list[str], levels: list[str], depth: int) -> bool:
    """Return whether the levels of a chain match the topic's from `depth`."""
    count = len(chain)
    if depth + count > len(levels):
        return False
    for at in range(count):
        level = chain[at]
        if level != levels[depth + at] and level != _PLUS:
            return False
    return True


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
