"""What may leave only after which commit, and what a crash at any moment leaves behind.

The table is in docs/design.md, "Replies that wait". Each of its rows has a test here that holds
commits back.
"""

import pytest

from mqtt import reasons
from mqtt.encoder import encode
from mqtt.packets import (
    CONNACK,
    CONNECT,
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from session.engine import EARLY_BYTES_MAX
from session.settings import Settings
from tests.session.harness import (
    Broker,
    Client,
    SlowAuthenticator,
    connect_packet,
    will,
    with_reader,
)

# Replies that promise something


@pytest.mark.parametrize("version", [4, 5])
def test_puback_waits_for_commit(version: int) -> None:
    broker, _ = with_reader()
    publisher = broker.connect("q", version=version)
    publisher.take()
    publisher.send(Publish("t", b"1", 1, packet_id=7))
    publisher.expect_nothing()
    broker.commit()
    publisher.expect(Puback(7))
    broker.restart()
    assert broker.durable("reader").receive_all() == [b"1"]


def test_pubrec_waits_for_commit() -> None:
    broker, publisher = with_reader(qos=2)
    publisher.send(Publish("t", b"1", 2, packet_id=7))
    publisher.expect_nothing()
    broker.commit()
    publisher.expect(Pubrec(7))


def test_pubrec_for_a_repeated_message_waits_for_the_first() -> None:
    broker = Broker()
    broker.durable("reader", "t", qos=2).drop()
    publisher = broker.durable("p")
    broker.hold_commits()
    publisher.send(Publish("t", b"1", 2, packet_id=7))
    publisher.drop()
    publisher = broker.request("p", expiry=100)
    publisher.send(Publish("t", b"1", 2, dup=True, packet_id=7))
    publisher.expect_nothing()
    broker.commit()
    assert publisher.take()[1:] == [Pubrec(7)]
    publisher.send(Pubrel(7))
    assert broker.durable("reader").receive_all() == [b"1"]


def test_a_qos_2_message_and_its_packet_id_survive_together_or_not_at_all() -> None:
    for keep in (0, 1):
        broker = Broker()
        broker.durable("reader", "t", qos=2).drop()
        publisher = broker.durable("p")
        broker.hold_commits()
        publisher.send(Publish("t", b"1", 2, packet_id=7))
        broker.restart(keep=keep)
        publisher = broker.durable("p")
        assert publisher.start_publish("t", b"1", 2, packet_id=7, dup=True) == Pubrec(7)
        publisher.send(Pubrel(7))
        publisher.expect(Pubcomp(7))
        assert broker.durable("reader").receive_all() == [b"1"]


def test_pubcomp_waits_for_commit() -> None:
    broker = Broker()
    publisher = broker.durable("p")
    publisher.start_publish("t", b"1", 2, packet_id=7)
    broker.hold_commits()
    publisher.send(Pubrel(7))
    publisher.expect_nothing()
    assert broker.rows("incoming") == []
    broker.commit()
    publisher.expect(Pubcomp(7))


def test_a_packet_id_that_was_not_durably_forgotten_is_not_used_for_the_next_message() -> None:
    broker = Broker()
    broker.durable("reader", "t", qos=2).drop()
    publisher = broker.durable("p")
    publisher.start_publish("t", b"1", 2, packet_id=7)
    broker.hold_commits()
    publisher.send(Pubrel(7))
    broker.restart()
    publisher = broker.durable("p")
    publisher.send(Pubrel(7))  # no PUBCOMP came, so the client sends it again
    publisher.expect(Pubcomp(7))
    publisher.publish("t", b"2", 2, packet_id=7)
    assert broker.durable("reader").receive_all() == [b"1", b"2"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_bound_after_its_append_waits_for_commit(qos: int) -> None:
    broker = Broker(max_inflight=1)
    session = broker.durable("c", "t", qos=2)
    for payload in (b"1", b"2"):
        broker.publish("t", payload, qos)
    first = session.message()
    if qos == 2:
        session.send(Pubrec(first.packet_id))
        session.expect(Pubrel(first.packet_id))
    broker.hold_commits()
    session.send((Puback if qos == 1 else Pubcomp)(first.packet_id))
    session.expect_nothing()
    broker.commit()
    assert session.payloads() == [b"2"]


def test_a_qos_2_publish_to_a_durable_session_waits_for_commit() -> None:
    broker = Broker()
    session = broker.durable("c", "t", qos=2)
    publisher = broker.connect("p")
    broker.hold_commits()
    publisher.send(Publish("t", b"1", 2, packet_id=1))
    session.expect_nothing()
    broker.commit()
    assert session.message() == Publish("t", b"1", 2, packet_id=1)


def test_a_packet_id_keeps_its_message_over_a_crash() -> None:
    broker = Broker()
    session = broker.durable("c", "t", qos=2)
    broker.publish("t", b"1", 2)
    first = session.message()
    publisher = broker.connect("p")
    broker.hold_commits()
    publisher.send(Publish("t", b"lost", 2, packet_id=1))
    broker.restart()
    broker.publish("t", b"2", 2)
    session = broker.durable("c")
    assert [(m.packet_id, m.payload) for m in session.messages()] == [
        (first.packet_id, b"1"),
        (first.packet_id + 1, b"2"),
    ]


def test_pubrel_waits_for_commit() -> None:
    broker = Broker()
    session = broker.durable("c", "t", qos=2)
    broker.publish("t", b"1", 2)
    message = session.message()
    broker.hold_commits()
    session.send(Pubrec(message.packet_id))
    session.expect_nothing()
    broker.commit()
    session.expect(Pubrel(message.packet_id))
    broker.restart()
    broker.durable("c").expect(Pubrel(message.packet_id))


@pytest.mark.parametrize("version", [4, 5])
def test_connack_of_a_durable_session_waits_for_commit(version: int) -> None:
    broker = Broker()
    broker.hold_commits()
    fields = {"durable": True} if version == 4 else {"expiry": 100}
    client = broker.request("c", version=version, **fields)
    client.expect_nothing()
    broker.commit()
    (connack,) = client.take()
    assert isinstance(connack, Connack) and not connack.session_present


def test_connack_that_ends_a_session_waits_for_commit() -> None:
    broker = Broker()
    broker.durable("c").drop()
    broker.hold_commits()
    client = broker.request("c", clean_start=True)
    client.expect_nothing()
    broker.commit()
    assert isinstance(client.take()[0], Connack)


def test_connack_that_takes_over_waits_for_commit_but_the_old_client_is_told_at_once() -> None:
    broker = Broker()
    old = broker.durable("c")
    broker.hold_commits()
    new = broker.request("c", expiry=100)
    old.expect_closed(reasons.SESSION_TAKEN_OVER)
    new.expect_nothing()
    broker.commit()
    (connack,) = new.take()
    assert isinstance(connack, Connack) and connack.session_present


def test_connack_with_a_will_waits_for_commit() -> None:
    broker = Broker()
    broker.hold_commits()
    client = broker.request("c", will=will("w"))
    client.expect_nothing()
    broker.commit()
    assert isinstance(client.take()[0], Connack)


def test_nothing_leaves_before_a_held_connack() -> None:
    broker = Broker()
    publisher = broker.connect("p")
    broker.hold_commits()
    client = broker.request("c", expiry=100)
    client.send(Pingreq(), Subscribe(1, [Subscription("t", 1)]))
    publisher.send(Publish("t", b"0", 0), Publish("t", b"1", 1, packet_id=1))
    client.expect_nothing()
    broker.commit()
    packets = client.take()
    assert isinstance(packets[0], Connack)
    assert {type(packet) for packet in packets[1:]} == {Pingresp, Suback, Publish}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("is_written", [False, True])
def test_a_good_connect_is_answered_before_the_connection_ends(
    version: int, is_written: bool
) -> None:
    """[MQTT-3.1.4-5]: whatever comes while the CONNACK waits ends the connection behind it."""

    def bad_packet(broker: Broker, client: Client) -> int:
        client.send_bytes(b"\x00\x00")
        return reasons.MALFORMED_PACKET

    def takeover(broker: Broker, client: Client) -> int:
        broker.request("c", version=version, **fields)
        return reasons.SESSION_TAKEN_OVER

    def drain(broker: Broker, client: Client) -> int:
        broker.engine.drain(broker.now)
        broker.settle()
        return reasons.SERVER_SHUTTING_DOWN

    fields = {"durable": True} if version == 4 else {"expiry": 100}
    for end in (bad_packet, takeover, drain):
        broker = Broker()
        broker.hold_commits()
        if is_written:
            client = broker.request("c", version=version, **fields)
            reason = end(broker, client)
        else:
            with broker.one_tick():
                client = broker.request("c", version=version, **fields)
                reason = end(broker, client)
        client.expect_nothing()
        assert not client.is_closed
        broker.commit()
        connack = client.collect().pop(0)
        assert isinstance(connack, Connack) and connack.reason_code == 0
        client.expect_closed(reason)


def test_the_connection_is_lost_before_its_held_connack() -> None:
    broker = Broker()
    broker.hold_commits()
    client = broker.request("c", expiry=100, will=will("w"))
    client.send_bytes(b"\x10\x00")
    client.drop()
    broker.commit()
    client.expect_nothing()


def test_keep_alive_does_not_run_while_the_connack_is_held() -> None:
    broker = Broker()
    broker.hold_commits()
    client = broker.request("c", expiry=100, keep_alive=1)
    broker.advance(s=5)
    client.expect_nothing()
    assert not client.is_closed
    broker.commit()
    assert isinstance(client.collect().pop(0), Connack)
    broker.advance(ms=1400)
    assert not client.is_closed
    broker.advance(ms=200)
    client.expect_closed(reasons.KEEP_ALIVE_TIMEOUT)


@pytest.mark.parametrize("version", [4, 5])
def test_suback_waits_for_commit(version: int) -> None:
    broker = Broker()
    client = broker.durable("c", version=version)
    broker.hold_commits()
    client.send(Subscribe(3, [Subscription("t", 1)]))
    client.expect_nothing()
    broker.commit()
    client.expect(Suback(3, [1]))
    broker.restart()
    broker.publish("t", b"1")
    assert broker.durable("c", version=version).receive_all() == [b"1"]


@pytest.mark.parametrize("version", [4, 5])
def test_unsuback_waits_for_commit(version: int) -> None:
    broker = Broker()
    client = broker.durable("c", "t", version=version)
    broker.hold_commits()
    client.send(Unsubscribe(3, ["t"]))
    client.expect_nothing()
    broker.commit()
    client.expect(Unsuback(3, [0] if version == 5 else []))
    broker.restart()
    broker.publish("t", b"1")
    broker.durable("c", version=version).expect_nothing()


@pytest.mark.parametrize("fields", [{"expiry": 100}, {"will": will("w")}])
def test_the_close_after_disconnect_waits_for_commit(fields: dict[str, object]) -> None:
    broker = Broker()
    broker.durable("watcher", "w").drop()
    client = broker.connect("c", **fields)
    broker.hold_commits()
    client.disconnect()
    assert not client.is_closed
    broker.commit()
    assert client.is_closed
    broker.restart()
    broker.advance()
    assert broker.durable("watcher").receive_all() == []


def test_everything_sent_again_at_resume_waits_for_commit() -> None:
    broker = Broker()
    session = broker.durable("c", "t", qos=2)
    broker.publish("t", b"1", 1)
    broker.publish("t", b"2", 2)
    broker.publish("t", b"3", 2)
    _, second, _ = session.messages()
    broker.hold_commits()
    session.send(Pubrec(second.packet_id))  # released in memory, not on disk
    session.drop()
    session = broker.request("c", expiry=100)
    session.expect_nothing()
    broker.commit()
    packets = session.take()
    assert isinstance(packets[0], Connack)
    assert [type(packet) for packet in packets[1:]] == [Publish, Pubrel, Publish]


@pytest.mark.parametrize("payload", [b"R", b""])
def test_the_answer_to_a_retained_update_waits_for_commit(payload: bytes) -> None:
    broker = Broker()
    broker.publish("t", b"old", retain=True)
    publisher = broker.connect("p")
    broker.hold_commits()
    publisher.send(Publish("t", payload, 1, True, packet_id=1))
    publisher.expect_nothing()
    broker.commit()
    publisher.expect(Puback(1, 0))


def test_a_will_fires_with_the_deletion_of_its_timer_or_not_at_all() -> None:
    for keep in range(4):
        broker = Broker()
        broker.durable("watcher", "w").drop()
        broker.durable("c", expiry=1000, will=will("w", delay=5)).drop()
        broker.hold_commits()
        broker.advance(s=5)
        broker.restart(keep=keep, after_ms=1000)
        broker.advance()
        assert broker.durable("watcher").receive_all() == [b"will"]


# What promises nothing that is not true already


def test_answers_without_changes_leave_at_once() -> None:
    broker = Broker()
    client = broker.clean("c", "t", qos=2)
    broker.hold_commits()
    client.send(
        Pingreq(),
        Publish("t", b"0", 0),
        Publish("t", b"1", 1, packet_id=1),
        Publish("t", b"2", 2, packet_id=2),
        Pubrel(2),
        Subscribe(3, [Subscription("u", 1)]),
        Unsubscribe(4, ["u"]),
    )
    answers = [packet for packet in client.take() if not isinstance(packet, Publish)]
    assert answers == [
        Pingresp(),
        Puback(1),
        Pubrec(2),
        Pubcomp(2),
        Suback(3, [1]),
        Unsuback(4, [0]),
    ]
    client.disconnect()
    assert client.is_closed


def test_pings_are_answered_whatever_the_disk_does() -> None:
    _, publisher = with_reader()
    publisher.send(Publish("t", b"1", 1, packet_id=1), Pingreq(), Pingreq())
    publisher.expect(Pingresp(), Pingresp())


@pytest.mark.parametrize("qos", [0, 1])
def test_live_messages_do_not_wait_for_their_own_commit(qos: int) -> None:
    broker = Broker()
    durable = broker.durable("durable", "t")
    clean = broker.clean("clean", "t", qos=2)
    publisher = broker.connect("p")
    broker.hold_commits()
    publisher.send(Publish("t", b"1", qos, packet_id=1 if qos else 0))
    assert durable.payloads() == clean.payloads() == [b"1"]
    publisher.expect_nothing()


def test_a_crash_before_the_commit_of_a_live_qos_1_message_costs_a_duplicate_at_most() -> None:
    for keep in (0, 1):
        broker = Broker()
        session = broker.durable("c", "t")
        publisher = broker.connect("p")
        broker.hold_commits()
        publisher.send(Publish("t", b"1", 1, packet_id=1))
        assert session.payloads() == [b"1"]
        broker.restart(keep=keep)
        broker.connect("p").publish("t", b"1", 1, dup=True)  # it got no PUBACK
        assert set(broker.durable("c").receive_all()) == {b"1"}


def test_acknowledgements_keep_the_order_of_what_they_answer() -> None:
    broker, publisher = with_reader()
    publisher.send(
        Publish("t", b"1", 1, packet_id=1),
        Publish("nobody", b"2", 1, packet_id=2),
        Publish("$SYS/x", b"3", 1, packet_id=3),
        Publish("nobody", b"4", 2, packet_id=4),
        Publish("t", b"5", 1, packet_id=5),
    )
    publisher.expect_nothing()
    broker.commit()
    publisher.expect(
        Puback(1),
        Puback(2, reasons.NO_MATCHING_SUBSCRIBERS),
        Puback(3, reasons.NOT_AUTHORIZED),
        Pubrec(4, reasons.NO_MATCHING_SUBSCRIBERS),
        Puback(5),
    )


def test_a_later_tick_does_not_overtake_an_earlier_one() -> None:
    broker, publisher = with_reader()
    publisher.send(Publish("t", b"1", 1, packet_id=1))
    publisher.send(Publish("nobody", b"2", 1, packet_id=2))
    publisher.send(Publish("t", b"3", 1, packet_id=3))
    broker.commit()
    publisher.expect(Puback(1), Puback(2, reasons.NO_MATCHING_SUBSCRIBERS), Puback(3))


def test_a_commit_releases_exactly_what_it_covers() -> None:
    broker, publisher = with_reader()
    publisher.send(Publish("t", b"1", 1, packet_id=1))
    serial = broker.engine.written
    publisher.send(Publish("t", b"2", 1, packet_id=2))
    assert broker.engine.written == serial + 1
    broker.engine.committed(serial, broker.now)
    broker.engine.end_tick(broker.now)
    publisher.expect(Puback(1))
    broker.engine.committed(serial, broker.now)  # told twice
    broker.engine.end_tick(broker.now)
    publisher.expect_nothing()
    broker.commit()
    publisher.expect(Puback(2))


# Bookkeeping


def test_bytes_and_packets_are_counted() -> None:
    broker = Broker()
    client = broker.clean("c", "t", qos=1)
    client.publish("t", b"12345", 1)
    counters = broker.counters
    assert counters.packets_received[3] == 1 and counters.messages_received == [0, 1, 0]
    assert counters.messages_sent == [0, 1, 0] and counters.payload_bytes_received == 5
    assert counters.packets_received[CONNECT] == counters.packets_sent[CONNACK] == 1
    assert counters.bytes_received > 0 and counters.bytes_sent > 0
    assert counters.payload_bytes_sent == 5


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_payload_bytes_are_counted_for_every_way_out(qos: int) -> None:
    broker = Broker()
    broker.clean("live", "t", qos=2)
    broker.clean("shared", "$share/g/t", qos=2)
    broker.publish("t", b"1234567890", qos, retain=True)
    assert broker.counters.payload_bytes_sent == 20
    client = broker.durable("retained", "t", qos=2)
    assert broker.counters.payload_bytes_sent == 30
    client.drop()
    broker.durable("retained").take()  # again, with DUP
    assert broker.counters.payload_bytes_sent == (40 if qos else 30)


# Corners


def test_what_comes_after_the_end_is_not_handled() -> None:
    broker = Broker(linger=True)
    client = broker.connect("c")
    client.disconnect()
    client.send(Publish("t", b"R", 0, True), Pingreq())
    client.expect_nothing()
    assert broker.rows("retained") == []
    client.drop()
    broker.engine.transport_lost(client.connection, broker.now)
    broker.settle()


@pytest.mark.parametrize("version", [4, 5])
def test_a_fault_among_packets_that_waited_for_the_verdict_is_a_fault(version: int) -> None:
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    client = broker.open(version)
    client.send(
        connect_packet("c", version),
        Publish("t", b"R", 1, True, packet_id=1),
        Puback(9),
        Pubrec(9),
        Publish("u", b"", 2, packet_id=2),
        Pubcomp(2),
    )
    slow.answer("c")
    broker.settle()
    assert not client.is_closed
    client.send(Disconnect())
    client = broker.open(5)
    client.send(connect_packet("d", 5), Publish("", b"", topic_alias=7), Pingreq())
    slow.answer("d")
    broker.settle()
    assert client.take()[1:] == [Disconnect(reasons.PROTOCOL_ERROR)]


@pytest.mark.parametrize(
    ("limit", "answers"), [(5, [Connack(False, reasons.MALFORMED_PACKET)]), (4, [])]
)
def test_a_malformed_connect_is_answered_in_its_version_if_its_client_takes_so_much(
    limit: int, answers: list[Connack]
) -> None:
    """[MQTT-3.1.2-24]: its Maximum Packet Size was read before it went wrong."""
    broker = Broker()
    client = broker.open()
    whole = encode(connect_packet("c", 5, maximum_packet_size=limit), 5)
    client.send_bytes(whole[:1] + bytes([whole[1] + 1]) + whole[2:] + b"?")
    client.expect(*answers)
    assert client.is_closed


def test_what_follows_a_refused_connect_counts_as_no_disconnect() -> None:
    broker = Broker(maximum_packet_size=1 << 20)
    client = broker.open(version=4)
    refused = encode(connect_packet("", version=4, durable=True), 4)  # [MQTT-3.1.3-8]
    large = encode(Publish("t", bytes(EARLY_BYTES_MAX + 1), 0), 4)
    client.send_bytes(refused + large)
    assert client.collect() == [Connack(False, 2)]
    assert client.is_closed
    assert sum(broker.counters.disconnects.values()) == 0


# Settings that change


def change(broker: Broker, **values: object) -> None:
    """Give the engine other settings, as a shell does."""
    settings = Settings()
    for name, value in values.items():
        setattr(settings, name, value)
    broker.engine.change(settings, broker.now)
    broker.settle()


def test_changed_limits_hold_from_the_next_packet_on() -> None:
    broker = Broker()
    client = broker.connect("c")
    client.subscribe("a", "b")
    change(broker, subscriptions_per_session_max=2, retained_messages_max=1, topic_levels_max=2)
    assert client.subscribe("c") == [reasons.QUOTA_EXCEEDED]
    client.publish("r", b"1", 1, retain=True)
    assert client.publish("s", b"1", 1, retain=True) == Puback(2 + 2, reasons.QUOTA_EXCEEDED)
    client.send(Publish("a/b/c", b"", 1, packet_id=9))
    client.expect(Puback(9, reasons.TOPIC_NAME_INVALID))
    change(broker)
    assert client.subscribe("c") == [0]


def test_changed_limits_of_connections_hold_for_new_ones() -> None:
    broker = Broker()
    old = broker.connect("old")
    change(broker, max_connections=1, connection_rate=1)
    assert broker.refused("new") == reasons.SERVER_BUSY
    assert broker.refused("next") == reasons.CONNECTION_RATE_EXCEEDED
    old.ping()
    change(broker)
    broker.connect("new")


def test_what_a_connack_has_announced_does_not_change() -> None:
    broker = Broker()
    client = broker.connect("c")
    change(broker, receive_maximum=1, maximum_qos=0, retain_available=False)
    assert client.publish("t", b"", 2, retain=True) == Pubcomp(1)
    assert broker.settings.receive_maximum > 1
