"""Is everything read once and in order, and does nobody believe to have heard what it has not?"""

from collections.abc import Iterator
from typing import Any

import pytest

from storage.replicated.log_port import CaughtUp, Event, Missing, Read, Shrunk
from tests.storage.replicated.kafka.stand_ins import (
    Clock,
    StandInAdmin,
    StandInConsumer,
    StandInMessage,
    kinds,
)

kafka: Any = pytest.importorskip("confluent_kafka")
client: Any = pytest.importorskip("storage.replicated.kafka.client")
inbox: Any = pytest.importorskip("storage.replicated.kafka.inbox")
reader: Any = pytest.importorskip("storage.replicated.kafka.reader")
watch: Any = pytest.importorskip("storage.replicated.kafka.watch")

KafkaError: Any = kafka.KafkaError
KafkaException: Any = kafka.KafkaException


class Desk:
    """A reader whose rounds a test makes, and the servers that it plays."""

    def __init__(self, admin: StandInAdmin, place: int = 0) -> None:
        self.admin = admin
        self.clock = Clock()
        self.box = inbox.Inbox(self.clock)
        self.renewed: list[str] = []
        access = client.Access(("a:1",), "n1")
        self.reader = reader.Reader(access, "log", place, self.box, self.clock, self.renewed.append)

    @property
    def consumer(self) -> StandInConsumer:
        return StandInConsumer.made[-1]

    def place(self) -> int:
        """Return from where the consumer was told to read."""
        return int(self.consumer.assigned[0].offset)

    def gives(self, *places: int, epoch: int = 0) -> None:
        """Have the consumer give these records."""
        self.consumer.messages += [StandInMessage(each, b"%d" % each, epoch) for each in places]

    def fails(self, code: int, text: str = "", place: int = 0) -> None:
        """Have the consumer give an error."""
        self.consumer.messages.append(StandInMessage(place, error=KafkaError(code, text)))

    def round(self, *, after_ms: int = 0) -> list[Event]:
        """Make a round; return what it has told."""
        self.clock.ms += after_ms
        self.reader.step()
        return list(self.box.take())

    def asked(self) -> list[Event]:
        """Make a round in which the end is asked for."""
        return self.round(after_ms=watch.ASK_MS)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    admin = StandInAdmin()
    monkeypatch.setattr(watch, "AdminClient", lambda settings, logger: admin)
    monkeypatch.setattr(reader, "Consumer", lambda settings, logger: StandInConsumer(settings))
    for name in ("RETRY_S", "LOOK_AGAIN_S", "POLL_S"):
        monkeypatch.setattr(reader, name, 0)
    StandInConsumer.made.clear()
    made = Desk(admin)
    made.round()
    yield made
    made.box.close()


def read(desk: Desk, *places: int, epoch: int = 0) -> None:
    """Have records read, and the end of the log be behind them."""
    desk.gives(*places, epoch=epoch)
    desk.admin.end, desk.admin.epoch = places[-1] + 1, epoch
    assert desk.asked()[-1] == CaughtUp(places[-1] + 1)


def test_records_come_once_and_in_order(desk: Desk) -> None:
    desk.admin.end = 9
    desk.gives(0, 1)
    assert desk.round() == [Read(0, b"0"), Read(1, b"1")]
    desk.gives(1, 2, 5)
    assert desk.round() == [Read(2, b"2"), Read(5, b"5")]


def test_a_node_that_is_not_let_in_comes_again_with_new_clients(desk: Desk) -> None:
    """Is a password that was corrected read without a restart?"""
    read(desk, 0, 1)
    refusal = KafkaError(KafkaError._AUTHENTICATION, "wrong password")
    desk.reader._note(refusal)
    desk.round(after_ms=reader.REFUSED_MS - 1)
    assert (desk.reader.said, desk.renewed) == ("", [])  # another server has answered
    desk.admin.refusal = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    desk.reader._note(refusal)
    desk.round(after_ms=reader.REFUSED_MS)
    desk.reader._note(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert (desk.reader.said, desk.renewed) == ("wrong password", [])
    first = desk.consumer
    desk.round(after_ms=1)
    desk.round()
    assert desk.renewed == ["wrong password"]
    assert first.is_closed and desk.consumer is not first and desk.place() == 2
    desk.round(after_ms=reader.REFUSED_MS)
    assert len(desk.renewed) == 1
    desk.admin.refusal = None
    assert desk.asked() == [CaughtUp(2)]
    assert desk.reader.said == ""


def test_it_has_caught_up_when_the_leader_says_so(desk: Desk) -> None:
    desk.gives(0, 1)
    desk.admin.end = 3
    assert kinds(desk.asked()) == ["Read", "Read"]
    assert desk.asked() == []
    desk.gives(2)
    assert desk.round() == [Read(2, b"2"), CaughtUp(3)]
    assert desk.round() == []
    assert desk.asked() == [CaughtUp(3)]


def test_more_than_the_leader_spoke_of_is_everything_too(desk: Desk) -> None:
    desk.admin.end = 2
    desk.asked()
    desk.gives(0, 1, 2)
    assert desk.round()[-1] == CaughtUp(3)


def test_cut_off_it_never_says_that_it_has_caught_up(desk: Desk) -> None:
    read(desk, 0)
    desk.admin.refusal = kafka.KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))
    for _ in range(20):
        assert desk.asked() == []
    assert "no answer" in desk.reader.said
    desk.admin.refusal = None
    assert desk.asked() == [CaughtUp(1)]
    assert desk.reader.said == ""


def test_an_answer_that_came_late_is_not_believed(desk: Desk) -> None:
    desk.admin.waiting = []
    desk.asked()
    desk.clock.ms += inbox.FRESH_MS + 1
    desk.admin.answer()
    assert desk.round() == [CaughtUp(0)]  # of the question after it
    desk.admin.end = 1
    desk.asked()
    desk.clock.ms += inbox.FRESH_MS + 1
    desk.admin.end = 2
    desk.gives(0)
    assert desk.round() == [Read(0, b"0")]


def test_a_leader_that_was_deposed_is_not_believed(desk: Desk) -> None:
    read(desk, 0, 1, 2, epoch=5)
    desk.admin.end, desk.admin.epoch = 3, 4
    assert desk.asked() == []
    desk.admin.end = 2  # it has less, which is no loss
    for _ in range(5):
        assert desk.asked() == []
    desk.admin.end, desk.admin.epoch = 3, 5
    assert kinds(desk.asked() + desk.asked()) == ["CaughtUp"]


def test_a_new_leader_is_not_believed_until_its_log_was_compared(desk: Desk) -> None:
    read(desk, 0, 1, 2, epoch=4)
    desk.admin.epoch = 5
    for _ in range(3):
        assert desk.asked() == []
    assert len(StandInConsumer.made) == 1
    desk.round(after_ms=reader.CHECK_MS)
    desk.asked()
    assert (desk.place(), len(StandInConsumer.made)) == (3, 2)
    assert desk.consumer.assigned[0].leader_epoch == 4
    assert desk.asked() == []
    desk.fails(KafkaError._PARTITION_EOF, place=3)
    assert desk.round() == [CaughtUp(3)]
    for _ in range(3):
        assert desk.asked() == [CaughtUp(3)]
    assert len(StandInConsumer.made) == 2


def test_a_record_of_a_new_leader_is_enough(desk: Desk) -> None:
    read(desk, 0, 1, 2, epoch=4)
    desk.admin.epoch, desk.admin.end = 5, 4
    assert desk.asked() == []
    desk.gives(3, epoch=5)
    assert desk.round() == [Read(3, b"3"), CaughtUp(4)]
    desk.round(after_ms=2 * reader.CHECK_MS)
    assert len(StandInConsumer.made) == 1


def test_a_new_leader_that_has_less_but_as_many_is_told(desk: Desk) -> None:
    read(desk, 0, 1, 2, epoch=4)
    desk.admin.epoch = 5
    assert desk.asked() == []
    desk.fails(KafkaError._LOG_TRUNCATION, "truncation detected: broker end offset is 1")
    assert desk.round() == [Shrunk(1)]


def test_once_something_does_not_fit_nothing_more_is_read(desk: Desk) -> None:
    read(desk, 0, 1, 2)
    desk.admin.end, desk.admin.waiting = 1, []
    assert desk.asked() == []
    desk.gives(3)
    desk.admin.answer()
    assert desk.round() == [Shrunk(1)]


def test_the_end_of_the_partition_may_be_behind_what_can_be_read(desk: Desk) -> None:
    read(desk, 0)
    desk.admin.end = 2  # a marker of a transaction, which nobody reads
    assert desk.asked() == []
    desk.fails(KafkaError._PARTITION_EOF, place=2)
    assert desk.round() == [CaughtUp(2)]


def test_records_that_were_deleted_are_missing_and_nothing_more_is_read(desk: Desk) -> None:
    desk.admin.start, desk.admin.end = 5, 9
    desk.fails(KafkaError._AUTO_OFFSET_RESET, "out of range")
    assert desk.round() == [Missing(5)]
    assert desk.consumer.is_closed
    for _ in range(3):
        assert desk.asked() == []
    assert len(StandInConsumer.made) == 1


def test_a_log_that_is_shorter_has_shrunk_and_is_read_from_its_end(desk: Desk) -> None:
    read(desk, 0, 1, 2)
    desk.admin.end, desk.admin.epoch = 1, 1
    assert desk.asked() == [Shrunk(1)]
    desk.round()
    assert desk.place() == 1
    read(desk, 1, epoch=1)


def test_a_place_behind_the_end_is_told_at_the_start(desk: Desk) -> None:
    late = Desk(desk.admin, 100)
    desk.admin.end = 7
    assert late.round() == [Shrunk(7)]
    late.box.close()


def test_a_log_that_shrank_and_grew_again_is_read_from_where_it_was_cut(desk: Desk) -> None:
    read(desk, 0, 1, 2, 3)
    desk.admin.end, desk.admin.epoch = 50, 1
    desk.fails(
        KafkaError._AUTO_OFFSET_RESET,
        "Partition log truncation detected at offset 4: broker end offset is 2 (offset leader "
        "epoch 0). Reset to INVALID.",
    )
    assert desk.round() == [Shrunk(2)]
    desk.round()
    assert desk.place() == 2


def test_where_it_cannot_be_told_the_node_finds_out_by_what_is_there(desk: Desk) -> None:
    read(desk, 0, 1, 2, 3)
    desk.admin.start, desk.admin.end = 1, 50
    desk.fails(KafkaError._LOG_TRUNCATION, "truncated")
    assert desk.round() == [Shrunk(50, start=1)]


def test_a_place_that_was_not_there_for_a_moment_is_no_loss(desk: Desk) -> None:
    read(desk, 0, 1)
    desk.fails(KafkaError.OFFSET_OUT_OF_RANGE, "out of range")
    assert desk.round() == []
    desk.round()
    assert (desk.place(), len(StandInConsumer.made)) == (2, 2)
    assert desk.asked() == [CaughtUp(2)]


def test_nothing_is_told_while_the_bounds_cannot_be_had(desk: Desk) -> None:
    read(desk, 0, 1)
    desk.fails(KafkaError._AUTO_OFFSET_RESET, "out of range")
    desk.admin.refusal = kafka.KafkaException(KafkaError(KafkaError._TRANSPORT, "down"))
    for _ in range(5):
        assert desk.asked() == []
    desk.admin.refusal, desk.admin.start = None, 5
    desk.admin.end = 9
    assert desk.asked() == [Missing(5)]


def test_another_topic_of_the_same_name_has_lost_everything(desk: Desk) -> None:
    read(desk, 0, 1, 2, epoch=4)
    desk.admin.id, desk.admin.epoch, desk.admin.end = "second", 0, 30
    assert Shrunk(0) in desk.round(after_ms=watch.ASK_ID_MS)
    assert desk.renewed == ["topic log was deleted and made again"]
    desk.round()
    assert desk.place() == 0
    read(desk, *range(30))


def test_a_consumer_that_is_stuck_is_made_anew(desk: Desk) -> None:
    read(desk, 0)
    desk.admin.end = 2
    desk.round(after_ms=reader.STUCK_MS - 1)
    assert len(StandInConsumer.made) == 1
    desk.round(after_ms=2)
    desk.round()
    assert (desk.place(), len(StandInConsumer.made)) == (1, 2)
    read(desk, 1)


def test_one_that_is_only_idle_stays(desk: Desk) -> None:
    read(desk, 0)
    for _ in range(10):
        desk.round(after_ms=reader.STUCK_MS)
    assert len(StandInConsumer.made) == 1


def test_a_consumer_that_fails_is_made_anew(desk: Desk) -> None:
    read(desk, 0)

    def fail(seconds: float) -> None:
        raise kafka.KafkaException(KafkaError(KafkaError._FATAL, "broken"))

    desk.consumer.poll = fail  # type: ignore[method-assign,assignment]
    desk.round()
    assert desk.consumer.is_closed
    desk.round()
    assert (desk.place(), len(StandInConsumer.made)) == (1, 2)


def test_no_more_is_read_than_can_be_kept(desk: Desk) -> None:
    desk.admin.end = 9
    desk.box.put([Read(0, bytes(inbox.BYTES_MAX))])
    desk.gives(0)
    desk.reader.step()
    assert len(desk.consumer.messages) == 1
    desk.box.take()
    assert desk.round() == [Read(0, b"0")]


def test_it_reads_on_from_elsewhere_and_tells_nothing_from_where_it_was(desk: Desk) -> None:
    desk.admin.end = 9
    desk.gives(0, 1, 2, 3)
    desk.reader.step()
    desk.reader.read_from(2)
    desk.gives(4)
    assert desk.round() == []
    assert desk.place() == 2
    desk.gives(2, 3)
    assert desk.round() == [Read(2, b"2"), Read(3, b"3")]


def test_it_can_read_on_after_records_were_missing(desk: Desk) -> None:
    desk.admin.start, desk.admin.end = 5, 6
    desk.fails(KafkaError._AUTO_OFFSET_RESET, "out of range")
    assert desk.round() == [Missing(5)]
    desk.reader.read_from(5)
    desk.round()
    read(desk, 5)


def test_its_thread_ends(desk: Desk) -> None:
    desk.reader.start()
    desk.reader.close(30.0)
    assert not desk.reader.is_alive()
    assert desk.consumer.is_closed
