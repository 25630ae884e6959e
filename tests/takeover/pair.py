"""Real nodes on a replicated store, as one broker of `tests.durability.matrix`.

`one_node` starts again on its own disk. Of a `Pair` the node that is killed or stopped never comes
back: a start is a takeover by the other one. Clients know one port, of a balancer.
"""

import itertools
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from storage.replicated.kafka.client import Access
from storage.replicated.kafka.topic import create_topic
from tests.durability.process import POLL_SECONDS, BrokerProcess, holdfast, http_get
from tests.replication.front import Front

LEAD_S: Final = 180.0  # a busy machine, with a node of Kafka away
NAMES: Final = ("ann", "bob")
PREFIX: Final = "HOLDFAST__STORAGE__KAFKA__"


def new_topic(servers: Sequence[str]) -> str:
    """Make a topic for a new cluster, and return its name."""
    topic = f"matrix-{uuid.uuid4().hex[:12]}"
    assert create_topic(Access(tuple(servers)), topic, timeout_s=LEAD_S)
    return topic


def environment(
    servers: Sequence[str], topic: str, name: str, names: Sequence[str]
) -> dict[str, str]:
    """Return what makes a broker the node `name` of a cluster."""
    return {
        "HOLDFAST__STORAGE__BACKEND": "kafka",
        f"{PREFIX}SERVERS": ",".join(servers),
        f"{PREFIX}TOPIC": topic,
        f"{PREFIX}NODE": name,
        f"{PREFIX}MEMBERS": ",".join(names),
    }


class OneNode(BrokerProcess):
    """A cluster of one: it leads again once nobody was heard for a while."""

    def start(self, timeout: float = LEAD_S) -> Self:
        """Start it, and return once it leads."""
        return super().start(timeout)


def one_node(directory: Path, servers: Sequence[str], env: Mapping[str, str] = {}) -> BrokerProcess:
    """Return a cluster of one node that is not started yet."""
    plain = holdfast(directory)
    node = OneNode(
        directory,
        name="holdfast",
        command=plain.command,
        is_ready=plain.is_ready,
        env={**plain.env, **environment(servers, new_topic(servers), NAMES[0], NAMES[:1]), **env},
    )
    node.env["HOLDFAST__METRICS__PORT"] = str(node.metrics_port)
    return node


class Pair:
    """Two nodes, of which the leader can go for good."""

    def __init__(
        self, directory: Path, servers: Sequence[str], env: Mapping[str, str] = {}
    ) -> None:
        topic = new_topic(servers)
        self.nodes: Final = [
            holdfast(directory / name, env={**environment(servers, topic, name, NAMES), **env})
            for name in NAMES
        ]
        for node in self.nodes:
            node.env[f"{PREFIX}ADVERTISE"] = f"127.0.0.1:{node.port}"
        self._leader: BrokerProcess | None = None
        self._gone: BrokerProcess | None = None
        self._front: Final = Front(self.nodes)
        self.port: Final = self._front.port

    @property
    def leader(self) -> BrokerProcess:
        """Return the node that leads, or led last."""
        assert self._leader is not None
        return self._leader

    @property
    def follower(self) -> BrokerProcess:
        """Return the other one."""
        return next(node for node in self.nodes if node is not self._leader)

    def start(self) -> Self:
        """Return once a node leads that has not gone; at first, once the other can take over."""
        if self._gone is None:
            for node in self.nodes:
                node.launch()
        self._leader = self._front.wait_for_leader(LEAD_S, than=self._gone)
        if self._gone is None:
            self._until_warm(self.follower)
        return self

    def _until_warm(self, node: BrokerProcess) -> None:
        deadline = time.monotonic() + LEAD_S
        while "\nholdfast_cluster_warm 1" not in http_get(node.metrics_port, "/metrics")[1]:
            assert time.monotonic() < deadline and node.is_running(), node.tail()
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """The leader's machine is gone."""
        self._gone = self.leader
        self.leader.kill()

    def signal(self, number: int) -> None:
        """Send a signal to the leader; it does not come back."""
        self._gone = self.leader
        self.leader.signal(number)

    def wait_exit(self, timeout: float) -> int:
        """Return the exit code of the leader once it has ended."""
        return self.leader.wait_exit(max(timeout, LEAD_S))

    def tail(self, lines: int = 20) -> str:
        """Return the ends of both logs, for a failure message."""
        return "\n".join(itertools.chain(*((node.name, node.tail(lines)) for node in self.nodes)))

    def close(self) -> None:
        """End both, and check their logs."""
        self._front.close()
        for node in self.nodes:
            node.close()
