"""Two real nodes of a cluster as child processes. Read next: `broker.cli.cluster_demo.play`."""

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from broker import own_process
from broker.cli.cluster_demo.children import end, free_ports, wait_for
from broker.cli.demo import DemoError
from broker.cli.demo_client import Client, ClientError

NAMES: Final = ("ann", "bob")
PATIENCE_S: Final = 120.0


class Node:
    """One node; `status` is asked over its control socket."""

    def __init__(self, name: str, port: int, directory: Path, servers: str, topic: str) -> None:
        """Start it. It follows, until it leads."""
        self.name: Final = name
        self.port: Final = port
        self._data_dir: Final = directory / name
        self._log: Final = directory / f"{name}.log"
        kafka = {
            "servers": servers,
            "topic": topic,
            "node": name,
            "members": ",".join(NAMES),
            "replicas": "1",  # the show has checked its topic
            "advertise": f"127.0.0.1:{port}",
        }
        environment = {
            key: value
            for key, value in own_process.environment().items()
            if not key.startswith("HOLDFAST_")
        }
        environment |= {f"HOLDFAST__STORAGE__KAFKA__{key.upper()}": kafka[key] for key in kafka}
        environment["HOLDFAST__STORAGE__BACKEND"] = "kafka"
        environment["HOLDFAST__METRICS__ENABLED"] = "false"
        environment["HOLDFAST__HISTORY__DETAIL"] = "off"  # as in `holdfast demo`
        command = [*own_process.command("broker"), "serve", "-p", str(port)]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [*command, "--data-dir", str(self._data_dir)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def status(self) -> dict[str, str]:
        """Return what it says of the cluster; {} = it does not answer. Raises `DemoError`."""
        from broker.operations.control_socket import ControlError, ask

        if self._process.poll() is not None:
            said = self._log.read_text("utf-8", "replace").strip().splitlines()
            raise DemoError(f"node {self.name} ended: {(said or ['it said nothing'])[-1][:200]}")
        try:
            return ask(self._data_dir, {"do": "cluster_status"}, answer_s=10.0)
        except ControlError:
            return {}

    def kill(self) -> None:
        """End it with SIGKILL: it gets no chance to do anything."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End it. Idempotent."""
        end(self._process)


class Nodes:
    """Both nodes."""

    def __init__(self, directory: Path, servers: str, topic: str) -> None:
        ports = free_ports(len(NAMES))
        self._all: Final[list[Node]] = []
        try:
            for name, port in zip(NAMES, ports, strict=True):
                self._all.append(Node(name, port, directory, servers, topic))
        except OSError:
            self.close()
            raise

    def elect(self) -> tuple[Node, Node]:
        """Return the leader and the follower, once the latter could take over."""
        found: list[Node] = []

        def is_settled() -> bool:
            said = [(node, node.status()) for node in self._all]
            leaders = [node for node, status in said if status.get("role") == "leader"]
            ready = [node for node, status in said if status.get("ready") == "yes"]
            found[:] = [*leaders, *(node for node in ready if node not in leaders)]
            return len(leaders) == 1 and len(found) == len(self._all)

        wait_for("two nodes start, and one of them leads", is_settled, PATIENCE_S)
        return found[0], found[1]

    def close(self) -> None:
        """End both. Idempotent."""
        for node in self._all:
            node.close()


def connect(client: Client, node: Node, what: str) -> float:
    """Connect as soon as this node leads and serves; return the seconds. Raises `DemoError`."""

    def is_connected() -> bool:
        node.status()  # or say why there is none
        try:
            client.connect(node.port)
        except (ClientError, TimeoutError):
            return False
        return True

    return wait_for(what, is_connected, PATIENCE_S)


def addresses(nodes: Sequence[Node]) -> str:
    """Return who listens where, for a person."""
    return ", ".join(f"{node.name} 127.0.0.1:{node.port}" for node in nodes)
