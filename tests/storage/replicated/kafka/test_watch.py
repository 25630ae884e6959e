"""Is only an answer an answer: of the end of the log, of the topic's id, of a deletion?"""

from typing import Any

import pytest

from tests.storage.replicated.kafka.stand_ins import Clock, StandInAdmin

kafka: Any = pytest.importorskip("confluent_kafka")
client: Any = pytest.importorskip("storage.replicated.kafka.client")
watch: Any = pytest.importorskip("storage.replicated.kafka.watch")


class Desk:
    """A watch over servers that a test plays."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.heard: list[Any] = []
        self.watch = watch.Watch(client.Access(("a:1",)), "log", self.clock, self.heard.append)

    def ask(self, position: int = 0, *, is_wrong: bool = False, after_ms: int = 0) -> None:
        self.clock.ms += after_ms
        self.watch.ask(position, is_wrong=is_wrong)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> StandInAdmin:
    made = StandInAdmin()
    monkeypatch.setattr(watch, "AdminClient", lambda settings, logger: made)
    return made


@pytest.fixture
def desk(admin: StandInAdmin) -> Desk:
    return Desk()


def refused(code: int = kafka.KafkaError._TRANSPORT) -> Any:
    return kafka.KafkaException(kafka.KafkaError(code, "no way there"))


def test_the_end_is_asked_for_again_and_again(desk: Desk, admin: StandInAdmin) -> None:
    admin.end, admin.epoch = 7, 3
    desk.ask(5)
    assert desk.heard == [watch.End(7, 3, desk.clock(), 5)]
    desk.ask(5, after_ms=watch.ASK_MS - 1)
    assert len(desk.heard) == 1
    desk.ask(6, after_ms=1)
    assert desk.heard[1:] == [watch.End(7, 3, desk.clock(), 6)]


def test_one_question_waits_for_its_answer(desk: Desk, admin: StandInAdmin) -> None:
    admin.waiting = []
    desk.ask(5)
    asked_ms = desk.clock()
    desk.ask(6, after_ms=10 * watch.ASK_MS)
    assert len([found for _, found in admin.waiting if hasattr(found, "offset")]) == 1
    admin.answer()
    assert desk.heard == [watch.End(0, 0, asked_ms, 5)]
    desk.ask(6)
    assert len(desk.heard) == 2


def test_an_error_is_no_answer(desk: Desk, admin: StandInAdmin) -> None:
    admin.refusal = refused()
    desk.ask()
    assert desk.heard == []
    assert desk.watch.said.endswith("no way there")
    assert desk.watch.bounds(0) is None
    admin.refusal, admin.end = None, None  # an error of the partition alone
    desk.ask(after_ms=watch.ASK_MS)
    assert desk.heard == []
    assert desk.watch.said == "the leader of the partition does not answer"
    assert desk.watch.bounds(0) is None
    admin.end = 1
    desk.ask(after_ms=watch.ASK_MS)
    assert len(desk.heard) == 1
    assert desk.watch.said == ""


def test_the_bounds_are_looked_at(desk: Desk, admin: StandInAdmin) -> None:
    admin.start, admin.end, admin.epoch = 3, 9, None
    start, end = desk.watch.bounds(5)
    assert (start.offset, end.offset, end.epoch, end.position) == (3, 9, -1, 5)


def test_another_topic_of_the_same_name_is_told_once(desk: Desk, admin: StandInAdmin) -> None:
    desk.ask()
    assert not desk.watch.is_other_topic()
    admin.id = "second"
    desk.ask(after_ms=watch.ASK_ID_MS - 1)
    assert not desk.watch.is_other_topic()
    desk.ask(after_ms=1)
    assert desk.watch.is_other_topic()
    assert not desk.watch.is_other_topic()
    admin.id = "first"  # of a server that was away
    desk.ask(after_ms=watch.ASK_ID_MS)
    assert not desk.watch.is_other_topic()


def test_the_id_is_asked_for_soon_where_something_is_wrong(desk: Desk, admin: StandInAdmin) -> None:
    desk.ask()
    admin.id = "second"
    desk.ask(after_ms=watch.ASK_ID_SOON_MS, is_wrong=True)
    assert desk.watch.is_other_topic()


def test_a_topic_that_is_gone_is_told(desk: Desk, admin: StandInAdmin) -> None:
    desk.ask()
    admin.refusal = refused(kafka.KafkaError.UNKNOWN_TOPIC_OR_PART)
    desk.ask(after_ms=watch.ASK_ID_MS)
    assert not desk.watch.is_other_topic()
    assert desk.watch.said.startswith("topic log: ")


def test_records_are_deleted_once(desk: Desk, admin: StandInAdmin) -> None:
    desk.watch.delete_before(4)
    desk.watch.delete_before(3)
    for _ in range(2):
        desk.ask(after_ms=watch.ASK_ID_SOON_MS)
    assert admin.deleted == [4]
    desk.watch.delete_before(6)
    desk.ask(after_ms=watch.ASK_ID_SOON_MS)
    assert admin.deleted == [4, 6]


def test_a_deletion_that_fails_is_tried_again(desk: Desk, admin: StandInAdmin) -> None:
    admin.refusal = refused()
    desk.watch.delete_before(4)
    desk.ask()
    assert admin.deleted == [4]
    assert desk.watch.said.startswith("deletion of records: ")
    admin.refusal = None
    desk.ask(after_ms=watch.ASK_ID_SOON_MS - 1)
    assert admin.deleted == [4]
    for _ in range(2):
        desk.ask(after_ms=watch.ASK_ID_SOON_MS)
    assert admin.deleted == [4, 4]


def test_without_a_client_nothing_is_heard(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(settings: Any, logger: Any) -> None:
        raise OSError("password_file p: No such file")

    monkeypatch.setattr(watch, "AdminClient", fail)
    desk.ask()
    assert desk.heard == []
    assert desk.watch.said == "password_file p: No such file"
    assert desk.watch.bounds(0) is None
