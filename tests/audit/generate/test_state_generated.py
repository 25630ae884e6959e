"""The data of the model."""

import zlib

import pytest

from audit.generate.state import Client, Session, Subscription, matches


@pytest.mark.parametrize(
    ("tfilter", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/+", "a/b", True),
        ("a/+", "a/b/c", False),
        ("a/+", "a", False),
        ("a/#", "a/b/c", True),
        ("a/#", "a", True),
        ("#", "a/b", True),
        ("+/b", "a/b", True),
        ("a/b/c", "a/b", False),
    ],
)
def test_filters_match_level_by_level(tfilter: str, topic: str, expected: bool) -> None:
    assert matches(tfilter, topic) is expected


def test_packet_ids_in_use_are_passed_over() -> None:
    session = Session(1, Client("c", "", 5, 0))
    session.next_pid = 65534
    assert session.take_pid() == 65535
    session.flights[1] = session.flights[2] = None  # type: ignore[assignment]
    assert session.take_pid() == 3


def test_the_check_of_subscriptions_is_the_sum_of_their_checksums() -> None:
    session = Session(1, Client("c", "", 5, 0))
    for tfilter, qos in (("a/b", 1), ("$share/g/c", 2)):
        session.subs[tfilter] = Subscription(tfilter, qos, False)
    assert session.subs_check == zlib.crc32(b"a/b\x001") + zlib.crc32(b"$share/g/c\x002")
    assert session.subs["$share/g/c"].plain == "c"
