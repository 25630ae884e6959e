"""Syntax and matching of topics, section 4.7 and 4.8.2 of v5."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt.topics import (
    filter_problem,
    levels_count,
    matches,
    overlap,
    split_shared,
    topic_problem,
)

MATCHING = [
    # examples of section 4.7.1.2
    ("sport/tennis/player1/#", "sport/tennis/player1"),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
    ("sport/#", "sport"),
    ("#", "a"),
    ("#", "a/b/c"),
    ("#", "/"),
    ("#", "/a"),
    # examples of section 4.7.1.3
    ("sport/tennis/+", "sport/tennis/player1"),
    ("sport/+", "sport/"),
    ("+", "finance"),
    ("+/+", "/finance"),
    ("/+", "/finance"),
    ("+/tennis/#", "a/tennis"),
    ("+/tennis/#", "/tennis/x/y"),
    # empty levels count
    ("/", "/"),
    ("+/+", "/"),
    ("a//b", "a//b"),
    ("a/+/b", "a//b"),
    ("a/#", "a/"),
    ("+/#", "a"),
    ("/#", "/"),
    ("/#", "/a"),
    ("+/+/#", "/"),
    # the rule for '$' looks at the first character of the filter only
    ("$SYS/#", "$SYS"),
    ("$SYS/#", "$SYS/broker/uptime"),
    ("$SYS/+", "$SYS/x"),
    ("$SYS/monitor/+", "$SYS/monitor/Clients"),
    ("a/+", "a/$SYS"),
    ("a/#", "a/$SYS/b"),
    ("#", "a/$SYS"),
    ("/#", "/$SYS"),
    ("+/$SYS", "/$SYS"),
    # no normalisation, spaces, case, whole characters
    ("ACCOUNTS", "ACCOUNTS"),
    ("a b/+", "a b/c d"),
    ("\u00e9", "\u00e9"),
    ("+", "\U0001f600"),
    ("+/x", "\ufeff/x"),
    ("+/+/+/+/+", "////"),
]

NOT_MATCHING = [
    ("sport/tennis/+", "sport/tennis/player1/ranking"),
    ("sport/+", "sport"),
    ("+", "/finance"),
    ("+", "/"),
    ("+", "a/"),
    ("a/+", "a"),
    ("a/+/#", "a"),
    ("/#", "a"),
    ("/+", "a"),
    ("+/a", "a"),
    ("sport/tennis/#", "sport"),
    ("sport/tennis/#", "sport/tennisx"),
    ("sport/#", "sports"),
    ("sport/#", "sports/a"),
    ("#", "$SYS"),
    ("#", "$SYS/broker"),
    ("+/monitor/Clients", "$SYS/monitor/Clients"),
    ("+", "$SYS"),
    ("+/#", "$SYS/a"),
    ("+/+", "$/a"),
    ("#", "$share/g/t"),
    ("$SYS/#", "$SYSTEM/a"),
    ("ACCOUNTS", "Accounts"),
    ("a", "a/"),
    ("a/", "a"),
    ("/a", "a"),
    ("a/b", "a/b/c"),
    ("a//b", "a/b"),
    ("\u00e9", "e\u0301"),  # the same letter, composed and not
    ("\ufeffa", "a"),
    ("+/b", "a/c"),
]


@pytest.mark.parametrize(("topic_filter", "topic"), MATCHING)
def test_filter_matches(topic_filter: str, topic: str) -> None:
    assert filter_problem(topic_filter) is None
    assert topic_problem(topic) is None
    assert matches(topic_filter, topic)


@pytest.mark.parametrize(("topic_filter", "topic"), NOT_MATCHING)
def test_filter_does_not_match(topic_filter: str, topic: str) -> None:
    assert filter_problem(topic_filter) is None
    assert topic_problem(topic) is None
    assert not matches(topic_filter, topic)


_levels = st.sampled_from(["", "a", "b", "$a", "a b"])


def _definition(wanted: list[str], levels: list[str]) -> bool:
    """Section 4.7.1 as a recursion over lists of levels, without the rule for '$'."""
    if not wanted:
        return not levels
    if wanted == ["#"]:
        return True
    if not levels:
        return False
    return wanted[0] in ("+", levels[0]) and _definition(wanted[1:], levels[1:])


@given(
    st.lists(_levels | st.just("+"), max_size=5),
    st.booleans(),
    st.lists(_levels, min_size=1, max_size=5),
)
def test_matching_agrees_with_the_definition(
    wanted: list[str], multi_level: bool, levels: list[str]
) -> None:
    if multi_level or not wanted:
        wanted = [*wanted, "#"]
    topic_filter, topic = "/".join(wanted), "/".join(levels)
    if not topic_filter or not topic:
        return
    hidden = topic[0] == "$" and topic_filter[0] in "+#"
    assert matches(topic_filter, topic) is (_definition(wanted, levels) and not hidden)


_few = ("a", "b", "$a")
_TOPICS = ["/".join(each) for size in range(1, 5) for each in itertools.product(_few, repeat=size)]
_filters = st.tuples(
    st.lists(st.sampled_from((*_few, "+")), max_size=3), st.sampled_from(([], ["#"]))
).map(lambda parts: "/".join([*parts[0], *parts[1]]) or "#")


@given(_filters, _filters)
def test_filters_overlap_if_there_is_a_topic_for_both(one: str, other: str) -> None:
    is_there = any(matches(one, topic) and matches(other, topic) for topic in _TOPICS)
    assert overlap(one, other) is overlap(other, one) is is_there


@given(st.lists(_levels, min_size=1, max_size=5))
def test_a_topic_matches_itself_as_a_filter(levels: list[str]) -> None:
    topic = "/".join(levels)
    assert matches(topic, topic)


VALID_FILTERS = [
    "a",
    "/",
    "#",
    "+",
    "+/+",
    "a/#",
    "/+/#",
    "$SYS/#",
    "$share",  # no slash: not the form of a shared filter
    "$shared/a",
    "$share/g/a",
    "$share/g/#",
    "$share/g/+/a",
    "$share/g//a",
    "$share/g//",
    "$share/$x/$SYS/#",
    "x" * 65_535,
    "/" * 65_535,
]

INVALID_FILTERS = [
    ("", "at least one character"),
    ("a#", "'#' must be a whole level"),
    ("#a", "'#' must be a whole level"),
    ("a/#b", "'#' must be a whole level"),
    ("##", "'#' must be a whole level"),
    ("+#", "'#' must be a whole level"),
    ("a/#/b", "'#' must be last"),
    ("#/", "'#' must be last"),
    ("#/#", "'#' must be last"),
    ("a+", "'\\+' must be a whole level"),
    ("+a/b", "'\\+' must be a whole level"),
    ("++", "'\\+' must be a whole level"),
    ("sport/+x/a", "'\\+' must be a whole level"),
    ("a\0b", "U\\+0000"),
    ("a\ud800", "surrogate"),
    ("x" * 65_536, "65536 bytes"),
    ("\u00e9" * 32_768, "65536 bytes"),
    ("$share/", "share name must be at least one character"),
    ("$share//a", "share name must be at least one character"),
    ("$share/g", "followed by '/'"),
    ("$share/g/", "followed by '/'"),
    ("$share/g+/a", "must not hold wildcards"),
    ("$share/#/a", "must not hold wildcards"),
    ("$share/+/a", "must not hold wildcards"),
    ("$share/g/a#", "'#' must be a whole level"),
    ("$share/g/#/a", "'#' must be last"),
]


@pytest.mark.parametrize("topic_filter", VALID_FILTERS, ids=lambda value: value[:20])
def test_valid_filter(topic_filter: str) -> None:
    assert filter_problem(topic_filter) is None


@pytest.mark.parametrize(
    ("topic_filter", "problem"), INVALID_FILTERS, ids=lambda value: ascii(value[:20])
)
def test_invalid_filter(topic_filter: str, problem: str) -> None:
    message = filter_problem(topic_filter)
    assert message is not None
    assert message.startswith("topic filter ")
    assert re.search(problem, message)
    assert len(message) < 300


@pytest.mark.parametrize("topic", ["a", "/", "//", "$SYS/a", "$share/g/t", " ", "a b", "\ufeff"])
def test_valid_topic(topic: str) -> None:
    assert topic_problem(topic) is None


@pytest.mark.parametrize(
    "topic", ["", "#", "+", "a/+", "a#b", "a\0", "\udfff", "x" * 65_536], ids=lambda t: ascii(t[:9])
)
def test_invalid_topic(topic: str) -> None:
    message = topic_problem(topic)
    assert message is not None and message.startswith("topic ") and len(message) < 300


@pytest.mark.parametrize(
    ("topic_filter", "parts"),
    [
        ("$share/g/t", ("g", "t")),
        ("$share/g//t", ("g", "/t")),
        ("$share/g/a/#", ("g", "a/#")),
        ("$share/g/$share/h/t", ("g", "$share/h/t")),
        ("$share/g/", None),
        ("$share/g", None),
        ("$share//t", None),
        ("$share/", None),
        ("$share", None),
        ("share/g/t", None),
        ("a/$share/g/t", None),
        ("$SHARE/g/t", None),
    ],
)
def test_split_shared(topic_filter: str, parts: tuple[str, str] | None) -> None:
    assert split_shared(topic_filter) == parts


@pytest.mark.parametrize(
    ("topic", "count"), [("a", 1), ("", 1), ("/", 2), ("a/b", 2), ("a//b/", 4), ("/" * 9, 10)]
)
def test_levels_count(topic: str, count: int) -> None:
    assert levels_count(topic) == count


def test_the_deepest_topics_do_not_recurse() -> None:
    topic = "/" * 65_535
    assert matches("+/" * 32_767 + "#", topic)
    assert matches("#", topic)
    assert not matches("+/" * 32_766 + "+", topic)
