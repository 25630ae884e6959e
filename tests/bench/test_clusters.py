"""Clusters of the benchmark: what their nodes are told, and who counts as what."""

import socket
from pathlib import Path

import pytest

from bench import clusters
from bench.brokers import KAFKA, NATS, BenchError, free_ports
from bench.clusters import FOLLOWERS, MEMBERS, PEERS, SERVERS, Cluster, KafkaServers
from bench.generator import name_beside
from bench.scenarios import shares


class Servers(KafkaServers):
    """Kafka servers that are only named."""

    servers = ("127.0.0.1:1", "127.0.0.1:2")

    def cluster(self) -> "Servers":
        """Return what stands in for the servers of the tests."""
        return self

    def create(self, **settings: str) -> str:
        """Return a topic."""
        assert settings["retention_ms"] == "-1"
        return "t"

    def pids(self) -> list[int]:
        """Return processes."""
        return [7, 8, 9]


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Start no process; return what would have been started."""
    started: list[dict[str, object]] = []

    class Node:
        """A node that runs."""

        def __init__(self, kind: str, **arguments: object) -> None:
            started.append({"kind": kind, **arguments})
            self.port = arguments["port"]

        def is_running(self) -> bool:
            return True

        def pids(self) -> list[int]:
            return [1000 + len(started)]

        def kill(self) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(clusters, "Broker", Node)
    return started


def test_each_node_of_holdfast_knows_the_others(
    tmp_path: Path, nowhere: list[dict[str, object]]
) -> None:
    cluster = Cluster(KAFKA, Servers(None), directory=tmp_path)
    assert len(nowhere) == len(MEMBERS)
    for name, started in zip(MEMBERS, nowhere, strict=True):
        options = str(started["options"])
        assert f'node = "{name}"' in options and f"members = {list(MEMBERS)}" in options
        assert f'advertise = "127.0.0.1:{started["port"]}"' in options
    assert list(cluster.beside()) == [FOLLOWERS, SERVERS]
    assert cluster.beside()[SERVERS] == [7, 8, 9]
    cluster.close()
    assert not list(tmp_path.iterdir())


def test_each_server_of_nats_syncs_always_and_knows_the_others(
    tmp_path: Path, nowhere: list[dict[str, object]]
) -> None:
    cluster = Cluster(NATS, Servers(None), directory=tmp_path)
    assert len(nowhere) == 3
    texts = ["\n".join(started["configuration"]) for started in nowhere]  # type: ignore[arg-type]
    assert all("sync_interval: always" in text and "stream_replicas: 3" in text for text in texts)
    assert len({text.splitlines()[0] for text in texts}) == 3
    assert list(cluster.beside()) == [PEERS]
    cluster.close()


def test_a_seed_is_copied_for_each_node(tmp_path: Path, nowhere: list[dict[str, object]]) -> None:
    seed = tmp_path / "seed"
    seed.mkdir()
    (seed / "row").write_text("x")
    cluster = Cluster(KAFKA, Servers(None), directory=tmp_path, seed=seed)
    places = [started["data"] for started in nowhere]
    assert len(set(places)) == 2
    for place in places:
        assert isinstance(place, Path) and (place / "row").read_text() == "x"
    cluster.close()


def test_a_cluster_whose_nodes_have_ended_is_told(
    tmp_path: Path, nowhere: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(KAFKA, Servers(None), directory=tmp_path)
    for node in cluster.nodes:
        monkeypatch.setattr(node, "is_running", lambda: False)
        monkeypatch.setattr(node, "log", lambda: "why", raising=False)
    with pytest.raises(BenchError, match="no node answers\nwhy"):
        cluster.settle()
    cluster.close()


def test_ports_that_are_asked_for_together_differ() -> None:
    ports = free_ports(9)
    assert len(set(ports)) == 9
    with socket.socket() as first:
        first.bind(("127.0.0.1", ports[0]))
        assert ports[0] not in free_ports(3)


def test_what_serves_a_broker_is_not_another_process() -> None:
    line = {
        "broker": {"cpu_s": 1.0, "busiest_s": 1.0, "others_s": 0.0, "beside_s": [0.5, 2.0]},
        "gen_cpu_s": 0.0,
    }
    name_beside(line, [FOLLOWERS, SERVERS])
    assert line["broker"]["beside_s"] == {FOLLOWERS: 0.5, SERVERS: 2.0}  # type: ignore[index]
    assert shares(line, 2.0)["broker_total"] == 1.75
