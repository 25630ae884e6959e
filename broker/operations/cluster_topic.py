"""The topic of a replicated store: how a node reaches it, and what is wrong with it.

Read next: `storage.replicated.kafka.topic`.
"""

from typing import Final

from broker.configuration.cluster_options import ClusterOptions
from storage.replicated.kafka import topic
from storage.replicated.kafka.client import Access

TIMEOUT_MS_MIN: Final = 1500


def access(cluster: ClusterOptions) -> Access:
    """Return how Kafka is reached. A broker that is silent is left before a follower takes over."""
    return Access(
        servers=cluster.servers,
        node=cluster.node or "holdfast",
        username=cluster.username,
        password=cluster.password,
        password_file=cluster.password_file,
        sasl_mechanism=cluster.sasl_mechanism,
        tls=cluster.tls,
        tls_ca=cluster.tls_ca,
        tls_certificate=cluster.tls_certificate,
        tls_key=cluster.tls_key,
        tls_verify=cluster.tls_verify,
        timeout_ms=max(TIMEOUT_MS_MIN, cluster.takeover_ms * 2 // 3),
    )


def make(cluster: ClusterOptions) -> bool:
    """Make the topic; return whether there was none. Raises `topic.TopicError`."""
    return topic.create_topic(access(cluster), cluster.topic, cluster.replicas)


def delete(cluster: ClusterOptions) -> None:
    """Delete the topic. Raises `topic.TopicError`."""
    topic.delete_topic(access(cluster), cluster.topic)


def problems(cluster: ClusterOptions, *, is_new: bool = False) -> list[str]:
    """Return a line for each setting that is wrong. Raises `topic.TopicError`."""
    return topic.check_topic(access(cluster), cluster.topic, cluster.replicas, is_new=is_new)
