"""Streams are counted together only if they have messages in common."""

from broker.operations.sessions import overlaps
from broker.operations.sessions.overlaps import apart
from storage.log.message_log import Stream


def grouped(*topic_filters: str) -> list[list[str]]:
    streams = [Stream(number + 1, each, 0) for number, each in enumerate(topic_filters)]
    return sorted(sorted(each.topic_filter for each in group) for group in apart(streams))


def test_filters_without_wildcards_are_apart() -> None:
    assert grouped("a", "b", "a/b") == [["a"], ["a/b"], ["b"]]


def test_filters_that_may_match_the_same_topic_are_together() -> None:
    assert grouped("a/#", "a/b", "c", "+/b") == [["+/b", "a/#", "a/b"], ["c"]]
    assert grouped("x/+", "y/+", "#") == [["#", "x/+", "y/+"]]
    assert grouped("x/#", "y/#") == [["x/#"], ["y/#"]]


def test_very_many_are_not_compared() -> None:
    count = int(overlaps.COMPARED_MAX**0.5) + 1
    (group,) = grouped(*[f"t{number}/#" for number in range(count)])
    assert len(group) == count
