"""Topic filters against topics: the table of MQTT 4.7, and a comparison with the slow way."""

import random

import pytest

from audit.checks.topic_matching import Trie, without_share


@pytest.mark.parametrize(
    ("tfilter", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/B", False),
        ("a/b", "a", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("a/+", "a/b/c", False),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("#", "a/b", True),
        ("#", "$SYS/load", False),
        ("+/load", "$SYS/load", False),
        ("$SYS/#", "$SYS/load", True),
        ("$SYS/+", "$SYS/load", True),
        ("$SYS/#", "$SYS", True),
        ("a/+/#", "a/$x", True),
        ("+/#", "a", True),
    ],
)
def test_wildcards_match_as_the_specification_says(
    tfilter: str, topic: str, expected: bool
) -> None:
    assert Trie([(tfilter, 5)]).match(topic) == ([5] if expected else [])


def matches(tfilter: list[str], topic: list[str]) -> bool:
    if tfilter and tfilter[0] == "#":
        return True
    if not tfilter or not topic:
        return not tfilter and not topic
    return tfilter[0] in ("+", topic[0]) and (
        matches(tfilter[1:], topic[1:]) or (tfilter[1:] == ["#"] and len(topic) == 1)
    )


def test_a_trie_finds_what_comparing_every_filter_finds() -> None:
    rng = random.Random(5)
    filters = []
    for number in range(200):
        levels = [rng.choice(["a", "b", "", "+"]) for _ in range(rng.randint(1, 4))]
        if rng.random() < 0.4:
            levels.append("#")
        filters.append(("/".join(levels), number))
    trie = Trie(filters)
    for _ in range(200):
        topic = "/".join(rng.choice(["a", "b", "", "c"]) for _ in range(rng.randint(1, 5)))
        slow = [number for f, number in filters if matches(f.split("/"), topic.split("/"))]
        assert trie.match(topic) == slow, topic


def test_a_shared_subscription_matches_like_its_filter() -> None:
    assert without_share("$share/group/a/#") == "a/#"
    assert without_share("a/$share/b") == "a/$share/b"
