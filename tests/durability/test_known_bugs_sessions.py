"""Bugs of other brokers in sessions, queues and lifetimes that Holdfast must never have.

Each docstring names where the bug was seen.
"""

import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from mqtt.packets import Connect, Puback, Suback, Subscribe, Subscription
from mqtt.reasons import SESSION_TAKEN_OVER
from tests.durability.rawclient import FOREVER, Closed
from tests.durability.scene import Scene

VERDICT_SECONDS = 0.6  # a verdict about the depth of a queue holds for half a second
VERSIONS = pytest.mark.parametrize("version", [4, 5])


def _wait_until(deadline: float) -> None:
    time.sleep(max(0.0, deadline - time.monotonic()))


# What an acknowledgement of the broker says is true after a crash


@VERSIONS
def test_a_session_exists_once_connack_is_there(scene: Scene, version: int) -> None:
    """mosquitto 2.1 sqlite: CONNACK was sent before the client's row was written."""
    client = scene.client("s", version=version)
    client.durable()
    scene.broker.crash()
    client.resume()
    # An empty session is one as well, and stays one.
    client.disconnect()
    scene.broker.crash()
    client.resume()


@VERSIONS
def test_a_subscription_exists_once_suback_is_there(scene: Scene, version: int) -> None:
    """bifromq #281: SUBACK came before the subscription was in place."""
    client = scene.client("s", version=version)
    client.durable()
    client.subscribe(scene.topic(), scene.topic("+/deep/#"), qos=2)
    scene.broker.crash()
    publisher = scene.online("p")
    publisher.publish(scene.topic(), b"flat", qos=2)
    publisher.publish(scene.topic("a/deep/b"), b"deep", qos=2)
    client.resume()
    assert [publish.payload for publish in client.take(2)] == [b"flat", b"deep"]


@VERSIONS
def test_a_removed_subscription_stays_removed(scene: Scene, version: int) -> None:
    """amqtt: the removal was never stored, so subscriptions rose from the dead at restart."""
    client = scene.durable("s", "kept", "removed", version=version)
    client.unsubscribe(scene.topic("removed"))
    scene.broker.crash()
    publisher = scene.online("p")
    publisher.publish(scene.topic("removed"), b"removed")
    publisher.publish(scene.topic("kept"), b"kept")
    client.resume()
    client.expect_publish(b"kept")
    client.expect_nothing()


def test_subscribing_again_replaces_options_for_good(scene: Scene) -> None:
    """amqtt: a second SUBSCRIBE did not change the QoS."""
    client = scene.durable("s", "t", qos=2)
    client.subscribe(scene.topic(), qos=1, identifier=7, retain_as_published=True)
    scene.broker.crash()
    scene.online("p").publish(scene.topic(), b"x", qos=2, retain=True)
    client.resume()
    client.expect_publish(b"x", qos=1, retain=True, subscription_identifiers=(7,))
    client.expect_nothing()


@VERSIONS
def test_what_clean_start_discarded_never_comes_back(scene: Scene, version: int) -> None:
    """[MQTT-3.1.2-4] A crash right at the CONNACK must not bring the old session back."""
    client = scene.offline("s", "t", version=version)
    publisher = scene.online("p")
    publisher.publish(scene.topic(), b"old")
    connack = client.connect(clean_start=True, expiry=3600)
    assert not connack.session_present
    scene.broker.crash()
    client.durable()
    client.subscribe(scene.topic())
    client.expect_nothing()


def test_a_session_ended_by_disconnect_stays_ended(scene: Scene) -> None:
    """[MQTT-3.14.2-2] DISCONNECT with expiry 0 ends the session, in front of any crash."""
    client = scene.durable("s", "t")
    client.disconnect(expiry=0)
    scene.broker.crash()
    assert not client.durable().session_present


def test_all_client_ids_come_back(scene: Scene) -> None:
    """nanomq PR 2357: half of all client ids, those with a large hash, could not be read back."""
    names = [f"{number:03d}" for number in range(150)]
    names += ["ä/ö ü#+", "x" * 200, "☃", "a\u3000b", "%c", "../..", "\U0001f600"]
    clients = [scene.durable(name, f"inbox/{index}") for index, name in enumerate(names)]
    publisher = scene.online("p")
    messages = [(scene.topic(f"inbox/{index}"), b"%d" % index) for index in range(len(names))]
    publisher.publish_all(messages, qos=1)
    scene.broker.crash()
    for index, client in enumerate(clients):
        client.resume()
        client.expect_publish(b"%d" % index)
        client.drop()


# Takeover


@VERSIONS
def test_nobody_is_refused_in_a_storm_of_one_client_id(scene: Scene, version: int) -> None:
    """[MQTT-3.1.4-3] The CONNECT that comes last wins, also on the connection opened first."""
    first, *others = [scene.client("s", version=version).open() for _ in range(50)]
    fields = {"session_expiry_interval": 3600} if version == 5 else {}
    connect = Connect(first.client_id, version, clean_start=False, **fields)
    for client in reversed(others):
        client.send(connect)
    for client in others:
        with suppress(Closed):  # taken over before its CONNACK
            assert client.receive().reason_code == 0
    first.send(connect)
    connack = first.receive()
    assert connack.reason_code == 0 and connack.session_present
    for client in others:
        disconnect = client.expect_closed()
        assert disconnect is None or disconnect.reason_code == SESSION_TAKEN_OVER
    first.subscribe(scene.topic())
    scene.online("p").publish(scene.topic(), b"x")
    first.expect_publish(b"x")


# Routing after a restart


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_restored_session_is_routed_to_before_its_client_returns(scene: Scene, end: str) -> None:
    """rmqtt #475, nanomq #2320: published after the restart, acknowledged, and dropped."""
    client = scene.offline("s", "t", "wild/+/#", qos=2)
    getattr(scene.broker, end)()
    scene.broker.start()
    publisher = scene.online("p")
    publisher.publish(scene.topic(), b"exact", qos=1)
    publisher.publish(scene.topic("wild/x/y"), b"wild", qos=2)
    client.resume()
    assert [publish.payload for publish in client.take(2)] == [b"exact", b"wild"]
    client.expect_nothing()


@VERSIONS
def test_what_was_delivered_is_not_delivered_at_every_restart(scene: Scene, version: int) -> None:
    """amqtt: delivered messages were never removed; mosquitto #1726: removals were not saved."""
    client = scene.durable("s", "t", qos=2, version=version)
    publisher = scene.online("p")
    for number in range(10):
        publisher.publish(scene.topic(), b"%d" % number, qos=1 + number % 2)
    client.take(10)
    client.disconnect()
    scene.settle()
    for restart in (scene.restart, scene.broker.crash):
        restart()
        client.resume()
        client.expect_nothing()
        client.disconnect()


# What is delivered


def test_a_client_gets_nothing_it_did_not_ask_for(scene: Scene) -> None:
    """amqtt: every connecting client was sent the retained messages of all subscriptions."""
    scene.durable("other", "secret/#")
    scene.online("p").publish(scene.topic("secret/x"), b"secret", retain=True)
    stranger = scene.client("stranger")
    stranger.durable()
    stranger.expect_nothing()
    stranger.disconnect()
    stranger.resume()
    stranger.expect_nothing()


@VERSIONS
def test_queued_messages_come_as_what_they_are(scene: Scene, version: int) -> None:
    """amqtt: replayed with RETAIN=1, concurrently, QoS raised to that of the subscription, payloads
    decoded as text."""
    client = scene.offline("s", "t/#", qos=2, version=version)
    publisher = scene.online("p", version=version)
    payload = bytes(range(256))
    publisher.publish(scene.topic("t/1"), payload, qos=1, retain=True)
    publisher.publish(scene.topic("t/2"), payload, qos=2)
    publisher.publish(scene.topic("t/3"), b"", qos=1)
    scene.broker.crash()
    client.resume()
    client.expect_publish(payload, topic=scene.topic("t/1"), qos=1, retain=False, dup=False)
    client.expect_publish(payload, topic=scene.topic("t/2"), qos=2, retain=False, dup=False)
    client.expect_publish(b"", topic=scene.topic("t/3"), qos=1, retain=False, dup=False)
    client.expect_nothing()


def test_qos_0_is_never_raised(scene: Scene) -> None:
    """amqtt: a QoS 0 message arrived at the QoS of the subscription."""
    client = scene.durable("s", "t", qos=2)
    scene.online("p").publish(scene.topic(), b"zero", qos=0)
    client.expect_publish(b"zero", qos=0, packet_id=0)


def test_overlapping_filters_keep_their_identifiers_over_a_restart(scene: Scene) -> None:
    """[MQTT-3.3.4-3] amqtt delivered one copy for each filter, at each filter's QoS."""
    client = scene.client("s")
    client.durable()
    client.subscribe(scene.topic("a/+"), qos=1, identifier=11)
    client.subscribe(scene.topic("a/b"), qos=2, identifier=12)
    client.subscribe(scene.topic("#"), qos=0)
    client.disconnect()
    scene.broker.crash()
    scene.online("p").publish(scene.topic("a/b"), b"x", qos=2)
    client.resume()
    publish = client.expect_publish(b"x", qos=2)
    assert sorted(publish.subscription_identifiers) == [11, 12]
    client.expect_nothing()


def test_properties_come_through_a_crash_untouched(scene: Scene) -> None:
    """mosquitto 2.1 sqlite stores properties as JSON text; order and bytes must stay as sent."""
    # Payload Format 1, Content Type, Response Topic, Correlation Data, three User Properties.
    properties = (
        b"\x01\x01\x03\x00\x04text\x08\x00\x05reply\x09\x00\x03\x00\xff\x01"
        b"\x26\x00\x01b\x00\x012\x26\x00\x01a\x00\x011\x26\x00\x01b\x00\x00"
    )
    client = scene.offline("s", "t")
    scene.online("p").publish(scene.topic(), b"x", properties=properties)
    scene.broker.crash()
    client.resume()
    client.expect_publish(b"x", properties=properties)


# Lifetimes


def test_a_session_is_gone_when_its_time_is_over(scene: Scene) -> None:
    """tbmq #372: SP=1 and a live subscription long after the interval the server had granted."""
    client = scene.durable("s", "t", expiry=1)
    client.disconnect()
    gone = time.monotonic()
    publisher = scene.online("p")
    publisher.publish(scene.topic(), b"while it lived")
    _wait_until(gone + 1.3)
    publisher.publish(scene.topic(), b"after")
    assert not client.durable().session_present
    client.expect_nothing()


def test_a_restored_session_still_expires(scene: Scene) -> None:
    """mosquitto #2546 (restored clients were not in the expiry list), mochi (restored sessions got
    the maximum), mosquitto #2610 (expiry only within one run)."""
    client = scene.offline("s", "t", expiry=2)
    scene.broker.crash()
    restarted = time.monotonic()
    scene.online("p").publish(scene.topic(), b"x")
    _wait_until(restarted + 2.3)
    assert not client.durable().session_present
    client.expect_nothing()


def test_restarts_do_not_prolong_a_session(scene: Scene) -> None:
    """wolfMQTT #538, VerneMQ, mochi: the expiry timer began anew at each restart."""
    client = scene.offline("s", "t", expiry=3)
    closed = time.monotonic()
    for _ in range(2):
        time.sleep(0.6)
        scene.broker.crash()
    _wait_until(closed + 3.4)
    assert not client.durable().session_present


def test_a_connected_session_does_not_age(scene: Scene) -> None:
    """[MQTT-4.1.0-1] The interval runs from the close; at a crash, from the crash."""
    for expiry in (4, 30):  # the second where a busy machine needs more than 4 s for a start
        client = scene.durable(f"s{expiry}", "t", expiry=expiry)
        time.sleep(expiry + 0.2)
        killed = time.monotonic()
        scene.broker.crash()
        if client.durable(expiry=expiry).session_present:
            return
        assert time.monotonic() - killed > expiry - 0.5, "it has aged before the crash"
    raise AssertionError("no start was quick enough")


def test_the_largest_intervals_do_not_wrap(scene: Scene) -> None:
    """wolfMQTT #567: 32-bit arithmetic; 0xFFFFFFFF never expires."""
    nearly = scene.offline("nearly", "t", expiry=FOREVER - 1)
    never = scene.offline("never", "t", expiry=FOREVER)
    scene.online("p").publish(scene.topic(), b"x", message_expiry_interval=FOREVER)
    scene.broker.crash()
    for client in (nearly, never):
        client.resume(expiry=FOREVER)
        publish = client.expect_publish(b"x")
        assert FOREVER - 60 <= publish.message_expiry_interval <= FOREVER
        client.disconnect()


def test_a_v5_session_without_expiry_ends_with_its_connection(scene: Scene) -> None:
    """mosquitto #1728, #1734: Clean Start 0 alone does not make a session durable in v5."""
    client = scene.client("s")
    client.durable(expiry=0)
    client.subscribe(scene.topic())
    client.drop()
    scene.online("p").publish(scene.topic(), b"x")
    assert not client.durable(expiry=0).session_present
    client.expect_nothing()


def test_the_expiry_of_a_message_counts_on_over_restarts(scene: Scene) -> None:
    """mosquitto #1464 (lost on restart), VerneMQ (not stored), rmqtt #513 (not decremented)."""
    client = scene.offline("s", "t")
    publisher = scene.online("p")
    publisher.publish(scene.topic(), b"short", message_expiry_interval=1)
    publisher.publish(scene.topic(), b"long", message_expiry_interval=60)
    published = time.monotonic()
    scene.broker.crash()
    time.sleep(0.5)
    scene.restart()
    _wait_until(published + 1.6)
    client.resume()
    publish = client.expect_publish(b"long")
    waited = time.monotonic() - published
    assert 60 - waited - 1 <= publish.message_expiry_interval <= 59
    client.expect_nothing()


# Limits


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_new"])
def test_the_limit_of_an_offline_queue_holds_over_a_crash(
    start_broker: Callable[..., Scene], policy: str
) -> None:
    """aedes #1087 (not applied to offline queues), mosquitto #2415 and #2362 (silent drops)."""
    scene = start_broker(
        HOLDFAST__SESSION__MAX_OFFLINE_MESSAGES="10", HOLDFAST__SESSION__ON_LIMIT=policy
    )
    client = scene.offline("s", "t")
    publisher = scene.online("p")
    for number in range(25):
        publisher.publish(scene.topic(), b"%d" % number)
    scene.broker.crash()
    client.resume()
    kept = range(15, 25) if policy == "drop_oldest" else range(10)
    assert [int(publish.payload) for publish in client.take(10)] == list(kept)
    client.expect_nothing()
    metrics = scene.broker.metrics()
    dropped = sum(n for name, n in metrics.items() if "messages_dropped_total" in name)
    assert dropped == 15


def test_the_publisher_hears_of_a_full_queue(start_broker: Callable[..., Scene]) -> None:
    """mosquitto #2415: `on_limit = reject` says 0x97 instead of dropping in silence."""
    scene = start_broker(
        HOLDFAST__SESSION__MAX_OFFLINE_MESSAGES="3", HOLDFAST__SESSION__ON_LIMIT="reject"
    )
    client = scene.offline("s", "t")
    publisher = scene.online("p")
    for number in range(3):
        publisher.publish(scene.topic(), b"%d" % number)
    time.sleep(VERDICT_SECONDS)
    publisher.publish_begin(scene.topic(), b"refused")
    assert publisher.expect(Puback).reason_code == 0x97
    client.resume()
    assert [publish.payload for publish in client.take(3)] == [b"0", b"1", b"2"]
    client.expect_nothing()
    client.disconnect()
    time.sleep(VERDICT_SECONDS)
    publisher.publish(scene.topic(), b"welcome again")


@pytest.mark.slow
def test_an_offline_backlog_is_not_held_in_memory(start_broker: Callable[..., Scene]) -> None:
    """mosquitto #2455, #989, #3273, amqtt #14 and #123: queues live in RAM until it is gone."""
    scene = start_broker(HOLDFAST__SESSION__MAX_OFFLINE_MESSAGES="0")
    client = scene.offline("s", "t")
    publisher = scene.online("p")
    messages = [(scene.topic(), b"%06d" % n + b"x" * 4090) for n in range(50_000)]
    publisher.publish_all(messages[:1000], qos=1)
    before = scene.broker.rss_bytes()
    publisher.publish_all(messages[1000:], qos=1, window=200)
    grown = scene.broker.rss_bytes() - before
    assert grown < 150 * 2**20, f"{grown / 2**20:.0f} MiB for 200 MiB of backlog"
    scene.broker.crash()
    assert scene.broker.rss_bytes() < 256 * 2**20
    client.resume()
    assert [publish.payload for publish in client.take(50_000)] == [m[1] for m in messages]


# Identity


def test_a_filter_that_is_refused_leaves_the_others(scene: Scene) -> None:
    """A refused filter gets its own code, and only what was granted exists after a crash."""
    client = scene.client("s")
    client.durable()
    client.send(
        Subscribe(
            client.packet_id(),
            [Subscription(scene.topic(), 1), Subscription("bad#", 1), Subscription("a/#/b", 1)],
        )
    )
    codes = client.expect(Suback).reason_codes
    assert codes == [1, 0x8F, 0x8F]
    scene.broker.crash()
    scene.online("p").publish(scene.topic(), b"x")
    client.resume()
    client.expect_publish(b"x")
    client.expect_nothing()


def test_one_client_id_has_one_session(scene: Scene) -> None:
    """A takeover in a row of them keeps every message and never two connections."""
    first = scene.durable("s", "t", qos=2)
    publisher = scene.online("p")
    clients = [first] + [scene.client("s") for _ in range(10)]
    for number, client in enumerate(clients[1:]):
        publisher.publish(scene.topic(), b"%d" % number, qos=2)
        client.resume()
        disconnect = clients[number].expect_closed()
        assert disconnect is not None and disconnect.reason_code == 0x8E
    received = clients[-1].take(10)
    assert [int(publish.payload) for publish in received] == list(range(10))
    clients[-1].expect_nothing()
