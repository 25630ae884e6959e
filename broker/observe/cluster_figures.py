"""What /metrics says of a node of a cluster. Read next: `broker.cluster.member`."""

from collections.abc import Iterable
from dataclasses import dataclass
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


def families(figures: ClusterFigures) -> Iterable[Metric]:
    """Yield the metrics of a node."""
    role = GaugeMetricFamily(PREFIX + "role", "1 for the role of this node", labels=["role"])
    for name in ROLES:
        role.add_metric([name], figures.role == name)
    yield role
    terms = CounterMetricFamily(PREFIX + "terms", "Times that this process began to lead")
    terms.add_metric([], figures.terms)
    yield terms
    for name, what, value in (
        ("has_leader", "1 while this node knows who leads", figures.has_leader),
        ("warm", "1 if this node can lead without hearing all others first", figures.is_warm),
        ("epoch", "Number of the leader's term", figures.epoch),
        ("read_index", "Last record of the log that this node has read", figures.read),
        ("applied_index", "Last record that its database has", figures.applied),
        ("durable_index", "Last record to which its database is synced", figures.durable),
        ("pending_batches", "Batches of the leader not committed", figures.pending_batches),
        ("pending_bytes", "Bytes of these", figures.pending_bytes),
        ("silent_seconds", "Since the end of the log was heard last", figures.silent_s),
    ):
        yield GaugeMetricFamily(PREFIX + name, what, value=value)
