"""Brokers of several processes: Holdfast with its log in Kafka, and NATS with JetStream.

Everything runs on loopback and on the disk that is measured: of a cluster this shows the price, not
what several machines can do. The Kafka servers run on through all works, as a cluster of a company
does; each work has nodes, directories and a topic of its own. Read next: `bench.brokers`,
`bench.takeover`.
"""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from bench.brokers import (
    CLUSTERS,
    NATS,
    POLL_S,
    REPLICATED,
    START_SECONDS_MAX,
    BenchError,
    Broker,
    answers,
    free_ports,
    memory_mib,
)

MEMBERS: Final = ("n1", "n2")
NATS_SERVERS: Final = 3
# What `beside` tells of.
FOLLOWERS: Final = "follower"
SERVERS: Final = "kafka"
PEERS: Final = "peers"  # the other servers of NATS
# The tests run Kafka with a heap and a compiler for short lives. Each server is a session of its
# own, as each node is: Linux shares processor time between sessions (sched_autogroup).
JAVA: Final = ("setsid", "java", "-Xmx512m", "-XX:+UseSerialGC")
TOPIC: Final = {"retention_ms": "-1", "retention_bytes": "-1"}

_HOLDFAST: Final = """\
[storage]
backend = "kafka"

[storage.kafka]
servers = {servers}
topic = "{topic}"
node = "{name}"
members = {names}
advertise = "127.0.0.1:{port}"
"""


class KafkaServers:
    """Three Kafka servers, started when they are needed first."""

    def __init__(self, directory: Path | None) -> None:
        """They keep their data in a directory below `directory`, None = a temporary place."""
        self._parent: Final = directory
        self._directory: Path | None = None
        self._cluster: Any = None

    def cluster(self) -> Any:
        """Return them, as `tests.replication.kafka_cluster` has them. Raises `BenchError`."""
        if self._cluster is None:
            try:
                import confluent_kafka  # noqa: F401
                import pytest  # noqa: F401

                from tests.real_servers import KAFKA
                from tests.replication.kafka_cluster import KafkaCluster
            except ImportError as problem:
                raise BenchError(f"{problem.name} is missing: scripts/setup --test") from None
            if not list(Path(KAFKA).glob("*.jar")) or not shutil.which("java"):
                raise BenchError("Kafka is missing: scripts/setup --test")
            self._directory = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=self._parent))
            self._cluster = KafkaCluster(self._directory, java=JAVA)
            try:
                self._cluster.start()
            except AssertionError as problem:
                raise BenchError(f"Kafka does not start: {problem}") from None
        return self._cluster

    def pids(self) -> list[int]:
        """Return their processes."""
        found: list[int] = self.cluster().pids()
        return found

    def close(self) -> None:
        """Kill them. Idempotent."""
        if self._cluster is not None:
            self._cluster.end()
            self._cluster = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


class Cluster:
    """Nodes that are one broker; leave the `with` block to stop them and remove what they have.

    Clients are sent to one of them, `node`: of Holdfast to the leader.
    """

    def __init__(
        self,
        kind: str,
        kafka: KafkaServers,
        *,
        directory: Path | None = None,
        seed: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the nodes, each on a copy of the data directory `seed`, None = an empty one.

        `environment` is for nodes of Holdfast.
        """
        assert kind in CLUSTERS
        self.kind: str = kind
        self.directory: Path = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=directory))
        self.ready_s: float = 0.0
        self._kafka: Final = kafka
        self._environment: Final = dict(environment or {})
        self._began: float = time.monotonic()
        try:
            self._launches: Final = self._nats() if kind == NATS else self._holdfast()
            self.nodes: Final[list[Broker]] = []
            for number in range(len(self._launches)):
                data = self.directory / f"data{number}"
                if seed is not None:
                    shutil.copytree(seed, data)
            self._began = time.monotonic()
            self.nodes.extend(self._launch(number) for number in range(len(self._launches)))
        except BaseException:
            self.close()
            raise
        self.node: Broker = self.nodes[0]

    def _holdfast(self) -> list[dict[str, Any]]:
        """Return what each node is started with."""
        cluster = self._kafka.cluster()
        topic = cluster.create(**TOPIC)
        launches = []
        for name, port in zip(MEMBERS, free_ports(len(MEMBERS)), strict=True):
            options = _HOLDFAST.format(
                servers=list(cluster.servers),
                topic=topic,
                name=name,
                names=list(MEMBERS),
                port=port,
            )
            launches.append({"port": port, "options": options})
        return launches

    def _nats(self) -> list[dict[str, Any]]:
        """Return the same for NATS: all its own, but for what says where the others are."""
        ports = free_ports(3 * NATS_SERVERS)
        clients, routes, listeners = (ports[number::3] for number in range(3))
        urls = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        launches = []
        for number in range(NATS_SERVERS):
            data = self.directory / f"data{number}"
            configuration = [
                f"server_name: n{number + 1}",
                f"listen: 127.0.0.1:{clients[number]}",
                f'jetstream {{ store_dir: "{data}", sync_interval: always }}',
                f"cluster {{ name: bench, listen: 127.0.0.1:{routes[number]}, routes: [{urls}] }}",
                f"mqtt {{ listen: 127.0.0.1:{listeners[number]}, stream_replicas: 3 }}",
            ]
            launches.append({"port": listeners[number], "configuration": configuration})
        return launches

    def _launch(self, number: int) -> Broker:
        return Broker(
            REPLICATED.get(self.kind, self.kind),
            directory=self.directory,
            data=self.directory / f"data{number}",
            environment=self._environment,
            **self._launches[number],
        )

    def relaunch(self, node: Broker) -> Broker:
        """Start a node that was killed again, on its data; return it."""
        number = self.nodes.index(node)
        node.close()
        self.nodes[number] = self._launch(number)
        return self.nodes[number]

    def others(self) -> list[Broker]:
        """Return the nodes that clients are not sent to."""
        return [node for node in self.nodes if node is not self.node]

    # As `bench.brokers.Running` has it.

    @property
    def port(self) -> int:
        """Return where clients are sent to."""
        return self.node.port

    @property
    def data(self) -> Path:
        """Return the data directory of the node that clients are sent to."""
        return self.node.data

    @property
    def is_durable(self) -> bool:
        """Return whether it promises that acknowledged messages survive a crash."""
        return True

    def pids(self) -> list[int]:
        """Return the process that answers clients, and its descendants."""
        return self.node.pids()

    def beside(self) -> dict[str, list[int]]:
        """Return the other nodes and the servers of the log."""
        others = [pid for node in self.others() if node.is_running() for pid in node.pids()]
        if self.kind == NATS:
            return {PEERS: others}
        return {FOLLOWERS: others, SERVERS: self._kafka.pids()}

    def memory_mib(self) -> float:
        """Return the resident memory of the process that answers clients."""
        return memory_mib(self.pids())

    def __enter__(self) -> Self:
        try:
            self.settle()
        except BaseException:
            self.close()
            raise
        self.ready_s = time.monotonic() - self._began
        return self

    def settle(self) -> Broker:
        """Wait until a node answers clients, and send them to it from now on; return it."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and any(node.is_running() for node in self.nodes):
            for node in self.nodes:
                if node.is_running() and answers(node.port):
                    self.node = node
                    return node
            time.sleep(POLL_S)
        said = "\n".join(node.log()[-1000:] for node in self.nodes)
        raise BenchError(f"{self.kind}: no node answers\n{said}")

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all nodes and remove what they have. Idempotent."""
        for node in getattr(self, "nodes", []):
            node.kill()  # in order it would hand over from node to node
            with contextlib.suppress(BenchError):
                node.close()
        shutil.rmtree(self.directory, ignore_errors=True)
