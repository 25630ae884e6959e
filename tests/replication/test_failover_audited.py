"""The history of real failovers is one history, and the audit accuses nobody in it."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from audit.run import Verdict, run
from tests.audit.real_broker import rows, whole_history
from tests.audit.small_spark import small_spark
from tests.durability.mixed_load import Churn, MixedLoad
from tests.durability.process import BrokerProcess
from tests.replication.kafka_cluster import KafkaCluster, clusters, needs_kafka
from tests.replication.test_failover import LEAD_S, Cluster, until_follows

pytestmark = [
    pytest.mark.ci,
    needs_kafka,
    pytest.mark.skipif(shutil.which("java") is None, reason="no Java: scripts/setup --test has it"),
]

RATE: Final = 40  # messages a second of each publisher
BETWEEN_S: Final = 2.0


class Recorded(Cluster):
    """Two nodes that record their history, each in a directory of its own."""

    def _node(self, kafka: KafkaCluster, directory: Path, name: str) -> BrokerProcess:
        node = super()._node(kafka, directory, name)
        node.env["HOLDFAST__HISTORY__DETAIL"] = "full"
        node.env["HOLDFAST__HISTORY__SEAL_SECONDS"] = "1"
        node.env["HOLDFAST__HISTORY__DRAIN_TIMEOUT"] = "30s"
        return node


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    for kafka in clusters(tmp_path_factory.mktemp("kafka")):
        cluster = Recorded(kafka, tmp_path_factory.mktemp("nodes"))
        yield cluster
        cluster.close()


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkSession]:
    started = small_spark("failover", tmp_path)
    yield started
    started.stop()


def live(cluster: Recorded) -> BrokerProcess:
    """Take the leader away three times under load; return who leads in the end."""
    leader = cluster.front.wait_for_leader(LEAD_S)
    until_follows(cluster.other(leader))
    load = MixedLoad(cluster.front.port, 7, rate=RATE)
    churn = Churn(cluster.front.port, 7)
    load.start()
    churn.start()
    for turn in range(3):
        time.sleep(BETWEEN_S)
        if turn == 1:
            leader.freeze()
            new = cluster.front.wait_for_leader(LEAD_S, than=leader)
            leader.thaw()
        else:
            leader.kill()
            new = cluster.front.wait_for_leader(LEAD_S, than=leader)
            leader.launch()
        until_follows(leader)
        leader = new
    churn.finish()
    faults = [*load.finish(), *churn.violations]
    assert not faults, "\n".join(faults)
    return leader


def audited(spark: SparkSession, history: Path, out: Path) -> Verdict:
    """Audit a history."""
    return run(spark, str(history), str(out), progress=lambda line: None)


def test_the_histories_of_all_nodes_together_are_one_that_accuses_nobody(
    cluster: Recorded, spark: SparkSession, tmp_path: Path
) -> None:
    leader = live(cluster)
    follower = cluster.other(leader)
    follower.stop()
    leader.stop()
    whole = whole_history(leader, tmp_path / "whole")
    shutil.copytree(follower.data_dir / "history", whole, dirs_exist_ok=True)
    leaders = rows(whole, ["member_leads"], ["detail"])
    assert [row["boot"] for row in leaders] == [1, 2, 3, 4]
    assert [row["detail"] for row in leaders] in (["ann", "bob"] * 2, ["bob", "ann"] * 2)
    verdict = audited(spark, whole, tmp_path / "out")
    assert verdict.exit_code == 0, verdict.document
