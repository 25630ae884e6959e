"""What happens in a run: steps of foreign clients at one real broker, each with its records.

Clients are paho-mqtt, aiomqtt, mosquitto_pub and mosquitto_sub, and MQTT.js where it is installed.
A step begins and ends with the broker running; it writes what its clients saw into the books.
"""

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.audit.real_broker import Paho
from tests.audit.real_runs.books import Books
from tests.clients.node import PREFIX, SCRIPT
from tests.durability.process import POLL_SECONDS, BrokerProcess
from tests.durability.rawclient import RawClient

FEW: Final = 5
PROGRAM_SECONDS: Final = 120.0  # that a client's process may take on a busy machine
STOP_SECONDS: Final = 180.0  # a broker that ends exports its history
EXPIRY_SECONDS: Final = 1
READERS: Final = ("reader1", "reader2")  # by their QoS
FULL_DISK: Final = "1000TiB"  # no disk has so much room


class Stage:
    """A running broker with two readers of everything and a writer, all paho, and the books."""

    def __init__(self, broker: BrokerProcess, random: Random) -> None:
        self.broker: Final = broker
        self.random: Final = random
        self.books: Final = Books()
        self._number = 0
        self.readers = [Paho(broker.port, name, version=4 + n) for n, name in enumerate(READERS)]
        for qos, reader in enumerate(self.readers, 1):
            reader.connect().subscribe("+/#", qos)
        self.writer = Paho(broker.port, "writer").connect()

    @property
    def port(self) -> int:
        """Return the port of the broker."""
        return self.broker.port

    def topic(self, area: str) -> str:
        """Return a topic that no message has had."""
        self._number += 1
        return f"{area}/{self._number}"

    def promise(self, *topics: str, to: Sequence[str] = READERS) -> None:
        """Write down that publishers were promised these messages; who is owed them."""
        self.books.promised.update(topics)
        for name in to:
            self.books.owed[name].update(topics)

    def publish(self, topic: str, qos: int, *, to: Sequence[str] = READERS) -> None:
        """Let the writer publish a message, whose payload is its topic, and wait for the answer."""
        self.writer.publish(topic, topic.encode(), qos)
        if qos:
            self.promise(topic, to=to)
        else:
            self.books.perhaps.add(topic)

    def killed(self) -> None:
        """Kill -9 the broker and start it again; the paho clients come back by themselves."""
        self.broker.kill()
        self._again()

    def restarted(self) -> None:
        """End the broker in good order and start it again."""
        assert self.broker.stop(STOP_SECONDS) == 0
        self._again()

    def _again(self) -> None:
        pahos = [*self.readers, self.writer]
        for client in pahos:
            client.lost()
        self.broker.start()
        for client in pahos:
            client.reconnected()

    def settle(self) -> None:
        """Wait until both readers have all they are owed, and write down what they got."""
        for reader in self.readers:
            owed = {topic.encode() for topic in self.books.owed[reader.name]}
            reader.wait(lambda reader=reader, owed=owed: owed <= set(reader.received))  # type: ignore[misc]
            for payload in reader.received:
                self.books.got[reader.name][payload.decode()] += 1
            reader.received.clear()
            self.books.owed[reader.name] -= set(self.books.got[reader.name])

    def leave(self) -> None:
        """Let all paho clients disconnect."""
        for client in (*self.readers, self.writer):
            client.leave()


Step = Callable[[Stage], None]


def _sub(stage: Stage, name: str, topic: str, *more: str) -> list[str]:
    place = ["-h", "127.0.0.1", "-p", str(stage.port), "-V", "mqttv5", "-i", name, "-q", "2"]
    patience = ["-W", str(int(PROGRAM_SECONDS))]
    return ["mosquitto_sub", *place, "-t", topic, "-F", "%t", *patience, *more]


def _pub(stage: Stage, topic: str, qos: int, *more: str, payload: str = "") -> list[str]:
    place = ["-h", "127.0.0.1", "-p", str(stage.port), "-V", "mqttv5", "-q", str(qos)]
    return ["mosquitto_pub", *place, "-t", topic, *(more or ("-m", payload or topic))]


def _ran(command: Sequence[str]) -> list[str]:
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=2 * PROGRAM_SECONDS
    )
    return done.stdout.split()


def paho_publishes(stage: Stage) -> None:
    """Publish at every QoS, one after the other."""
    for qos in stage.random.choices((0, 1, 2), k=FEW):
        stage.publish(stage.topic("paho"), qos)


def killed_in_flight(stage: Stage) -> None:
    """Publish without waiting, and kill the broker; paho sends again what has no answer."""
    qos = 1  # at QoS 2 paho may publish a message twice: tests.durability.foreign
    topics = [stage.topic("flight") for _ in range(4 * FEW)]
    numbers = [stage.writer.client.publish(topic, topic.encode(), qos).mid for topic in topics]
    stage.killed()
    stage.writer.answered(numbers)
    stage.promise(*topics)


def mosquitto_away(stage: Stage) -> None:
    """Publish for a session that is away, with a kill in between, and take it all."""
    name = f"mosquitto{stage.topic('x')[2:]}"
    area = name
    durable = ("-c", "-x", "3600")
    _ran(_sub(stage, name, f"{area}/#", *durable, "-E"))
    topics = [stage.topic(area) for _ in range(FEW)]
    for at, topic in enumerate(topics):
        _ran(_pub(stage, topic, 1 + at % 2))
        stage.promise(topic, to=(*READERS, name))
    if stage.random.random() < 0.5:
        stage.killed()
    got = _ran(_sub(stage, name, f"{area}/#", *durable, "-C", str(FEW)))
    stage.books.got[name].update(got)


def aiomqtt_echoes(stage: Stage) -> None:
    """Subscribe, publish and receive with aiomqtt at one QoS, in a session that it keeps."""
    name, qos = f"aio{stage.topic('x')[2:]}", stage.random.choice((1, 2))
    topics = [stage.topic(name) for _ in range(FEW)]
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 3600

    async def live() -> list[str]:
        client = aiomqtt.Client(
            "127.0.0.1", stage.port, identifier=name, protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=False, properties=properties,
        )  # fmt: skip
        async with client:
            await client.subscribe(f"{name}/#", qos=qos)
            for topic in topics:
                await client.publish(topic, topic, qos=qos, timeout=PROGRAM_SECONDS)
            return [
                str((await asyncio.wait_for(anext(client.messages), PROGRAM_SECONDS)).topic)
                for _ in topics
            ]

    stage.promise(*topics, to=(*READERS, name))
    stage.books.got[name].update(asyncio.run(live()))


def mqttjs_stays(stage: Stage) -> None:
    """Let MQTT.js receive at QoS 2 over a kill; without it nothing happens."""
    modules = PREFIX / "node_modules"
    if shutil.which("node") is None or not (modules / "mqtt").is_dir():
        return
    name = f"js{stage.topic('x')[2:]}"
    inbox = f"{name}/in"
    node = subprocess.Popen(
        ["node", str(SCRIPT), f"mqtt://127.0.0.1:{stage.port}", name, "5"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "NODE_PATH": str(modules)},
    )  # fmt: skip
    assert node.stdout is not None
    try:
        with node.stdout as lines:
            _until(lines, "subscribed")
            stage.writer.publish(inbox, inbox.encode(), 2)
            stage.promise(inbox, to=(*READERS, name))
            _until(lines, "message")
            stage.books.got[name][inbox] += 1
            stage.killed()
            _until(lines, "connect")
    finally:
        node.kill()
        node.wait()


def _until(lines: Any, event: str) -> None:
    for line in lines:
        if json.loads(line)["event"] == event:
            return
    raise AssertionError(f"MQTT.js ended without {event}")


def will_fires(stage: Stage) -> None:
    """Kill -9 a client that has a will, with a delay or without."""
    topic = stage.topic("will")
    name = topic.replace("/", "")
    delay = stage.random.choice((0, 1))
    will = ("--will-topic", topic, "--will-payload", topic, "--will-qos", "1")
    more = ("-D", "will", "will-delay-interval", str(delay), "-x", "3600") if delay else ()
    client = subprocess.Popen(
        ["stdbuf", "-oL", *_sub(stage, name, f"{name}/#", *will, *more, "-d")],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdout is not None
    with client.stdout as lines:
        for line in lines:
            if "SUBACK" in line:
                break
        client.kill()
        client.wait()
    stage.books.perhaps.add(topic)
    for reader in READERS:
        stage.books.owed[reader].add(topic)
    stage.settle()


def messages_expire(stage: Stage) -> None:
    """Leave messages to a session that comes back when some of them have expired."""
    name = f"late{stage.topic('x')[2:]}"
    durable = ("-c", "-x", "3600")
    _ran(_sub(stage, name, f"{name}/#", *durable, "-E"))
    short = ("-D", "publish", "message-expiry-interval", str(EXPIRY_SECONDS))
    for number in range(FEW):
        topic = stage.topic(name)
        brief = number < FEW - 1
        _ran(_pub(stage, topic, 1, "-m", topic, *(short if brief else ())))
        stage.books.promised.add(topic)
        stage.books.expired += brief
        if not brief:
            stage.promise(topic, to=(*READERS, name))
    time.sleep(EXPIRY_SECONDS + 1.0)
    stage.books.got[name].update(_ran(_sub(stage, name, f"{name}/#", *durable, "-C", "1")))


def members_share(stage: Stage) -> None:
    """Let two members of a shared group divide messages, one of them from before a restart on."""
    area = f"job{stage.topic('x')[2:]}"
    members = [Paho(stage.port, f"{area}m{n}").connect() for n in range(2)]
    for member in members:
        member.subscribe(f"$share/{area}/{area}/#", 1)
    topics = [stage.topic(area) for _ in range(2 * FEW)]
    for topic in topics:
        stage.publish(topic, 1)
    for member in members:
        wanted = {topic.encode() for topic in topics}
        deadline = time.monotonic() + PROGRAM_SECONDS
        while {*members[0].received, *members[1].received} < wanted:
            assert time.monotonic() < deadline, "the group waited in vain"
            time.sleep(POLL_SECONDS)
        member.leave()
    group = f"$share/{area}"
    for member in members:
        stage.books.got[group].update(payload.decode() for payload in member.received)
    stage.books.owed[group].update(topics)


def retained_changes(stage: Stage) -> None:
    """Set, replace and clear a retained message; who subscribes in between gets the last one."""
    topic = stage.topic("kept")
    for payload in ("old", "new"):
        _ran(_pub(stage, topic, 1, "-r", "-m", payload))
    name = topic.replace("/", "")
    assert _ran([*_sub(stage, name, topic, "-C", "1"), "-F", "%p"]) == ["new"]
    _ran(_pub(stage, topic, 1, "-r", "-n"))
    stage.books.perhaps.add(topic)


def too_large_to_send(stage: Stage) -> None:
    """Publish a message that is larger than its receiver takes, and one that is not."""
    area = f"big{stage.topic('x')[2:]}"
    most = ("-D", "connect", "maximum-packet-size", "100")
    client = subprocess.Popen(
        ["stdbuf", "-oL", *_sub(stage, area, f"{area}/#", *most, "-d", "-C", "1")],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdout is not None
    with client.stdout as lines:
        for line in lines:
            if "SUBACK" in line:
                break
        for size in (500, 1):
            topic = stage.topic(area)
            _ran(_pub(stage, topic, 1, "-m", "x" * size))
            stage.books.perhaps.add(topic)
        lines.read()
    assert client.wait(PROGRAM_SECONDS) == 0
    stage.books.too_large += 1


def taken_over(stage: Stage) -> None:
    """Take over a session, with something in flight, and then end it with a clean start."""
    area = f"twice{stage.topic('x')[2:]}"
    first, second = RawClient(stage.port, area), RawClient(stage.port, area)
    first.durable()
    first.subscribe(f"{area}/#", qos=1)
    topic = stage.topic(area)
    stage.publish(topic, 1)
    first.expect_publish(acknowledge=False)
    assert second.durable().session_present
    first.expect_closed()
    first.drop()
    second.expect_publish(dup=True)
    second.disconnect()
    third = RawClient(stage.port, area)
    assert not third.connect().session_present
    third.disconnect()


def refused(stage: Stage) -> None:
    """Publish where the rules deny it, and read there."""
    client = RawClient(stage.port, stage.topic("refused").replace("/", ""))
    client.connect()
    topic = stage.topic("denied")
    client.publish(topic, "x", qos=1, reason=0x87)
    client.publish(topic, "x", qos=2, reason=0x87)
    client.disconnect()
    stage.books.refused.add(topic)


def disk_full(stage: Stage) -> None:
    """Start the broker with no room: publishers are refused; then there is room again."""
    env = stage.broker.env
    before = env["HOLDFAST__STORAGE__LOW_WATER"]
    env["HOLDFAST__STORAGE__LOW_WATER"] = FULL_DISK
    stage.restarted()
    client = RawClient(stage.port, stage.topic("full").replace("/", ""))
    client.connect()
    topic = stage.topic("full")
    client.publish(topic, "x", qos=1, reason=0x97)
    client.drop()
    stage.books.refused.add(topic)
    env["HOLDFAST__STORAGE__LOW_WATER"] = before
    stage.killed()


def frozen(stage: Stage) -> None:
    """Suspend the broker with messages on the way, and kill it."""
    topics = [stage.topic("frozen") for _ in range(FEW)]
    stage.broker.freeze()
    numbers = [stage.writer.client.publish(topic, topic.encode(), 1).mid for topic in topics]
    stage.killed()
    stage.writer.answered(numbers)
    stage.promise(*topics)


def loss_planted(stage: Stage) -> None:
    """Set the database back to a copy from before messages were acknowledged and exported."""
    name = f"victim{stage.topic('x')[2:]}"
    _ran(_sub(stage, name, f"{name}/#", "-c", "-x", "3600", "-E"))
    stage.settle()
    assert stage.broker.stop(STOP_SECONDS) == 0
    copy = stage.broker.directory / "copy"
    shutil.copytree(stage.broker.data_dir, copy)
    stage.broker.start()
    client = RawClient(stage.port, f"{name}giver")
    client.connect()
    for _ in range(2 * FEW):
        topic = stage.topic(name)
        client.publish(topic, topic, qos=1)
        stage.books.promised.add(topic)
        stage.books.lost.add(topic)
    client.disconnect()
    for reader in stage.readers:
        reader.reconnected()
        reader.wait(lambda reader=reader: stage.books.lost <= _topics(reader))  # type: ignore[misc]
    assert stage.broker.stop(STOP_SECONDS) == 0  # it exports all of its history
    shutil.rmtree(stage.broker.data_dir)
    copy.rename(stage.broker.data_dir)
    stage.broker.start()
    for paho in (*stage.readers, stage.writer):
        paho.reconnected()


def _topics(reader: Paho) -> set[str]:
    return {payload.decode() for payload in list(reader.received)}


STEPS: Final[tuple[Step, ...]] = (
    paho_publishes,
    killed_in_flight,
    mosquitto_away,
    aiomqtt_echoes,
    mqttjs_stays,
    will_fires,
    messages_expire,
    members_share,
    retained_changes,
    too_large_to_send,
    taken_over,
    refused,
    disk_full,
    frozen,
)


def rules(directory: Path) -> Path:
    """Write the rules of all runs: everything but one branch."""
    path = directory / "acl"
    path.write_text("topic readwrite #\ntopic deny denied/#\n")
    return path
