"""Bugs of other brokers in QoS 1 and 2 handshakes that Holdfast must never have.

Each docstring names where the bug was seen. Packets are compared exactly: ids, DUP, order.
"""

import threading
import time
from collections.abc import Callable

import pytest

from mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.durability.rawclient import Closed, RawClient, Silence
from tests.durability.scene import Scene

Cut = Callable[[Scene, RawClient], None]


def _link_cut(scene: Scene, client: RawClient) -> None:
    client.drop(reset=True)


def _kill(scene: Scene, client: RawClient) -> None:
    scene.broker.crash()


def _sigterm(scene: Scene, client: RawClient) -> None:
    scene.restart()


CUTS = pytest.mark.parametrize("cut", [_link_cut, _kill, _sigterm])
VERSIONS = pytest.mark.parametrize("version", [4, 5])


@CUTS
@VERSIONS
def test_unacknowledged_messages_come_again_with_dup_and_their_ids(
    scene: Scene, cut: Cut, version: int
) -> None:
    """FlashMQ #176 (DUP=0), bifromq #281 (new ids), nanomq #2412, NATS #7643 (nothing comes), amqtt
    (dropped at any disconnect), mochi (random order within a second)."""
    subscriber = scene.durable("s", "t", qos=2, version=version)
    publisher = scene.online("p")
    for number in range(30):
        publisher.publish(scene.topic(), b"%d" % number, qos=1 + number % 2)
    sent = [subscriber.expect_publish(acknowledge=False, dup=False) for _ in range(30)]
    cut(scene, subscriber)
    subscriber.resume()
    for publish in sent:
        subscriber.expect_publish(
            publish.payload, dup=True, packet_id=publish.packet_id, qos=publish.qos
        )
    subscriber.expect_nothing()


@CUTS
@VERSIONS
def test_an_owed_pubrel_is_sent_again(scene: Scene, cut: Cut, version: int) -> None:
    """rmqtt #456, bifromq #281, nanomq #2412: the exchange is silently abandoned."""
    subscriber = scene.durable("s", "t", qos=2, version=version)
    publisher = scene.online("p")
    for number in range(3):
        publisher.publish(scene.topic(), b"%d" % number, qos=2)
    sent = [subscriber.expect_publish(acknowledge=False) for _ in range(3)]
    subscriber.send(Pubrec(sent[1].packet_id))
    subscriber.expect(Pubrel)
    cut(scene, subscriber)
    subscriber.resume()
    first, second, third = (subscriber.receive() for _ in range(3))
    assert isinstance(first, Publish) and first.packet_id == sent[0].packet_id and first.dup
    assert isinstance(second, Pubrel) and second.packet_id == sent[1].packet_id
    assert isinstance(third, Publish) and third.packet_id == sent[2].packet_id and third.dup
    subscriber.send(Pubcomp(second.packet_id))
    subscriber.acknowledge(first)
    subscriber.acknowledge(third)
    subscriber.expect_nothing()


def test_a_completed_qos2_delivery_is_not_made_again(scene: Scene) -> None:
    """mosquitto #1726: what left the queue was not saved as gone, so a crash brought it back."""
    subscriber = scene.durable("s", "t", qos=2)
    publisher = scene.online("p")
    for number in range(20):
        publisher.publish(scene.topic(), b"%d" % number, qos=2)
    subscriber.take(20)
    subscriber.ping()
    scene.broker.crash()
    subscriber.resume()
    # That PUBCOMP has come may be forgotten by a crash: PUBREL again is harmless, PUBLISH is not.
    assert subscriber.take_all(idle=0.3) == []
    scene.settle()
    scene.broker.crash()
    subscriber.resume()
    subscriber.expect_nothing()


@VERSIONS
def test_an_unknown_pubrec_is_answered_and_forgotten(scene: Scene, version: int) -> None:
    """mosquitto #57: an unknown PUBREC closed the connection, and so did every reconnect."""
    subscriber = scene.durable("s", "t", qos=2, version=version)
    for _ in range(2):
        subscriber.send(Pubrec(1234))
        answer = subscriber.expect(Pubrel)
        assert answer.packet_id == 1234
        assert answer.reason_code == (0x92 if version == 5 else 0)
        subscriber.send(Pubcomp(1234))
        subscriber.expect_nothing()
        subscriber.drop()
        subscriber.resume()
        subscriber.expect_nothing()


@VERSIONS
def test_acknowledgements_of_nothing_change_nothing(scene: Scene, version: int) -> None:
    """TBMQ, mochi: a stray acknowledgement frees a window slot or a message of somebody else."""
    subscriber = scene.durable("s", "t", qos=1, version=version)
    scene.online("p").publish(scene.topic(), b"owed")
    publish = subscriber.expect_publish(b"owed", acknowledge=False)
    stranger = publish.packet_id + 100
    subscriber.send(Puback(stranger), Pubcomp(stranger))
    subscriber.ping()
    subscriber.drop()
    subscriber.resume()
    subscriber.expect_publish(b"owed", dup=True, packet_id=publish.packet_id)


@VERSIONS
def test_a_repeated_qos2_publish_is_delivered_once(scene: Scene, version: int) -> None:
    """wolfMQTT #506 (forwarded again before PUBREL), mosquitto #3602 (0x82 at the second time),
    FlashMQ #171 (0x91), rmqtt #456 (replayed PUBLISH delivered twice)."""
    subscriber = scene.durable("s", "t", qos=2)
    publisher = scene.durable("p", version=version)
    publisher.publish_begin(scene.topic(), b"once", qos=2, packet_id=5)
    assert publisher.expect(Pubrec).reason_code in (0, 0x10)
    for _ in range(5):
        publisher.publish_begin(scene.topic(), b"once", qos=2, packet_id=5, dup=True)
        assert publisher.expect(Pubrec).reason_code in (0, 0x10)
    publisher.release(5)
    subscriber.expect_publish(b"once")
    subscriber.expect_nothing()


def test_an_inbound_qos2_id_survives_two_restarts(scene: Scene) -> None:
    """HiveMQ CE (ids in memory only), EMQX #16721 and CVE-2026-8741 (id committed later than the
    message, or forgotten after a time), bifromq #281 (PUBREL answered 0x92)."""
    subscriber = scene.durable("s", "t", qos=2)
    publisher = scene.durable("p")
    for packet_id in (5, 6):
        publisher.publish_begin(scene.topic(), b"%d" % packet_id, qos=2, packet_id=packet_id)
        publisher.expect(Pubrec)
    scene.broker.crash()
    scene.broker.crash()
    publisher.resume()
    publisher.publish_begin(scene.topic(), b"5", qos=2, packet_id=5, dup=True)
    publisher.expect(Pubrec)
    assert publisher.release(5).reason_code == 0
    assert publisher.release(6).reason_code == 0
    subscriber.resume()
    assert [publish.payload for publish in subscriber.take(2)] == [b"5", b"6"]
    subscriber.expect_nothing()


def test_open_qos2_ids_end_with_the_session(scene: Scene) -> None:
    """EMQX #14815: un-released ids outlived the session and filled its limit."""
    subscriber = scene.durable("s", "t", qos=1)
    publisher = scene.client("p")
    for turn in range(3):
        connack = publisher.connect(clean_start=True)
        count = min(50, connack.receive_maximum)
        for packet_id in range(1, count + 1):
            publisher.publish_begin(scene.topic(), b"%d" % turn, qos=2, packet_id=packet_id)
            assert publisher.expect(Pubrec).reason_code in (0, 0x10)
        publisher.drop()
        assert {publish.payload for publish in subscriber.take(count)} == {b"%d" % turn}


@VERSIONS
def test_a_puback_does_not_end_a_qos2_delivery(scene: Scene, version: int) -> None:
    """EMQX #14122: PUBACK was taken for a QoS 2 message, and PUBREC for a QoS 1 message."""
    subscriber = scene.durable("s", "t", qos=2, version=version)
    publisher = scene.online("p")
    for qos, answer in ((2, Puback), (1, Pubrec)):
        publisher.publish(scene.topic(), b"%d" % qos, qos=qos)
        publish = subscriber.expect_publish(b"%d" % qos, acknowledge=False, qos=qos)
        subscriber.send(answer(publish.packet_id))
        try:
            subscriber.ping()
        except Closed as closed:
            assert closed.disconnect is None or closed.disconnect.reason_code == 0x82
        subscriber.drop()
        subscriber.resume()
        subscriber.expect_publish(b"%d" % qos, dup=True, packet_id=publish.packet_id)
        subscriber.expect_nothing()


def test_each_direction_has_its_own_ids(scene: Scene) -> None:
    """mochi: one map for both directions, so an inbound PUBLISH deleted the outbound message."""
    both = scene.durable("both", "in", qos=2)
    other = scene.durable("other", "out", qos=2)
    publisher = scene.online("p")
    publisher.publish(scene.topic("in"), b"one", qos=1)
    publisher.publish(scene.topic("in"), b"two", qos=2)
    owed = [both.expect_publish(acknowledge=False) for _ in range(2)]
    for publish, qos in ((owed[0], 2), (owed[1], 1)):
        both.publish_begin(scene.topic("out"), b"mine", qos=qos, packet_id=publish.packet_id)
    assert both.expect(Pubrec).packet_id == owed[0].packet_id
    assert both.expect(Puback).packet_id == owed[1].packet_id
    # An acknowledgement of the outbound message must not release the inbound id either.
    both.send(Puback(owed[0].packet_id))
    both.publish_begin(scene.topic("out"), b"mine", qos=2, packet_id=owed[0].packet_id, dup=True)
    both.expect(Pubrec)
    scene.settle()
    scene.broker.crash()
    both.resume()
    both.expect_publish(b"two", dup=True, packet_id=owed[1].packet_id)
    assert both.release(owed[0].packet_id).reason_code == 0
    both.expect_nothing()
    other.resume()
    assert [publish.payload for publish in other.take(2)] == [b"mine", b"mine"]
    other.expect_nothing()


def test_messages_acknowledged_out_of_order_leave_the_others_owed(scene: Scene) -> None:
    """TBMQ #320: the offset was committed past what was not delivered; DUP=0 on the retry."""
    subscriber = scene.durable("s", "t", receive_maximum=5)
    publisher = scene.online("p")
    for number in range(1, 9):
        publisher.publish(scene.topic(), b"%d" % number)
    sent = [subscriber.expect_publish(b"%d" % n, acknowledge=False) for n in range(1, 6)]
    subscriber.expect_nothing()
    subscriber.acknowledge(sent[2])
    sent.append(subscriber.expect_publish(b"6", acknowledge=False))
    scene.settle()
    scene.broker.crash()
    subscriber.resume(receive_maximum=5)
    for number in (1, 2, 4, 5, 6):
        subscriber.expect_publish(
            b"%d" % number, acknowledge=False, dup=True, packet_id=sent[number - 1].packet_id
        )
    subscriber.expect_nothing()
    for number in (1, 2, 4, 5, 6):
        subscriber.send(Puback(sent[number - 1].packet_id))
    subscriber.expect_publish(b"7", dup=False)
    subscriber.expect_publish(b"8", dup=False)
    subscriber.expect_nothing()


def test_a_takeover_brings_its_own_receive_maximum(scene: Scene) -> None:
    """mosquitto #2134 (the old value overwrote the new one), FlashMQ #173 (the exhausted quota of
    the old connection was carried over and the queue stalled)."""
    first = scene.durable("s", "t", receive_maximum=2)
    publisher = scene.online("p")
    for number in range(6):
        publisher.publish(scene.topic(), b"%d" % number)
    for number in range(2):
        first.expect_publish(b"%d" % number, acknowledge=False)
    first.expect_nothing()
    wider = scene.client("s")
    wider.resume(receive_maximum=4)
    for number in range(4):
        wider.expect_publish(b"%d" % number, acknowledge=False, dup=number < 2)
    wider.expect_nothing()
    narrower = scene.client("s")
    narrower.resume(receive_maximum=1)
    for number in range(6):
        publish = narrower.expect_publish(b"%d" % number, acknowledge=False, dup=number < 4)
        narrower.expect_nothing(listen=0.02)
        narrower.acknowledge(publish)
    narrower.expect_nothing()


def test_expiry_does_not_end_an_exchange_that_has_begun(scene: Scene) -> None:
    """mosquitto #3744, bifromq #281, rmqtt #513: an expired message took its exchange along.

    EMQX PR 17702: what was sent once is sent again even when it has expired since.
    """
    subscriber = scene.durable("s", "t", qos=2)
    publisher = scene.online("p")
    for number, qos in enumerate((2, 2, 1)):
        publisher.publish(scene.topic(), b"%d" % number, qos=qos, message_expiry_interval=1)
    sent = [subscriber.expect_publish(acknowledge=False) for _ in range(3)]
    subscriber.send(Pubrec(sent[0].packet_id))
    subscriber.expect(Pubrel)
    time.sleep(1.2)
    scene.broker.crash()
    subscriber.resume()
    release = subscriber.receive()
    assert isinstance(release, Pubrel) and release.packet_id == sent[0].packet_id
    subscriber.send(Pubcomp(release.packet_id))
    for publish in sent[1:]:
        subscriber.expect_publish(publish.payload, dup=True, packet_id=publish.packet_id)
    subscriber.expect_nothing()


def test_expiry_does_not_end_an_inbound_exchange(scene: Scene) -> None:
    """[MQTT-4.3.3-13], mosquitto #3744: the inbound id is kept although its message has expired."""
    scene.offline("s", "t", qos=2)
    publisher = scene.durable("p")
    publisher.publish_begin(scene.topic(), b"short", qos=2, packet_id=9, message_expiry_interval=1)
    publisher.expect(Pubrec)
    publisher.drop()
    time.sleep(1.2)
    scene.broker.crash()
    publisher.resume()
    publisher.publish_begin(
        scene.topic(), b"short", qos=2, packet_id=9, dup=True, message_expiry_interval=1
    )
    publisher.expect(Pubrec)
    assert publisher.release(9).reason_code == 0
    subscriber = scene.client("s")
    subscriber.resume()
    subscriber.expect_nothing()


def test_a_resent_message_has_its_whole_topic(scene: Scene) -> None:
    """mochi: the outbound topic alias was stored with the message, and its topic was empty."""
    subscriber = scene.durable("s", "t", topic_alias_maximum=10)
    publisher = scene.online("p")
    for number in range(4):
        publisher.publish(scene.topic(), b"%d" % number)
    for _ in range(4):
        subscriber.expect_publish(acknowledge=False)
    scene.broker.crash()
    subscriber.resume(topic_alias_maximum=0)
    for number in range(4):
        subscriber.expect_publish(b"%d" % number, topic=scene.topic(), topic_alias=0, dup=True)


def test_a_session_survives_many_unfinished_reconnects(scene: Scene) -> None:
    """mosquitto #898: after ten reconnects with unfinished QoS 2 a session got nothing any more."""
    subscriber = scene.durable("s", "t", qos=2, receive_maximum=10)
    publisher = scene.online("p")
    for turn in range(25):
        publisher.publish(scene.topic(), b"%d" % turn, qos=2)
        subscriber.expect(Publish)
        subscriber.drop(reset=bool(turn % 2))
        subscriber.resume(receive_maximum=10)
    received = subscriber.take(25)
    assert [int(publish.payload) for publish in received] == list(range(25))
    assert [publish.dup for publish in received[:10]] == [True] * 10
    subscriber.expect_nothing()


def test_a_message_too_large_for_the_client_does_not_stop_the_queue(scene: Scene) -> None:
    """rmqtt #513: an oversized queued message stalled everything behind it."""
    subscriber = scene.offline("s", "t")
    publisher = scene.online("p")
    for payload in (b"before", b"x" * 2000, b"after"):
        publisher.publish(scene.topic(), payload)
    scene.broker.crash()
    subscriber.resume(maximum_packet_size=500)
    assert [publish.payload for publish in subscriber.take(2)] == [b"before", b"after"]
    subscriber.expect_nothing()
    subscriber.disconnect()
    subscriber.resume()
    subscriber.expect_nothing()


def test_a_backlog_comes_at_once_and_in_order(scene: Scene) -> None:
    """nanomq #2355 (one message each retry interval), NATS (stalls up to AckWait, out of order)."""
    subscriber = scene.offline("s", "t", qos=2)
    publisher = scene.online("p")
    messages = [(scene.topic(), b"%d" % number) for number in range(1000)]
    publisher.publish_all(messages[:500], qos=1)
    publisher.publish_all(messages[500:], qos=2)
    scene.broker.crash()
    begun = time.monotonic()
    subscriber.resume()
    received = subscriber.take(1000)
    assert time.monotonic() - begun < 30.0
    assert [(publish.topic, publish.payload) for publish in received] == messages


def test_a_session_that_catches_up_goes_live_without_a_gap(scene: Scene) -> None:
    """EMQX #15142 (stuck stream): nothing is lost, doubled or reordered on the way to live."""
    subscriber = scene.offline("s", "t")
    publisher = scene.online("p")
    messages = [(scene.topic(), b"%d" % number) for number in range(1500)]
    publisher.publish_all(messages[:500], qos=1)
    rest = threading.Thread(
        target=publisher.publish_all, args=(messages[500:],), kwargs={"qos": 1, "window": 5}
    )
    subscriber.resume(receive_maximum=10)
    rest.start()
    received = subscriber.take(1500)
    rest.join(30.0)
    assert [(publish.topic, publish.payload) for publish in received] == messages
    assert not any(publish.dup for publish in received)
    subscriber.expect_nothing()


def test_an_online_session_that_does_not_read_loses_nothing(scene: Scene) -> None:
    """vernemq #1577 and #1860: only offline messages were stored, so kill -9 took those of clients
    that were online."""
    subscriber = scene.durable("s", "t", qos=2)
    publisher = scene.online("p")
    messages = [(scene.topic(), b"%d" % number) for number in range(300)]
    publisher.publish_all(messages, qos=2, window=20)
    scene.broker.crash()
    subscriber.resume()
    assert [(p.topic, p.payload) for p in subscriber.take(300)] == messages
    subscriber.expect_nothing()


@pytest.mark.slow
def test_more_messages_than_packet_ids_can_wait(scene: Scene) -> None:
    """mosquitto, FlashMQ: ids were given out at enqueue, so 65,536 queued messages shared some."""
    subscriber = scene.offline("s", "t")
    publisher = scene.online("p")
    messages = [(scene.topic(), b"%d" % number) for number in range(66_000)]
    publisher.publish_all(messages, qos=1, window=500)
    scene.broker.crash()
    subscriber.resume()
    received = subscriber.take(66_000)
    assert [(publish.topic, publish.payload) for publish in received] == messages
    with pytest.raises(Silence):
        subscriber.receive(0.2)
