"""Does the history tell all of a traced client, between the row that says so and the last one?"""

import pytest

from mqtt.packets import Publish
from tests.session.harness import Broker, Client
from tests.session.told import Told, columns, told

MESSAGES = ("msg_accepted", "msg_enqueued", "msg_persisted", "pub_acked", "msg_delivered")


def traced_pair(detail: str, traced: str = "sub", **settings: object) -> tuple[Broker, Client]:
    """Return a broker with a durable subscriber that is connected, and its publisher."""
    broker = Broker(history_detail=detail, **settings)
    broker.durable("sub", "a/#", qos=1)
    broker.durable("other", "b/#", qos=1)
    broker.connect("sub", expiry=3600)
    trace(broker, traced)
    return broker, broker.connect("pub")


def trace(broker: Broker, client_id: str) -> bool:
    is_on = broker.engine.administer(broker.now).trace(client_id, broker.now + 60_000, "anna")
    broker.advance(s=1)
    return is_on


def untrace(broker: Broker, client_id: str, why: str = "its time is over") -> None:
    broker.engine.administer(broker.now).untrace(client_id, why)
    broker.advance(s=1)


def publish(broker: Broker, publisher: Client, topic: str, pid: int, qos: int = 1) -> None:
    publisher.send(Publish(topic, b"x", qos, False, False, pid if qos else 0))
    broker.advance(s=1)


def names(events: list[Told]) -> list[str]:
    return [str(event["ev"]) for event in events]


def test_at_books_the_messages_of_a_traced_subscriber_are_told_and_no_others() -> None:
    broker, publisher = traced_pair("books")
    publish(broker, publisher, "a/1", 1)
    publish(broker, publisher, "b/1", 2)
    found = told(broker, *MESSAGES)
    assert sorted(names(found)) == [
        "msg_accepted", "msg_delivered", "msg_enqueued", "msg_persisted",
    ]  # fmt: skip
    assert len({event["msg"] for event in found}) == 1
    untrace(broker, "sub")
    publish(broker, publisher, "a/1", 3)
    assert len(told(broker, *MESSAGES)) == 4


def test_at_books_everything_of_a_traced_publisher_is_told() -> None:
    broker, publisher = traced_pair("books", "pub")
    publish(broker, publisher, "b/1", 1)
    publish(broker, publisher, "nobody", 2, qos=0)
    found = told(broker, *MESSAGES)
    assert names(found) == [
        "msg_accepted", "msg_enqueued", "msg_persisted", "pub_acked", "msg_accepted",
    ]  # fmt: skip
    assert {event["client_id"] for event in found if event["ev"] == "pub_acked"} == {"pub"}


def test_at_a_sample_each_event_of_a_traced_client_is_told_once() -> None:
    broker, publisher = traced_pair("sampled:1/2")
    for pid in range(1, 7):
        publish(broker, publisher, "a/1", pid)
    for name in ("msg_accepted", "msg_persisted", "msg_delivered"):
        assert [event["msg"] for event in told(broker, name)] == [1, 2, 3, 4, 5, 6], name
    untrace(broker, "sub")
    for pid in range(7, 11):
        publish(broker, publisher, "a/1", pid)
    assert [event["msg"] for event in told(broker, "msg_delivered")][6:] == [8, 10]


def test_the_first_and_the_last_row_enclose_the_others_and_name_level_and_operator() -> None:
    broker, publisher = traced_pair("books")
    publish(broker, publisher, "a/1", 1)
    untrace(broker, "sub")
    found = told(broker, "trace_began", "trace_ended", *MESSAGES)
    assert names(found)[0] == "trace_began" and names(found)[-1] == "trace_ended"
    began, ended = found[0], found[-1]
    assert (began["client_id"], began["actor"], began["detail"]) == ("sub", "admin", "books, anna")
    assert began["at"] is not None
    assert (ended["client_id"], ended["detail"]) == ("sub", "books, its time is over")
    assert ended["actor"] == "broker"


def test_a_second_trace_of_a_client_is_the_same_stretch_of_the_history() -> None:
    broker, publisher = traced_pair("books")
    trace(broker, "sub")
    untrace(broker, "sub")
    publish(broker, publisher, "a/1", 1)
    assert told(broker, "msg_delivered")
    untrace(broker, "sub")
    assert names(told(broker, "trace_began", "trace_ended")) == ["trace_began", "trace_ended"]


def test_a_subscription_made_during_the_trace_and_an_away_session_are_told() -> None:
    broker = Broker(history_detail="books")
    broker.durable("away", "a/#", "$share/g/s", qos=1).drop()
    trace(broker, "away")
    trace(broker, "late")
    broker.durable("late", "c/#", qos=1)
    publisher = broker.connect("pub")
    publish(broker, publisher, "a/1", 1)
    publish(broker, publisher, "c/1", 2)
    publish(broker, publisher, "s", 3)
    assert columns(told(broker, "msg_accepted"), "topic") == [("a/1",), ("c/1",)]


def test_the_trace_goes_on_when_the_level_changes() -> None:
    broker, publisher = traced_pair("full")
    broker.engine.outbox.lower(2, 1)
    broker.settle()
    publish(broker, publisher, "a/1", 1)
    publish(broker, publisher, "b/1", 2)
    (on,) = told(broker, "trace_goes_on")
    assert (on["client_id"], on["detail"]) == ("sub", "books, the level has changed")
    assert columns(told(broker, "msg_accepted"), "topic") == [("a/1",)]
    broker.engine.outbox.restore()
    broker.settle()
    publish(broker, publisher, "b/1", 3)
    assert len(told(broker, "trace_goes_on")) == 2
    assert len(told(broker, "msg_accepted")) == 2


@pytest.mark.parametrize("detail", ["off", "sessions"])
def test_levels_that_leave_out_messages_on_purpose_are_not_raised(detail: str) -> None:
    broker = Broker(history_detail=detail)
    broker.durable("sub", "a/#", qos=1)
    assert not trace(broker, "sub")
    publish(broker, broker.connect("pub"), "a/1", 1)
    assert told(broker, *MESSAGES) == []
    untrace(broker, "sub")


def test_a_trace_ends_with_the_broker_in_order_before_its_last_row() -> None:
    broker, _ = traced_pair("books")
    broker.engine.drain(broker.now)
    broker.settle()
    broker.engine.finish(broker.now)
    broker.settle()
    found = names(told(broker))
    assert found[-1] == "shutdown" and "trace_ended" in found
    assert found.index("trace_ended") > found.index("trace_began")


def test_a_trace_does_not_outlive_a_crash() -> None:
    broker, _ = traced_pair("books")
    broker.restart()
    publish(broker, broker.connect("pub"), "a/1", 1)
    assert told(broker, "msg_accepted") == []
    assert names(told(broker, "trace_began", "trace_ended")) == ["trace_began"]


def test_a_message_without_an_id_from_before_the_trace_has_none_in_it() -> None:
    broker = Broker(history_detail="books")
    broker.durable("sub", "a/#", qos=0)
    broker.connect("sub", expiry=3600)
    publisher = broker.connect("pub")
    publish(broker, publisher, "a/1", 0, qos=0)
    trace(broker, "sub")
    publish(broker, publisher, "a/1", 0, qos=0)
    (delivered,) = told(broker, "msg_delivered")
    assert delivered["msg"] is not None


# Columns in which an event of the client may differ between two levels: where it is in the history.
PLACE = frozenset({"seq", "mono_ns"})
STORED = ("msg_accepted", "msg_enqueued", "msg_persisted")


def life(detail: str) -> list[dict[str, object]]:
    """Return all that the history tells of a traced client with a busy life."""
    broker = Broker(history_detail=detail)
    trace(broker, "c")
    client = broker.durable("c", "a/#", "$share/g/s", qos=2)
    broker.durable("d", "a/1", "b/#", qos=1)
    publisher = broker.connect("pub")
    for topic in ("a/1", "b/1", "s"):
        for qos in (0, 1, 2):
            publish(broker, publisher, topic, 10 + qos, qos)
    publisher.send(*[Publish("a/1", b"x", 1, False, False, pid) for pid in range(20, 28)])
    publisher.send(*[Publish("a/2", b"x" * pid, 0, False, False, 0) for pid in range(8)])
    broker.advance(s=1)
    client.receive_all()
    client.publish("b/2", b"y", qos=1)
    client.publish("b/2", b"y", qos=2)
    client.send(Publish("b/3", b"", 2, False, False, 40), Publish("b/3", b"", 2, True, False, 40))
    client.send(*[Publish("b/4", b"x", 1, False, False, pid) for pid in (50, 52, 51)])
    client.send(Publish("nobody", b"x", 0, False, False, 0))
    broker.publish("r/1", b"kept", 1, retain=True)
    client.subscribe("r/#", qos=1)
    client.receive_all()
    publish(broker, publisher, "a/9", 60)
    client.drop()
    publish(broker, publisher, "a/9", 61)
    broker.publish("a/short", b"x", 1, message_expiry_interval=5)
    broker.advance(s=30)
    client = broker.connect("c", expiry=3600)
    broker.advance(s=1)
    client.receive_all()
    publish(broker, publisher, "a/9", 62)
    client.unsubscribe("a/#")
    client.disconnect(session_expiry_interval=0)
    broker.advance(s=2)
    found = [event for event in told(broker) if not str(event["ev"]).startswith("trace_")]
    # What others publish is its own if it is stored for it; of a group only what it gets.
    own = {
        event["msg"]
        for event in found
        if event["ev"] == "msg_accepted"
        if event["client_id"] == "c" or (event["pub_qos"] and str(event["topic"])[:2] == "a/")
    }
    mine = [
        {name: value for name, value in event.items() if name not in PLACE}
        for event in found
        if event["client_id"] == "c" or (event["msg"] in own and event["ev"] in STORED)
    ]
    # Of the messages of one batch those of the sample are told first.
    return sorted(mine, key=lambda event: int(event["ev"] == "msg_persisted" and event["msg"]))


@pytest.mark.parametrize("detail", ["books", "sampled:1/3", "sampled:1/1000"])
def test_a_traced_client_is_told_as_at_full(detail: str) -> None:
    """A busy life: all qualities, runs, repeats, refusals, retained, expired, a lost connection."""
    expected = life("full")
    kinds = {event["ev"] for event in expected}
    assert kinds >= {
        "msg_accepted", "msg_enqueued", "msg_persisted", "pub_acked", "pub_completed",
        "pub_dup_received", "msg_delivered", "msg_acked", "msg_completed", "msg_expired",
        "pub_released", "retained_sent",
    }  # fmt: skip
    found = life(detail)
    for at, (one, other) in enumerate(zip(found, expected, strict=False)):
        assert one == other, at
    assert len(found) == len(expected)
