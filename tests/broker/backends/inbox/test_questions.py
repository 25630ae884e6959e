"""Do questions and answers survive the way between the broker and the process?"""

import json

import pytest

from broker.backends.inbox.questions import (
    PAYLOAD_BYTES_MAX,
    Page,
    Question,
    ask,
    first_id,
    messages_of,
    time_of,
)
from broker.backends.message_ids import message_id, unstored_id
from session.delivery.fetching.inbox import FetchRequest
from storage.tables.fetch_rows import PUBSUB, Copy, decode_copy, encode_copy
from tests.broker.backends.told_rows import NOW_MS
from tests.session.delivery.fetching.test_inbox import asked, fetching


def request() -> FetchRequest:
    """Return a request of an engine."""
    broker = fetching()
    broker.durable("clïent", "pubsub/ä")
    return asked(broker)


def test_a_question_says_what_the_request_says() -> None:
    made = request()
    question = Question(json.loads(json.dumps(ask(made, 7))))
    assert (question.run, question.kind, question.client_id) == (7, PUBSUB, "clïent")
    for name in ("number", "topic", "after", "count", "since", "began_ms", "not_before_ms"):
        assert getattr(question, name) == getattr(made, name), name


def test_an_answer_brings_its_messages() -> None:
    question = Question(ask(request(), 1))
    page = Page("a")
    assert page.add("m", {"payload": b"\xff", "qos": b"2", "ts": b"5", "from": b"app"}) == 2
    assert page.add("n", {"payload": b""}) == 1
    answer = json.loads(json.dumps(page.as_answer(question)))
    assert (answer["fetched"], answer["upto"], answer["more"]) == (question.number, "a", False)
    first, second = messages_of(answer, "cache")
    assert first.message_id == "m" and first.message.topic == "pubsub/ä"
    assert (first.message.payload, first.message.qos, first.message.publisher) == (
        b"\xff", 2, "app",
    )  # fmt: skip
    assert first.message.accepted_at_ms == 5000
    assert second.message.publisher == "cache"


@pytest.mark.parametrize("fields", [{}, {"qos": b"1"}, {"payload": bytes(PAYLOAD_BYTES_MAX + 1)}])
def test_what_is_no_message_is_left_out(fields: dict[str, bytes]) -> None:
    page = Page("")
    assert page.add("m", fields) == 0 and page.messages == []


@pytest.mark.parametrize("qos, expected", [(b"0", 0), (b"9", 2), (b"", 1), (b"-1", 1)])
def test_a_qos_is_one_of_three(qos: bytes, expected: int) -> None:
    page = Page("")
    page.add("m", {"payload": b"", "qos": qos, "ts": b"9" * 20})
    assert (page.messages[0]["qos"], page.messages[0]["at_ms"]) == (expected, 0)


@pytest.mark.parametrize(
    "text, ours",
    [
        (message_id(NOW_MS, 3, 6), True),
        (message_id(NOW_MS, 3, 5), False),  # before the subscription
        (message_id(NOW_MS - 1, 3, 6), False),  # of a database that is gone
        (message_id(NOW_MS, 4, 6), False),  # of another node
        # With QoS 0: it was sent to those who were there.
        (unstored_id(NOW_MS, 3, 6), True),
        (unstored_id(NOW_MS + 1, 3, 1), True),
        (unstored_id(NOW_MS - 1, 3, 6), False),
        (unstored_id(NOW_MS, 4, 6), False),
        ("m", False),
    ],
)
def test_messages_of_ours_are_those_after_the_subscription(text: str, ours: bool) -> None:
    told = {**ask(request(), 1), "since": 5, "began_ms": NOW_MS}
    assert Question(told).is_ours(text, 3) is ours


@pytest.mark.parametrize(
    "text, expected",
    [
        (message_id(1, 3, 1), True),
        (unstored_id(NOW_MS, 3, 6), True),
        (message_id(NOW_MS, 4, 6), False),
        ("m", False),
        ("", False),
    ],
)
def test_what_this_broker_has_written_is_known_by_its_id(text: str, expected: bool) -> None:
    assert Question(ask(request(), 1)).is_written_here(text, 3) is expected


@pytest.mark.parametrize(
    "message, ts, at_ms",
    [
        ("m", b"5", 5000),
        ("m", b"", 0),
        (message_id(5678, 1, 1), b"5", 5678),
        (message_id(5678, 1, 1), b"", 5678),
        (message_id(5678, 1, 1), b"6", 6000),  # written again later, under its old id
    ],
)
def test_a_retained_message_has_the_most_exact_time_that_there_is(
    message: str, ts: bytes, at_ms: int
) -> None:
    page = Page("")
    page.add_retained(message, {"payload": b"x", "ts": ts}, time_of(message), 70)
    (found,) = messages_of(page.as_answer(Question(ask(request(), 1))), "cache")
    assert (found.message.accepted_at_ms, found.expires_ms) == (at_ms, 70)


def test_a_retained_message_without_a_payload_is_none() -> None:
    page = Page("")
    page.add_retained("m", {"ts": b"5"}, 0, 0)
    assert page.messages == []


@pytest.mark.parametrize("publisher", [b"p" * 65_536, b"\xff" * 30_000, b"\xff" * 200_000])
def test_a_publisher_that_is_no_text_of_mqtt_is_left_out(publisher: bytes) -> None:
    page = Page("")
    page.add("m", {"payload": b"x", "from": publisher})
    (found,) = messages_of(page.as_answer(Question(ask(request(), 1))), "cache")
    assert found.message.publisher == "cache"
    assert decode_copy(encode_copy(Copy(found.message, 0, None))).message.publisher == "cache"


def test_ids_have_a_time() -> None:
    assert time_of(first_id(NOW_MS)) == NOW_MS
    assert first_id(0) == ""
    assert time_of("m") == time_of("-" * 20) == 0
