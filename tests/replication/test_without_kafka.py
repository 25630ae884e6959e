"""A node whose Kafka is away: operators are answered, clients are sent away, it ends at once."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cli.main import main
from broker.cluster.describing import STATUS
from broker.operations.control_socket import ControlError, ask
from tests.durability.process import BrokerProcess, free_port, holdfast, http_get
from tests.durability.rawclient import RawClient

pytest.importorskip("confluent_kafka")

PATIENCE_S = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerProcess]:
    found = holdfast(tmp_path / "ann")
    found.env |= {
        "HOLDFAST__STORAGE__BACKEND": "kafka",
        "HOLDFAST__STORAGE__KAFKA__SERVERS": f"127.0.0.1:{free_port()}",
        "HOLDFAST__STORAGE__KAFKA__NODE": "ann",
        "HOLDFAST__STORAGE__KAFKA__MEMBERS": "ann,bob",
    }
    found.launch()
    deadline = time.monotonic() + PATIENCE_S
    while "following" not in http_get(found.metrics_port, "/readyz")[1]:
        assert time.monotonic() < deadline and found.is_running(), found.tail()
        time.sleep(0.05)
    yield found
    found.close()


def test_it_answers_while_kafka_is_away_and_ends_when_told(node: BrokerProcess) -> None:
    status = ask(node.data_dir, {"do": STATUS})
    assert (status["role"], status["leader"]) == ("follower", "")
    with pytest.raises(ControlError, match="nor does another one"):
        ask(node.data_dir, {"do": "client_list"})
    assert http_get(node.metrics_port, "/readyz")[0] == 503
    RawClient(node.port, "c", version=5).connect(reason=0x88)
    RawClient(node.port, "c", version=4).connect(reason=3)
    assert node.stop(PATIENCE_S) == 0


def test_a_follower_makes_a_backup(node: BrokerProcess, tmp_path: Path) -> None:
    backup = ("db", "backup", str(tmp_path / "copy.tar"), "--data-dir", str(node.data_dir))
    assert main(backup) == 0
    assert '"checkpoint"' in node.log()
    assert (
        main(("db", "restore", str(tmp_path / "copy.tar"), "--data-dir", str(tmp_path / "n"))) == 0
    )
