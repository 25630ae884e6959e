"""The verdict on histories that real clients made against real brokers."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from audit.run import Verdict, run
from tests.audit.real_broker import MosquittoStream, Paho, recording, rows, whole_history

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None, reason="Debian's mosquitto-clients is not installed"
)

KILLS = 3


def audit(spark: SparkSession, history: Path, out: Path) -> Verdict:
    """Audit a history."""
    return run(spark, str(history), str(out), progress=lambda line: None)


def told(verdict: Verdict) -> dict[str, str]:
    """Return what the verdict says of each invariant that is not ok, with its first witness."""
    return {
        name: f"{each['status']} {each['witnesses'][:1]}"
        for name, each in verdict.document["invariants"].items()
        if each["status"] != "ok"
    }


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The history, at `full`, of a broker that was killed in streams at QoS 2."""
    directory = tmp_path_factory.mktemp("killed")
    broker = recording(directory / "broker", node="killed")
    broker.start()
    try:
        stream = MosquittoStream(broker, "mosquitto", "stream")
        receiver = Paho(broker.port, "receiver").connect().subscribe("a", 2)
        other = Paho(broker.port, "other", version=4).connect().subscribe("b", 1)
        publisher = Paho(broker.port, "publisher").connect()
        clients = (receiver, other, publisher)
        for number in range(KILLS):
            # The batch that is durable with the PUBACK has the event of the receiver's PUBCOMP,
            # and not yet its progress, which may wait.
            publisher.publish("a", b"%d" % number, 2)
            receiver.receive(number + 1)
            publisher.publish("b", b"", 1)
            broker.kill()
            for client in clients:
                client.lost()
            broker.start()
            for client in clients:
                client.reconnected()
        for _ in range(KILLS):
            with stream.flowing(200):
                broker.kill()
            broker.start()
        for client in clients:
            client.reconnected().leave()
        assert broker.stop() == 0
        yield whole_history(broker, directory / "whole")
    finally:
        broker.close()


def inflight_after_boot(history: Path, client_id: str) -> list[int]:
    """Return how many messages were in flight to a client when each boot found its session."""
    found: list[dict[str, Any]] = rows(history, ["session_restored"], ["client_id", "inflight"])
    return [row["inflight"] for row in found if row["client_id"] == client_id]


def test_a_kill_in_a_stream_at_qos_2_is_no_violation(
    killed: Path, spark: SparkSession, tmp_path: Path
) -> None:
    completed = rows(killed, ["msg_completed"], ["client_id", "msg"])
    received = [row["msg"] for row in completed if row["client_id"] == "receiver"]
    assert len(received) > len(set(received)), "no crash took the end of an exchange"
    assert 1 in inflight_after_boot(killed, "receiver")
    verdict = audit(spark, killed, tmp_path / "out")
    assert told(verdict) == {}
    assert (verdict.status, verdict.exit_code) == ("ok", 0)
