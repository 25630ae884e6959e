"""Adapters of Holdfast on a replicated store: one node, or two of which one goes for good.

Kafka is found as the broker finds it: in the environment variable HOLDFAST__STORAGE__KAFKA__SERVERS
(and what belongs to it). Every broker of the suite has a topic of its own. docs/conformance.md has
the command that starts three Kafka brokers around a run.
"""

import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from conformance.adapters.base import (
    POLL_S,
    AdapterError,
    Broker,
    Launch,
    Options,
    Place,
    Ports,
    prepared,
)
from conformance.adapters.holdfast import COMMAND, Holdfast, python_path

PREFIX: Final = "HOLDFAST__STORAGE__KAFKA__"
SERVERS: Final = f"{PREFIX}SERVERS"
TAKEOVER: Final = "2s"  # as short as it can be: the checks count seconds
START_S: Final = 120.0  # a takeover on a busy machine, with a machine of Kafka away
INIT_S: Final = 120.0
NAMES: Final = ("ann", "bob")


class HoldfastKafka(Holdfast):
    """One node on a replicated store: it starts again on the same data."""

    name: str = "holdfast-kafka"

    def describe(self) -> str:
        """Return the version the command reports."""
        return f"{super().describe()}, on Kafka"

    def prepare(self, place: Place, options: Options) -> Launch:
        """Make a topic, and set options in the environment."""
        return self.prepare_node(place, options, _new_topic(NAMES[:1]), NAMES[0], NAMES[:1])

    def prepare_node(
        self, place: Place, options: Options, topic: str, node: str, members: Sequence[str]
    ) -> Launch:
        """Return how to start one node."""
        launch = super().prepare(place, options)
        environment = {
            **launch.environment,
            **_of_cluster(topic, node, members),
            f"{PREFIX}ADVERTISE": f"{place.host}:{place.port}",
            "HOLDFAST__METRICS__ENABLED": "true",
            "HOLDFAST__METRICS__HOST": place.host,
            "HOLDFAST__METRICS__PORT": str(place.status_port),
        }
        return Launch(launch.command, environment, Status(place).is_ready, START_S)


class HoldfastTakeover(HoldfastKafka):
    """Two nodes: the one that is stopped or killed is gone with its disk, and the other leads.

    A new node with an empty disk then follows in its place.
    """

    name: str = "holdfast-takeover"

    def describe(self) -> str:
        """Return the version the command reports."""
        return f"{super().describe()}, a start is a takeover"

    def make(self, directory: Path, ports: Ports, options: Options) -> Broker:
        """Return both nodes as one broker."""
        topic = _new_topic(NAMES)
        nodes = []
        for name in NAMES:
            place = ports.place(directory / name)
            place.directory.mkdir()
            launch = self.prepare_node(place, options, topic, name, NAMES)
            nodes.append(Node(prepared(name, place, launch, options), place))
        return Pair(self.name, nodes)


class Status:
    """What a node says of itself."""

    def __init__(self, place: Place) -> None:
        self._place: Final = place

    def is_ready(self) -> bool:
        """Return whether it leads and serves."""
        return self._ask("/readyz").startswith("HTTP/1.1 200")

    def can_take_over(self) -> bool:
        """Return whether it follows, and needs to hear nobody before it leads."""
        return "\nholdfast_cluster_warm 1" in self._ask("/metrics")

    def _ask(self, path: str) -> str:
        """Return the answer, "" if there is none."""
        address = (self._place.host, self._place.status_port)
        answer = b""
        try:
            with socket.create_connection(address, timeout=5.0) as channel:
                channel.sendall(
                    f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode()
                )
                while data := channel.recv(65536):
                    answer += data
        except OSError:
            return ""
        return answer.decode("utf-8", "replace").replace("HTTP/1.0", "HTTP/1.1", 1)


class Node:
    """One node of a pair."""

    def __init__(self, process: Broker, place: Place) -> None:
        self.process: Final = process
        self.status: Final = Status(place)
        self._data: Final = place.directory / "data"

    def lose_disk(self) -> None:
        """Its machine is gone, and a new one has nothing."""
        shutil.rmtree(self._data, ignore_errors=True)


class Pair(Broker):
    """Two nodes; clients are told the ports of the one that leads."""

    def __init__(self, name: str, nodes: Sequence[Node]) -> None:
        first = nodes[0].process
        super().__init__(name, first.host, first.port)
        self._nodes: Final = nodes
        self._leader: Node = nodes[0]
        self._is_gone: bool = False  # the leader was ended, and the other one is to lead

    @property
    def is_running(self) -> bool:
        """Return whether the leader runs."""
        return self._leader.process.is_running

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the leader, None while it runs."""
        return self._leader.process.exit_code

    def has_died(self) -> bool:
        """Return whether the leader has ended."""
        return self._leader.process.has_died()

    def start(self) -> None:
        """Wait until a node leads that has not gone, and have another one follow it."""
        self.starts += 1
        if self._is_gone:
            gone, self._leader = self._leader, self._other()
            self._is_gone = False
            _until(self._leader.process.serves, self._leader.process, "does not take over")
            gone.lose_disk()
            gone.process.begin()
        else:
            for node in self._nodes:
                node.process.begin()
            _until(self._find_leader, self._leader.process, "does not lead")
        self.port = self._leader.process.port
        self.websocket_port = self._leader.process.websocket_port

    def _other(self) -> Node:
        return next(node for node in self._nodes if node is not self._leader)

    def _find_leader(self) -> bool:
        """Return whether somebody serves, and note who."""
        found = [node for node in self._nodes if node.process.serves()]
        self._leader = found[0] if found else self._leader
        return bool(found)

    def stop(self) -> None:
        """End the leader in order, once the other one can take over."""
        if not self._is_gone:
            self._await_follower()
            self._is_gone = True
            self._leader.process.stop()

    def kill(self) -> None:
        """Kill the leader, once the other one can take over."""
        if not self._is_gone:
            self._await_follower()
            self._is_gone = True
            self._leader.process.kill()

    def _await_follower(self) -> None:
        other = self._other()
        _until(other.status.can_take_over, other.process, "does not follow")

    def log(self) -> str:
        """Return the output of both."""
        return "\n".join(node.process.log() for node in self._nodes)

    def close(self) -> None:
        """End both; never raises."""
        for node in self._nodes:
            node.process.close()


def _until(is_so: Callable[[], bool], process: Broker, complaint: str) -> None:
    end = time.monotonic() + START_S
    while not is_so():
        if not process.is_running or time.monotonic() > end:
            said = process.log().splitlines()[-1:] or ["it said nothing"]
            raise AdapterError(f"node {process.name} {complaint}: {said[0][:300]}")
        time.sleep(POLL_S)


def _of_cluster(topic: str, node: str, members: Sequence[str]) -> dict[str, str]:
    return {
        "PYTHONPATH": python_path(),
        "HOLDFAST__STORAGE__BACKEND": "kafka",
        SERVERS: os.environ.get(SERVERS, ""),
        f"{PREFIX}TOPIC": topic,
        f"{PREFIX}NODE": node,
        f"{PREFIX}MEMBERS": ",".join(members),
        f"{PREFIX}TAKEOVER": TAKEOVER,
    }


def _new_topic(members: Sequence[str]) -> str:
    """Make a topic for one broker, and return its name."""
    if not os.environ.get(SERVERS):
        raise AdapterError(f"set {SERVERS} to the host:port of the Kafka brokers")
    topic = f"conformance-{uuid.uuid4().hex[:12]}"
    environment = {**os.environ, **_of_cluster(topic, members[0], members)}
    try:
        answer = subprocess.run(
            [*COMMAND, "cluster", "init"],
            capture_output=True,
            text=True,
            timeout=INIT_S,
            env=environment,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise AdapterError(f"holdfast cluster init: {problem}") from None
    if answer.returncode:
        raise AdapterError(f"holdfast cluster init: {answer.stderr.strip()[-300:]}")
    return topic
