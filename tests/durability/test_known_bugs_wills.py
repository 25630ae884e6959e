"""Bugs of other brokers in wills and retained messages that Holdfast must never have.

Each docstring names where the bug was seen.
"""

import time

import pytest

from mqtt.packets import Publish, Will
from tests.durability.process import READY_SECONDS
from tests.durability.rawclient import Closed, RawClient
from tests.durability.scene import Scene

VERSIONS = pytest.mark.parametrize("version", [4, 5])


def _arrivals(client: RawClient, since: float, count: int) -> list[tuple[str, float]]:
    """Return (topic, seconds after `since`) of the next so many wills."""
    arrivals = []
    for _ in range(count):
        publish = client.expect(Publish, timeout=READY_SECONDS)
        arrivals.append((publish.topic, time.monotonic() - since))
        client.acknowledge(publish)
    return arrivals


# When a will comes, and when it does not


def test_short_delays_do_not_starve_a_long_one(scene: Scene) -> None:
    """mosquitto: its list of delayed wills was ordered by interval instead of due time, and looked
    at only as far as the first that was not due."""
    watcher = scene.durable("watcher", "will/#")
    long = scene.client("long")
    long.durable(will=Will(scene.topic("will/long"), b"", 1, False, delay_interval=2))
    begun = time.monotonic()
    long.drop()
    for number in range(8):
        # A new will, due in a second, comes again and again before the long one is due.
        short = scene.client(f"short{number}")
        short.durable(will=Will(scene.topic("will/short"), b"", 1, False, delay_interval=1))
        short.drop()
        time.sleep(0.25)
    arrivals = _arrivals(watcher, begun, 9)
    watcher.expect_nothing()
    # It was due before the last of the short ones.
    (at,) = (at for at, (topic, _) in enumerate(arrivals) if topic == scene.topic("will/long"))
    assert at < 8
    assert arrivals[at][1] >= 1.5


def test_a_will_comes_at_the_end_of_its_session_at_the_latest(scene: Scene) -> None:
    """mosquitto #3505: a will delay above the session expiry (0 above all) held the will back."""
    watcher = scene.durable("watcher", "will/#")
    begun = time.monotonic()
    for expiry in (0, 1):
        client = scene.client(f"c{expiry}")
        will = Will(scene.topic(f"will/{expiry}"), b"", 1, False, delay_interval=60)
        client.durable(expiry=expiry, will=will)
        client.drop()
    arrivals = _arrivals(watcher, begun, 2)
    assert [topic for topic, _ in arrivals] == [scene.topic("will/0"), scene.topic("will/1")]
    assert arrivals[1][1] >= 0.5


@VERSIONS
def test_only_a_proper_disconnect_deletes_the_will(scene: Scene, version: int) -> None:
    """nanomq #2412: no will after a TCP reset, none after DISCONNECT 0x04."""
    watcher = scene.durable("watcher", "will/#")

    def mortal(name: str) -> RawClient:
        client = scene.client(name, version=version)
        client.durable(will=Will(scene.topic(f"will/{name}"), b"w", 1, False))
        return client

    mortal("reset").drop(reset=True)
    watcher.expect_publish(b"w", topic=scene.topic("will/reset"))
    mortal("fin").drop()
    watcher.expect_publish(b"w", topic=scene.topic("will/fin"))
    broken = mortal("broken")
    broken.send_bytes(b"\x00\x00")
    broken.expect_closed()
    watcher.expect_publish(b"w", topic=scene.topic("will/broken"))
    if version == 5:
        mortal("with").disconnect(0x04)
        watcher.expect_publish(b"w", topic=scene.topic("will/with"))
    mortal("proper").disconnect()
    watcher.expect_nothing()
    # Nor does the deleted one come out of a crash.
    scene.settle()
    scene.broker.crash()
    watcher.resume()
    watcher.expect_nothing()


def test_resuming_in_time_cancels_the_will_over_a_crash(scene: Scene) -> None:
    """mosquitto 2.1, HiveMQ CE, VerneMQ: delayed wills were not armed again after a restart."""
    watcher = scene.durable("watcher", "will/#")
    for delay in (2, 30):
        back, gone = scene.client(f"back{delay}"), scene.client(f"gone{delay}")
        wills = {each: scene.topic(f"will/{each.client_id}") for each in (back, gone)}
        for client, topic in wills.items():
            client.durable(will=Will(topic, b"", 1, False, delay_interval=delay))
        closed = time.monotonic()
        back.drop()
        gone.drop()
        scene.commit()
        scene.broker.crash()
        back.resume()
        watcher.resume()
        if time.monotonic() - closed < delay - 0.5:
            break  # else a busy machine took so long that both wills were due: once more
    watcher.expect(Publish, lambda publish: publish.topic == wills[gone], READY_SECONDS + delay)
    assert time.monotonic() - closed >= delay - 0.5
    watcher.ping()  # the other one was due before it
    assert all(packet.topic != wills[back] for packet in watcher.inbox if type(packet) is Publish)


@pytest.mark.parametrize("delay", [0, 1])
def test_a_will_comes_once_over_many_crashes(scene: Scene, delay: int) -> None:
    """[MQTT-3.1.2-8] Its publication and its deletion are one batch; NATS, FlashMQ and mosquitto
    never published the will of a client that was connected at the crash, aedes after 240 s."""
    watcher = scene.offline("watcher", "will")
    mortal = scene.client("mortal")
    mortal.durable(will=Will(scene.topic("will"), b"w", 1, False, delay_interval=delay))
    scene.broker.crash()
    mortal.drop()
    scene.commit()
    scene.broker.crash()
    time.sleep(delay * 1.5)
    scene.commit()
    scene.broker.crash()
    watcher.resume()
    watcher.expect_publish(b"w", dup=False)
    watcher.expect_nothing(listen=0.5)


def test_a_stop_of_the_broker_does_not_lose_wills(scene: Scene) -> None:
    """A client that was connected at SIGTERM did not disconnect: its will comes, once."""
    watcher = scene.offline("watcher", "will/#")
    for version in (4, 5):
        client = scene.client(f"v{version}", version=version)
        client.durable(will=Will(scene.topic(f"will/{version}"), b"", 2, False))
    scene.restart()
    watcher.resume()
    topics = {publish.topic for publish in watcher.take(2)}
    assert topics == {scene.topic("will/4"), scene.topic("will/5")}
    watcher.expect_nothing()
    scene.settle()
    scene.broker.crash()
    watcher.resume()
    watcher.expect_nothing()


def test_a_will_keeps_everything_it_was_given(scene: Scene) -> None:
    """mosquitto 2.0, FlashMQ: not saved, or saved in part. QoS, RETAIN and properties are kept."""
    properties = b"\x01\x01\x03\x00\x01x\x26\x00\x01k\x00\x01v"
    watcher = scene.offline("watcher", "will", qos=2)
    mortal = scene.client("mortal")
    topic = scene.topic("will")
    mortal.durable(
        will=Will(topic, b"\x00\xff", 2, True, message_expiry_interval=600, properties=properties)
    )
    scene.broker.crash()
    watcher.resume()
    publish = watcher.expect_publish(b"\x00\xff", qos=2, topic=topic, properties=properties)
    # The will's expiry starts to count when it is published.
    assert 590 <= publish.message_expiry_interval <= 600
    reader = scene.online("reader")
    reader.subscribe(topic, qos=2)
    reader.expect_publish(b"\x00\xff", qos=2, retain=True, properties=properties)


@pytest.mark.parametrize(
    ("clean_start", "expiry", "delay", "comes"),
    [
        (True, 600, 600, True),
        (False, 0, 600, True),
        (False, 600, 0, True),
        (False, 600, 600, False),
    ],
)
def test_a_takeover_decides_about_the_old_will(
    scene: Scene, clean_start: bool, expiry: int, delay: int, comes: bool
) -> None:
    """[MQTT-3.1.4-3] One test per row of the table; who resumes in time cancels a delayed will."""
    watcher = scene.durable("watcher", "will")
    old, new = scene.client("mortal"), scene.client("mortal")
    old.durable(expiry=expiry, will=Will(scene.topic("will"), b"w", 1, False, delay_interval=delay))
    new.connect(clean_start=clean_start, expiry=600)
    disconnect = old.expect_closed()
    assert disconnect is not None and disconnect.reason_code == 0x8E
    if comes:
        watcher.expect_publish(b"w")
    watcher.expect_nothing()


# Retained messages


def test_retained_messages_do_not_mix(scene: Scene) -> None:
    """HiveMQ CE #291: topic and payload of retained messages were mixed up."""
    publisher = scene.online("p")
    topics = [scene.topic(f"r/{number % 10}/{number}") for number in range(300)]
    for turn in (b"old ", b"new "):
        messages = [(topic, turn + topic.encode()) for topic in topics]
        publisher.publish_all(messages[::2], qos=1, retain=True)
        publisher.publish_all(messages[1::2], qos=2, window=20, retain=True)
    scene.broker.crash()
    reader = scene.online("reader")
    reader.subscribe(scene.topic("r/+/#"), qos=2)
    received = reader.take(300)
    assert {publish.topic for publish in received} == set(topics)
    assert all(publish.payload == b"new " + publish.topic.encode() for publish in received)
    assert all(publish.retain for publish in received)
    reader.expect_nothing()


def test_a_cleared_retained_message_stays_cleared(scene: Scene) -> None:
    """[MQTT-3.3.1-6] A crash at the PUBACK neither revives the old nor keeps the empty one."""
    publisher = scene.online("p")
    publisher.publish(scene.topic(), b"old", retain=True)
    publisher.publish(scene.topic("other"), b"first", retain=True)
    publisher.publish(scene.topic(), b"", retain=True)
    publisher.publish(scene.topic("other"), b"second", retain=True)
    scene.broker.crash()
    reader = scene.online("reader")
    reader.subscribe(scene.topic("#"))
    reader.expect_publish(b"second", retain=True)
    reader.expect_nothing()


def test_retained_messages_age_over_restarts(scene: Scene) -> None:
    """mosquitto #1464 (immortal after a restart), rmqtt #513 (interval not decremented)."""
    publisher = scene.online("p")
    publisher.publish(scene.topic("short"), b"s", retain=True, message_expiry_interval=1)
    publisher.publish(scene.topic("long"), b"l", retain=True, message_expiry_interval=60)
    published = time.monotonic()
    scene.broker.crash()
    scene.restart()
    time.sleep(max(0.0, published + 1.5 - time.monotonic()))
    reader = scene.online("reader")
    reader.subscribe(scene.topic("#"))
    publish = reader.expect_publish(b"l", retain=True)
    assert 60 - (time.monotonic() - published) - 1 <= publish.message_expiry_interval <= 59
    reader.expect_nothing()


@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_retained_message_is_not_sent_above_the_granted_qos(scene: Scene, granted: int) -> None:
    """EMQX #17798: retained messages were sent above the QoS of the subscription."""
    publisher = scene.online("p")
    for qos in (0, 1, 2):
        publisher.publish(scene.topic(f"{qos}"), b"%d" % qos, qos=qos, retain=True)
    publisher.ping()
    scene.broker.crash()
    reader = scene.online("reader")
    reader.subscribe(scene.topic("+"), qos=granted)
    received = {int(publish.payload): publish.qos for publish in reader.take(3)}
    assert received == {qos: min(qos, granted) for qos in (0, 1, 2)}


def test_retained_messages_owed_to_a_session_survive(scene: Scene) -> None:
    """NATS, aedes: what SUBSCRIBE had queued from the retained store was lost with the process."""
    publisher = scene.online("p")
    for number in range(30):
        publisher.publish(scene.topic(f"r/{number}"), b"%d" % number, retain=True)
    reader = scene.durable("reader", receive_maximum=5)
    reader.subscribe(scene.topic("r/#"), qos=1)
    first = [reader.expect_publish(acknowledge=False, retain=True) for _ in range(5)]
    scene.broker.crash()
    reader.resume(receive_maximum=5)
    again = reader.take(30)
    assert {publish.topic for publish in again} == {scene.topic(f"r/{n}") for n in range(30)}
    assert [p.packet_id for p in again[:5]] == [p.packet_id for p in first]
    assert all(publish.retain for publish in again)
    assert [publish.dup for publish in again] == [True] * 5 + [False] * 25
    reader.expect_nothing()


def test_closed_is_told_from_silence(scene: Scene) -> None:
    """The harness itself: a broker that dies is seen as closed, not as quiet."""
    client = scene.online("c")
    scene.broker.kill()
    with pytest.raises(Closed):
        client.expect(Publish)
    scene.broker.start()
