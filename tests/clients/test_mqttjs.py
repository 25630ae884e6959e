"""MQTT.js keeps its session over kill -9 of the broker and over its own."""

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.conversation import MISSED, PATIENCE_SECONDS, expect_own, publish_missed
from tests.durability.process import ROOT, BrokerProcess
from tests.durability.rawclient import RawClient

SCRIPT: Final = Path(__file__).with_name("mqttjs.js")
PREFIX: Final = ROOT / ".cache" / "npm"  # where scripts/setup --test puts it


class _Node:
    """A running `mqttjs.js`, its events in a queue."""

    def __init__(self, modules: Path, port: int, name: str, version: int) -> None:
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._process = subprocess.Popen(
            ["node", str(SCRIPT), str(port), name, str(version)],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "NODE_PATH": str(modules)},
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.events.put(json.loads(line))

    def expect(self, event: str, **fields: Any) -> None:
        """Check the next event; closes do not count, reconnecting is up to MQTT.js."""
        while (actual := self.events.get(timeout=PATIENCE_SECONDS))["event"] == "close":
            pass
        assert {"event": event, **fields}.items() <= actual.items(), actual

    def kill(self) -> None:
        """Kill -9 the client."""
        self._process.kill()
        self._process.wait()
        self._reader.join()


@pytest.fixture(scope="module")
def modules() -> Path:
    """The directory MQTT.js is installed in; installs it where `scripts/setup` did not."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not installed")
    modules = PREFIX / "node_modules"
    if not (modules / "mqtt").is_dir():
        command = ["npm", "install", "--prefix", str(PREFIX), "--no-save", "--no-audit"]
        subprocess.run([*command, "--no-fund", "mqtt@5"], check=True, timeout=120)
    return modules


@pytest.fixture
def start_node(modules: Path, broker: BrokerProcess, name: str) -> Iterator[Callable[[int], _Node]]:
    nodes: list[_Node] = []

    def start(version: int) -> _Node:
        nodes.append(_Node(modules, broker.port, name, version))
        return nodes[-1]

    yield start
    for node in nodes:
        node.kill()


@pytest.mark.parametrize("version", [4, 5])
def test_mqttjs_resumes(
    broker: BrokerProcess,
    other: RawClient,
    name: str,
    version: int,
    start_node: Callable[[int], _Node],
) -> None:
    node = start_node(version)
    node.expect("connect", sessionPresent=False)
    node.expect("subscribed", error=None)
    other.resume()
    other.publish(f"{name}/in", "echo 1", qos=2)
    node.expect("message", payload="echo 1")
    node.expect("published")
    other.take(1)
    other.disconnect()

    broker.crash()
    node.expect("connect", sessionPresent=True)

    node.kill()
    publish_missed(broker, other, name)
    node = start_node(version)
    node.expect("connect", sessionPresent=True)
    for payload in MISSED:
        node.expect("message", payload=payload)
    other.resume()
    other.publish(f"{name}/in", "echo 2", qos=1)
    other.disconnect()
    node.expect("message", payload="echo 2")
    node.expect("published")
    expect_own(other, "echo 2")
