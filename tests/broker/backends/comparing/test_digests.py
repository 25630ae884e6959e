"""Does a digest depend on everything that it is made of, and on nothing else?"""

import pytest

from broker.backends.comparing import digests

FIELDS = {
    "number": 7,
    "topic": b"t",
    "publisher": b"p",
    "qos": 1,
    "payload": b"x",
    "retain": False,
    "accepted_s": 5,
}
OTHERS = {
    "number": 8,
    "topic": b"u",
    "publisher": b"q",
    "qos": 2,
    "payload": b"",
    "retain": True,
    "accepted_s": 6,
}


def message(**fields: object) -> int:
    told = {**FIELDS, **fields}
    number, topic, publisher, qos, payload = (
        told.pop(name) for name in ("number", "topic", "publisher", "qos", "payload")
    )
    return digests.message_digest(number, topic, publisher, qos, payload, **told)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_a_message_counts(name: str) -> None:
    assert message() == message()
    assert message(**{name: OTHERS[name]}) != message()


def test_where_a_part_ends_counts() -> None:
    assert digests.digest(b"ab", b"c") != digests.digest(b"a", b"bc")
    assert digests.name_of("client", b"a", b"b") != digests.name_of("client", b"ab")
    assert digests.name_of("client", b"a") != digests.name_of("retained", b"a")
    assert len(digests.name_of("client", b"a" * 70_000)) == digests.NAME_BYTES


def test_a_retained_message_is_the_same_after_a_backfill() -> None:
    """Its id ends in the number of an event, which is another one then."""
    stamp = 5 << digests.STAMP_SHIFT
    one = digests.retained_digest(stamp | 1, b"t", b"p", 1, b"x")
    assert digests.retained_digest(stamp | 2, b"t", b"p", 1, b"x") == one
    later = 6 << digests.STAMP_SHIFT
    assert digests.retained_digest(later | 1, b"t", b"p", 1, b"x") != one


def test_subscriptions_and_clients_and_places_have_their_own() -> None:
    found = {
        digests.subscription_digest(b"c", b"f", 1),
        digests.subscription_digest(b"c", b"f", 2),
        digests.subscription_digest(b"cf", b"", 1),
        digests.presence_digest(b"c", 1),
        digests.presence_digest(b"c", 2),
        digests.index_digest(1, b"t"),
        digests.index_digest(2, b"t"),
        digests.index_digest(1, b"u"),
    }
    assert len(found) == 8
