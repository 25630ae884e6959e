"""A real broker and a real Redis: every row arrives, once, whoever is killed meanwhile."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from tests.broker.backends.redis_server import PROGRAMS, RedisServer, needs_redis
from tests.broker.process.starts import events
from tests.durability.load import Publisher
from tests.durability.process import POLL_SECONDS, BrokerProcess, http_get
from tests.durability.rawclient import RawClient

pytestmark = [pytest.mark.full, needs_redis]  # starts processes

PATIENCE_S: Final = 180.0
NODE: Final = "edge@here"
ALL_ACTIONS: Final = (
    ("client.connected", None, "on_client_connected"),
    ("client.disconnected", None, "on_client_disconnected"),
    ("session.subscribed", "#", "on_subscribed"),
    ("session.unsubscribed", "#", "on_unsubscribed"),
    ("message.publish", "#", "on_message_publish"),
    ("message.publish", "#", "on_message_retain"),
    ("message.publish", "#", "on_retain_delete"),
    ("message.acked", "queue/#", "on_message_acked_for_queue"),
    ("message.acked", "pubsub/#", "on_message_acked_for_pubsub"),
)
LOG: Final = '[[rules]]\non = "message.publish"\ntopic = "load/#"\nbackend = "cache"\ncommands = '


@pytest.fixture(params=PROGRAMS)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A running Redis, or Valkey."""
    running = RedisServer(tmp_path / "redis", request.param)
    running.sync = "everysec"  # as most people have it
    running.start()
    yield running
    running.kill()


class Servers(Protocol):
    """A store that has addresses."""

    @property
    def addresses(self) -> list[str]: ...


def feed(broker: BrokerProcess, server: Servers, rules: str, options: str = "") -> Path:
    """Configure a broker that is not started yet: a backend and its rules; return the file."""
    path = broker.directory / "holdfast.toml"
    path.write_text(
        f'[backends.cache]\nservers = {json.dumps(server.addresses)}\nnode = "{NODE}"\n'
        f'timeout = "2s"\n{options}\n{rules}'
    )
    broker.arguments = ("--config", str(path))
    return path


def all_rules() -> str:
    """Return a rule for every action."""
    text = ""
    for on, topic, action in ALL_ACTIONS:
        text += f'[[rules]]\non = "{on}"\nbackend = "cache"\naction = "{action}"\n'
        text += f'topic = "{topic}"\n' if topic else ""
    return text


def until(condition: Callable[[], bool], broker: BrokerProcess) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, broker.tail()
        time.sleep(POLL_SECONDS)


def command(broker: BrokerProcess, *words: str) -> tuple[int, str, str]:
    """Run `holdfast backend` as the broker is configured; return status, stdout and stderr."""
    given = [*words, *broker.arguments, "--data-dir", str(broker.data_dir)]
    result = subprocess.run(
        [sys.executable, "-m", "broker", "backend", *given],
        capture_output=True,
        text=True,
        timeout=300,  # a second; a machine may be very busy
        cwd=broker.directory,
        env=broker.env,
    )
    return result.returncode, result.stdout, result.stderr


def status(broker: BrokerProcess) -> dict[str, Any]:
    """Return what the running broker says of its one backend."""
    code, out, err = command(broker, "status", "--json")
    assert not err, err
    (told,) = json.loads(out)
    assert code == (told["state"] != "connected")
    assert isinstance(told, dict)
    return told


def test_what_happens_is_in_redis_as_applications_expect_it(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, all_rules())
    broker.start()
    device, shore = RawClient(broker.port, "device"), RawClient(broker.port, "shore")
    device.durable()
    device.subscribe("queue/1", "pubsub/+", qos=1)
    shore.connect()
    for topic in ("queue/1", "pubsub/1", "other"):
        shore.publish(topic, topic.encode(), qos=1)
    shore.publish("kept", b"retained", qos=1, retain=True)
    shore.publish("gone", b"retained", qos=1, retain=True)
    shore.publish("gone", b"", qos=1, retain=True)
    device.take(2)
    device.unsubscribe("queue/1")
    device.disconnect()
    until(lambda: server.everything().get("mqtt:client:device", {}).get(b"state") == b"0", broker)
    found = server.everything()
    names = {
        key.removeprefix("mqtt:msg:"): value
        for key, value in found.items()
        if key.startswith("mqtt:msg:") and isinstance(value, dict)
    }
    by_topic = {
        value[b"topic"].decode(): name for name, value in names.items() if value[b"payload"]
    }
    assert sorted(by_topic) == ["gone", "kept", "other", "pubsub/1"]
    other = names[by_topic["other"]]
    assert {key: other[key] for key in (b"from", b"qos", b"payload", b"retain")} == {
        b"from": b"shore", b"qos": b"1", b"payload": b"other", b"retain": b"false",
    }  # fmt: skip
    assert found["mqtt:msg:other"] == [by_topic["other"].encode()]
    assert "mqtt:msg:queue/1" not in found, "it was acknowledged"
    assert found["mqtt:acked:device:pubsub/1"] == by_topic["pubsub/1"].encode()
    assert found["mqtt:retain:kept"][b"payload"] == b"retained"
    assert "mqtt:retain:gone" not in found
    assert found["mqtt:sub:device"] == {b"pubsub/+": b"1"}
    assert found["mqtt:client:shore"][b"state"] == b"1"
    assert list(found[f"mqtt:node:{NODE}"]) == [b"shore"]
    shore.drop()


def test_each_of_two_stores_gets_its_rows_whatever_becomes_of_the_other(
    prepare: Callable[..., BrokerProcess], server: RedisServer, tmp_path: Path
) -> None:
    broker = prepare()
    other = RedisServer(tmp_path / "other").start()
    try:
        own = 'on = "message.publish"\ncommands = "RPUSH seen ${topic}:${payload}"\n'
        feed(
            broker,
            server,
            f'[backends.other]\nservers = {json.dumps(other.addresses)}\nretry_max = "1s"\n'
            f'[[rules]]\nbackend = "cache"\ntopic = "#"\n{own}'
            f'[[rules]]\nbackend = "other"\ntopic = "a/#"\n{own}',
        )
        broker.start()
        client = RawClient(broker.port, "c")
        client.connect()

        def publish(first: int) -> None:
            for number in range(first, first + 10):
                client.publish(f"{'ab'[number % 2]}/1", b"%d" % number, qos=1)

        def told(count: int) -> list[bytes]:
            return [b"%s/1:%d" % (b"ab"[n % 2 : n % 2 + 1], n) for n in range(count)]

        publish(0)
        until(lambda: len(other.list("seen")) == 5, broker)
        other.kill()
        publish(10)
        until(lambda: server.list("seen") == told(20), broker)
        other.start()
        server.freeze()
        publish(20)
        until(lambda: other.list("seen") == told(30)[::2], broker)
        server.thaw()
        until(lambda: server.list("seen") == told(30), broker)
        assert other.list("seen") == told(30)[::2]
    finally:
        other.kill()
    client.drop()


def test_a_delivery_and_its_acknowledgement_name_the_same_message(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    own = "".join(
        f'[[rules]]\non = "message.{hook}"\ntopic = "t"\nbackend = "cache"\n'
        f'commands = "RPUSH {hook} ${{clientid}}:${{topic}}:${{qos}}:${{msgid}}"\n'
        for hook in ("delivered", "acked")
    )
    feed(broker, server, own)
    broker.start()
    device, shore = RawClient(broker.port, "device"), RawClient(broker.port, "shore")
    device.durable()
    device.subscribe("t", "other", qos=1)
    shore.connect()
    shore.publish("other", b"x", qos=1)
    shore.publish("t", b"1", qos=1)
    shore.publish("t", b"2", qos=1)
    device.take(3)
    until(lambda: len(server.list("acked")) == 2, broker)
    delivered = server.list("delivered")
    assert delivered == server.list("acked") and len(set(delivered)) == 2
    assert all(each.startswith(b"device:t:1:") for each in delivered)
    device.drop()
    shore.drop()


@pytest.mark.parametrize(
    ("own_s", "rule", "least", "most"),
    [(0, 'expires = "1h"', 3500, 3600), (120, 'expires = "1h"', 60, 120), (120, "", 60, 120)],
    ids=["of the rule", "its own before that of the rule", "its own"],
)
def test_a_message_expires_in_the_store_as_well(
    prepare: Callable[..., BrokerProcess],
    server: RedisServer,
    own_s: int,
    rule: str,
    least: int,
    most: int,
) -> None:
    broker = prepare()
    rules = "".join(
        f'[[rules]]\non = "message.publish"\ntopic = "#"\nbackend = "cache"\n{rule}\n'
        f'action = "{action}"\n'
        for action in ("on_message_publish", "on_message_retain")
    )
    feed(broker, server, rules)
    broker.start()
    client = RawClient(broker.port, "c")
    client.connect()
    expiry = {"message_expiry_interval": own_s} if own_s else {}
    client.publish("t", b"x", qos=1, retain=True, **expiry)
    until(lambda: len(server.everything()) == 3, broker)
    (name,) = server.everything()["mqtt:msg:t"]
    with server.client() as store:
        for key in (f"mqtt:msg:{name.decode()}", "mqtt:retain:t"):
            assert least <= store.ttl(key) <= most
        assert store.ttl("mqtt:msg:t") == -1
    client.drop()


def test_the_end_of_a_subscription_may_delete_its_position(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    rules = "".join(
        f'[[rules]]\non = "{on}"\ntopic = "{topic}"\nbackend = "cache"\n{what}\n'
        for on, topic, what in (
            ("message.acked", "pubsub/#", 'action = "on_message_acked_for_pubsub"'),
            ("session.unsubscribed", "#", 'commands = "DEL mqtt:acked:${clientid}:${topic}"'),
        )
    )
    feed(broker, server, rules)
    broker.start()
    device, shore = RawClient(broker.port, "device"), RawClient(broker.port, "shore")
    device.durable()
    device.subscribe("pubsub/1", "pubsub/2", qos=1)
    shore.connect()
    for topic in ("pubsub/1", "pubsub/2"):
        shore.publish(topic, b"x", qos=1)
    device.take(2)
    until(lambda: len(server.everything()) == 2, broker)
    device.unsubscribe("pubsub/1")
    until(lambda: list(server.everything()) == ["mqtt:acked:device:pubsub/2"], broker)
    device.drop()
    shore.drop()


def test_after_a_crash_clients_are_offline_and_ended_sessions_have_no_subscriptions(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, all_rules())
    broker.start()
    durable, clean = RawClient(broker.port, "durable"), RawClient(broker.port, "clean")
    for client in (durable, clean):
        client.connect(clean_start=True, expiry=3600 if client is durable else 0)
        client.subscribe("t", qos=1)
    until(lambda: b"t" in server.everything().get("mqtt:sub:clean", {}), broker)
    broker.crash()
    until(lambda: server.everything()["mqtt:client:clean"][b"state"] == b"0", broker)
    until(lambda: "mqtt:sub:clean" not in server.everything(), broker)
    found = server.everything()
    assert found["mqtt:client:durable"][b"state"] == b"0"
    assert found["mqtt:sub:durable"] == {b"t": b"1"}
    assert f"mqtt:node:{NODE}" not in found
    durable.drop()
    clean.drop()


def is_exact(server: RedisServer, publishers: list[Publisher]) -> bool:
    """Check that the list has each message of each publisher once and in order, so far."""
    listed = server.list("log")
    assert len(listed) == len(set(listed)), "a row was applied twice"
    total = 0
    for publisher in publishers:
        for topic in {topic for topic, _ in publisher.acknowledged}:
            wanted = [number for each, number in publisher.acknowledged if each == topic]
            prefix = f"{topic}:".encode()
            found = [int(each[len(prefix) :]) for each in listed if each.startswith(prefix)]
            assert found == wanted[: len(found)]
            total += len(wanted)
    return len(listed) == total


# Kill the broker, the store, the process of the store; have the store hang.
FAULTS: Final = ((0, 1, 0, 0), (0, 0, 0, 1), (1, 0, 0, 0), (0, 0, 1, 0), (1, 1, 0, 0))


@pytest.mark.parametrize("loses", [False, True], ids=["killed", "loses its newest rows"])
def test_every_row_is_applied_once_whoever_is_killed(
    prepare: Callable[..., BrokerProcess], server: RedisServer, loses: bool
) -> None:
    """RPUSH is not idempotent: a row that was lost or sent twice is seen."""
    broker = prepare()
    feed(broker, server, LOG + '"RPUSH log ${topic}:${payload}"\n')
    broker.start()
    publishers = [
        Publisher(broker.port, f"p{number}", qos=2, version=5, rate=2000) for number in range(2)
    ]
    for publisher in publishers:
        publisher.start()
    for kill_broker, kill_redis, kill_process, hang in FAULTS * 2:
        seen = len(server.list("log"))
        until(lambda seen=seen: len(server.list("log")) > seen + 200, broker)  # type: ignore[misc]
        if hang:
            server.freeze()
            until(lambda: status(broker)["state"] == "disconnected", broker)
            server.thaw()
        if kill_process:
            kill_process_of(broker)
        if kill_redis:
            server.kill()
            if loses:
                server.lose(0.2)
        if kill_broker:
            broker.crash()
        if kill_redis:
            server.start()
    for publisher in publishers:
        publisher.finish()
    for publisher in publishers:
        publisher.join(PATIENCE_S)
        assert publisher.violations == []
        assert not publisher.is_alive()
    until(lambda: is_exact(server, publishers), broker)
    told = status(broker)
    assert (told["gaps"], told["dead_letters"]) == (0, 0)


def kill_process_of(broker: BrokerProcess) -> None:
    """Kill the process of the one backend."""
    (process,) = processes_of(broker)
    os.kill(process, signal.SIGKILL)


def processes_of(broker: BrokerProcess) -> list[int]:
    """Return the processes of stores."""
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
    return [
        int(child)
        for child in children
        if b"broker.backends.process" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_a_store_that_is_down_delays_nobody_and_is_named(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, LOG + '"RPUSH log ${payload}"\n')
    broker.start()
    until(lambda: status(broker)["state"] == "connected", broker)
    server.kill()
    client = RawClient(broker.port, "c")
    client.connect()
    for number in range(50):
        client.publish("load/1", b"%d" % number, qos=1)
    until(lambda: status(broker)["state"] == "disconnected", broker)
    assert http_get(broker.metrics_port, "/readyz") == (200, "ready\nbackend cache is down\n")
    metrics = broker.metrics()
    assert metrics['holdfast_backend_up{backend="cache"}'] == 0
    assert metrics['holdfast_backend_backlog_rows{backend="cache"}'] == 50
    assert metrics['holdfast_backend_lag_seconds{backend="cache"}'] > 0
    assert "backend_disconnected" in events(broker)
    broker.restart()
    server.start()
    until(lambda: len(server.list("log")) == 50, broker)
    until(lambda: status(broker)["rows_behind"] == 0, broker)
    assert server.list("log") == [b"%d" % number for number in range(50)]
    assert broker.metrics()['holdfast_backend_rows_total{backend="cache"}'] == 50
    client.drop()


def test_a_store_that_hangs_delays_nobody_and_gets_each_row_once(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    """A script that came too late for an answer may still be carried out."""
    broker = prepare()
    feed(broker, server, LOG + '"RPUSH log ${payload}"\n')
    broker.start()
    client = RawClient(broker.port, "c")
    client.connect()
    client.publish("load/1", b"0", qos=1)
    until(lambda: server.list("log") == [b"0"], broker)
    server.freeze()
    for number in range(1, 100):
        client.publish("load/1", b"%d" % number, qos=1)
    until(lambda: status(broker)["state"] == "disconnected", broker)
    for number in range(100, 200):
        client.publish("load/1", b"%d" % number, qos=1)
    server.thaw()
    until(lambda: len(server.list("log")) >= 200, broker)
    until(lambda: status(broker)["rows_behind"] == 0, broker)
    assert server.list("log") == [b"%d" % number for number in range(200)]
    client.drop()


def test_a_required_store_makes_the_broker_not_ready(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, LOG + '"RPUSH log ${payload}"\n', "required = true")
    broker.start()
    server.kill()
    until(lambda: http_get(broker.metrics_port, "/readyz")[0] == 503, broker)
    assert http_get(broker.metrics_port, "/healthz")[0] == 200
    assert (
        "backend cache is down, and it is required" in http_get(broker.metrics_port, "/readyz")[1]
    )
    server.start()
    until(lambda: http_get(broker.metrics_port, "/readyz") == (200, "ready\n"), broker)


def test_an_operator_checks_a_store_and_pauses_its_feed(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, LOG + '"RPUSH log ${payload}"\n')
    code, out, err = command(broker, "check")
    assert (code, err) == (0, "")
    assert "writable     yes" in out and "none: no broker has written here" in out
    assert command(broker, "status")[0] == 2, "no broker runs"
    broker.start()
    until(lambda: status(broker)["state"] == "connected", broker)
    assert command(broker, "pause", "cache")[:2] == (0, "cache: paused\n")
    client = RawClient(broker.port, "c")
    client.connect()
    client.publish("load/1", b"1", qos=1)
    until(lambda: status(broker)["lag_seconds"] > 0.1, broker)
    assert server.list("log") == []
    code, out, _ = command(broker, "status")
    assert code == 0 and "cache: paused" in out
    assert command(broker, "resume", "cache")[:2] == (0, "cache: resumed\n")
    until(lambda: server.list("log") == [b"1"], broker)
    until(lambda: status(broker)["rows_behind"] == 0, broker)
    (told,) = json.loads(command(broker, "check", "cache", "--json")[1])
    assert told["usable"] and told["server"] == server.name
    own = status(broker)
    assert told["fence"].endswith(f":{own['position']}:{own['event']}")
    server.kill()
    code, out, _ = command(broker, "check")
    assert code == 1 and "unusable" in out and "Connection refused" in out
    assert command(broker, "check", "other")[0] == 2
    assert command(broker, "pause", "other")[0] == 1
    client.drop()


def test_a_row_that_redis_refuses_is_a_dead_letter_and_the_rest_flows(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, LOG + '"RPUSH ${payload} 1"\n')
    broker.start()
    with server.client() as client:
        client.set("poisoned", 1)
    publisher = RawClient(broker.port, "c")
    publisher.connect()
    for payload in (b"a", b"poisoned", b"b"):
        publisher.publish("load/1", payload, qos=1)
    until(lambda: server.list("b") == [b"1"], broker)
    until(lambda: status(broker)["dead_letters"] == 1, broker)
    assert server.list("a") == [b"1"]
    assert "WRONGTYPE" in str(events(broker)["backend_dead_letter"]["message"])
    (letter,) = json.loads(command(broker, "dead", "list", "cache", "--json")[1])
    assert letter["row"]["payload"] == "poisoned" and "WRONGTYPE" in letter["why"]
    assert command(broker, "dead", "retry", "cache", "--all")[0] == 0
    until(lambda: listed(broker)["tries"] == 2, broker)
    with server.client() as client:
        client.delete("poisoned")
    server.kill()
    assert command(broker, "dead", "retry", "cache", "--id", "1")[0] == 0
    assert "on its way" in command(broker, "dead", "drop", "cache", "--all")[2]
    broker.crash()
    server.start()
    until(lambda: status(broker)["dead_letters"] == 0, broker)
    assert server.list("poisoned") == [b"1"]
    assert command(broker, "dead", "list", "cache")[:2] == (0, "no dead letters\n")
    publisher.drop()


def test_of_dead_letters_one_is_dropped_and_another_sent_again(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, LOG + '"RPUSH ${payload} 1"\n')
    broker.start()
    poisoned = ("first", "second", "third")
    with server.client() as client:
        client.mset(dict.fromkeys(poisoned, 1))
    publisher = RawClient(broker.port, "c")
    publisher.connect()
    for payload in poisoned:
        publisher.publish("load/1", payload, qos=1)
    until(lambda: status(broker)["dead_letters"] == 3, broker)
    dropped = "cache: 1 dead letters dropped\n"
    assert command(broker, "dead", "drop", "cache", "--id", "1") == (0, dropped, "")
    code, out, err = command(broker, "dead", "drop", "cache", "--id", "1")
    assert (code, "0 dead letters dropped" in out) == (1, True)
    assert "1: there is no such dead letter" in err
    assert events(broker)["backend_dead_letter_dropped"]["dead_letter"] == 1
    with server.client() as client:
        client.delete(*poisoned)
    broker.crash()
    letters = json.loads(command(broker, "dead", "list", "cache", "--json")[1])
    assert [(each["id"], each["row"]["payload"]) for each in letters] == [
        (2, "second"), (3, "third"),
    ]  # fmt: skip
    sent = (0, "cache: 1 dead letters sent again\n", "")
    assert command(broker, "dead", "retry", "cache", "--limit", "1") == sent
    until(lambda: status(broker)["dead_letters"] == 1, broker)
    assert server.list("second") == [b"1"]
    assert command(broker, "dead", "drop", "cache", "--all") == (0, dropped, "")
    assert command(broker, "dead", "list", "cache")[:2] == (0, "no dead letters\n")
    publisher.connect()
    publisher.publish("load/1", b"end", qos=1)
    until(lambda: server.list("end") == [b"1"], broker)
    assert status(broker)["dead_letters"] == 0
    assert sorted(server.everything()) == ["end", "second"]
    publisher.drop()


def listed(broker: BrokerProcess) -> dict[str, Any]:
    """Return the one dead letter that there is."""
    (letter,) = json.loads(command(broker, "dead", "list", "cache", "--json")[1])
    assert isinstance(letter, dict)
    return letter


def test_without_rules_there_is_no_process(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, "")
    broker.start()
    assert command(broker, "status")[:2] == (0, "no rule names a backend\n")
    assert not any("holdfast_backend" in name for name in broker.metrics())
    assert processes_of(broker) == []


def test_the_process_of_a_store_has_no_file_of_the_broker_and_ends_with_it(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, LOG + '"RPUSH log ${payload}"\n')
    broker.start()
    until(lambda: status(broker)["state"] == "connected", broker)
    for end in (broker.kill, broker.stop):
        (process,) = processes_of(broker)
        files = [os.readlink(file) for file in Path(f"/proc/{process}/fd").iterdir()]
        assert not [file for file in files if str(broker.directory / "data") in file]
        end()
        until(lambda process=process: not is_running(process), broker)  # type: ignore[misc]
        if end == broker.kill:
            broker.start()
            until(lambda: status(broker)["state"] == "connected", broker)
    assert "internal_error" not in events(broker)


def is_running(process: int) -> bool:
    """Return whether a process is there, and is no zombie that nobody waits for."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


LIMITED: Final = 'backlog_bytes_max = "16MiB"\n'
LARGE: Final = 1 << 20


def large(number: int) -> bytes:
    """Return a payload of 1 MiB that begins with a number."""
    return b"%d." % number + bytes(LARGE)


def numbers(server: RedisServer) -> list[int]:
    """Return the numbers of the messages that are in the list."""
    return [int(each.partition(b".")[0]) for each in server.list("log")]


def test_a_full_backlog_loses_its_oldest_rows_and_says_which(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare(HOLDFAST__STORAGE__GENERATION_SIZE="4MiB")
    feed(broker, server, LOG + '"RPUSH log ${payload}"\n', LIMITED)
    server.kill()  # before it has anything that it could lose
    broker.start()
    client = RawClient(broker.port, "c")
    client.connect()
    for number in range(40):
        client.publish("load/1", large(number))
    until(lambda: status(broker)["backlog_bytes"] <= 16 << 20, broker)
    assert status(broker)["backlog_bytes"] > 8 << 20
    assert "backend_full" in events(broker)
    broker.restart()
    server.start()
    until(lambda: status(broker)["rows_behind"] == 0, broker)
    kept = numbers(server)
    assert 8 <= len(kept) <= 16
    assert kept == list(range(40 - len(kept), 40))
    told = status(broker)
    assert (told["gaps"], told["dead_letters"], told["backlog_bytes"]) == (1, 0, 0)
    assert str(events(broker)["backend_gap"]["message"]).startswith(
        f"dropped by backlog_bytes_max: the messages 1 to {40 - len(kept)} of the log"
    )
    client.drop()


def test_publishers_of_a_store_that_is_full_are_refused_until_it_has_room(
    prepare: Callable[..., BrokerProcess], server: RedisServer
) -> None:
    broker = prepare()
    feed(broker, server, LOG + '"RPUSH log ${payload}"\n', LIMITED + 'on_full = "reject"\n')
    server.kill()  # before it has anything that it could lose
    broker.start()
    client = RawClient(broker.port, "c")
    client.connect()
    accepted = 0
    while not status(broker)["refusing"]:
        assert accepted < 30, broker.tail()
        client.publish("load/1", large(accepted))
        accepted += 1
    assert accepted >= 15
    assert "backend_full" in events(broker)
    client.publish("load/1", b"x", reason=0x97)
    client.publish("load/1", b"x", qos=2, reason=0x97)
    client.publish("load/1", b"x", qos=0)
    client.publish("other", b"x")
    server.start()
    until(lambda: not status(broker)["refusing"], broker)
    client.publish("load/1", large(accepted))
    until(lambda: len(numbers(server)) == accepted + 1, broker)
    assert numbers(server) == list(range(accepted + 1))
    assert status(broker)["gaps"] == 0
    assert broker.metrics()['holdfast_backend_refusing{backend="cache"}'] == 0
    client.drop()
