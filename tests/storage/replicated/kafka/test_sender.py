"""Is the outcome of every append told, whatever becomes of the producer?"""

import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.replicated.log_port import Acked, Event, Unknown
from tests.storage.replicated.kafka.stand_ins import (
    PATIENCE_S,
    Clock,
    StandInMessage,
    StandInProducer,
)

kafka: Any = pytest.importorskip("confluent_kafka")
client: Any = pytest.importorskip("storage.replicated.kafka.client")
inbox: Any = pytest.importorskip("storage.replicated.kafka.inbox")
sender: Any = pytest.importorskip("storage.replicated.kafka.sender")


class Desk:
    """A sender, its inbox and the producers that it has made."""

    def __init__(self, **access: Any) -> None:
        self.box = inbox.Inbox(Clock())
        self.sender = sender.Sender(client.Access(("a:1",), **access), "log", self.box)
        self.sender.start()

    def producer(self) -> StandInProducer:
        return StandInProducer.made[-1]

    def events(self, count: int) -> list[Event]:
        """Return so many events, which may still be on their way."""
        found: list[Event] = []
        while len(found) < count:
            assert select.select([self.box.fileno()], [], [], PATIENCE_S)[0]
            found += self.box.take()
        return found


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(sender, "Producer", StandInProducer)
    StandInProducer.made.clear()
    made = Desk()
    yield made
    made.sender.close(PATIENCE_S)
    made.box.close()


def failed(code: int = kafka.KafkaError._FATAL, text: str = "fenced") -> Any:
    return kafka.KafkaError(code, text, fatal=code == kafka.KafkaError._FATAL)


def test_an_append_is_acknowledged_by_its_outcome(desk: Desk) -> None:
    for number in range(3):
        desk.sender.append(b"%d" % number, number or None)
    assert [data for data, _ in desk.producer().sent] == [b"0", b"1", b"2"]
    for number in range(3):
        desk.producer().answers(number, place=10 + number)
    assert desk.events(2) == [Acked(1, 11), Acked(2, 12)]


@pytest.mark.parametrize("place", [-1001, -1])
def test_without_its_place_an_outcome_is_unknown(desk: Desk, place: int) -> None:
    desk.sender.append(b"a", 1)
    desk.producer().answers(0, place=place)
    assert desk.events(1) == [Unknown(1, sender.NOWHERE)]


def test_the_producer_promises_order_and_all_replicas(desk: Desk) -> None:
    settings = desk.producer().settings
    assert settings["enable.idempotence"] is True
    assert settings["acks"] == "all"
    assert settings["linger.ms"] == 0
    kafka.Producer({key: value for key, value in settings.items() if key != "error_cb"})


def test_an_error_makes_an_outcome_unknown(desk: Desk) -> None:
    desk.sender.append(b"a", 1)
    desk.producer().answers(0, failed(kafka.KafkaError._MSG_TIMED_OUT, "timed out"))
    assert desk.events(1) == [Unknown(1, "timed out")]
    assert len(StandInProducer.made) == 1


def test_a_full_queue_makes_an_outcome_unknown(desk: Desk) -> None:
    desk.producer().refusal = BufferError("Local: Queue full")
    desk.sender.append(b"a", 1)
    desk.sender.append(b"b", None)
    assert desk.events(1) == [Unknown(1, sender.FULL)]


def test_whoever_sends_again_what_is_refused_does_not_spin(desk: Desk) -> None:
    desk.producer().refusal = BufferError("Local: Queue full")
    for number in range(100):
        desk.sender.append(b"a", number)
        assert desk.box.take() == []
    began = time.monotonic()
    for _ in range(3):
        for token in [event.token for event in desk.events(100) if isinstance(event, Unknown)]:
            desk.sender.append(b"a", token)
    assert time.monotonic() - began > 2 * sender.AGAIN_S


def test_a_record_that_is_too_large_is_told(desk: Desk) -> None:
    too_large = failed(kafka.KafkaError.MSG_SIZE_TOO_LARGE, "too large")
    desk.producer().refusal = kafka.KafkaException(too_large)
    desk.sender.append(b"a", 1)
    assert desk.events(1) == [Unknown(1, "too large")]


def test_why_nothing_can_be_appended_is_known_until_something_is(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E.g. the user may read the topic and not write to it: then the node never leads."""
    desk.sender.append(b"a", 1)
    desk.producer().answers(0, failed(kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED, "not allowed"))
    desk.events(1)
    assert desk.sender.refusal == ""
    monkeypatch.setattr(sender, "FAILING_S", -1.0)
    assert desk.sender.refusal == "not allowed"
    desk.sender.append(b"b", 2)
    desk.producer().answers(1)
    desk.events(1)
    assert desk.sender.refusal == ""


def test_that_nothing_is_acknowledged_is_known_until_something_is(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E.g. too few servers are in sync: the producer tries again and again, and tells nobody."""
    monkeypatch.setattr(sender, "FAILING_S", -1.0)
    assert desk.sender.refusal == ""
    desk.sender.append(b"a", None)  # of which nobody awaits an outcome
    assert desk.sender.refusal == ""
    desk.sender.append(b"b", 1)
    assert desk.sender.refusal == sender.UNANSWERED
    monkeypatch.setattr(sender, "FAILING_S", 60.0)
    assert desk.sender.refusal == ""
    monkeypatch.setattr(sender, "FAILING_S", -1.0)
    desk.producer().answers(1)
    desk.events(1)
    assert desk.sender.refusal == ""


@pytest.mark.parametrize("is_late", [False, True])
def test_after_a_fatal_error_another_producer_goes_on(desk: Desk, is_late: bool) -> None:
    desk.sender.append(b"a", 1)
    desk.sender.append(b"b", 2)
    old = desk.producer()
    problem: Exception = kafka.KafkaException(failed())
    if is_late:
        problem, problem.__cause__ = SystemError("raised late"), problem
    old.fails(problem)
    assert desk.events(2) == [Unknown(1, "fenced"), Unknown(2, "fenced")]
    until_another_than(old, desk)
    assert old.is_purged
    old.sent[0][1](None, StandInMessage(0))  # heard late
    desk.sender.append(b"c", 3)
    desk.producer().answers(0)
    assert desk.events(1) == [Acked(3, 0)]


def test_an_outcome_that_is_fatal_ends_the_producer(desk: Desk) -> None:
    desk.sender.append(b"a", 1)
    desk.sender.append(b"b", 2)
    old = desk.producer()
    old.answers(0, failed())
    assert desk.events(2) == [Unknown(1, "fenced"), Unknown(2, sender.FAILED)]
    until_another_than(old, desk)


def test_an_append_that_is_refused_for_good_ends_the_producer(desk: Desk) -> None:
    old = desk.producer()
    old.refusal = kafka.KafkaException(failed())
    desk.sender.append(b"a", 1)
    assert desk.events(1) == [Unknown(1, "fenced")]
    until_another_than(old, desk)


def test_it_can_be_told_to_begin_anew(desk: Desk) -> None:
    desk.sender.append(b"a", 1)
    old = desk.producer()
    desk.sender.renew("another topic")
    assert desk.events(1) == [Unknown(1, "another topic")]
    until_another_than(old, desk)


def until_another_than(old: StandInProducer, desk: Desk) -> None:
    """Wait until appends go to another producer: they are unknown before that."""
    while True:
        desk.sender.append(b"probe", 99)
        if desk.producer() is not old and desk.producer().sent:
            desk.producer().sent.clear()
            desk.box.take()
            return
        desk.box.take()


def test_at_its_end_what_was_not_heard_is_unknown(desk: Desk) -> None:
    desk.sender.append(b"a", 1)
    desk.sender.close(PATIENCE_S)
    assert desk.box.take() == [Unknown(1, "closed")]


def test_without_its_password_nothing_is_sent_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sender, "Producer", StandInProducer)
    monkeypatch.setattr(sender, "RETRY_S", 0.001)
    StandInProducer.made.clear()
    file = tmp_path / "password"
    desk = Desk(username="u", password_file=str(file))
    desk.sender.append(b"a", 1)
    (event,) = desk.events(1)
    assert event == Unknown(1, f"password_file {file}: No such file or directory")
    file.write_text("secret\n")
    while not StandInProducer.made:
        desk.sender.append(b"b", 2)
    assert desk.producer().settings["sasl.password"] == "secret"
    desk.sender.close(PATIENCE_S)
    desk.box.close()
