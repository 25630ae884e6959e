"""Users and rights of a whole broker, from its files: C5, C6 and C8 of docs/security.md.

tests/security/test_identity.py asks the same of the engine; here are the files, SIGHUP, kill -9.
"""

import os
import resource
import string
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtt import reasons
from mqtt.packets import Puback, Suback, Subscribe, Subscription, Will
from tests.durability.rawclient import RawClient
from tests.durability.scene import Scene
from tests.security.files import PATIENCE_S, Files, login

Start = Callable[..., Scene]

OPEN = "user ann\ntopic readwrite #\nuser bob\ntopic readwrite #\nuser eve\ntopic readwrite #\n"
# The same, when ann has lost `secret` and nobody else anything.
REVOKED = OPEN.replace(
    "user ann\ntopic readwrite #\n", "user ann\ntopic deny secret/#\ntopic readwrite #\n"
)


def last_will(topic: str, *, delay: int = 0, retain: bool = False) -> Will:
    return Will(topic, b"will", 1, retain, delay_interval=delay)


# C5: a right password is no right to what another user has


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("clean_start", [True, False])
def test_c05_another_user_with_a_right_password_changes_nothing_of_a_session(
    tmp_path: Path, start_broker: Start, version: int, clean_start: bool
) -> None:
    """CVE-2026-33215, CVE-2026-6564, mosquitto #3551: connection, queue, will, subscriptions."""
    scene = start_broker(**Files(tmp_path, "ann", "bob").environment())
    watcher = scene.online("watcher", **login("bob"))
    watcher.subscribe(scene.topic("will"))
    ann = scene.durable("c", "t", will=last_will(scene.topic("will")), **login("ann"))

    def steal() -> None:
        no = reasons.NOT_AUTHORIZED if version == 5 else 5
        for who in ({}, login("bob"), {"username": "ann", "password": b"wrong"}):
            thief = RawClient(scene.broker.port, ann.client_id, version=version)
            code = no
            if who.get("username") == "ann":
                code = reasons.BAD_USER_NAME_OR_PASSWORD if version == 5 else 4
            thief.connect(clean_start=clean_start, reason=code, **who)
            thief.expect_closed()

    steal()
    ann.ping()  # her connection
    watcher.publish(scene.topic(), b"1")
    ann.expect_publish(b"1")  # her subscription
    ann.disconnect()
    watcher.publish(scene.topic(), b"2")
    steal()
    scene.broker.crash()
    steal()
    ann.resume(**login("ann"))
    ann.expect_publish(b"2")  # her queue
    ann.expect_nothing()
    watcher.durable(**login("bob"))
    watcher.subscribe(scene.topic("will"))
    watcher.expect_nothing()  # her will


def test_c05_an_assigned_client_id_cannot_be_guessed(start_broker: Start) -> None:
    """128 bits of it are random: an id is all that keeps nameless clients apart."""
    scene = start_broker()
    names = []
    for _ in range(40):
        client = scene.client("nameless")
        client.client_id = ""
        client.connect()
        names.append(client.client_id)
        client.drop()
    assert len(set(names)) == len(names)
    assert {len(name) for name in names} == {22}  # [MQTT-3.1.3-5] has servers take 23
    assert set("".join(names)) <= {*string.ascii_letters, *string.digits}
    # With less than 128 bits in it, the last of the 22 digits would have few values, or one. And no
    # part of it is a counter or a clock.
    for position in range(22):
        digits = [name[position] for name in names]
        assert len(set(digits)) > 3, (position, names)
        assert digits != sorted(digits), (position, names)


# C6: rights taken away while something is stored


def test_c06_what_was_revoked_does_not_leave_by_any_door(
    tmp_path: Path, start_broker: Start
) -> None:
    """CVE-2021-34434, CVE-2018-12546, NATS 2026-26: queue, in flight, live, retained, shared."""
    files = Files(tmp_path, "ann", "bob", rules=OPEN)
    scene = start_broker(**files.environment())
    ann = scene.client("ann")
    ann.durable(**login("ann"))
    ann.subscribe("secret/#", qos=1)
    ann.subscribe("open/#", qos=2)
    member = scene.client("member")
    member.durable(**login("ann"))
    member.subscribe("$share/g/secret/#", "$share/g/open/#")
    bob = scene.online("bob", **login("bob"))
    bob.publish("secret/flight", b"-")
    assert ann.expect_publish(acknowledge=False).topic == "secret/flight"
    member.expect_publish(acknowledge=False)
    ann.drop()
    member.drop()
    for number in range(5):
        bob.publish(f"secret/{number}", b"-", retain=number == 0)
        bob.publish(f"open/{number}", b"+", retain=number == 0)
    files.acl.write_text(REVOKED)
    scene.broker.reload()
    for turn in range(2):
        ann.resume(**login("ann"))
        bob.publish("secret/live", b"-")
        bob.publish("open/live", b"+")
        received = [message.topic for message in ann.take(6 if turn == 0 else 1)]
        assert received[-1] == "open/live" and len(received) == (6 if turn == 0 else 1)
        assert all(topic.startswith("open/") for topic in received)
        ann.send(Subscribe(50, [Subscription("secret/#", 1), Subscription("+/0", 1)]))
        assert ann.expect(Suback).reason_codes == [reasons.NOT_AUTHORIZED, 1]
        assert ann.expect_publish().topic == "open/0"  # retained
        ann.expect_nothing()
        ann.unsubscribe("+/0")
        ann.disconnect()
        scene.broker.crash()  # the rights of now are those of the next process
        bob.connect(**login("bob"))
    member.resume(**login("ann"))
    assert {message.topic.partition("/")[0] for message in member.take(7)} == {"open"}
    member.expect_nothing()


def test_c06_a_right_given_back_gives_back_what_still_waits(
    tmp_path: Path, start_broker: Start
) -> None:
    files = Files(tmp_path, "ann", "bob", rules=REVOKED)
    scene = start_broker(**files.environment())
    ann = scene.client("ann")
    ann.durable(**login("ann"))
    ann.send(Subscribe(1, [Subscription("#", 1)]))
    assert ann.expect(Suback).reason_codes == [1]
    ann.disconnect()
    scene.online("bob", **login("bob")).publish("secret/1", b"x")
    files.acl.write_text(OPEN)
    scene.broker.reload()
    ann.resume(**login("ann"))
    ann.expect_publish(b"x", topic="secret/1")


def test_c06_a_delayed_will_is_judged_when_it_fires_in_another_process(
    tmp_path: Path, start_broker: Start
) -> None:
    """Burglars' IoT Paradise (S&P 2020). Retained, so that one that fired is seen later too."""
    files = Files(tmp_path, "ann", "bob", "eve", rules=OPEN)
    scene = start_broker(**files.environment())
    for user in ("ann", "eve"):
        dying = scene.client(user)
        dying.durable(will=last_will(f"secret/{user}", delay=2, retain=True), **login(user))
        dying.drop(reset=True)
    files.acl.write_text(REVOKED)
    scene.broker.crash()
    bob = scene.online("bob", **login("bob"))
    bob.subscribe("secret/#")
    assert bob.expect_publish(timeout=30).topic == "secret/eve"  # both were due at once
    refused = 'holdfast_wills_total{outcome="refused"}'
    deadline = time.monotonic() + PATIENCE_S
    while scene.broker.metrics()[refused] < 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    bob.expect_nothing()
    bob.subscribe("secret/+")
    assert bob.expect_publish().topic == "secret/eve"
    bob.expect_nothing()


# C8: files that go bad while the broker runs


BAD = {
    "garbled rules": ("acl", b"topic readwrite #\nallow everybody\n"),
    "rules that are no text": ("acl", b"topic readwrite \xff\n"),
    "no rules": ("acl", None),
    "garbled passwords": ("passwords", b"eve:plain\n"),
    "half a line": ("passwords", b"eve"),
    "no passwords": ("passwords", None),
}


@pytest.mark.parametrize("case", BAD)
def test_c08_a_bad_file_at_a_reload_changes_nothing(
    tmp_path: Path, start_broker: Start, case: str
) -> None:
    """CVE-2017-7652, CVE-2018-12551: not even that half of it which is sound."""
    files = Files(tmp_path, "ann", "bob", rules=REVOKED)
    scene = start_broker(**files.environment())
    ann = scene.online("ann", **login("ann"))
    name, content = BAD[case]
    # What else has changed is good, and must not be taken over either.
    Files(tmp_path, "ann", "eve", rules="user ann\ntopic readwrite #\n")
    path: Path = getattr(files, name)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    scene.broker.reload(event="reload_failed")
    assert str(path) in scene.broker.log()
    holds_as_before(scene, ann)
    path.unlink(missing_ok=True)
    path.mkdir()  # what cannot be read at all, by root neither
    scene.broker.reload(event="reload_failed")
    holds_as_before(scene, ann)


def test_c08_a_reload_without_file_descriptors_changes_nothing(
    tmp_path: Path, start_broker: Start
) -> None:
    """CVE-2017-7652: mosquitto went back to its defaults."""
    files = Files(tmp_path, "ann", "bob", rules=REVOKED)
    scene = start_broker(**files.environment())
    ann = scene.online("ann", **login("ann"))
    Files(tmp_path, "ann", "eve", rules=OPEN)
    limits = resource.prlimit(scene.broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(scene.broker.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        scene.broker.reload(event="reload_failed")
        ann.publish("secret/1", b"x", reason=reasons.NOT_AUTHORIZED)
    finally:
        resource.prlimit(scene.broker.pid, resource.RLIMIT_NOFILE, limits)
    assert os.strerror(24) in scene.broker.log()  # EMFILE
    holds_as_before(scene, ann)
    scene.broker.reload()
    scene.online("eve", **login("eve"))


def holds_as_before(scene: Scene, ann: RawClient) -> None:
    """Check that ann is kept from `secret`, bob may come in, and eve may not."""
    ann.publish_begin("secret/1", b"x")
    assert ann.expect(Puback).reason_code == reasons.NOT_AUTHORIZED
    ann.publish("open/1", b"x")
    scene.online("bob", **login("bob")).drop()
    eve = scene.client("eve")
    eve.connect(reason=reasons.BAD_USER_NAME_OR_PASSWORD, **login("eve"))
