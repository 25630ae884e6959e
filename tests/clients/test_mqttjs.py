"""MQTT.js keeps its session over kill -9 of the broker and over its own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.conversation import MISSED, expect_own, publish_missed
from tests.clients.node import Node, installed_modules
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


@pytest.fixture(scope="module")
def modules() -> Path:
    """The directory MQTT.js is installed in."""
    return installed_modules()


@pytest.fixture
def start_node(modules: Path, broker: BrokerProcess, name: str) -> Iterator[Callable[[int], Node]]:
    nodes: list[Node] = []

    def start(version: int) -> Node:
        nodes.append(Node(modules, f"mqtt://127.0.0.1:{broker.port}", name, version))
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
    start_node: Callable[[int], Node],
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
    node.expect_resumed(MISSED)
    other.resume()
    other.publish(f"{name}/in", "echo 2", qos=1)
    other.disconnect()
    node.expect("message", payload="echo 2")
    node.expect("published")
    expect_own(other, "echo 2")
