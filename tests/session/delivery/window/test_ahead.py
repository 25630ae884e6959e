"""Packet ids bound ahead: is nothing lost, doubled or out of order, and is a small window quick?"""

from collections.abc import Callable

import pytest

from mqtt import reasons
from mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from session.delivery.window.ahead import AHEAD_BYTES_MAX, AHEAD_MAX, WINDOW_MAX
from tests.session.harness import Broker, Client
from tests.session.messages import in_flight, numbers, publish


def bound_ahead(client: Client) -> list[int]:
    """Return the packet ids that are bound ahead for a client."""
    session = client.connection.session
    assert session is not None
    return list(session.reserved or ())


def with_backlog(count: int, qos: int = 1, **settings: object) -> Broker:
    """Return a broker that has queued messages for an offline session `c`."""
    broker = Broker(ahead_after=0, **settings)
    broker.durable("c", "t", qos=qos).drop()
    publish(broker, numbers(count), qos)
    return broker


# What it is for


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("window", [1, 10])
def test_a_backlog_costs_far_fewer_batches_than_messages(window: int, qos: int) -> None:
    broker = with_backlog(640, qos, progress_delay_ms=1_000_000)
    client = broker.durable("c", receive_maximum=window)
    before = broker.engine.written
    found: list[bytes] = []
    while messages := client.messages():
        assert len(messages) <= window
        found += [message.payload for message in messages]
        for message in messages:
            client.send((Puback if qos == 1 else Pubrec)(message.packet_id))
    if qos == 1:
        assert found == numbers(640)
        assert broker.engine.written - before <= 2 * 640 // AHEAD_MAX + 2
    else:
        assert found == numbers(window)  # PUBREC alone makes no room


def test_a_message_bound_ahead_is_sent_without_waiting_for_the_disk() -> None:
    broker = with_backlog(20)
    client = broker.durable("c", receive_maximum=1)
    broker.hold_commits()
    for payload in numbers(20):
        message = client.message()
        assert message.payload == payload and not message.dup
        client.send(Puback(message.packet_id))
    client.expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_live_message_behind_a_full_window_is_bound_in_the_batch_of_its_append(qos: int) -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", qos=qos, receive_maximum=1)
    publish(broker, [b"1", b"2"], qos)
    assert in_flight(client) == 1 and len(bound_ahead(client)) == 1
    first = client.message()
    if qos == 2:
        client.send(Pubrec(first.packet_id))
        client.expect(Pubrel(first.packet_id))
    broker.hold_commits()
    client.send((Puback if qos == 1 else Pubcomp)(first.packet_id))
    assert client.payloads() == [b"2"]


def test_a_qos_2_message_waits_until_its_packet_id_is_durable() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", qos=2, receive_maximum=1)
    publisher = broker.connect("p")
    publisher.publish("t", b"1", 2)
    first = client.message()
    client.send(Pubrec(first.packet_id))
    client.expect(Pubrel(first.packet_id))
    broker.hold_commits()
    publisher.send(Publish("t", b"2", 2, packet_id=9))
    assert len(bound_ahead(client)) == 1
    client.send(Pubcomp(first.packet_id))
    client.expect_nothing()
    broker.commit()
    assert client.payloads() == [b"2"]


@pytest.mark.parametrize("count", [3, 10])
def test_a_client_that_gets_a_few_messages_has_none_bound_ahead(count: int) -> None:
    broker = Broker()
    client = broker.durable("c", "t", receive_maximum=1)
    publish(broker, numbers(count + 1))
    for _ in range(count):
        client.acknowledge(client.message())
        assert bound_ahead(client) == []
    broker.restart()
    client = broker.durable("c")
    assert client.message().payload == numbers(count + 1)[-1]


def test_a_client_whose_window_is_full_again_and_again_has_messages_bound_ahead() -> None:
    broker = with_backlog(100)
    broker.settings.ahead_after = 5
    client = broker.durable("c", receive_maximum=1)
    for _ in range(8):
        client.acknowledge(client.message())
    assert bound_ahead(client) != []
    assert client.receive_all() == numbers(92, start=8)


# What the client must not notice


def test_the_receive_maximum_counts_what_is_sent_and_nothing_else() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", receive_maximum=3)
    publish(broker, numbers(10))
    assert in_flight(client) == 3 and len(bound_ahead(client)) == 7
    messages = client.messages()
    assert len(messages) == 3
    client.send(Puback(messages[1].packet_id))
    assert client.payloads() == [b"0003"]


def test_an_answer_to_a_packet_id_that_was_not_sent_is_one_to_an_unknown_id() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", qos=2, receive_maximum=1)
    publish(broker, numbers(3), 2)
    first = client.message()
    for packet_id in bound_ahead(client):
        client.send(Puback(packet_id))
        client.expect_nothing()
        client.send(Pubrec(packet_id))
        client.expect(Pubrel(packet_id, reasons.PACKET_IDENTIFIER_NOT_FOUND))
        client.send(Pubcomp(packet_id))
        client.expect_nothing()
    client.acknowledge(first)
    assert client.receive_all() == numbers(2, start=1)


@pytest.mark.parametrize("leave", [Client.drop, Client.disconnect])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_not_sent_comes_without_dup_on_the_next_connection(
    qos: int, leave: Callable[[Client], None]
) -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", qos=qos, receive_maximum=2)
    publish(broker, numbers(6), qos)
    sent = client.messages()
    leave(client)
    client = broker.durable("c")
    messages = client.messages()
    assert [message.payload for message in messages] == numbers(6)
    assert [message.dup for message in messages] == [True, True, *[False] * 4]
    assert [message.packet_id for message in messages[:2]] == [each.packet_id for each in sent]


def test_a_takeover_leaves_nothing_bound_ahead() -> None:
    broker = Broker(ahead_after=0)
    broker.durable("c", "t", receive_maximum=1)
    publish(broker, numbers(3))
    client = broker.durable("c", receive_maximum=10)
    assert [message.dup for message in client.messages()] == [True, False, False]
    assert bound_ahead(client) == []


# A crash


@pytest.mark.parametrize("qos", [1, 2])
def test_after_a_crash_each_packet_id_still_has_its_message(qos: int) -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", qos=qos, receive_maximum=2)
    publish(broker, numbers(6), qos)
    sent = [message.packet_id for message in client.messages()]
    expected = dict(zip([*sent, *bound_ahead(client)], numbers(6), strict=True))
    broker.restart()
    client = broker.durable("c")
    messages = client.messages()
    assert {message.packet_id: message.payload for message in messages} == expected
    assert [message.payload for message in messages] == numbers(6)
    assert all(message.dup for message in messages)  # nobody knows which of them were sent
    client.acknowledge(*messages)
    broker.publish("t", b"new", qos)
    assert client.receive_all() == [b"new"]


def test_a_message_that_was_perhaps_sent_is_sent_again_though_its_id_was_acknowledged() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", receive_maximum=1)
    publish(broker, numbers(3))
    perhaps = bound_ahead(client)
    broker.restart()
    client = broker.durable("c", receive_maximum=1)
    for packet_id in perhaps:
        client.send(Puback(packet_id))
    assert client.receive_all() == numbers(3)


def test_pubrec_for_a_message_that_was_perhaps_sent_says_that_it_was() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", qos=2, receive_maximum=1)
    publish(broker, numbers(3), 2)
    perhaps = bound_ahead(client)
    broker.restart()
    client = broker.durable("c", receive_maximum=1)
    first = client.message()
    client.send(Pubrec(perhaps[0]))
    client.expect(Pubrel(perhaps[0]))
    client.send(Pubcomp(perhaps[0]))
    client.acknowledge(first)
    assert client.receive_all() == [b"0002"]


def test_a_crash_right_after_the_sending_doubles_no_qos_2_message() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", qos=2, receive_maximum=1)
    publish(broker, numbers(2), 2)
    first = client.message()
    client.send(Pubrec(first.packet_id))
    client.expect(Pubrel(first.packet_id))
    broker.hold_commits()
    client.send(Pubcomp(first.packet_id))
    second = client.message()
    broker.restart(keep=0)
    client = broker.durable("c", receive_maximum=1)
    again = client.message()
    client.expect(Pubrel(first.packet_id))
    assert (again.payload, again.packet_id, again.dup) == (b"0001", second.packet_id, True)


def test_what_was_perhaps_sent_survives_any_number_of_crashes() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", receive_maximum=1)
    publish(broker, numbers(4))
    ids = [client.message().packet_id, *bound_ahead(client)]
    for _ in range(3):
        broker.restart()
        client = broker.durable("c", receive_maximum=1)
        assert client.message().packet_id == ids[0]
        client.drop()
    client = broker.durable("c", receive_maximum=1)
    found = []
    while messages := client.messages():
        found += [(message.packet_id, message.payload) for message in messages]
        client.acknowledge(*messages)
    assert found == list(zip(ids, numbers(4), strict=True))


# What nothing is bound ahead of


def test_a_message_with_an_expiry_is_not_bound_ahead_and_keeps_its_place() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", receive_maximum=1)
    publish(broker, numbers(2))
    publish(broker, numbers(1, start=2), expiry_s=60)
    publish(broker, numbers(2, start=3))
    assert len(bound_ahead(client)) == 1
    assert client.receive_all() == numbers(5)


def test_an_expired_message_between_those_of_a_backlog_is_passed_over() -> None:
    broker = Broker(ahead_after=0)
    broker.durable("c", "t").drop()
    publish(broker, numbers(2))
    publish(broker, [b"old"], expiry_s=1)
    publish(broker, numbers(2, start=2))
    client = broker.durable("c", receive_maximum=1)
    broker.advance(s=2)
    assert client.receive_all() == numbers(4)
    assert broker.counters.expired_messages == 1


def test_stored_qos_0_does_not_overtake_what_is_bound_ahead() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", receive_maximum=1)
    client.subscribe("t", qos=0)
    client.subscribe("t/#", qos=1)
    publish(broker, numbers(3))
    client.subscribe("t/#", qos=0)
    publish(broker, [b"qos 0"])
    publish(broker, numbers(1, start=3))
    assert client.receive_all() == [*numbers(3), b"qos 0", b"0003"]


def test_own_messages_that_are_not_wanted_stay_away_behind_what_is_bound_ahead() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", receive_maximum=1)
    client.subscribe("t", qos=1, no_local=True)
    publish(broker, numbers(2))
    client.publish("t", b"own", 1)
    publish(broker, numbers(1, start=2))
    assert client.receive_all() == numbers(3)
    client.drop()
    assert broker.durable("c").receive_all() == []


def test_an_own_message_behind_a_backlog_that_is_bound_in_part_passes_over_nothing() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", receive_maximum=1)
    client.subscribe("t", qos=1, no_local=True)
    client.drop()
    publish(broker, numbers(2 * AHEAD_MAX))
    client = broker.durable("c", receive_maximum=1)
    assert client.connection.is_lagging and bound_ahead(client) != []
    client.publish("t", b"own", 1)
    assert client.receive_all() == numbers(2 * AHEAD_MAX)


@pytest.mark.parametrize("window", [WINDOW_MAX + 1, 65_535])
def test_a_large_window_binds_nothing_ahead(window: int) -> None:
    broker = with_backlog(2 * WINDOW_MAX, max_inflight=window)
    client = broker.durable("c", receive_maximum=window)
    assert bound_ahead(client) == []


def test_a_session_in_memory_binds_nothing_ahead() -> None:
    broker = Broker(ahead_after=0, max_inflight=1)
    client = broker.clean("c", "t", qos=1)
    publish(broker, numbers(3))
    assert bound_ahead(client) == []
    assert client.receive_all() == numbers(3)


# Others that wait for the same room


def test_a_shared_subscription_gets_its_turn_after_the_backlog() -> None:
    broker = with_backlog(2 * AHEAD_MAX)
    client = broker.durable("c", receive_maximum=1)
    client.subscribe("$share/g/shared", qos=1)
    broker.publish("shared", b"shared")
    assert client.receive_all() == [*numbers(2 * AHEAD_MAX), b"shared"]


def test_a_retained_message_gets_its_turn_beside_a_backlog_without_end() -> None:
    broker = with_backlog(4 * AHEAD_MAX)
    broker.publish("r", b"retained", retain=True)
    client = broker.durable("c", receive_maximum=1)
    client.subscribe("r", qos=1)
    found: list[bytes] = []
    while b"retained" not in found:
        assert len(found) <= 2 * AHEAD_MAX
        messages = client.messages()
        found += [message.payload for message in messages]
        client.acknowledge(*messages)


# What changes meanwhile


def test_a_right_that_was_revoked_holds_for_what_is_bound_ahead() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", "u", receive_maximum=1)
    for number in range(4):
        broker.publish("tu"[number % 2], b"%d" % number)
    assert len(bound_ahead(client)) == 3
    broker.rules.forbid("receive", "u")
    assert client.receive_all() == [b"0", b"2"]
    assert broker.counters.dropped["not_authorized"] == 2
    client.drop()
    assert broker.durable("c").receive_all() == []


def test_a_message_that_is_too_large_for_the_client_is_dropped_when_its_turn_comes() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", receive_maximum=1, maximum_packet_size=100)
    publish(broker, [b"1", b"L" * 200, b"2"])
    assert len(bound_ahead(client)) == 2
    assert client.receive_all() == [b"1", b"2"]
    assert broker.counters.dropped["too_large"] == 1


def test_a_message_that_gets_too_old_while_it_is_bound_ahead_is_dropped() -> None:
    broker = Broker(ahead_after=0, max_age_s=60)
    client = broker.durable("c", "t", receive_maximum=1)
    publish(broker, numbers(3))
    first = client.message()
    broker.advance(s=61)
    publish(broker, [b"young"])
    client.acknowledge(first)
    assert client.receive_all() == [b"young"]
    assert broker.counters.dropped["max_age"] == 2


def test_unsubscribing_stops_what_is_not_bound_yet() -> None:
    broker = with_backlog(4 * AHEAD_MAX)
    client = broker.durable("c", receive_maximum=1)
    client.unsubscribe("t")
    assert client.receive_all() == numbers(1 + AHEAD_MAX)


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_a_damaged_message_is_told_once_and_when_it_is_its_turn(layout: str) -> None:
    broker = with_backlog(6, layout=layout)
    broker.is_audited = False
    broker.store.damage("msg.1", [broker.rows("msg.1")[3][0]])
    broker.restart()
    client = broker.durable("c", receive_maximum=1)
    found: list[bytes] = []
    while messages := client.messages():
        found += [message.payload for message in messages]
        assert broker.counters.dropped["damaged"] == (len(found) > 3)
        client.acknowledge(*messages)
    assert found == [*numbers(3), *numbers(2, start=4)]
    assert broker.counters.dropped["damaged"] == 1


# Limits of a hostile client


def test_a_client_that_never_answers_holds_a_few_messages_and_no_more() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", receive_maximum=1)
    publish(broker, [b"L" * AHEAD_BYTES_MAX for _ in range(10)])
    assert len(client.connection.ahead) == 1
    publish(broker, numbers(3 * AHEAD_MAX))
    assert len(client.connection.ahead) == 1


def test_large_messages_of_a_backlog_are_bound_a_few_at_a_time() -> None:
    broker = Broker(ahead_after=0)
    broker.durable("c", "t").drop()
    payloads = [bytes([number]) * 20_000 for number in range(40)]
    publish(broker, payloads)
    client = broker.durable("c", receive_maximum=1)
    found: list[bytes] = []
    while messages := client.messages():
        assert client.connection.ahead_bytes <= AHEAD_BYTES_MAX + 20_000
        found += [message.payload for message in messages]
        client.acknowledge(*messages)
    assert found == payloads


def test_packet_ids_bound_ahead_are_passed_over_when_the_numbers_begin_again() -> None:
    broker = Broker(ahead_after=0)
    client = broker.durable("c", "t", receive_maximum=1)
    session = client.connection.session
    assert session is not None
    session.next_packet_id = 65_530
    publish(broker, numbers(20))
    found: list[tuple[int, bytes]] = []
    while messages := client.messages():
        found += [(message.packet_id, message.payload) for message in messages]
        client.acknowledge(*messages)
    assert [payload for _, payload in found] == numbers(20)
    assert [packet_id for packet_id, _ in found] == [*range(65_530, 65_536), *range(1, 15)]


def test_messages_that_are_not_bound_ahead_are_not_read_ahead_each_time() -> None:
    broker = Broker(ahead_after=0)
    broker.durable("c", "t").drop()
    publish(broker, numbers(4 * AHEAD_MAX), expiry_s=60)
    client = broker.durable("c", receive_maximum=1)
    cursors: list[object] = []
    found: list[bytes] = []
    while messages := client.messages():
        if client.connection.cursor not in cursors:
            cursors.append(client.connection.cursor)
        found += [message.payload for message in messages]
        client.acknowledge(*messages)
    assert found == numbers(4 * AHEAD_MAX)
    assert len(cursors) < 20  # each reads on from where it is
