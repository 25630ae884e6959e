"""What operators do to a cluster, on a real Kafka broker with TLS and passwords.

Members are upgraded, replaced by a copy and promoted under load; wrong passwords and certificates
are one clear line, and a corrected password file needs no restart.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from broker.cli.main import main
from broker.cluster.describing import STATUS
from broker.operations.control_socket import ControlError, ask
from tests.broker.network.certificates import Authority
from tests.durability.mixed_load import MixedLoad
from tests.durability.process import ROOT, BrokerProcess, holdfast
from tests.durability.rawclient import RawClient
from tests.replication.front import Front
from tests.replication.kafka_cluster import needs_kafka
from tests.replication.secure_kafka import PASSWORD, USER, SecureKafka

pytestmark = [pytest.mark.ci, needs_kafka]

PATIENCE_S: Final = 300.0
NAMES: Final = ("ann", "bob")


class Place:
    """Kafka, and what nodes need to reach it."""

    def __init__(self, directory: Path) -> None:
        self.authority: Final = Authority(directory / "ca")
        self.stranger: Final = Authority(directory / "other", "stranger")
        self.password_file: Final = directory / "password"
        self.password_file.write_text(PASSWORD + "\n")
        self.kafka: Final = SecureKafka(directory / "kafka", self.authority)

    def environment(self, topic: str, **more: str) -> dict[str, str]:
        """Return the configuration of a node, `more` in place of some of it."""
        keys = {
            "servers": self.kafka.secure_servers,
            "topic": topic,
            "replicas": "1",
            "takeover": "6s",  # a busy machine takes seconds for a TLS handshake
            "members": ",".join(NAMES),
            "username": USER,
            "password_file": str(self.password_file),
            "sasl_mechanism": "SCRAM-SHA-256",
            "tls": "true",
            "tls_ca": str(self.authority.file),
        }
        return {
            f"HOLDFAST__STORAGE__KAFKA__{key.upper()}": value
            for key, value in {**keys, **more}.items()
        }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    found = Place(tmp_path_factory.mktemp("operating"))
    try:
        found.kafka.start()
        yield found
    finally:
        found.kafka.end()


def node_of(place: Place, topic: str, name: str, directory: Path, **more: str) -> BrokerProcess:
    """Return a node that is not started."""
    node = holdfast(directory / name)
    more = {"node": name, "advertise": f"127.0.0.1:{node.port}", **more}
    node.env |= {"HOLDFAST__STORAGE__BACKEND": "kafka", **place.environment(topic, **more)}
    return node


def status(node: BrokerProcess) -> dict[str, str]:
    """Return what a node says of its cluster, {} = it cannot be asked."""
    try:
        return ask(node.data_dir, {"do": STATUS})
    except ControlError:
        return {}


def until(node: BrokerProcess, condition: Any, what: str) -> None:
    """Wait until the status of a node is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition(status(node)):
        assert node.is_running() and time.monotonic() < deadline, f"{what}\n{node.tail()}"
        time.sleep(0.1)


def until_ready(node: BrokerProcess) -> None:
    """Wait until a follower could take over at once."""
    until(node, lambda said: said.get("ready") and said["role"] == "follower", "not ready")


def promote(leader: BrokerProcess, name: str) -> None:
    """Have another node lead."""
    assert main(["cluster", "promote", name, "--data-dir", str(leader.data_dir)]) == 0


def replace(node: BrokerProcess, by: BrokerProcess, copy: Path) -> None:
    """Take away a node's disk, and begin with a copy of another one's database."""
    node.kill()
    shutil.rmtree(node.data_dir)
    assert main(["db", "backup", str(copy), "--data-dir", str(by.data_dir)]) == 0
    assert main(["db", "restore", str(copy), "--data-dir", str(node.data_dir)]) == 0
    assert not (node.data_dir / "tail").exists()
    node.launch()
    until_ready(node)
    assert not (node.data_dir / "tail.new").exists()


def test_members_are_upgraded_and_replaced_under_load_and_nothing_is_lost(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "operated"
    for key, value in place.environment(topic).items():
        monkeypatch.setenv(key, value)
    assert main(["cluster", "init"]) == 0
    nodes = {name: node_of(place, topic, name, tmp_path) for name in NAMES}
    for node in nodes.values():
        node.launch()
    front = Front(list(nodes.values()))
    try:
        first = front.wait_for_leader(PATIENCE_S)
        (second,) = (node for node in nodes.values() if node is not first)
        until_ready(second)
        load = MixedLoad(front.port, 1)
        load.start()

        # The rolling upgrade: the follower, another leader, the old leader.
        assert second.stop(PATIENCE_S) == 0
        second.launch()
        until_ready(second)
        client = RawClient(first.port, "told where to go")
        client.connect()
        promote(first, next(name for name, node in nodes.items() if node is second))
        farewell = client.expect_closed()
        assert farewell is not None
        address = f"127.0.0.1:{second.port}"
        assert (farewell.reason_code, farewell.server_reference) == (0x9C, address)
        assert front.wait_for_leader(PATIENCE_S, than=first) is second
        until_ready(first)
        assert first.stop(PATIENCE_S) == 0
        first.launch()
        until_ready(first)

        # A new disk: it begins with a copy of the leader, and leads when that is killed.
        replace(first, second, tmp_path / "copy.tar")
        second.kill()
        assert front.wait_for_leader(PATIENCE_S, than=second) is first
        faults = load.finish()
        assert not faults, "\n".join(faults)
        assert load.acknowledged() > 100
    finally:
        front.close()
        for node in nodes.values():
            node.close()


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("username", "SASL authentication error: Authentication failed"),
        ("tls_ca", "certificate verify failed"),
    ],
)
def test_who_is_not_let_in_or_not_trusted_is_one_line(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    key: str,
    told: str,
) -> None:
    wrong = {"username": "somebody", "tls_ca": str(place.stranger.file)}[key]
    for name, value in place.environment("operated", **{key: wrong}).items():
        monkeypatch.setenv(name, value)
    assert main(["cluster", "check"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]  # perhaps behind what is waited for
    assert line.startswith("holdfast: 127.0.0.1:") and told in line, line


def test_the_show_counts_what_was_kept_and_leaves_nothing_behind(
    place: Place, tmp_path: Path
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "broker", "demo", "--cluster", "--servers", place.kafka.servers[0]],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(tmp_path),
            "HOLDFAST__LISTENER__PORT": "none of its business",
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    assert "session present: yes" in result.stdout
    assert "nothing was lost" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80, result.stdout
    assert os.listdir(tmp_path) == []
    place.kafka.until_whole()
    topics = place.kafka.admin.list_topics(timeout=PATIENCE_S).topics
    assert not [name for name in topics if name.startswith("holdfast-demo")]


def test_a_password_that_is_corrected_is_used_without_a_restart(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in place.environment("locked").items():
        monkeypatch.setenv(key, value)
    assert main(["cluster", "init"]) == 0
    file = tmp_path / "password"
    file.write_text("wrong\n")
    node = node_of(place, "locked", "ann", tmp_path, password_file=str(file))
    try:
        node.launch()
        until(node, lambda said: said.get("unheard"), "heard with a wrong password")
        assert "authentication" in status(node)["unheard"].lower(), status(node)
        assert node.log().count('"cluster_log_silent"') == 1
        file.write_text(PASSWORD + "\n")
        until(node, lambda said: said and not said["unheard"], "not heard with the right password")
        assert node.stop(PATIENCE_S) == 0
    finally:
        node.close()
