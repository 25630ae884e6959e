"""Does the history say of every PUBLISH what became of it, and when it was promised?"""

import pytest

from mqtt.packets import Puback, Publish, Pubrel
from tests.session.harness import NEVER, Broker
from tests.session.told import columns, told


def pair(detail: str = "full", **options: object) -> Broker:
    broker = Broker(history_detail=detail, **options)
    broker.durable("sub", "a/#", qos=2)
    return broker


def publishes(first: int, count: int, qos: int = 1, topic: str = "a/b") -> list[Publish]:
    step = 1 if qos else 0
    return [Publish(topic, b"x" * n, qos, False, False, first + n * step) for n in range(count)]


def test_a_stored_message_is_accepted_then_durable_then_acknowledged() -> None:
    broker = pair()
    broker.connect("pub").send(*publishes(5, 1))
    broker.advance(s=1)
    events = told(broker)
    way = [e["ev"] for e in events if str(e["ev"]).startswith(("msg_a", "msg_e", "msg_p", "pub_"))]
    assert way == ["msg_accepted", "msg_enqueued", "msg_persisted", "pub_acked"]
    (accepted,) = told(broker, "msg_accepted")
    assert accepted["client_id"] == "pub"
    assert (accepted["topic"], accepted["pub_qos"], accepted["bytes"]) == ("a/b", 1, 0)
    assert accepted["session"] == accepted["pub"] != 0
    (acked,) = told(broker, "pub_acked")
    assert (acked["msg"], acked["pid"], acked["client_id"]) == (accepted["msg"], 5, "pub")


def test_an_acknowledgement_that_is_held_is_not_told_before_its_commit() -> None:
    broker = pair()
    publisher = broker.connect("pub")
    broker.hold_commits()
    publisher.send(*publishes(1, 3))
    broker.advance(ms=300)
    assert len(told(broker, "msg_accepted")) == 3
    assert told(broker, "msg_persisted", "pub_acked") == []
    broker.commit()
    broker.advance(s=1)
    assert len(told(broker, "msg_persisted")) == 3
    assert columns(told(broker, "pub_acked"), "pid") == [(1,), (2,), (3,)]


def test_an_acknowledgement_nobody_got_is_not_told() -> None:
    broker = pair()
    publisher = broker.connect("pub")
    broker.hold_commits()
    publisher.send(*publishes(1, 1))
    publisher.drop()
    broker.commit()
    broker.advance(s=1)
    assert len(told(broker, "msg_persisted")) == 1
    assert told(broker, "pub_acked") == []


def test_an_acknowledgement_that_waits_when_its_client_is_shut_out_is_not_told() -> None:
    """The transport is not lost yet, but nothing that waits is sent on it any more."""
    broker = Broker(history_detail="full", linger=True)
    broker.durable("sub", "a/#", qos=2)
    publisher = broker.connect("pub")
    broker.hold_commits()
    publisher.send(*publishes(1, 1))
    broker.request("pub")
    assert publisher.is_closed and not publisher.stream.is_lost
    broker.commit()
    broker.advance(s=1)
    assert not any(isinstance(packet, Puback) for packet in publisher.take())
    assert len(told(broker, "msg_persisted")) == 1
    assert told(broker, "pub_acked") == []


def test_the_books_balance_though_a_publisher_was_gone_before_its_acknowledgement() -> None:
    broker = pair("books")
    publisher = broker.connect("pub")
    publisher.send(*publishes(1, 2))
    broker.hold_commits()
    publisher.send(*publishes(3, 3))
    publisher.drop()
    broker.commit()
    broker.advance(s=90)
    stages: dict[object, list[int]] = {}
    for event in told(broker, "books"):
        numbers = [event[name] for name in ("count", "total_bytes", "check1", "check2")]
        stages[event["stage"]] = numbers  # type: ignore[assignment]
    assert (stages["pub_acked"][0], stages["unanswered"][0]) == (2, 3)
    pairs = zip(stages["pub_acked"], stages["unanswered"], strict=True)
    assert stages["ack_owed"] == [acked + lost for acked, lost in pairs]
    assert stages["persisted"] == stages["stored"]


def test_a_run_is_told_like_its_messages() -> None:
    stories = []
    for together in (True, False):
        broker = pair()
        publisher = broker.connect("pub")
        packets = publishes(65_530, 6)
        for group in [packets] if together else [[packet] for packet in packets]:
            publisher.send(*group)
        broker.advance(s=1)
        names = ("msg", "pid", "bytes", "topic", "stream", "qos", "pub_qos", "dup")
        stories.append(
            {
                ev: columns(told(broker, ev), *names)
                for ev in ("msg_accepted", "msg_enqueued", "msg_persisted", "pub_acked")
            }
        )
    assert stories[0] == stories[1]
    assert len(stories[0]["pub_acked"]) == 6


def test_a_message_that_is_stored_for_nobody_has_an_id_of_its_own() -> None:
    broker = pair()
    publisher = broker.connect("pub")
    publisher.send(*publishes(1, 2, topic="elsewhere"), *publishes(0, 2, qos=0, topic="elsewhere"))
    broker.advance(s=1)
    ids = [event["msg"] for event in told(broker, "msg_accepted")]
    assert len(set(ids)) == 4
    assert all(isinstance(message, int) and message >= 1 << 62 for message in ids)
    assert [event["msg"] for event in told(broker, "pub_acked")] == ids[:2]
    assert told(broker, "msg_enqueued", "msg_persisted") == []


def test_qos_2_is_told_to_its_end_and_a_repetition_as_one() -> None:
    broker = pair()
    publisher = broker.connect("pub")
    publisher.send(Publish("a", b"", 2, False, False, 9))
    publisher.collect()
    publisher.send(Publish("a", b"", 2, False, True, 9))
    publisher.send(Pubrel(9))
    broker.advance(s=1)
    assert len(told(broker, "msg_accepted")) == 1
    assert columns(told(broker, "pub_dup_received"), "pid") == [(9,)]
    acked = columns(told(broker, "pub_acked"), "pid", "pub_qos", "msg")
    assert acked == [(9, 2, told(broker, "msg_accepted")[0]["msg"]), (9, 2, None)]
    assert columns(told(broker, "pub_completed"), "pid") == [(9,)]


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_a_packet_id_is_free_if_and_only_if_its_release_is_told(keep: int) -> None:
    """A crash at any batch may take the event of the PUBCOMP, but not that of the PUBREL alone."""
    broker = pair()
    publisher = broker.connect("pub", clean_start=False, expiry=NEVER)
    for packet_id in (8, 9):
        publisher.send(Publish("a", b"", 2, False, False, packet_id))
        publisher.send(Pubrel(packet_id)) if packet_id == 8 else None
    broker.advance(s=1)
    broker.hold_commits()
    publisher.send(Publish("elsewhere", b"", 2, False, False, 10))
    publisher.send(Pubrel(9))
    publisher.send(Pubrel(77))  # which is not in use
    broker.restart(keep=keep)
    released = columns(told(broker, "pub_released"), "pid", "client_id", "actor")
    freed = [(pid, "pub", "client") for pid in (8, 9)]
    assert released == freed[: 1 + (keep >= 2)]
    assert columns(told(broker, "pub_completed"), "pid") == [(8,)]
    publisher = broker.connect("pub", clean_start=False, expiry=NEVER)
    publisher.send(Publish("a", b"", 2, False, True, 9))
    broker.advance(s=1)
    was_known = columns(told(broker, "pub_dup_received"), "pid") == [(9,)]
    assert was_known == (keep < 2)


def test_what_is_refused_is_told_with_its_reason() -> None:
    broker = pair()
    broker.engine.note_disk_space(is_low=True)
    broker.connect("pub", version=5).send(*publishes(1, 1))
    broker.advance(s=1)
    (dropped,) = told(broker, "msg_dropped")
    assert (dropped["reason"], dropped["topic"], dropped["msg"]) == (1026, "a/b", None)
    (answer,) = told(broker, "pub_acked")
    assert (answer["reason"], answer["msg"]) == (0x97, None)


@pytest.mark.parametrize("together", [True, False])
def test_of_a_sample_whole_messages_are_told(together: bool) -> None:
    broker = pair("sampled:1/4")
    publisher = broker.connect("pub")
    packets = publishes(1, 12)
    for group in [packets] if together else [[packet] for packet in packets]:
        publisher.send(*group)
    broker.advance(s=1)
    story = {
        ev: [event["msg"] for event in told(broker, ev)]
        for ev in ("msg_accepted", "msg_enqueued", "msg_persisted", "pub_acked", "msg_delivered")
    }
    assert story["msg_accepted"] == [4, 8, 12]
    assert all(ids == [4, 8, 12] for ids in story.values()), story
    assert columns(told(broker, "pub_acked"), "pid") == [(4,), (8,), (12,)]


def test_packet_ids_of_a_sampled_run_go_on_after_the_last_one_with_the_first() -> None:
    broker = pair("sampled:1/4")
    ids = [65_533, 65_534, 65_535, *range(1, 10)]
    broker.connect("pub").send(*(Publish("a/b", b"", 1, False, False, each) for each in ids))
    broker.advance(s=1)
    wanted = [(ids[3],), (ids[7],), (ids[11],)]
    assert columns(told(broker, "pub_acked"), "pid") == wanted == [(1,), (5,), (9,)]


def test_books_count_what_full_detail_would_have_told() -> None:
    broker = pair("books")
    broker.connect("pub").send(*publishes(1, 12), *publishes(0, 3, qos=0, topic="a"))
    broker.advance(s=90)
    assert told(broker, "msg_accepted") == []
    counted = {event["stage"]: event for event in told(broker, "books") if event["tenant"] == ""}
    expected = {"accepted": 15, "stored": 12, "persisted": 12, "ack_owed": 12, "pub_acked": 12}
    assert {stage: counted[stage]["count"] for stage in expected} == expected
    for stage in ("stored", "persisted", "pub_acked"):
        assert counted[stage]["check1"] == sum(range(1, 13))
        assert counted[stage]["check2"] == sum(n * n for n in range(1, 13))
        assert counted[stage]["total_bytes"] == sum(range(12))


def test_history_costs_no_row_when_it_is_off() -> None:
    broker = pair("off")
    broker.connect("pub", version=5, expiry=NEVER).send(*publishes(1, 3))
    broker.advance(s=90)
    assert told(broker) == []
