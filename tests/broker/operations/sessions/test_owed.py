"""What is listed for a session is what the broker sends it, in the same order."""

from itertools import islice
from typing import Any

import pytest

from broker.operations.sessions import owed as states
from broker.operations.sessions.inventory import Inventory
from broker.operations.sessions.owed import Owed, owed
from mqtt.packets import Pubrec
from storage.tables.tables import MAILBOX, mailbox_key
from tests.session.backlogs import with_a_gap
from tests.session.harness import Broker


def queue_of(broker: Broker, client_id: str) -> list[Owed]:
    inventory = Inventory(broker.store)
    report = inventory.session(client_id)
    assert report is not None
    return list(owed(inventory, report, broker.settings, broker.now))


def told(queue: list[Owed]) -> list[tuple[str, int, int | None, bytes]]:
    """Return (state, packet id, QoS, payload) of each."""
    return [
        (each.state, each.packet_id, each.qos, each.message.payload if each.message else b"")
        for each in queue
    ]


def in_flight_and_waiting() -> Broker:
    """Leave `boat` with a QoS 1 and two QoS 2 messages in flight, one of them at PUBREC."""
    broker = Broker(max_inflight=3)
    boat = broker.durable("boat", "a/#", qos=2)
    for payload, qos in ((b"one", 1), (b"two", 2), (b"three", 2), (b"four", 1), (b"five", 2)):
        broker.publish("a/b", payload, qos)
    boat.send(Pubrec(boat.messages()[1].packet_id))
    boat.drop()
    return broker


def test_what_is_in_flight_comes_first_with_its_packet_ids() -> None:
    queue = queue_of(in_flight_and_waiting(), "boat")
    assert told(queue) == [
        (states.SENT, 1, 1, b"one"),
        (states.RECEIVED, 2, 2, b"two"),
        (states.SENT, 3, 2, b"three"),
        (states.WAITS, 0, 1, b"four"),
        (states.WAITS, 0, 2, b"five"),
    ]
    assert [each.offset for each in queue] == [1, 2, 3, 4, 5]
    assert {each.source for each in queue} == {states.LOG}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_age_s": 60},
        {"max_offline_messages": 4},
        {"max_offline_messages": 4, "on_limit": "drop_new"},
        {"max_offline_bytes": 30},
        {"max_offline_bytes": 30, "on_limit": "drop_new"},
        {"max_offline_messages": 100, "on_limit": "reject"},
    ],
)
def test_what_is_listed_as_sent_or_waiting_is_what_the_session_gets(
    settings: dict[str, Any],
) -> None:
    broker = Broker(store_qos0=True, max_inflight=2, **settings)
    boat = broker.durable("boat", "a/#", "a/b", qos=1)
    boat.subscribe("c", qos=2, no_local=True)
    boat.subscribe("d", qos=0)
    broker.publish("a/b", b"in flight")
    boat.publish("c", b"own", 1)
    boat.drop()
    broker.publish("a/b", b"old", 2)
    broker.advance(s=50)
    for number in range(4):
        broker.publish("a/b", b"%d" % number, number % 3, message_expiry_interval=5 + 10 * number)
        broker.publish("c", b"c%d" % number, 2 - number % 3)
        broker.publish("d", b"d", 1)
    broker.advance(s=20)
    expected = [
        (each.message.payload, each.qos)
        for each in queue_of(broker, "boat")
        if each.state in (states.SENT, states.WAITS) and each.message is not None
    ]
    boat = broker.connect("boat", expiry=3600)
    found = []
    while messages := boat.messages():
        found += [(each.payload, each.qos) for each in messages]
        boat.acknowledge(*messages)
    assert found == expected
    assert len(found) >= 3


def test_what_the_broker_will_not_send_says_why() -> None:
    broker = Broker(max_age_s=60)
    boat = broker.durable("boat", "a")
    boat.subscribe("own", qos=1, no_local=True)
    boat.drop()
    broker.publish("a", b"old")
    broker.advance(s=50)
    broker.publish("a", b"short", message_expiry_interval=5)
    broker.publish("a", b"young")
    broker.advance(s=20)
    assert told(queue_of(broker, "boat")) == [
        (states.TOO_OLD, 0, 1, b"old"),
        (states.EXPIRED, 0, 1, b"short"),
        (states.WAITS, 0, 1, b"young"),
    ]


def test_messages_of_its_own_that_it_does_not_want_are_marked() -> None:
    broker = Broker(max_inflight=1)
    boat = broker.durable("boat", "a")
    boat.subscribe("own", qos=1, no_local=True)
    broker.publish("a", b"in flight")
    broker.publish("a", b"waits")
    boat.publish("own", b"mine", 1)
    assert told(queue_of(broker, "boat"))[2:] == [(states.NO_LOCAL, 0, None, b"mine")]
    boat.subscribe("+", qos=1)
    boat.publish("own", b"wanted by another filter", 1)
    assert told(queue_of(broker, "boat"))[3:] == [(states.WAITS, 0, 1, b"wanted by another filter")]


@pytest.mark.parametrize(
    ("on_limit", "kept"), [("drop_oldest", [b"3", b"4", b"5"]), ("drop_new", [b"0", b"1", b"2"])]
)
def test_messages_over_the_limit_of_a_session_that_is_away_are_marked(
    on_limit: str, kept: list[bytes]
) -> None:
    broker = Broker(max_offline_messages=3, on_limit=on_limit)
    broker.durable("boat", "a").drop()
    for number in range(6):
        broker.publish("a", b"%d" % number)
    queue = queue_of(broker, "boat")
    assert [each.state for each in queue].count(states.OVER_LIMIT) == 3
    waits = [each.message.payload for each in queue if each.state == states.WAITS and each.message]
    assert waits == kept


def test_damaged_messages_take_their_places_in_a_limit() -> None:
    broker = Broker(max_offline_messages=3)
    broker.durable("boat", "a").drop()
    for number in range(6):
        broker.publish("a", b"%d" % number)
    broker.is_audited = False
    broker.store.write([("msg.1", (2).to_bytes(8, "big"), b"damaged")])
    assert [each.state for each in queue_of(broker, "boat")] == [
        states.OVER_LIMIT, states.DAMAGED, states.OVER_LIMIT,
        states.WAITS, states.WAITS, states.WAITS,
    ]  # fmt: skip


def test_the_limits_of_a_session_are_not_those_of_a_connected_client() -> None:
    broker = Broker(max_offline_messages=1, max_inflight=1)
    broker.durable("boat", "a")
    for number in range(4):
        broker.publish("a", b"%d" % number)
    found = [each.state for each in queue_of(broker, "boat")]
    assert found == [states.SENT, states.WAITS, states.WAITS, states.WAITS]


def test_packet_ids_bound_ahead_were_perhaps_sent() -> None:
    broker = Broker(ahead_after=0)
    broker.durable("boat", "a", receive_maximum=1)
    for number in range(3):
        broker.publish("a", b"%d" % number)
    assert told(queue_of(broker, "boat")) == [
        (states.SENT, 1, 1, b"0"),
        (states.PERHAPS_SENT_STATE, 2, 1, b"1"),
        (states.PERHAPS_SENT_STATE, 3, 1, b"2"),
    ]


def test_copies_of_retained_messages_have_no_offset() -> None:
    broker = Broker()
    broker.publish("kept", b"r", retain=True)
    broker.durable("boat", "kept").drop()
    (each,) = queue_of(broker, "boat")
    assert (each.state, each.source, each.offset) == (states.SENT, states.RETAINED, 0)
    assert each.message is not None and each.message.payload == b"r"
    broker.is_audited = False
    broker.store.write([(MAILBOX, mailbox_key("boat", 1), b"damaged")])
    assert told(queue_of(broker, "boat")) == [(states.DAMAGED, 1, 1, b"")]


def test_of_a_shared_subscription_only_what_is_in_flight_is_listed() -> None:
    broker = Broker(max_inflight=1)
    boat = broker.durable("boat", "$share/g/a")
    broker.publish("a", b"1")
    broker.publish("a", b"2")
    assert [(each.source, each.offset) for each in queue_of(broker, "boat")] == [(states.SHARED, 1)]
    boat.take()


def test_damaged_messages_keep_their_place() -> None:
    broker = Broker(max_inflight=1)
    broker.durable("boat", "a")
    for number in range(4):
        broker.publish("a", b"%d" % number)
    broker.is_audited = False
    for offset in (1, 3):
        broker.store.write([("msg.1", offset.to_bytes(8, "big"), b"damaged")])
    assert told(queue_of(broker, "boat")) == [
        (states.DAMAGED, 1, 1, b""),
        (states.WAITS, 0, 1, b"1"),
        (states.DAMAGED, 0, None, b""),
        (states.WAITS, 0, 1, b"3"),
    ]


def test_a_message_in_flight_that_the_log_has_dropped_is_too_old() -> None:
    broker = in_flight_and_waiting()
    inventory = Inventory(broker.store)
    report = inventory.session("boat")
    assert report is not None
    report.session.in_flight = {7: 99 << 8 | 1, 8: 99 << 8 | 6, 9: 6}
    found = list(islice(owed(inventory, report, broker.settings, broker.now), 3))
    assert [(each.state, each.packet_id, each.offset) for each in found] == [
        (states.TOO_OLD, 7, 99),
        (states.RECEIVED, 8, 99),
        (states.RECEIVED, 9, 0),
    ]


def test_a_deep_backlog_is_read_only_as_far_as_it_is_asked_for() -> None:
    broker = Broker(store_qos0=True)
    broker.durable("boat", "a").drop()
    publisher = broker.connect("p")
    for _ in range(30):
        with broker.one_tick():
            for _ in range(100):
                publisher.start_publish("a", b"x" * 100)
    assert [each.offset for each in queue_of(broker, "boat")] == list(range(1, 3001))
    inventory = Inventory(broker.store)
    report = inventory.session("boat")
    assert report is not None
    queue = owed(inventory, report, broker.settings, broker.now)
    assert [each.offset for each in islice(queue, 10)] == list(range(1, 11))
    broker.is_audited = False
    for key, _ in broker.rows("msg.1")[40:]:
        broker.store.write([("msg.1", key, b"damaged")])  # nobody has read these yet
    states_left = [each.state for each in queue]
    assert states_left[:200] == [states.WAITS] * 200
    assert states_left[-1] == states.DAMAGED


def test_what_an_operator_has_dropped_by_topic_is_listed_as_such() -> None:
    broker = in_flight_and_waiting()
    broker.publish("a/c", b"six")
    broker.engine.administer(broker.now).purge("boat", "olga", topic="a/b")
    broker.advance(ms=1)
    broker.publish("a/b", b"seven")
    assert told(queue_of(broker, "boat"))[2:] == [
        (states.SENT, 3, 2, b"three"),
        (states.PURGED, 0, None, b"four"),
        (states.PURGED, 0, None, b"five"),
        (states.WAITS, 0, 1, b"six"),
        (states.WAITS, 0, 1, b"seven"),
    ]


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_what_is_in_a_gap_is_not_listed_and_not_sent(layout: str) -> None:
    broker = with_a_gap(layout=layout)
    queue = queue_of(broker, "boat")
    assert [(each.state, each.offset) for each in queue] == [
        (states.WAITS, 1), (states.WAITS, 2), (states.WAITS, 7), (states.OVER_LIMIT, 8),
    ]  # fmt: skip
    assert broker.durable("boat").receive_all() == [b"0", b"1", b"6"]
