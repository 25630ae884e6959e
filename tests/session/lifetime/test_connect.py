"""CONNECT: session present, refusals, identity, takeover, what the CONNACK says and waits for."""

from collections.abc import Callable
from random import Random

import pytest

from mqtt import reasons
from mqtt.encoder import encode
from mqtt.packets import (
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from session.ports import Verdict
from tests.session.feed.backends import feed
from tests.session.harness import NEVER, Broker, Client, SlowAuthenticator, connect_packet, will


def present(client: Client) -> bool:
    """Return what CONNACK said about the session."""
    assert client.connack is not None
    return client.connack.session_present


# Sessions that are found again, and those that are not


@pytest.mark.parametrize("version", [4, 5])
def test_the_first_connection_has_no_session_present(version: int) -> None:
    broker = Broker()
    assert not present(broker.durable("c", version=version))


@pytest.mark.parametrize("version", [4, 5])
def test_a_durable_session_is_present_again_even_without_subscriptions(version: int) -> None:
    broker = Broker()
    broker.durable("c", version=version).disconnect()
    assert present(broker.durable("c", version=version))


@pytest.mark.parametrize("version", [4, 5])
def test_a_durable_session_is_present_after_a_crash(version: int) -> None:
    broker = Broker()
    broker.durable("c", "t", version=version)
    broker.restart()
    client = broker.durable("c", version=version)
    assert present(client)
    broker.publish("t", b"1")
    assert client.receive_all() == [b"1"]


@pytest.mark.parametrize("version", [4, 5])
def test_clean_start_ends_the_session_that_was_there(version: int) -> None:
    broker = Broker()
    broker.durable("c", "t", version=version).drop()
    broker.publish("t", b"before")
    fresh = broker.connect("c", version=version, clean_start=True)
    assert not present(fresh)
    broker.publish("t", b"after")
    fresh.expect_nothing()
    fresh.disconnect()
    assert not present(broker.durable("c", version=version))
    assert broker.rows("subscriptions") == [] and broker.rows("holders") == []


def test_clean_start_with_an_expiry_begins_a_new_durable_session() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    assert not present(broker.connect("c", clean_start=True, expiry=100))
    broker.restart()
    client = broker.durable("c")
    assert present(client)
    broker.publish("t", b"1")
    client.expect_nothing()


def test_an_expired_session_is_gone_even_before_anybody_has_cleaned_up() -> None:
    broker = Broker()
    broker.durable("c", "t", expiry=100).drop()
    broker.now += 100_000  # no timer has fired
    assert not present(broker.durable("c", expiry=100))


def test_an_expired_session_of_another_user_is_in_nobodys_way() -> None:
    broker = Broker()
    broker.durable("c", "t", expiry=100, username="ann").drop()
    broker.now += 100_000
    client = broker.durable("c", expiry=100, username="bob")
    assert not present(client)
    broker.publish("t", b"1")
    client.expect_nothing()


def test_a_resumed_session_does_not_expire() -> None:
    broker = Broker()
    broker.durable("c", expiry=10).drop()
    broker.advance(s=5)
    client = broker.durable("c", expiry=10)
    broker.advance(s=3600)
    client.ping()
    client.drop()
    broker.advance(s=9)
    assert present(broker.durable("c", expiry=10))


def test_a_v4_session_lives_as_long_as_the_operator_allows() -> None:
    broker = Broker(session_expiry_max_s=60)
    broker.durable("c", version=4).drop()
    broker.advance(s=59)
    broker.durable("c", version=4).drop()
    broker.advance(s=61)
    assert not present(broker.durable("c", version=4))


def test_a_lowered_expiry_is_told_in_connack() -> None:
    broker = Broker(session_expiry_max_s=60)
    lowered = broker.durable("c", expiry=100).connack
    kept = broker.durable("d", expiry=50).connack
    assert lowered is not None and lowered.session_expiry_interval == 60
    assert kept is not None and kept.session_expiry_interval is None


@pytest.mark.parametrize(("first", "second"), [(4, 5), (5, 4)])
def test_a_session_is_resumed_over_another_version(first: int, second: int) -> None:
    broker = Broker()
    broker.durable("c", "t", version=first).drop()
    broker.publish("t", b"1")
    client = broker.durable("c", version=second)
    assert present(client)
    assert client.receive_all() == [b"1"]


# What CONNECT says, and the answer


def test_a_v5_client_without_id_is_assigned_one() -> None:
    broker = Broker()
    client = broker.connect("", expiry=100)
    assert client.connack is not None and client.connack.assigned_client_id == "auto-1"
    client.drop()
    assert present(broker.durable("auto-1"))


def test_a_client_with_an_id_is_assigned_none() -> None:
    connack = Broker().connect("c").connack
    assert connack is not None and connack.assigned_client_id is None


def test_a_v4_client_without_id_must_ask_for_a_clean_session() -> None:
    broker = Broker()
    assert broker.refused("", version=4, durable=True) == 2
    broker.connect("", version=4).ping()


def test_connack_announces_what_the_broker_does() -> None:
    broker = Broker(
        receive_maximum=7,
        maximum_qos=1,
        retain_available=False,
        maximum_packet_size=1000,
        topic_alias_maximum=3,
        user_properties=(("site", "home"),),
    )
    assert broker.connect("c").connack == Connack(
        False,
        receive_maximum=7,
        maximum_qos=1,
        retain_available=False,
        maximum_packet_size=1000,
        topic_alias_maximum=3,
        user_properties=(("site", "home"),),
    )


def test_connack_of_v4_says_nothing_but_accepted() -> None:
    broker = Broker(receive_maximum=7)
    client = broker.request("c", version=4)
    assert client.stream.data == b"\x20\x02\x00\x00"


def test_connack_leaves_out_user_properties_that_the_client_cannot_take() -> None:
    broker = Broker(user_properties=(("name", "x" * 100),))
    connack = broker.connect("c", maximum_packet_size=60).connack
    assert connack is not None and connack.user_properties == ()


@pytest.mark.parametrize("limit", range(1, 17))
def test_nothing_larger_than_the_client_takes_is_sent_even_if_it_is_connack(limit: int) -> None:
    broker = Broker()
    client = broker.request("c", maximum_packet_size=limit)
    assert len(client.stream.data) <= limit
    if client.is_closed:
        assert client.take() in ([], [Connack(False, reasons.PACKET_TOO_LARGE)])


def test_a_client_whose_connack_is_too_large_changes_nothing() -> None:
    broker = Broker()
    session = broker.durable("c", "t")
    broker.request("c", maximum_packet_size=5)
    session.ping()


@pytest.mark.parametrize(
    ("fields", "v5", "v4"),
    [
        ({"client_id": "x" * 24}, reasons.CLIENT_IDENTIFIER_NOT_VALID, 2),
        ({"will": will("w", qos=2)}, reasons.QOS_NOT_SUPPORTED, -1),
        ({"will": will("w", qos=1, retain=True)}, reasons.RETAIN_NOT_SUPPORTED, -1),
        ({"will": will("a/b/c/d/e")}, reasons.TOPIC_NAME_INVALID, -1),
    ],
)
def test_connect_is_refused_for_what_it_asks(fields: dict[str, object], v5: int, v4: int) -> None:
    broker = Broker(
        client_id_bytes_max=23, maximum_qos=1, retain_available=False, topic_levels_max=4
    )
    asked = {"client_id": "c", **fields}
    assert broker.refused(**asked) == v5
    assert broker.refused(version=4, **asked) == v4


def test_enhanced_authentication_is_refused_not_ignored() -> None:
    broker = Broker()
    assert broker.refused("c", authentication_method="SCRAM") == reasons.BAD_AUTHENTICATION_METHOD


def test_a_connection_too_many_is_refused_but_a_takeover_is_not() -> None:
    broker = Broker(max_connections=2)
    first = broker.connect("a")
    broker.connect("b")
    assert broker.refused("c") == reasons.SERVER_BUSY
    assert broker.refused("c", version=4) == 3
    broker.connect("a")
    first.expect_closed(reasons.SESSION_TAKEN_OVER)


def test_each_refusal_is_counted_for_the_listener_that_the_client_came_by() -> None:
    broker = Broker()
    broker.refused("c", authentication_method="SCRAM")
    broker.connect("c")
    broker.open().send_bytes(b"\x10\x02\x00\x00")
    broker.settle()
    counters = broker.engine.counters
    (refused,) = counters.refused.values()
    told = {reason: count for reason, count in refused.items() if count}
    assert told == {"other": 1, "malformed": 1}
    assert counters.connects["accepted"] == 1


def test_everything_sent_with_connect_is_answered_in_order() -> None:
    broker = Broker()
    client = broker.open()
    client.send(
        connect_packet("c", 5, expiry=10),
        Subscribe(1, [Subscription("t", 1)]),
        Publish("t", b"1", 1, packet_id=2),
        Pingreq(),
    )
    first, *others = client.take()
    assert isinstance(first, Connack)
    assert [packet for packet in others if not isinstance(packet, Publish | Pingresp)] == [
        Suback(1, [1]),
        Puback(2),
    ]
    assert Publish("t", b"1", 1, packet_id=1) in others and Pingresp() in others


def test_a_client_of_mqtt_3_1_is_served() -> None:
    broker = Broker()
    client = broker.durable("c", "t", qos=2, version=3)
    client.drop()
    broker.connect("p", version=5).publish("t", b"1", 2)
    client = broker.connect("c", version=3, durable=True)
    assert client.connack is not None and not client.connack.session_present  # a reserved byte
    assert client.receive_all() == [b"1"]
    assert broker.connect("c", expiry=60, clean_start=False).connack.session_present  # type: ignore[union-attr]


def test_a_client_of_mqtt_3_1_needs_an_id() -> None:
    broker = Broker()
    assert broker.refused("", version=3, clean_start=True) == 2
    assert broker.refused("", version=3, clean_start=False) == 2


# Authentication


def test_packets_before_the_verdict_wait_for_it() -> None:
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    client = broker.open()
    client.send(connect_packet("c", 5), Subscribe(1, [Subscription("t", 0)]))
    assert not client.stream.is_read  # what else the client sends stays in its socket
    client.send(Pingreq())
    client.expect_nothing()
    slow.answer("c")
    broker.settle()
    packets = client.take()
    assert isinstance(packets[0], Connack) and packets[1:] == [Suback(1, [0]), Pingresp()]
    assert client.stream.is_read


def test_nothing_of_a_refused_client_is_done() -> None:
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    client = broker.open()
    client.send(connect_packet("c", 5), Publish("t", b"1", 0, retain=True))
    slow.answer("c", ok=False, reason_code=reasons.BAD_USER_NAME_OR_PASSWORD)
    broker.settle()
    client.expect(Connack(False, reasons.BAD_USER_NAME_OR_PASSWORD))
    assert client.is_closed and broker.rows("retained") == []


@pytest.mark.parametrize(
    ("reason_code", "v4"),
    [(reasons.BAD_USER_NAME_OR_PASSWORD, 4), (reasons.NOT_AUTHORIZED, 5), (reasons.BANNED, 5)],
)
def test_a_v4_client_learns_the_nearest_return_code(reason_code: int, v4: int) -> None:
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    client = broker.request("c", version=4)
    slow.answer("c", ok=False, reason_code=reason_code)
    broker.settle()
    client.expect(Connack(False, v4))
    assert client.is_closed


def test_a_client_whose_session_waits_to_be_written_is_not_served_as_new() -> None:
    """On a full disk its session is neither in the store nor connected, and yet there."""
    broker = Broker()
    broker.store.full = True
    broker.request("c", expiry=100).drop()
    assert broker.refused("c") == reasons.SERVER_UNAVAILABLE
    broker.connect("other").ping()
    broker.store.full = False
    broker.advance(ms=100)
    resumed = broker.connect("c", expiry=100)
    assert resumed.connack is not None and resumed.connack.session_present


def test_a_refused_connect_takes_nothing_over() -> None:
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    first = broker.request("c")
    slow.answer("c")
    broker.settle()
    first.take()
    broker.request("c", clean_start=True)
    slow.answer("c", ok=False, reason_code=reasons.NOT_AUTHORIZED)
    broker.settle()
    first.ping()
    assert not first.is_closed


def test_a_takeover_happens_with_the_verdict_and_not_before() -> None:
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    first = broker.request("c")
    slow.answer("c")
    broker.settle()
    first.take()
    second = broker.request("c")
    first.ping()
    slow.answer("c")
    broker.settle()
    first.expect_closed(reasons.SESSION_TAKEN_OVER)
    assert isinstance(second.take()[0], Connack)


def test_a_client_that_left_before_the_verdict_is_forgotten() -> None:
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    client = broker.request("c", expiry=100, will=will("w"))
    client.drop()
    slow.answer("c")
    broker.settle()
    assert broker.rows("sessions") == [] and broker.rows("connections") == []


def test_a_fault_behind_connect_is_judged_after_the_verdict() -> None:
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    client = broker.open()
    client.send(connect_packet("c", 5))
    client.send_bytes(b"\x00\x00")
    client.expect_nothing()
    slow.answer("c")
    broker.settle()
    packets = client.take()
    assert isinstance(packets[0], Connack) and packets[0].reason_code == 0
    assert packets[1:] == [Disconnect(reasons.MALFORMED_PACKET)]


def test_a_whole_read_of_packets_may_wait_for_the_verdict() -> None:
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    watcher = broker.request("watcher")
    slow.answer("watcher")
    broker.settle()
    watcher.subscribe("t")
    client = broker.open()
    client.send(connect_packet("c", 5), *[Publish("t", b"%d" % number) for number in range(3000)])
    assert not client.stream.is_read and watcher.payloads() == []
    slow.answer("c")
    broker.settle()
    assert client.stream.is_read
    assert watcher.payloads() == [b"%d" % number for number in range(3000)]


def test_what_follows_a_refused_connect_is_not_even_looked_at() -> None:
    """[MQTT-3.1.4-6]"""
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    client = broker.open()
    client.send(connect_packet("c", 5))
    client.send_bytes(b"\x00\x00")
    slow.answer("c", ok=False, reason_code=reasons.NOT_AUTHORIZED)
    broker.settle()
    assert client.take() == [Connack(False, reasons.NOT_AUTHORIZED)]
    assert client.is_closed


def test_too_many_bytes_before_the_verdict_are_refused() -> None:
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    client = broker.open()
    client.send(connect_packet("c", 5), Publish("t", b"x" * (256 << 10)))
    assert client.take() == [Connack(False, reasons.QUOTA_EXCEEDED)]
    assert client.is_closed
    slow.answer("c")
    broker.settle()
    assert broker.engine.stats()["sessions_online"] == 0


@pytest.mark.parametrize("version", [4, 5])
def test_a_connection_opened_first_takes_over_if_its_connect_comes_last(version: int) -> None:
    """[MQTT-3.1.4-3] Which TCP connection was accepted first does not count."""
    broker = Broker()
    patient = Client(broker, version)
    quick = broker.durable("c", "t", version=version)
    patient.send(connect_packet("c", version, durable=True))
    broker.settle()
    answer = patient.answer(Connack)
    assert isinstance(answer, Connack)
    assert answer.reason_code == 0 and answer.session_present
    assert quick.is_closed and not patient.is_closed
    broker.publish("t", b"1")
    assert patient.receive_all() == [b"1"]


def test_the_time_that_a_password_check_takes_is_not_the_silence_of_the_client() -> None:
    """Without anything to commit CONNACK waits for nothing else; the keep alive begins with it."""
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    client = broker.open()
    client.send(connect_packet("c", 5, keep_alive=2))
    broker.advance(ms=2500)
    broker.engine.handle_timeout(broker.now)  # as whoever brings a verdict does
    slow.answer("c")
    broker.settle()
    client.answer(Connack)
    broker.advance(ms=2900)
    client.ping()
    broker.advance(ms=3100)
    client.expect_closed(reasons.KEEP_ALIVE_TIMEOUT)


def test_a_late_verdict_does_not_take_the_session_from_a_later_connect() -> None:
    """[MQTT-3.1.4-3] The client whose CONNECT came first is the one that ends, without a word."""
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    first = broker.open()
    first.send(connect_packet("c", 5, expiry=60))
    late = slow.waiting.pop("c")
    second = broker.open()
    second.send(connect_packet("c", 5, expiry=60))
    slow.answer("c")
    broker.settle()
    second.answer(Connack)
    late(Verdict(ok=True, reason_code=0, identity=""))
    broker.settle()
    assert first.is_closed and first.take() == []
    second.ping()
    assert broker.engine.counters.connects["overtaken"] == 1
    (refused,) = broker.engine.counters.refused.values()
    assert refused["overtaken"] == 1


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_refused_in_a_storm_of_one_client_id(version: int, seed: int) -> None:
    """Opened, sent and authenticated in any order: the one that sent CONNECT last stays."""
    random = Random(seed)
    verdicts: list[Callable[[Verdict], None]] = []
    slow = SlowAuthenticator()
    broker = Broker(authenticator=slow)
    clients = [Client(broker, version) for _ in range(50)]
    order = random.sample(clients, 50)
    for client in order:
        client.send(connect_packet("c", version, durable=True))
        verdicts.append(slow.waiting.pop("c"))
        if random.random() < 0.5:
            verdict = verdicts.pop(random.randrange(len(verdicts)))
            verdict(Verdict(ok=True, reason_code=0, identity=""))
    random.shuffle(verdicts)
    for verdict in verdicts:
        verdict(Verdict(ok=True, reason_code=0, identity=""))
    broker.settle()
    refused = [packet for client in clients for packet in client.take() if refuses(packet)]
    assert refused == []
    assert [client for client in order if not client.is_closed] == order[-1:]
    results = broker.engine.counters.connects
    assert results["accepted"] + results["overtaken"] == 50 and results["overtaken"] > 0


def refuses(packet: Packet) -> bool:
    return isinstance(packet, Connack) and packet.reason_code != 0


def test_the_old_connection_is_told_and_closed_and_the_session_goes_on() -> None:
    broker = Broker()
    old = broker.durable("c", "t")
    new = broker.durable("c")
    old.expect_closed(reasons.SESSION_TAKEN_OVER)
    assert present(new)
    broker.publish("t", b"1")
    assert new.receive_all() == [b"1"]


def test_an_old_v4_connection_is_just_closed() -> None:
    broker = Broker()
    old = broker.durable("c", version=4)
    broker.durable("c", version=4)
    old.expect_closed()


def test_the_new_connection_is_sent_what_the_old_one_left_unacknowledged() -> None:
    broker = Broker()
    old = broker.durable("c", "t")
    broker.publish("t", b"1")
    assert old.message() == Publish("t", b"1", 1, packet_id=1)
    new = broker.durable("c")
    assert new.message() == Publish("t", b"1", 1, dup=True, packet_id=1)


def test_the_end_of_the_old_transport_does_not_touch_the_new_connection() -> None:
    broker = Broker(linger=True)
    old = broker.durable("c", "t")
    new = broker.durable("c")
    old.drop()
    broker.publish("t", b"1")
    assert new.receive_all() == [b"1"]


def test_a_takeover_of_a_session_in_memory_starts_afresh() -> None:
    broker = Broker()
    old = broker.clean("c", "t", qos=1)
    new = broker.connect("c", clean_start=False, expiry=100)
    old.expect_closed(reasons.SESSION_TAKEN_OVER)
    assert not present(new)
    broker.publish("t", b"1")
    new.expect_nothing()


def test_connecting_does_not_wait_for_a_store_that_it_does_not_need() -> None:
    broker = Broker()
    broker.durable("waiting", "t").drop()
    broker.store.full = True
    broker.request("x", expiry=100)  # a batch that the store refuses
    client = broker.connect("c")
    client.subscribe("u", qos=1)
    publisher = broker.connect("p")
    assert publisher.publish("u", b"1", 1) == Puback(1)
    assert client.receive_all() == [b"1"]
    assert broker.refused("waiting") == reasons.SERVER_UNAVAILABLE
    assert broker.refused("w", will=will("w")) == reasons.SERVER_UNAVAILABLE
    assert broker.refused("x", clean_start=True) == reasons.SERVER_UNAVAILABLE


def test_clients_do_not_fill_a_batch_that_the_store_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An external store is told who is connected: rows for clients that need none themselves."""
    monkeypatch.setattr("session.lifetime.connect.STALLED_CHANGES_MAX", 20)
    broker = Broker(feeds=feed())
    broker.store.full = True
    broker.connect("c").ping()  # it does not wait for what stores are told
    for number in range(100):
        client = broker.request(f"c{number}")
        broker.advance(500)  # the batch is tried again, with all that was collected
        connack = client.answer(Connack)
        assert isinstance(connack, Connack)
        if connack.reason_code:
            break
        client.drop()
    assert connack.reason_code == reasons.SERVER_UNAVAILABLE
    assert 20 < len(broker.engine._tick.batch) < 30
    broker.store.full = False
    broker.advance(2000)
    broker.connect("later").ping()


def test_a_durable_session_is_not_begun_below_the_low_water_mark() -> None:
    broker = Broker()
    broker.durable("there").drop()
    broker.engine.note_disk_space(is_low=True)
    assert broker.refused("new", expiry=10) == reasons.QUOTA_EXCEEDED
    assert broker.refused("new", version=4, durable=True) == 3
    assert broker.refused("will", will=will("w")) == reasons.QUOTA_EXCEEDED
    broker.connect("clean").ping()
    assert present(broker.durable("there"))
    broker.engine.note_disk_space(is_low=False)
    broker.durable("new").ping()


def test_a_damaged_session_is_refused_and_left_alone() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    ((key, value),) = broker.rows("sessions")
    broker.store.write([("sessions", key, value[:-1] + b"?")])
    client = broker.open()
    connect = connect_packet("c", 5, expiry=10)
    broker.engine.receive(client.connection, encode(connect, 5), broker.now)
    broker.engine.end_tick(broker.now)
    client.expect(Connack(False, reasons.SERVER_UNAVAILABLE))
    assert broker.rows("sessions") == [(key, value[:-1] + b"?")]
    assert broker.counters.damaged_rows["session"] == 1


def test_a_clean_start_is_not_confirmed_before_the_end_of_the_old_session_is_durable() -> None:
    broker = Broker()
    broker.durable("c", "t").drop()
    broker.hold_commits()
    first = broker.request("c", clean_start=True)
    first.expect_nothing()
    first.drop()
    second = broker.request("c", clean_start=True)
    second.expect_nothing()  # a crash now would bring the session back
    broker.commit()
    assert isinstance(second.take()[0], Connack)
    broker.hold_commits()
    assert isinstance(broker.request("other").take()[0], Connack)


# Many at once


def test_clients_that_come_in_one_tick_are_one_batch() -> None:
    broker = Broker()
    for number in range(3):
        broker.durable(f"old{number}", "t").disconnect()
    before = broker.engine.written
    with broker.one_tick():
        clients = [broker.request(f"old{number}", expiry=NEVER) for number in range(3)]
        clients += [broker.request(f"new{number}", expiry=NEVER) for number in range(3)]
    assert broker.engine.written == before + 1
    connacks = [broker._connack(client) for client in clients]
    assert [connack.session_present for connack in connacks] == [True] * 3 + [False] * 3


def test_a_client_that_left_in_the_same_tick_finds_its_session_as_it_was_then() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    sender = broker.clean("sender")
    with broker.one_tick():
        client.send(Subscribe(1, [Subscription("u", 1)]))
        sender.send(Publish("t", b"in flight", 1, packet_id=1))
        client.lose()
        again = broker.request("c", expiry=NEVER)
        sender.send(Publish("u", b"missed by nobody", 1, packet_id=2))
    assert broker._connack(again).session_present
    assert again.receive_all() == [b"in flight", b"missed by nobody"]


def test_a_client_whose_session_ended_in_the_same_tick_gets_a_new_one() -> None:
    broker = Broker()
    client = broker.durable("c", "t")
    with broker.one_tick():
        client.disconnect(session_expiry_interval=0)
        again = broker.request("c", expiry=NEVER)
    assert not broker._connack(again).session_present
    broker.publish("t")
    again.expect_nothing()


def test_a_stranger_is_not_authorized_whatever_is_damaged_in_the_session() -> None:
    broker = Broker()
    owner = broker.open(identity="ann")
    owner.send(connect_packet("c", 5, expiry=60), Subscribe(1, [Subscription("t", 1)]))
    owner.drop()
    broker.is_audited = False  # it reads every row
    broker.store.damage("subscriptions", [key for key, _ in broker.rows("subscriptions")])
    broker.restart()
    stranger = broker.open(identity="bob")
    stranger.send(connect_packet("c", 5, expiry=60))
    stranger.expect(Connack(False, reasons.NOT_AUTHORIZED))
    assert broker.counters.damaged_rows["session"] == 0
