"""What Holdfast promises about sessions, beyond what other brokers get wrong, proved black-box.

Takeover, assigned ids, keep alive, lifetimes, shared groups, identities, and an orderly stop.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtt.packets import Pingreq, Pingresp, Publish, Will
from tests.durability.process import ROOT
from tests.durability.rawclient import RawClient
from tests.durability.scene import Scene

VERSIONS = pytest.mark.parametrize("version", [4, 5])


# Connecting


@VERSIONS
def test_a_takeover_moves_the_session_and_nothing_else(scene: Scene, version: int) -> None:
    """[MQTT-3.1.4-3] The old connection hears 0x8E (v5) and closes; what it owed goes on."""
    old = scene.durable("s", "t", qos=2, version=version)
    publisher = scene.online("p")
    for number in range(3):
        publisher.publish(scene.topic(), b"%d" % number, qos=2)
    sent = [old.expect_publish(acknowledge=False) for _ in range(3)]
    new = scene.client("s", version=version)
    new.resume()
    disconnect = old.expect_closed()
    if version == 5:
        assert disconnect is not None and disconnect.reason_code == 0x8E
    else:
        assert disconnect is None
    for publish in sent:
        new.expect_publish(publish.payload, dup=True, packet_id=publish.packet_id)
    new.expect_nothing()


@VERSIONS
def test_a_clean_start_takeover_discards_the_session(scene: Scene, version: int) -> None:
    """[MQTT-3.1.2-4] Nothing of the old session reaches the new one, not even after a crash."""
    old = scene.durable("s", "t", version=version)
    scene.online("p").publish(scene.topic(), b"old")
    old.expect_publish(b"old", acknowledge=False)
    new = scene.client("s", version=version)
    assert not new.connect(clean_start=True, expiry=3600).session_present
    new.expect_nothing()
    old.expect_closed()
    scene.online("q").publish(scene.topic(), b"new")
    new.expect_nothing()
    scene.broker.crash()
    connack = new.durable()
    assert connack.session_present == (version == 5)
    new.expect_nothing()


def test_an_assigned_client_id_names_a_durable_session(scene: Scene) -> None:
    """[MQTT-3.1.3-7] The id in CONNACK is the session's own, unguessable, and outlives a crash."""
    clients = [RawClient(scene.broker.port, "") for _ in range(2)]
    ids = set()
    for client in clients:
        connack = client.durable()
        assert connack.assigned_client_id and not connack.session_present
        ids.add(connack.assigned_client_id)
        assert len(connack.assigned_client_id) >= 16
    assert len(ids) == 2
    clients[0].subscribe(scene.topic())
    scene.broker.crash()
    scene.online("p").publish(scene.topic(), b"x")
    connack = clients[0].resume()
    assert connack.assigned_client_id is None
    clients[0].expect_publish(b"x")
    for client in clients:
        client.drop()


def test_a_v4_client_without_id_must_ask_for_a_clean_session(scene: Scene) -> None:
    """[MQTT-3.1.3-8] v3.1.1 has no way to tell the client its id: CONNACK 2 and a close."""
    client = RawClient(scene.broker.port, "", version=4)
    client.durable(reason=2)
    client.expect_closed()
    client.connect(clean_start=True)
    client.ping()
    client.drop()


def test_the_keep_alive_of_the_server_wins(start_broker: Callable[..., Scene]) -> None:
    """[MQTT-3.1.2-21] CONNACK says the lower value; who is silent gets 0x8D, and its will comes."""
    scene = start_broker(HOLDFAST__LIMITS__KEEP_ALIVE_MAX="1s")
    watcher = scene.online("watcher")
    watcher.subscribe(scene.topic("will"))
    client = scene.client("c")
    will = Will(scene.topic("will"), b"w", 1, False)
    assert client.connect(keep_alive=60, will=will).server_keep_alive == 1
    begun = time.monotonic()
    for _ in range(2):  # what the watcher sends keeps only the watcher alive
        time.sleep(0.6)
        watcher.ping()
    disconnect = client.expect_closed()
    assert 1.2 <= time.monotonic() - begun <= 30.0
    assert disconnect is not None and disconnect.reason_code == 0x8D
    watcher.expect_publish(b"w")


@VERSIONS
def test_a_silent_client_is_closed_after_one_and_a_half_keep_alives(
    scene: Scene, version: int
) -> None:
    """[MQTT-3.1.2-22] And its session stays."""
    client = scene.client("c", version=version)
    client.durable(keep_alive=1)
    begun = time.monotonic()
    disconnect = client.expect_closed()
    assert 1.2 <= time.monotonic() - begun <= 30.0
    if version == 5:
        assert disconnect is not None and disconnect.reason_code == 0x8D
    client.resume()


def test_a_session_may_change_its_protocol_version(scene: Scene) -> None:
    """The texts do not cover it; here state, subscriptions and packet ids are kept both ways."""
    v5 = scene.client("s", version=5)
    v5.durable()
    v5.subscribe(scene.topic(), qos=2, identifier=9)
    publisher = scene.online("p")
    publisher.publish(scene.topic(), b"1", qos=2, properties=b"\x26\x00\x01k\x00\x01v")
    first = v5.expect_publish(b"1", acknowledge=False)
    scene.broker.crash()
    v4 = scene.client("s", version=4)
    v4.resume()
    v4.expect_publish(b"1", dup=True, packet_id=first.packet_id)
    v4.disconnect()
    publisher = scene.online("p")
    publisher.publish(scene.topic(), b"2", qos=2)
    scene.broker.crash()
    v5.resume()
    v5.expect_publish(b"2", subscription_identifiers=(9,))
    v5.expect_nothing()


# Lifetimes


def test_disconnect_changes_the_expiry(scene: Scene) -> None:
    """[MQTT-3.14.2-2] It may be prolonged or shortened, over a crash; 0 to more is an error."""
    longer = scene.durable("longer", expiry=1)
    shorter = scene.durable("shorter", expiry=600)
    longer.disconnect(expiry=600)
    shorter.disconnect(expiry=1)
    closed = time.monotonic()
    scene.broker.crash()
    watcher = scene.online("watcher")
    watcher.subscribe(scene.topic("will"))
    never = scene.client("never")
    never.durable(expiry=0, will=Will(scene.topic("will"), b"w", 1, False))
    never.disconnect(expiry=600)
    assert never.disconnected is not None and never.disconnected.reason_code == 0x82
    watcher.expect_publish(b"w")
    time.sleep(max(0.0, closed + 1.5 - time.monotonic()))
    longer.resume()
    assert not shorter.durable().session_present
    assert not never.durable().session_present


def test_expired_sessions_leave_nothing_behind(start_broker: Callable[..., Scene]) -> None:
    """nats #3193, HiveMQ (17 minutes): a session that nobody asks for again is collected too."""
    scene = start_broker()
    for number in range(40):
        scene.offline(f"s{number}", "t", expiry=1)
    scene.broker.crash()
    deadline = time.monotonic() + 10.0
    while scene.broker.metrics()['holdfast_sessions{state="offline"}'] > 0:
        assert time.monotonic() < deadline, "expired sessions are still there"
        time.sleep(0.2)


# Shared subscriptions


def _share(
    scene: Scene, name: str, *, group: str = "g", qos: int = 2, receive_maximum: int = 65_535
) -> RawClient:
    client = scene.client(name)
    client.durable(receive_maximum=receive_maximum)
    client.subscribe(f"$share/{group}/{scene.topic()}", qos=qos)
    return client


def test_a_durable_group_keeps_its_place_while_all_are_offline(scene: Scene) -> None:
    """EMQX durable sessions and nanomq have no such groups: what nobody was there for is lost."""
    members = [_share(scene, name) for name in ("a", "b")]
    for member in members:
        member.disconnect()
    publisher = scene.online("p")
    messages = [(scene.topic(), b"%d" % number) for number in range(60)]
    publisher.publish_all(messages[:30], qos=1)
    publisher.publish_all(messages[30:], qos=2)
    scene.broker.crash()
    publisher = scene.online("p2")
    publisher.publish(scene.topic(), b"60")
    members[1].resume()
    received = members[1].take(61)
    assert sorted(int(publish.payload) for publish in received) == list(range(61))
    members[1].expect_nothing()
    members[1].disconnect()
    scene.settle()
    scene.broker.crash()
    for member in members:
        member.resume()
        member.expect_nothing()


def test_a_group_delivers_each_message_to_one_member(scene: Scene) -> None:
    """[MQTT-4.8.2-3] And a plain subscription beside it gets its own copy."""
    members = [_share(scene, name) for name in ("a", "b", "c")]
    plain = scene.durable("plain", "t", qos=2)
    publisher = scene.online("p")
    for number in range(60):
        publisher.publish(scene.topic(), b"%d" % number, qos=2)
    assert len(plain.take(60)) == 60
    received: list[Publish] = []
    for member in members:
        received += member.take_all(idle=0.3)
    assert sorted(int(publish.payload) for publish in received) == list(range(60))


def test_a_qos2_message_of_a_group_stays_with_its_member(scene: Scene) -> None:
    """[MQTT-4.8.2-5] What a member has in flight at QoS 2 comes to it again, and to no other."""
    first = _share(scene, "first", receive_maximum=1)
    publisher = scene.online("p")
    publisher.publish(scene.topic(), b"bound", qos=2)
    publish = first.expect_publish(b"bound", acknowledge=False)
    second = _share(scene, "second")
    scene.broker.crash()
    second.resume()
    second.expect_nothing(listen=0.5)
    first.resume(receive_maximum=1)
    first.expect_publish(b"bound", dup=True, packet_id=publish.packet_id)
    first.expect_nothing()
    second.expect_nothing()


def test_what_an_ended_member_owed_goes_to_another(scene: Scene) -> None:
    """[MQTT-4.8.2-4] QoS 1 that was sent to a member whose session ends is not lost."""
    first = _share(scene, "first", qos=1)
    publisher = scene.online("p")
    for number in range(5):
        publisher.publish(scene.topic(), b"%d" % number)
    for _ in range(5):
        first.expect_publish(acknowledge=False)
    second = _share(scene, "second", qos=1)
    first.disconnect(expiry=0)
    received = second.take(5)
    assert sorted(int(publish.payload) for publish in received) == list(range(5))


# Identity


def test_a_session_belongs_to_its_user(start_broker: Callable[..., Scene], tmp_path: Path) -> None:
    """mosquitto #3551, #3553, NATS CVE-2026-33215: another user with the same client id is refused
    and changes nothing, with Clean Start 0 or 1, before and after a crash."""
    passwords = tmp_path / "passwords"
    for index, user in enumerate(("alice", "bob")):
        command = [sys.executable, "-m", "broker", "passwd", "-b"] + ["-c"] * (index == 0)
        subprocess.run([*command, str(passwords), user, f"{user}'s secret"], cwd=ROOT, check=True)
    scene = start_broker(HOLDFAST__AUTH__PASSWORD_FILE=str(passwords))
    alice = {"username": "alice", "password": b"alice's secret"}
    bob = {"username": "bob", "password": b"bob's secret"}
    hers = scene.client("s")
    hers.durable(**alice)
    hers.subscribe(scene.topic())
    scene.client("nobody").connect(reason=0x87)
    scene.client("wrong").connect(username="alice", password=b"wrong", reason=0x86)
    for crash in (False, True):
        if crash:
            hers.drop()
            scene.broker.crash()
        for clean_start in (False, True):
            thief = scene.client("s")
            connack = thief.connect(clean_start=clean_start, expiry=3600, reason=0x87, **bob)
            assert not connack.session_present
            thief.expect_closed()
        if not crash:
            hers.ping()
    publisher = scene.client("p")
    publisher.connect(**bob)
    publisher.publish(scene.topic(), b"for alice")
    hers.resume(**alice)
    hers.expect_publish(b"for alice")


# The end of the process


def test_sigterm_tells_v5_clients_and_loses_nothing(scene: Scene) -> None:
    """SIGTERM: 0x8B to v5, a plain close to v3.1.1, exit 0, and everything is there again."""
    clients = [scene.durable(f"v{version}", "t", qos=2, version=version) for version in (4, 5)]
    publisher = scene.online("p")
    messages = [(scene.topic(), b"%d" % number) for number in range(200)]
    publisher.publish_all(messages, qos=2, window=20)
    scene.broker.signal(signal.SIGTERM)
    for client, version in zip(clients, (4, 5), strict=True):
        disconnect = client.expect_closed()
        if version == 5:
            assert disconnect is not None and disconnect.reason_code == 0x8B
        else:
            assert disconnect is None
    assert scene.broker.wait_exit(30.0) == 0
    scene.broker.start()
    for client in clients:
        client.resume()
        assert [(p.topic, p.payload) for p in client.take(200)] == messages
        client.expect_nothing()


def test_sigterm_under_load_acknowledges_only_what_it_keeps(scene: Scene) -> None:
    """What was acknowledged up to the very end of the process is there at the next start."""
    subscriber = scene.offline("s", "t")
    publisher = scene.online("p")
    for number in range(500):
        publisher.publish_begin(scene.topic(), b"%d" % number)
    scene.broker.signal(signal.SIGTERM)
    publisher.expect_closed()
    acknowledged = sum(1 for packet in publisher.inbox if not isinstance(packet, Publish)) - (
        publisher.disconnected is not None
    )
    assert scene.broker.wait_exit(30.0) == 0
    scene.broker.start()
    subscriber.resume()
    received = [int(publish.payload) for publish in subscriber.take_all(idle=0.5)]
    assert received == list(range(len(received)))
    assert len(received) >= acknowledged


def test_a_kill_while_draining_loses_nothing(scene: Scene) -> None:
    """A supervisor that loses patience with SIGTERM: what it cuts short is a crash, no more."""
    subscriber = scene.durable("s", "t", qos=2)
    publisher = scene.online("p")
    messages = [(scene.topic(), b"%d" % number) for number in range(100)]
    for delay in (0.0, 0.002, 0.02):
        publisher.connect()
        publisher.publish_all(messages, qos=2)
        scene.broker.signal(signal.SIGTERM)
        time.sleep(delay)
        scene.broker.kill()
        scene.broker.start()
        subscriber.resume()
        assert [(p.topic, p.payload) for p in subscriber.take(100)] == messages
        subscriber.expect_nothing()
        scene.settle()


def test_a_crash_while_starting_loses_nothing(scene: Scene) -> None:
    """Recovery itself may be cut off anywhere, again and again: all is there, wills come once."""
    subscriber = scene.offline("s", "t", "will", qos=2)
    mortal = scene.client("mortal")
    mortal.durable(will=Will(scene.topic("will"), b"w", 2, False))
    publisher = scene.online("p")
    messages = [(scene.topic(), b"%d" % number) for number in range(100)]
    publisher.publish_all(messages, qos=2)
    scene.broker.kill()
    for step in range(12):
        scene.broker.launch()
        time.sleep(0.15 + 0.025 * step)  # ready after about 0.4 s
        scene.broker.kill()
    scene.broker.start()
    subscriber.resume()
    received = [(publish.topic, publish.payload) for publish in subscriber.take(101)]
    assert received == [*messages, (scene.topic("will"), b"w")]
    subscriber.expect_nothing()


def test_a_frozen_broker_goes_on_where_it_was(scene: Scene) -> None:
    """SIGSTOP and SIGCONT: no session is lost and no message is doubled by the pause."""
    subscriber = scene.durable("s", "t", qos=2)
    publisher = scene.online("p")
    scene.broker.freeze()
    for number in range(20):
        publisher.publish_begin(scene.topic(), b"%d" % number)
    time.sleep(1.2)
    scene.broker.thaw()
    received = subscriber.take(20)
    assert [int(publish.payload) for publish in received] == list(range(20))
    subscriber.expect_nothing()
    publisher.ping()


def test_a_frozen_broker_does_not_blame_its_clients(scene: Scene) -> None:
    """What a client sent in time and the broker reads late still counts for its keep alive."""
    client = scene.client("c")
    client.durable(keep_alive=1)
    scene.broker.freeze()
    client.send(Pingreq())
    time.sleep(2.5)
    scene.broker.thaw()
    client.expect(Pingresp)
    client.ping()
