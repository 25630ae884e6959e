"""What the show learns of its nodes. The whole show: `tests.replication.test_operating`."""

from pathlib import Path
from typing import Any

import pytest

from broker import own_process
from broker.cli.cluster_demo import nodes
from broker.cli.cluster_demo.nodes import Node, Nodes
from broker.cli.demo import DemoError
from broker.cluster import describing
from tests.durability.process import free_port
from tests.stand_in import replace_in


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a script in place of Python."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho some words\nexit 1\n")
    script.chmod(0o755)
    replace_in(monkeypatch, own_process, "sys", executable=str(script))
    return script


def test_a_node_that_ends_is_told_with_its_last_words(python: Path, tmp_path: Path) -> None:
    node = Node("ann", free_port(), tmp_path, "127.0.0.1:1", "t")
    node._process.wait(60)
    with pytest.raises(DemoError, match="node ann ended: some words"):
        node.status()
    node.close()
    node.kill()


def test_the_question_is_the_one_that_a_node_answers(python: Path, tmp_path: Path) -> None:
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    node = Node("ann", free_port(), tmp_path, "127.0.0.1:1", "t")
    assert node.status() == {}  # it does not answer yet
    node.close()
    source = Path(nodes.__file__).read_text()
    assert f'"do": "{describing.STATUS}"' in source


def test_they_are_settled_when_one_leads_and_the_other_could(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    said: dict[str, list[dict[str, str]]] = {
        "ann": [{}, {"role": "follower", "ready": ""}, {"role": "follower", "ready": "yes"}],
        "bob": [{"role": "leader", "ready": "yes"}] * 3,
    }
    town = Nodes(tmp_path, "127.0.0.1:1", "t")
    try:
        waited: list[Any] = []

        def wait_for(what: str, is_done: Any, seconds: float) -> float:
            waited.extend((is_done(), is_done(), is_done()))
            return 0.0

        monkeypatch.setattr(Node, "status", lambda self: said[self.name].pop(0))
        monkeypatch.setattr(nodes, "wait_for", wait_for)
        leader, follower = town.elect()
        assert waited == [False, False, True]
        assert (leader.name, follower.name) == ("bob", "ann")
        assert nodes.addresses((leader,)) == f"bob 127.0.0.1:{leader.port}"
    finally:
        town.close()
