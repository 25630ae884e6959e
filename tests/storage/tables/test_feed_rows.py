"""Is a row of feed events what is on disk, and read back exactly or not at all?"""

import pytest

from mqtt.message import Message
from storage.errors import CorruptRecord
from storage.tables import feed_rows
from storage.tables.feed_rows import (
    UNSTORED,
    FeedEvent,
    decode_event,
    decode_row,
    encode_event,
    encode_row,
    message_of,
    username_of,
)
from storage.tables.message_record import encode_message
from storage.tables.tables import seal
from tests.storage.log_cases import golden

EVENTS = [
    FeedEvent(feed_rows.CONNECTED, 1_763_711_111_111, 7, "clïent", username="ann"),
    FeedEvent(
        feed_rows.ACKED, 2, 2**40, "c", "täg/a", qos=2, offset=2**40, accepted_ms=1_763_711_111_000
    ),
    FeedEvent(feed_rows.RETAINED, 3, 8, "", "t", qos=1, offset=8, body=b"\0record"),
]
ROWS = {"one event": EVENTS[:1], "three events": EVENTS}
MESSAGE = Message("täg", b"\0payload", 0, False, b"", "c", 1_763_711_111_000, 0)
NEWER = {
    "a user name": [
        EVENTS[0],
        FeedEvent(
            feed_rows.SENT, 4, 8, "c", "t", qos=1, offset=8, body=b"m", client_username="änn"
        ),
        FeedEvent(
            feed_rows.ACKED, 5, 8, "c", "t", username="cache", body=b"m", client_username="b"
        ),
        EVENTS[1],
    ],
    "a message": [
        FeedEvent(
            feed_rows.PUBLISHED, 6, 9, "c", "täg", accepted_ms=5, body=encode_message(MESSAGE)
        )
    ],
}
EVERY = {**ROWS, **NEWER}
KEY = feed_rows.feed_key(258)


def fields(event: FeedEvent) -> tuple[object, ...]:
    """Return everything of an event."""
    about = (event.client_id, event.text, event.username, event.body, event.client_username)
    return event.kind, event.qos, event.at_ms, event.end, event.offset, event.accepted_ms, about


@pytest.mark.parametrize("case", EVERY)
def test_a_row_gives_its_events_back_with_their_numbers(case: str) -> None:
    found = decode_row(KEY, encode_row(EVERY[case]))
    assert [fields(event) for event in found] == [fields(event) for event in EVERY[case]]
    assert [event.seq for event in found] == list(range(258, 258 + len(found)))


@pytest.mark.parametrize("case", ROWS)
def test_the_format_is_the_one_on_disk(case: str) -> None:
    assert encode_row(ROWS[case]).hex() == golden("feed-row-v1.hex")[case].hex()


@pytest.mark.parametrize("case", NEWER)
def test_the_format_of_version_2_is_the_one_on_disk(case: str) -> None:
    assert encode_row(NEWER[case]).hex() == golden("feed-row-v2.hex")[case].hex()


def test_a_message_that_is_not_in_the_log_comes_back_with_the_number_of_its_event() -> None:
    (event,) = decode_row(KEY, encode_row(NEWER["a message"]))
    found = message_of(event)
    assert (found.topic, found.payload, found.qos, found.publisher) == ("täg", b"\0payload", 0, "c")
    assert found.offset == UNSTORED | 258
    event.body = event.body[:-1]
    with pytest.raises(CorruptRecord):
        message_of(event)


@pytest.mark.parametrize(
    "event, expected",
    [
        (FeedEvent(feed_rows.CONNECTED, 1, 1, "c", username="ann"), "ann"),
        (FeedEvent(feed_rows.SUBSCRIBED, 1, 1, "c", username="cache", client_username="b"), "b"),
        (FeedEvent(feed_rows.ACKED, 1, 1, "c", username="cache"), ""),
    ],
)
def test_a_backend_is_not_taken_for_a_user(event: FeedEvent, expected: str) -> None:
    assert username_of(event) == expected


def test_keys_sort_like_numbers() -> None:
    numbers = [0, 1, 255, 256, 2**40]
    assert sorted(map(feed_rows.feed_key, numbers)) == [feed_rows.feed_key(n) for n in numbers]
    assert [feed_rows.split_feed_key(feed_rows.feed_key(n)) for n in numbers] == numbers
    with pytest.raises(CorruptRecord, match="key of 9 bytes"):
        feed_rows.split_feed_key(bytes(9))


@pytest.mark.parametrize("case", ["three events", *NEWER])
def test_every_truncation_is_noticed(case: str) -> None:
    body = encode_row(EVERY[case])[4:]
    for size in range(len(body)):
        with pytest.raises(CorruptRecord):
            decode_row(KEY, seal(body[:size]))
        with pytest.raises(CorruptRecord):
            decode_row(KEY, encode_row(EVERY[case])[:size])
    with pytest.raises(CorruptRecord, match="expected"):
        decode_row(KEY, seal(body + b"\0"))


def test_a_kind_of_a_later_version_is_refused() -> None:
    data = bytes([feed_rows.KINDS[-1] + 1]) + encode_event(EVENTS[0])[1:]
    with pytest.raises(CorruptRecord, match="not known"):
        decode_event(data, 1)


def test_another_version_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="version 03"):
        decode_row(KEY, seal(b"\x03" + encode_row(EVENTS)[5:]))
