"""What a client may rely on when another node takes over: MQTT as if nothing but time had passed.

Elapsed time counts exactly, though the two nodes have clocks of their own.
"""

from mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.session.harness import NEVER, will
from tests.takeover.nodes import Cluster


def seconds_since(cluster: Cluster, true_ms: int) -> float:
    return (cluster.true_ms - true_ms) / 1000


def test_time_is_what_it_would_be_without_the_takeover() -> None:
    cluster = Cluster()
    before = cluster.now - cluster.true_ms
    leads = cluster.take_over()
    assert leads.is_timed and leads.silent_ms > 0
    assert cluster.now - cluster.true_ms == before


def test_after_all_were_away_the_log_does_not_know_for_how_long() -> None:
    """So the clocks of the machine count (`RunningClock.of_leader`)."""
    cluster = Cluster(names=("ann",))
    leads = cluster.come_back(after_ms=60_000)
    assert leads.alive_ms and not leads.is_timed
    assert leads.silent_ms < 60_000


def test_message_expiry_counts_across_a_takeover() -> None:
    cluster = Cluster()
    cluster.durable("reader", "t", qos=1).drop()
    cluster.publish("t", b"short", message_expiry_interval=4)
    cluster.publish("t", b"long", message_expiry_interval=100)
    cluster.publish("t", b"for ever")
    published = cluster.true_ms
    cluster.advance(s=3)
    cluster.take_over()  # which takes a second or more
    left = 100 - seconds_since(cluster, published)
    got = cluster.connect("reader", expiry=NEVER).messages()
    assert [each.payload for each in got] == [b"long", b"for ever"]
    assert left - 1 <= got[0].message_expiry_interval <= left + 1
    assert got[1].message_expiry_interval == -1


def test_session_expiry_counts_across_a_takeover() -> None:
    cluster = Cluster()
    for name, expiry in (("short", 4), ("long", 600)):
        cluster.durable(name, "t", expiry=expiry).disconnect()
    cluster.advance(s=3)
    cluster.take_over()
    cluster.advance(s=1)
    assert not cluster.connect("short", expiry=4).connack.session_present  # type: ignore[union-attr]
    assert cluster.connect("long", expiry=600).connack.session_present  # type: ignore[union-attr]


def test_the_session_of_who_was_connected_expires_from_the_last_word_of_the_leader() -> None:
    cluster = Cluster()
    cluster.durable("short", "t", expiry=5)
    cluster.take_over()
    cluster.advance(s=3)
    cluster.durable("other", expiry=5)
    cluster.advance(s=3)
    assert not cluster.connect("short", expiry=5).connack.session_present  # type: ignore[union-attr]


def test_a_delayed_will_waits_for_its_time_and_comes_once() -> None:
    cluster = Cluster()
    cluster.durable("reader", "w/#", qos=1).drop()
    cluster.connect("mortal", expiry=60, will=will("w/a", delay=8)).drop()
    closed = cluster.true_ms
    cluster.advance(s=3)
    cluster.take_over()
    reader = cluster.connect("reader", expiry=NEVER)
    cluster.advance(int(7900 - seconds_since(cluster, closed) * 1000))
    assert reader.payloads() == []
    cluster.advance(400)
    assert reader.payloads() == [b"will"]
    cluster.advance(s=20)
    assert reader.payloads() == []


def test_a_will_is_not_published_if_its_client_comes_to_the_new_leader_in_time() -> None:
    cluster = Cluster()
    reader = cluster.durable("reader", "w/#", qos=1)
    cluster.connect("mortal", expiry=60, will=will("w/a", delay=8))
    cluster.take_over()
    cluster.connect("mortal", expiry=60)
    cluster.advance(s=20)
    reader = cluster.connect("reader", expiry=NEVER)
    assert reader.payloads() == []


def test_the_will_of_a_clean_session_is_published_too() -> None:
    cluster = Cluster()
    cluster.durable("reader", "w/#", qos=1)
    cluster.clean("mortal", version=4, will=will("w/a"))
    cluster.take_over()
    cluster.advance(s=2)
    assert cluster.connect("reader", expiry=NEVER).payloads() == [b"will"]


def test_in_flight_keeps_packet_ids_and_order_and_receive_maximum_is_the_new_one() -> None:
    cluster = Cluster()
    reader = cluster.durable("reader", "t", qos=2)
    for payload, qos in ((b"1", 1), (b"2", 2), (b"3", 1), (b"4", 2)):
        cluster.publish("t", payload, qos)
    sent = reader.messages()
    reader.send(Pubrec(sent[1].packet_id))
    reader.answer(Pubrel)
    cluster.take_over()
    reader = cluster.connect("reader", expiry=NEVER, receive_maximum=2)
    got = reader.take()
    resent: list[tuple[bytes, int]] = []
    released: list[int] = []
    while got:
        for packet in got:
            if isinstance(packet, Publish):
                assert packet.dup
                resent.append((packet.payload, packet.packet_id))
        assert sum(isinstance(packet, Publish) for packet in got) <= 2, "the Receive Maximum"
        for packet in got:
            if isinstance(packet, Pubrel):
                released.append(packet.packet_id)
                reader.send(Pubcomp(packet.packet_id))
            elif isinstance(packet, Publish) and packet.qos == 1:
                reader.send(Puback(packet.packet_id))
            elif isinstance(packet, Publish):
                reader.send(Pubrec(packet.packet_id))
        got = reader.take()
    assert resent == [(each.payload, each.packet_id) for each in sent if each.payload != b"2"]
    assert released == [sent[1].packet_id, sent[3].packet_id]


def test_a_packet_id_of_qos_2_is_known_to_the_new_leader_until_it_is_released() -> None:
    cluster = Cluster()
    cluster.durable("reader", "t", qos=2).drop()
    writer = cluster.durable("writer")
    writer.start_publish("t", b"once", 2, packet_id=7)
    cluster.take_over()
    writer = cluster.connect("writer", expiry=NEVER)
    assert writer.connack is not None and writer.connack.session_present
    writer.start_publish("t", b"once", 2, packet_id=7, dup=True)
    writer.send(Pubrel(7))
    writer.answer(Pubcomp)
    writer.publish("t", b"next", 2, packet_id=7)
    assert cluster.connect("reader", expiry=NEVER).receive_all() == [b"once", b"next"]


def test_topic_aliases_end_with_the_connection() -> None:
    cluster = Cluster(topic_alias_maximum=5)
    reader = cluster.durable("reader", "t", qos=1)
    writer = cluster.durable("writer")
    writer.publish("t", b"1", 1, topic_alias=3)
    cluster.take_over()
    writer = cluster.connect("writer", expiry=NEVER)
    writer.send(Publish("", b"2", 1, packet_id=9, topic_alias=3))
    assert writer.is_closed
    reader = cluster.connect("reader", expiry=NEVER)
    assert reader.receive_all() == [b"1"]


def test_a_shared_subscription_goes_on_where_it_was() -> None:
    cluster = Cluster()
    for name in ("one", "two"):
        cluster.durable(name, "$share/g/t", qos=1).drop()
    for number in range(6):
        cluster.publish("t", b"%d" % number)
    one = cluster.connect("one", expiry=NEVER, receive_maximum=3)
    taken = one.messages()
    one.send(Puback(taken[0].packet_id))
    cluster.advance(s=1)  # progress at QoS 1 may be late
    taken += one.messages()
    cluster.take_over()
    one = cluster.connect("one", expiry=NEVER)
    two = cluster.connect("two", expiry=NEVER)
    got = sorted(one.receive_all() + two.receive_all())
    assert got == [b"%d" % number for number in range(1, 6)]


def test_options_and_identifiers_of_subscriptions_are_kept() -> None:
    cluster = Cluster()
    reader = cluster.durable("reader")
    reader.subscribe("t", qos=1, no_local=True, retain_as_published=True, identifier=77)
    cluster.take_over()
    reader = cluster.connect("reader", expiry=NEVER)
    cluster.publish("t", b"x", retain=True)
    (message,) = reader.messages()
    assert message.subscription_identifiers == (77,)
    assert message.retain
    reader.acknowledge(message)
    reader.publish("t", b"own", 1)
    assert reader.messages() == []


def test_keep_alive_begins_anew_with_the_new_connection() -> None:
    cluster = Cluster()
    cluster.durable("silent", keep_alive=4)
    cluster.take_over()
    client = cluster.connect("silent", expiry=NEVER, keep_alive=4)
    cluster.advance(s=5)
    assert not client.is_closed
    cluster.advance(s=3)
    client.expect_closed(0x8D)


def test_retained_messages_are_there_and_expire_in_time() -> None:
    cluster = Cluster()
    cluster.publish("r/short", b"s", retain=True, message_expiry_interval=3)
    cluster.publish("r/long", b"l", retain=True, message_expiry_interval=300)
    cluster.advance(s=2)
    cluster.take_over()
    cluster.advance(s=1)
    reader = cluster.clean("reader", "r/#", qos=1)
    assert [(each.topic, each.retain) for each in reader.messages()] == [("r/long", True)]
