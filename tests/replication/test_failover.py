"""Real nodes, a real log of three Kafka brokers, real clients: nothing acknowledged is lost.

`HOLDFAST_FAILOVERS` is the number of times that the leader is taken away (5 here, 200 before a
release), `HOLDFAST_KILL_SEED` sets how and when.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from broker.cluster.describing import STATUS
from broker.operations.control_socket import ask
from mqtt.reasons import USE_ANOTHER_SERVER
from tests.durability.mixed_load import MixedLoad
from tests.durability.process import ROOT, BrokerProcess, free_port, holdfast, http_get
from tests.durability.rawclient import RawClient
from tests.replication.front import Front
from tests.replication.kafka_cluster import KafkaCluster, clusters, needs_kafka

pytestmark = [pytest.mark.ci, needs_kafka]

FAILOVERS: Final = int(os.environ.get("HOLDFAST_FAILOVERS", "5"))
SEED: Final = int(os.environ.get("HOLDFAST_KILL_SEED", "1"))
LEAD_S: Final = 120.0
NAMES: Final = ("ann", "bob")
HAPROXY: Final = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    yield from clusters(tmp_path_factory.mktemp("kafka"))


class Cluster:
    """Two nodes and what is in front of them."""

    def __init__(self, kafka: KafkaCluster, directory: Path) -> None:
        self.topic: Final = kafka.create(max_message_bytes="4194304", **KEPT)
        self.nodes: Final = {name: self._node(kafka, directory, name) for name in NAMES}
        for node in self.nodes.values():
            node.launch()
        self.front: Final = Front(list(self.nodes.values()))

    def _node(self, kafka: KafkaCluster, directory: Path, name: str) -> BrokerProcess:
        node = holdfast(directory / name)
        config = directory / name / "holdfast.toml"
        config.write_text(
            CONFIG.format(
                servers=list(kafka.servers),
                topic=self.topic,
                name=name,
                names=list(NAMES),
                port=node.port,
            )
        )
        node.arguments = ("-c", str(config))
        return node

    def name_of(self, node: BrokerProcess) -> str:
        """Return the name of a node."""
        return next(name for name, each in self.nodes.items() if each is node)

    def other(self, node: BrokerProcess) -> BrokerProcess:
        """Return the other node."""
        return next(each for each in self.nodes.values() if each is not node)

    def close(self) -> None:
        """End all."""
        self.front.close()
        for node in self.nodes.values():
            node.close()


KEPT: Final = {"retention_ms": "-1", "retention_bytes": "-1"}
CONFIG: Final = """\
[storage]
backend = "kafka"

[storage.kafka]
servers = {servers}
topic = "{topic}"
node = "{name}"
members = {names}
advertise = "127.0.0.1:{port}"
"""


@pytest.fixture
def cluster(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(kafka, tmp_path)
    yield cluster
    cluster.close()


def _follows(node: BrokerProcess) -> bool:
    try:
        return "following" in http_get(node.metrics_port, "/readyz")[1]
    except ConnectionRefusedError:  # it led, and is about to follow
        return False


def until_follows(node: BrokerProcess) -> None:
    """Wait until a node follows."""
    deadline = time.monotonic() + LEAD_S
    while not _follows(node):
        assert time.monotonic() < deadline and node.is_running(), node.tail()
        time.sleep(0.1)


def until_it_could_lead(node: BrokerProcess) -> None:
    """Wait until a node follows and has heard the leader."""
    until_follows(node)
    deadline = time.monotonic() + LEAD_S
    while not describe(node)["ready"]:
        assert time.monotonic() < deadline, node.tail()
        time.sleep(0.1)


def test_a_follower_names_the_leader_and_refuses(cluster: Cluster) -> None:
    leader = cluster.front.wait_for_leader(LEAD_S)
    follower = cluster.other(leader)
    until_follows(follower)
    client = RawClient(follower.port, "lost", version=5)
    deadline = time.monotonic() + LEAD_S
    status = describe(follower)
    while not any(each["address"] for each in json.loads(status["members"])):
        assert time.monotonic() < deadline
        time.sleep(0.1)
        status = describe(follower)
    connack = client.connect(reason=USE_ANOTHER_SERVER)
    assert connack.server_reference == f"127.0.0.1:{leader.port}"
    RawClient(follower.port, "lost", version=4).connect(reason=3)
    assert status["role"] == "follower" and status["leader"] == cluster.name_of(leader)


def describe(node: BrokerProcess) -> dict[str, str]:
    """Return what a node says of its cluster."""
    return ask(node.data_dir, {"do": STATUS})


def test_nothing_acknowledged_is_lost_when_leaders_are_taken_away(cluster: Cluster) -> None:
    leader = cluster.front.wait_for_leader(LEAD_S)
    until_follows(cluster.other(leader))
    rng = random.Random(SEED)
    load = MixedLoad(cluster.front.port, SEED)
    load.start()
    for turn in range(FAILOVERS):
        time.sleep(rng.uniform(1.0, 3.0))
        if turn % 2:
            leader.freeze()
            new = cluster.front.wait_for_leader(LEAD_S, than=leader)
            time.sleep(rng.uniform(0.1, 1.0))
            leader.thaw()
        else:
            leader.kill()
            new = cluster.front.wait_for_leader(LEAD_S, than=leader)
            leader.launch()
        until_follows(leader)
        leader = new
    faults = load.finish()
    assert not faults, "\n".join(faults)
    assert load.acknowledged() > FAILOVERS * 50


@pytest.mark.parametrize("later_s", [0.0, 0.05, 0.3])
def test_a_node_that_takes_over_ends_when_it_is_told_to(cluster: Cluster, later_s: float) -> None:
    """Whatever it is doing: between its loop as a follower and that of its broker there is none."""
    leader = cluster.front.wait_for_leader(LEAD_S)
    follower = cluster.other(leader)
    until_it_could_lead(follower)
    deadline = time.monotonic() + LEAD_S
    leader.kill()
    while "cluster_leads" not in follower.tail():
        assert time.monotonic() < deadline, follower.tail()
        time.sleep(0.005)
    time.sleep(later_s)
    assert follower.stop(LEAD_S) in (0, -signal.SIGTERM)


@pytest.fixture
def balanced(cluster: Cluster, tmp_path: Path) -> Iterator[int]:
    """Return the port of HAProxy in front of the nodes, by the configuration of the example."""
    port = free_port()
    text = (ROOT / "deploy" / "cluster" / "haproxy.cfg").read_text()
    text = text.replace("bind :1883", f"bind 127.0.0.1:{port}")
    text = text.replace("maxconn 100000", "maxconn 1000")  # more needs more file descriptors
    for name, node in cluster.nodes.items():
        here = f"server {name} 127.0.0.1:{node.port} port {node.metrics_port}"
        assert f"server {name} {name}:1883" in text
        text = text.replace(f"server {name} {name}:1883", here)
    config = tmp_path / "haproxy.cfg"
    config.write_text(text)
    with (
        (tmp_path / "haproxy.log").open("w") as log,
        subprocess.Popen([str(HAPROXY), "-db", "-f", str(config)], stderr=log) as process,
    ):
        try:
            deadline = time.monotonic() + LEAD_S
            while not _accepts(port):
                said = (tmp_path / "haproxy.log").read_text()
                assert process.poll() is None and time.monotonic() < deadline, said
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()


def _accepts(port: int) -> bool:
    with socket.socket() as channel:
        return channel.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")
def test_the_balancer_of_the_example_sends_clients_to_who_leads(
    cluster: Cluster, balanced: int
) -> None:
    leader = cluster.front.wait_for_leader(LEAD_S)
    load = MixedLoad(balanced, SEED)
    load.start()
    for takes_away in (BrokerProcess.kill, BrokerProcess.freeze):
        until_it_could_lead(cluster.other(leader))
        until_acknowledged(load, load.acknowledged() + 50)
        takes_away(leader)
        new = cluster.front.wait_for_leader(LEAD_S, than=leader)
        until_acknowledged(load, load.acknowledged() + 50)
        if leader.is_running():
            leader.thaw()
        else:
            leader.launch()
        leader = new
    faults = load.finish()
    assert not faults, "\n".join(faults)


def until_acknowledged(load: MixedLoad, count: int) -> None:
    """Wait until clients have so many acknowledgements."""
    deadline = time.monotonic() + LEAD_S
    while load.acknowledged() < count:
        assert time.monotonic() < deadline, f"{load.acknowledged()} of {count}"
        time.sleep(0.05)
