"""Match many topics with many topic filters, by MQTT section 4.7.

Filters are in a trie of levels, so matching a topic takes about as many steps as it has levels,
however many filters there are. Give shared subscriptions without their `$share/name/`.
"""

from collections.abc import Iterable


class Trie:
    """Topic filters, each with a number; `match` returns the numbers of those that match."""

    def __init__(self, filters: Iterable[tuple[str, int]]) -> None:
        # A node is [children by level, numbers of filters that end here, numbers of `.../#`].
        self._root: _Node = ({}, [], [])
        for tfilter, number in filters:
            self._add(tfilter.split("/"), number)

    def _add(self, levels: list[str], number: int) -> None:
        node = self._root
        for level in levels:
            if level == "#":
                node[2].append(number)
                return
            node = node[0].setdefault(level, ({}, [], []))
        node[1].append(number)

    def match(self, topic: str) -> list[int]:
        """Return the numbers of the filters that match `topic`, sorted.

        `#` matches its parent too. A leading `#` or `+` does not match topics that begin with `$`
        [MQTT-4.7.2-1].
        """
        found: list[int] = []
        levels = topic.split("/")
        nodes = [self._root]
        for depth, level in enumerate(levels):
            wild = depth > 0 or not topic.startswith("$")
            following: list[_Node] = []
            for children, _, tails in nodes:
                if wild:
                    found += tails
                    if "+" in children:
                        following.append(children["+"])
                if level in children:
                    following.append(children[level])
            nodes = following
        for _, ends, tails in nodes:
            found += ends
            found += tails
        return sorted(found)


_Node = tuple[dict[str, "_Node"], list[int], list[int]]


def without_share(tfilter: str) -> str:
    """Return the filter without `$share/name/` if it is shared, otherwise unchanged."""
    if not tfilter.startswith("$share/"):
        return tfilter
    return tfilter.partition("/")[2].partition("/")[2]
