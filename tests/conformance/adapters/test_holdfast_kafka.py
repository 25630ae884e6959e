"""The adapters of Holdfast on a replicated store: what each node is told, and who leads."""

from pathlib import Path
from typing import Any, cast

import pytest

from broker.configuration.load import load
from broker.configuration.options import ENV_PREFIX
from conformance.adapters.base import AdapterError, Broker, Place
from conformance.adapters.holdfast_kafka import NAMES, SERVERS, HoldfastKafka, Node, Pair, Status


def test_a_node_is_told_of_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVERS, "k1:9092,k2:9092")
    place = Place(tmp_path, "127.0.0.1", 20_001, 20_002, 1)  # where nobody listens
    made = HoldfastKafka().prepare_node(place, {"maximum_qos": 1}, "a-topic", "bob", NAMES)
    ours = {k: v for k, v in made.environment.items() if k.startswith(ENV_PREFIX)}
    config = load(environment=ours)
    cluster = config.cluster
    assert (cluster.backend, cluster.topic, cluster.node) == ("kafka", "a-topic", "bob")
    assert (cluster.members, cluster.servers) == (NAMES, ("k1:9092", "k2:9092"))
    assert (cluster.advertise, cluster.takeover_ms) == ("127.0.0.1:20001", 2000)
    assert (config.shell.metrics_port, config.settings.maximum_qos) == (1, 1)
    assert made.is_ready is not None and not made.is_ready()


def test_without_kafka_it_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SERVERS, raising=False)
    with pytest.raises(AdapterError, match=f"set {SERVERS}"):
        HoldfastKafka().prepare(Place(tmp_path, "127.0.0.1", 20_001, 20_002, 20_003), {})


class FakeProcess:
    """A node's process that does at once what it is told."""

    host = "127.0.0.1"
    websocket_port = 0
    exit_code = 0

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.is_running = False
        self.leads = False
        self.did: list[str] = []

    def serves(self) -> bool:
        return self.is_running and self.leads

    def begin(self) -> None:
        self.is_running = True
        self.did.append("begin")

    def kill(self) -> None:
        self.is_running = False
        self.did.append("kill")

    def stop(self) -> None:
        self.is_running = False
        self.did.append("stop")

    close = kill


class FakeStatus:
    """A follower that can take over."""

    def can_take_over(self) -> bool:
        return True


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_start_is_a_takeover_and_the_disk_is_gone(tmp_path: Path, end: str) -> None:
    processes = [FakeProcess(name, 20_001 + number) for number, name in enumerate(NAMES)]
    nodes = []
    for process in processes:
        place = Place(tmp_path / process.name, "127.0.0.1", process.port, 0)
        (place.directory / "data").mkdir(parents=True)
        nodes.append(Node(cast(Broker, process), place))
        cast(Any, nodes[-1]).status = FakeStatus()
    pair = Pair("pair", nodes)
    ann, bob = processes
    bob.leads = True
    pair.start()
    assert (pair.port, pair.is_running) == (bob.port, True)
    getattr(pair, end)()
    assert not pair.is_running
    getattr(pair, end)()  # it is over already
    bob.leads, ann.leads = False, True
    pair.start()
    assert (pair.port, pair.starts) == (ann.port, 2)
    assert bob.did == ["begin", end, "begin"] and ann.did == ["begin"]
    assert not (tmp_path / "bob" / "data").exists()
    assert (tmp_path / "ann" / "data").exists()
    pair.close()
    assert not ann.is_running and not bob.is_running


def test_who_cannot_be_asked_is_not_ready(tmp_path: Path) -> None:
    status = Status(Place(tmp_path, "127.0.0.1", 1, 1, 1))
    assert not status.is_ready() and not status.can_take_over()
