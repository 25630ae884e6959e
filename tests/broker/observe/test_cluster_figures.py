"""What /metrics says of a node of a cluster."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from broker.observe.cluster_figures import ClusterFigures, families

FIGURES = ClusterFigures(
    role="leader",
    has_leader=True,
    epoch=7,
    read=120,
    applied=118,
    durable=90,
    pending_batches=2,
    pending_bytes=512,
    silent_s=0.25,
    terms=3,
    is_warm=True,
    lag_records=2,
    lag_s=0.5,
    commits=9,
    commit_s=1.5,
    tail_syncs=8,
    tail_sync_s=0.75,
)


def test_every_figure_is_a_metric_and_one_role_is_one() -> None:
    class Node(Collector):
        def collect(self):  # type: ignore[no-untyped-def]
            return families(FIGURES)

    registry = CollectorRegistry()
    registry.register(Node())
    lines = generate_latest(registry).decode().splitlines()
    assert 'holdfast_cluster_role{role="leader"} 1.0' in lines
    assert 'holdfast_cluster_role{role="follower"} 0.0' in lines
    for line in (
        "holdfast_cluster_terms_total 3.0",
        "holdfast_cluster_has_leader 1.0",
        "holdfast_cluster_warm 1.0",
        "holdfast_cluster_epoch 7.0",
        "holdfast_cluster_read_index 120.0",
        "holdfast_cluster_applied_index 118.0",
        "holdfast_cluster_durable_index 90.0",
        "holdfast_cluster_pending_batches 2.0",
        "holdfast_cluster_pending_bytes 512.0",
        "holdfast_cluster_silent_seconds 0.25",
        "holdfast_cluster_lag_records 2.0",
        "holdfast_cluster_lag_seconds 0.5",
        "holdfast_cluster_commits_total 9.0",
        "holdfast_cluster_commit_seconds_total 1.5",
        "holdfast_cluster_tail_syncs_total 8.0",
        "holdfast_cluster_tail_sync_seconds_total 0.75",
    ):
        assert line in lines, line
