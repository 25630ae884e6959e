"""Real nodes on a real log: rows of the crash matrix, and statements of MQTT, across a takeover.

All rows are printed by `scripts/crash-matrix --kafka`; all statements are checked by
`scripts/conformance --kafka` and `--takeover`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.command import main as conformance
from tests.durability.matrix import GONE, ON_KAFKA, QUICK, SERVERS, run
from tests.replication.kafka_cluster import KafkaCluster, clusters, needs_kafka

pytestmark = [pytest.mark.ci, needs_kafka]

ROWS = (
    (GONE, "kill -9 at last PUBACK, 2000 QoS 1"),
    (GONE, "QoS 2 inbound half-open, kill -9, DUP resend"),
    (GONE, "unacked in flight, kill -9 -> redelivered?"),
    (ON_KAFKA, "SEI over downtime, kill -9"),
)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    yield from clusters(tmp_path_factory.mktemp("kafka"))


@pytest.fixture(autouse=True)
def _servers(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVERS, ",".join(kafka.servers))


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_a_row_of_the_crash_matrix_is_kept(name: str, row: str, tmp_path: Path) -> None:
    verdict = run(row, name, tmp_path, QUICK)
    assert verdict.passed, verdict.text


def test_statements_hold_where_a_start_is_a_takeover(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--adapter", "holdfast-takeover", "--strict", "--patience", "60", "-q"]
    status = conformance([*arguments, "--version", "5.0", "-k", "X-37 or X-41"])
    assert status == 0, capsys.readouterr().out
