"""Does a node reach Kafka as its configuration says?"""

from typing import Any

import pytest

from broker.configuration.cluster_options import ClusterOptions
from broker.configuration.load import load

cluster_topic: Any = pytest.importorskip("broker.operations.cluster_topic")

# Of the node, not of how it reaches Kafka.
OWN = {"backend", "topic", "replicas", "members", "takeover_ms", "keep_ms", "advertise"}


def test_every_key_of_the_connection_is_passed_on() -> None:
    environment = {"HOLDFAST__STORAGE__BACKEND": "kafka"} | {
        f"HOLDFAST__STORAGE__KAFKA__{key.upper()}": value
        for key, value in {
            "servers": "a:1,b:2", "node": "n1", "members": "n1,n2",
                "username": "u", "password": "p",
            "sasl_mechanism": "SCRAM-SHA-256", "tls": "true", "tls_ca": "ca",
            "tls_certificate": "c", "tls_key": "k", "tls_verify": "false",
        }.items()
    }  # fmt: skip
    cluster = load(environment=environment).cluster
    access = cluster_topic.access(cluster)
    for name in set(vars(cluster)) - OWN:
        assert getattr(access, name) == getattr(cluster, name), name


@pytest.mark.parametrize(("takeover_ms", "timeout_ms"), [(2000, 1500), (3000, 2000), (9000, 6000)])
def test_a_dead_server_is_left_before_another_node_takes_over(
    takeover_ms: int, timeout_ms: int
) -> None:
    cluster = ClusterOptions()
    cluster.takeover_ms = takeover_ms
    assert cluster_topic.access(cluster).timeout_ms == timeout_ms < takeover_ms
