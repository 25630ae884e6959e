"""`holdfast demo --cluster`: two nodes over three Kafka brokers, the leader killed in mid-stream.

The Kafka brokers are started from an installation, or those of `--servers` are used with a topic of
their own, which is deleted in the end. Must never claim more than it has counted. Read next:
`broker.cli.cluster_demo.kafka`, `broker.cli.cluster_demo.nodes`, `broker.cli.demo`.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.cli.cluster_demo import kafka
from broker.cli.cluster_demo.children import ended_by_sigterm
from broker.cli.cluster_demo.nodes import Nodes, addresses, connect
from broker.cli.demo import (
    OFFLINE_MESSAGES,
    STREAM_MESSAGES,
    DemoError,
    publish,
    receive,
    say,
    subscribe,
)
from broker.cli.demo_client import Client, ClientError
from broker.process.preflight import how_to_install

if TYPE_CHECKING:
    from broker.configuration.cluster_options import ClusterOptions

CLIENT_S: Final = 60.0  # a Kafka broker may be slow in the beginning


def play(servers: str | None, directory: str | None) -> int:
    """Play the show on stdout; return 0 when everything acknowledged was kept, else 1."""
    if find_spec("confluent_kafka") is None:
        raise DemoError(f"a cluster needs the extra 'kafka': {how_to_install('kafka')}")
    began = time.monotonic()
    if servers is None:
        found = kafka.find(directory, os.environ)
    place = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        with ended_by_sigterm(), contextlib.ExitStack() as stack:
            if servers is None:
                say("Kafka                  three brokers start, in 10 seconds or so")
                brokers = kafka.Kafka(*found, place)
                stack.callback(brokers.close)
                took = brokers.start()
                servers = brokers.servers
                ports = ", ".join(map(str, brokers.ports))
                say(f"Kafka started          in {took:.1f} s, ports {ports} of 127.0.0.1")
            topic = stack.enter_context(_topic(servers))
            nodes = Nodes(place, servers, topic)
            stack.callback(nodes.close)
            return _play(nodes, began)
    except (ClientError, TimeoutError, OSError) as problem:
        raise DemoError(f"the show was interrupted: {problem}") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _topic(servers: str) -> Iterator[str]:
    """Make a topic for the show, and delete it in the end."""
    from broker.operations import cluster_topic
    from storage.replicated.kafka.topic import TopicError

    cluster = _options(servers)
    try:
        cluster_topic.make(cluster)
        problems = cluster_topic.problems(cluster, is_new=True)
    except TopicError as problem:
        raise DemoError(str(problem)) from None
    if problems:
        raise DemoError(problems[0])
    from storage.replicated.kafka.topic import in_sync

    kept = f"{cluster.replicas} replica(s), {in_sync(cluster.replicas)} before every ack"
    say(f"topic made             {cluster.topic}, {kept}")
    try:
        yield cluster.topic
    finally:
        with contextlib.suppress(TopicError):  # the brokers may have ended first
            cluster_topic.delete(cluster)


def _options(servers: str) -> "ClusterOptions":
    """Return how the Kafka brokers are reached. Raises `DemoError`."""
    from broker.configuration.config import ConfigError
    from broker.configuration.load import load

    environment = {
        "HOLDFAST__STORAGE__KAFKA__SERVERS": servers,
        "HOLDFAST__STORAGE__KAFKA__TOPIC": f"holdfast-demo-{secrets.token_hex(3)}",
        # Those that are named are there; one server is enough for a show.
        "HOLDFAST__STORAGE__KAFKA__REPLICAS": str(min(3, servers.count(",") + 1)),
    }
    try:
        return load(environment=environment).cluster
    except ConfigError as problem:
        raise DemoError(f"--servers: {problem}") from None


def _play(nodes: Nodes, began: float) -> int:
    leader, follower = nodes.elect()
    say(f"two nodes started      {addresses((leader, follower))}")
    say(f"{leader.name + ' leads':<22} clients of {follower.name} are sent there")

    boat = Client("boat-7", timeout_s=CLIENT_S)
    connect(boat, leader, "the leader opens its port")
    subscribe(boat)
    harbour = Client("harbour", timeout_s=CLIENT_S)
    harbour.connect(leader.port)
    publish(harbour)
    leader.kill()
    harbour.close()
    promised = list(harbour.acknowledged)
    done = len(promised) - OFFLINE_MESSAGES
    say(f"kill -9 {leader.pid:<14} {leader.name}, in {STREAM_MESSAGES} more: {done} acknowledged")

    took = connect(harbour, follower, f"{follower.name} notices, and takes over")
    say(f"{follower.name + ' leads':<22} after {took:.1f} s, with a database of its own")
    harbour.finish()
    say("harbour reconnected    and finished what was in flight")

    boat.connect(follower.port)
    return receive(boat, promised, began)
