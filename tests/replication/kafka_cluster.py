"""A real Kafka cluster of three brokers on loopback, which tests kill, stop and continue.

Every broker is a controller as well, so two of three are what the cluster needs.
"""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import pytest

from tests.durability.process import POLL_SECONDS, free_port, suspend
from tests.real_servers import KAFKA as LIBRARY
from tests.real_servers import needs

kafka: Any = pytest.importorskip("confluent_kafka")
admin: Any = pytest.importorskip("confluent_kafka.admin")

needs_kafka = needs("Kafka")
BROKERS: Final = 3
SERVER: Final = "kafka.Kafka"
START_S: Final = 300.0
PATIENCE_S: Final = 300.0  # for what the cluster does by itself, on a busy machine
JAVA: Final = ("java", "-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
EXISTS: Final = kafka.KafkaError.TOPIC_ALREADY_EXISTS
UNKNOWN: Final = kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
SETTINGS: Final = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.initial.task.delay.ms=1000
"""


# A broker that is killed is noticed sooner than by default.
HASTY: Final = """\
{role}.session.timeout.ms=4000
{role}.heartbeat.interval.ms=500
"""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a broker runs: its address, what goes in front of its command, its environment."""

    host: str = "127.0.0.1"
    prefix: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class KafkaCluster:
    """Three brokers, over any number of starts; a broker is named by its number, 1 to 3."""

    def __init__(
        self,
        directory: Path,
        brokers: int = BROKERS,
        *,
        homes: Mapping[int, Home] | None = None,
        settings: str = HASTY,
        java: Sequence[str] = JAVA,
    ) -> None:
        """`homes` says where brokers run that are not on loopback."""
        self._directory: Final = directory
        self._java_command: Final = java
        self._homes: Final = homes or {node: Home() for node in range(1, brokers + 1)}
        self.ports: Final = {node: free_port() for node in self._homes}
        controllers = {node: free_port() for node in self.ports}
        voters = ",".join(
            f"{node}@{self._homes[node].host}:{port}" for node, port in controllers.items()
        )
        for node, port in self.ports.items():
            place = self._place(node)
            place.mkdir(parents=True)
            text = (SETTINGS + settings).format(
                node=node,
                voters=voters,
                host=self._homes[node].host,
                port=port,
                controller=controllers[node],
                directory=place,
                role="broker",
            )
            (place / "server.properties").write_text(text)
        self._processes: Final[dict[int, subprocess.Popen[bytes]]] = {}
        self._frozen: Final[set[int]] = set()
        self._is_formatted: bool = False
        self.admin: Final = admin.AdminClient(
            {
                "bootstrap.servers": ",".join(self.servers),
                "log_level": 0,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 500,
                "metadata.max.age.ms": 1000,
                "socket.timeout.ms": 2000,
            }
        )

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the addresses of all brokers."""
        return tuple(f"{self._homes[node].host}:{port}" for node, port in self.ports.items())

    def data(self, node: int) -> Path:
        """Return where a broker keeps its log."""
        return self._place(node) / "data"

    def _place(self, node: int) -> Path:
        return self._directory / f"broker{node}"

    # Processes

    def format(self) -> None:
        """Prepare the disks of all."""
        self._is_formatted = True
        formats = [
            self._java(node, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c")
            for node in self.ports
        ]
        for each in formats:
            assert each.wait(START_S) == 0, f"see {self._directory}/broker*/kafka.log"

    def start(self) -> Self:
        """Start all, on disks that are prepared, and return once they know one another."""
        if not self._is_formatted:
            self.format()
        for node in self.ports:
            self.revive(node)
        self.until_whole()
        return self

    def _java(self, node: int, program: str, *words: str) -> subprocess.Popen[bytes]:
        place = self._place(node)
        settings = str(place / "server.properties")
        command = [*self._java_command, "-cp", f"{LIBRARY}/*", program, *words, settings]
        with open(place / "kafka.log", "ab") as log:
            where = self._homes[node]
            environment = {**os.environ, **(where.env if program == SERVER else {})}
            command = [*where.prefix, *command]
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def revive(self, node: int) -> None:
        """Start a broker that was killed, or not yet started. Returns before it answers."""
        assert node not in self._processes
        self._processes[node] = self._java(node, SERVER)

    def pids(self) -> list[int]:
        """Return the processes of those that run."""
        return [process.pid for process in self._processes.values()]

    def kill(self, node: int) -> None:
        """Send SIGKILL to a broker and wait. Idempotent."""
        process = self._processes.pop(node, None)
        self._frozen.discard(node)
        if process is not None:
            process.kill()
            process.wait(START_S)

    def freeze(self, node: int) -> None:
        """Suspend a broker: its connections stay open, and nothing is answered."""
        suspend(self._processes[node])
        self._frozen.add(node)

    def thaw(self, node: int) -> None:
        """Let it go on."""
        os.kill(self._processes[node].pid, signal.SIGCONT)
        self._frozen.discard(node)

    def mend(self) -> None:
        """Continue and start whatever does not run, and wait until all is well."""
        for node in tuple(self._frozen):
            self.thaw(node)
        for node in self.ports:
            if node not in self._processes:
                self.revive(node)
        self.until_whole()

    def end(self) -> None:
        """Kill all."""
        for node in self.ports:
            self.kill(node)

    # What the cluster says

    def until_whole(self) -> None:
        """Wait until all brokers are there and every partition has all its replicas in sync."""
        _until(self._is_whole, START_S, "the cluster is not whole")

    def _is_whole(self) -> bool:
        with contextlib.suppress(kafka.KafkaException):
            found = self.admin.list_topics(timeout=5)
            partitions = [
                each for topic in found.topics.values() for each in topic.partitions.values()
            ]
            return len(found.brokers) == len(self.ports) and all(
                len(each.isrs) == len(each.replicas) and each.leader > 0 for each in partitions
            )
        return False

    def leader(self, topic: str) -> int:
        """Return the broker that leads the partition of a topic, once there is one."""
        found: list[int] = []

        def has_leader() -> bool:
            with contextlib.suppress(kafka.KafkaException):
                partitions = self.admin.list_topics(topic, timeout=5).topics[topic].partitions
                found[:] = [each.leader for each in partitions.values() if each.leader > 0]
            return bool(found)

        _until(has_leader, PATIENCE_S, "no broker leads")
        return found[0]

    def until_other_leader(self, topic: str, than: int) -> None:
        """Wait until another broker leads."""
        _until(lambda: self.leader(topic) != than, PATIENCE_S, "no other broker leads")

    # Topics

    def create(
        self, topic: str = "", *, partitions: int = 1, replicas: int = 3, **settings: str
    ) -> str:
        """Create a topic, by default under a new name; return its name."""
        topic = topic or f"t-{uuid.uuid4().hex[:12]}"
        config = {"min.insync.replicas": "2"}
        config |= {name.replace("_", "."): value for name, value in settings.items()}
        new = admin.NewTopic(topic, partitions, replicas, config=config)
        insist(lambda: self.admin.create_topics([new])[topic], EXISTS)
        self.until_there(topic)
        return topic

    def until_there(self, topic: str) -> None:
        """Wait until all replicas of a topic are in sync."""
        _until(lambda: self._is_there(topic) and self._is_whole(), PATIENCE_S, "no topic")

    def _is_there(self, topic: str) -> bool:
        with contextlib.suppress(kafka.KafkaException):
            return topic in self.admin.list_topics(timeout=5).topics
        return False

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        insist(lambda: self.admin.delete_topics([topic])[topic], UNKNOWN)
        _until(lambda: self._is_gone(topic), PATIENCE_S, "the topic stays")

    def _is_gone(self, topic: str) -> bool:
        with contextlib.suppress(kafka.KafkaException):
            return topic not in self.admin.list_topics(timeout=5).topics
        return False

    def delete_before(self, topic: str, place: int) -> None:
        """Delete the records before `place`."""
        wanted = kafka.TopicPartition(topic, 0, place)
        insist(lambda: self.admin.delete_records([wanted])[wanted])

    def values(self, topic: str) -> list[bytes]:
        """Return all that a topic holds, in order."""
        client = kafka.Consumer(
            {
                "bootstrap.servers": ",".join(self.servers),
                "group.id": uuid.uuid4().hex,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        found: list[bytes] = []
        try:
            client.assign([kafka.TopicPartition(topic, 0, kafka.OFFSET_BEGINNING)])
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                for each in client.consume(500, 1.0):
                    if each.error() is None:
                        found.append(each.value())
                    elif each.error().code() == kafka.KafkaError._PARTITION_EOF:
                        return found
        finally:
            client.close()
        raise AssertionError(f"topic {topic} has no end")


def insist(call: Any, *done: int) -> None:
    """Ask until it is done: what a client asks may end with its connection."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call().result(START_S)
            return
        except kafka.KafkaException as problem:
            if problem.args[0].code() in done:
                return
            assert time.monotonic() < deadline, str(problem)
        time.sleep(POLL_SECONDS)


def _until(condition: Any, seconds: float, complaint: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(POLL_SECONDS)


def clusters(directory: Path) -> Iterator[KafkaCluster]:
    """Yield a cluster that runs, for a fixture."""
    cluster = KafkaCluster(directory)
    try:
        yield cluster.start()
    finally:
        cluster.end()
