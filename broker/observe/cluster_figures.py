"""What /metrics says of a node of a cluster. Read next: `broker.cluster.member`."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

PREFIX: Final = "holdfast_cluster_"
ROLES: Final = ("follower", "candidate", "leader", "deposed", "broken")


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """One look at a node."""

    role: str
    has_leader: bool  # does this node know one?
    epoch: int
    read: int  # index of the last record that it has read and that counts
    applied: int  # of the last one in its database
    durable: int  # to which its database is synced
    pending_batches: int  # written as leader and not committed
    pending_bytes: int
    silent_s: float  # since the end of the log was heard last
    terms: int  # how often it began to lead
    is_warm: bool  # it could lead without hearing the others before
    lag_records: int = 0  # that a node has read and this database lacks
    lag_s: float = 0.0  # since the oldest of these is known
    commits: int = 0  # batches of the leader that are committed
    commit_s: float = 0.0  # sum, from write to commit
    tail_syncs: int = 0
    tail_sync_s: float = 0.0  # sum
    seen: float = field(default_factory=time.monotonic, compare=False)  # when this was so


def families(figures: ClusterFigures) -> Iterable[Metric]:
    """Yield the metrics of a node."""
    role = GaugeMetricFamily(PREFIX + "role", "1 for the role of this node", labels=["role"])
    for name in ROLES:
        role.add_metric([name], figures.role == name)
    yield role
    for name, what, value in (
        ("terms", "Times that this process began to lead", figures.terms),
        ("commits", "Batches of the leader that were committed", figures.commits),
        ("commit_seconds", "Sum of the times from their writing to that", figures.commit_s),
        ("tail_syncs", "Syncs of this node's tail", figures.tail_syncs),
        ("tail_sync_seconds", "Sum of their durations", figures.tail_sync_s),
    ):
        yield CounterMetricFamily(PREFIX + name, what, value=value)
    for name, what, value in (
        ("has_leader", "1 while this node knows who leads", figures.has_leader),
        ("warm", "1 if this node can lead without hearing all others first", figures.is_warm),
        ("epoch", "Number of the leader's term", figures.epoch),
        ("read_index", "Last record of the log that this node has read", figures.read),
        ("applied_index", "Last record that its database has", figures.applied),
        ("durable_index", "Last record to which its database is synced", figures.durable),
        ("pending_batches", "Batches of the leader not committed", figures.pending_batches),
        ("pending_bytes", "Bytes of these", figures.pending_bytes),
        (
            "lag_records",
            "Records that a node has read and this database lacks",
            figures.lag_records,
        ),
        ("lag_seconds", "Since the oldest of these is known", figures.lag_s),
        ("silent_seconds", "Since the end of the log was heard last", figures.silent_s),
    ):
        yield GaugeMetricFamily(PREFIX + name, what, value=value)
