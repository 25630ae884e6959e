"""Does a log on three real Kafka brokers keep its promise while they are killed and stopped?"""

import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.cli.main import main
from storage.replicated.log_port import Acked, CaughtUp, Event, Missing, Read, Shrunk, Unknown
from storage.replicated.record import BATCH, CLAIM, Position, Record, after, counts, decode
from tests.replication.kafka_cluster import PATIENCE_S, KafkaCluster, clusters, needs_kafka

client: Any = pytest.importorskip("storage.replicated.kafka.client")
kafka_log: Any = pytest.importorskip("storage.replicated.kafka_log")
topics: Any = pytest.importorskip("storage.replicated.kafka.topic")
pytestmark = [pytest.mark.ci, needs_kafka]  # three JVMs

QUIET_S = 3.0  # of listening for what must not come


class Node:
    """A node's end of a log."""

    def __init__(self, cluster: KafkaCluster, topic: str, name: str, place: int = 0) -> None:
        access = client.Access(cluster.servers, name)
        self.log = kafka_log.KafkaLog(access, topic, place=place)
        self.events: list[Event] = []

    def hear(self, seconds: float) -> list[Event]:
        """Take what comes in a time; return it."""
        deadline = time.monotonic() + seconds
        before = len(self.events)
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.log.fileno()], [], [], left)[0]:
                self.events += self.log.take()
        return self.events[before:]

    def until(self, condition: Callable[[], bool]) -> None:
        """Take what comes until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{self.log.said!r}, {self.events[-20:]}"
            if select.select([self.log.fileno()], [], [], 0.1)[0]:
                self.events += self.log.take()

    def until_acked(self, token: int) -> None:
        self.until(lambda: token in self.acked())

    def until_told(self, event: Event) -> None:
        self.until(lambda: event in self.events)

    def until_caught_up(self) -> None:
        """Wait until it says anew that it has heard everything."""
        before = len(self.events)
        self.until(lambda: any(isinstance(each, CaughtUp) for each in self.events[before:]))

    def read(self) -> list[bytes]:
        return [each.data for each in self.events if isinstance(each, Read)]

    def acked(self) -> list[int]:
        return [each.token for each in self.events if isinstance(each, Acked)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers, for all tests of this file."""
    yield from clusters(tmp_path_factory.mktemp("kafka"))


@pytest.fixture
def cluster(running: KafkaCluster) -> Iterator[KafkaCluster]:
    """The same, all of which run again after a test."""
    yield running
    running.mend()


@pytest.fixture
def node(cluster: KafkaCluster) -> Iterator[Callable[..., Node]]:
    """What makes nodes, which end with the test."""
    made: list[Node] = []

    def make(topic: str, name: str, place: int = 0) -> Node:
        made.append(Node(cluster, topic, name, place))
        return made[-1]

    yield make
    for each in made:
        each.log.close()


def test_all_nodes_read_the_same_order(cluster: KafkaCluster, node: Callable[..., Node]) -> None:
    topic = cluster.create()
    nodes = [node(topic, "a"), node(topic, "b")]
    for number in range(500):
        for name, each in zip("ab", nodes, strict=True):
            each.log.append(f"{name}{number}".encode(), number)
    for each in nodes:
        each.until(lambda each=each: len(each.read()) == 1000 and len(each.acked()) == 500)
        each.until_caught_up()
        assert isinstance(each.events[-1], CaughtUp)
        assert each.events[-1].end == 1000
    assert nodes[0].read() == nodes[1].read() == cluster.values(topic)
    for each in nodes:
        acked = [event.place for event in each.events if isinstance(event, Acked)]
        assert acked == sorted(acked) and len(set(acked)) == 500
    for name in (b"a", b"b"):
        own = [data for data in nodes[0].read() if data.startswith(name)]
        assert own == [b"%s%d" % (name, number) for number in range(500)]


def test_a_node_reads_on_from_any_place(cluster: KafkaCluster, node: Callable[..., Node]) -> None:
    topic = cluster.create()
    first = node(topic, "a")
    for number in range(10):
        first.log.append(b"%d" % number)
    first.until(lambda: len(first.read()) == 10)
    later = node(topic, "b", 7)
    later.until(lambda: len(later.read()) == 3)
    assert [each for each in later.events if isinstance(each, Read)] == [
        Read(number, b"%d" % number) for number in (7, 8, 9)
    ]
    later.log.read_from(2)
    later.until(lambda: len(later.read()) == 11)
    assert later.read()[3:] == [b"%d" % number for number in range(2, 10)]


class Chain:
    """Appends records that continue one another, from a thread of its own, as a leader does."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._end = Position()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.length = 0

    def __enter__(self) -> "Chain":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(0.002):
            kind = BATCH if self.length else CLAIM
            index = self._end.index + 1
            record = Record(kind, 1, index, self._end.digest, "a", bytes(1000))
            data = record.encode()
            self._node.log.append(data, index)
            self._end = after(record, data)
            self.length = index


def chained(found: list[bytes]) -> int:
    """Return how many records of a log count."""
    end = Position()
    for data in found:
        record = decode(data)
        if counts(record, end):
            end = after(record, data)
    return end.index


@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_what_is_acknowledged_survives_the_broker_that_leads(
    cluster: KafkaCluster, node: Callable[..., Node], how: str
) -> None:
    topic = cluster.create()
    leader, follower = node(topic, "a"), node(topic, "b")
    old = cluster.leader(topic)
    with Chain(leader) as chain:
        leader.until(lambda: len(leader.acked()) > 100)
        getattr(cluster, how)(old)
        cluster.until_other_leader(topic, old)
        before = len(leader.acked())
        leader.until(lambda: len(leader.acked()) > before + 100)
    leader.until_caught_up()
    follower.until_caught_up()
    for each in (leader, follower):
        assert chained(each.read()) >= max(leader.acked())
    assert chained(cluster.values(topic)) >= max(leader.acked())
    assert len(set(leader.acked())) == len(leader.acked())
    assert not [each for each in leader.events if isinstance(each, Shrunk | Missing)]
    leader.until(lambda: chained(leader.read()) == chain.length)


def test_without_two_brokers_nothing_is_acknowledged_and_nobody_believes_it_heard_all(
    cluster: KafkaCluster, node: Callable[..., Node]
) -> None:
    topic = cluster.create()
    writer, other = node(topic, "a"), node(topic, "b")
    writer.log.append(b"before", 1)
    writer.until_acked(1)
    other.until(lambda: other.read() == [b"before"])
    last = cluster.leader(topic)
    for broker in cluster.ports:
        if broker != last:
            cluster.freeze(broker)
    writer.log.append(b"meanwhile", 2)
    for each in (writer, other):
        heard = each.hear(QUIET_S)
        assert {event for event in heard if not isinstance(event, Unknown)} <= {CaughtUp(1)}
    cluster.freeze(last)
    for each in (writer, other):
        each.hear(QUIET_S / 2)
        assert [event for event in each.hear(QUIET_S) if not isinstance(event, Unknown)] == []
        assert each.log.said
    cluster.mend()
    writer.until(lambda: any(getattr(event, "token", 0) == 2 for event in writer.events))
    if 2 not in writer.acked():  # its producer has failed for good meanwhile
        writer.log.append(b"meanwhile", 3)
        writer.until_acked(3)
    other.until(lambda: other.read()[:2] == [b"before", b"meanwhile"])
    writer.until_caught_up()


def test_whoever_is_behind_deleted_records_is_told(
    cluster: KafkaCluster, node: Callable[..., Node]
) -> None:
    topic = cluster.create()
    first = node(topic, "a")
    for number in range(10):
        first.log.append(b"%d" % number)
    first.until(lambda: len(first.read()) == 10)
    first.log.delete_before(6)
    late = node(topic, "b", 9)
    late.until_told(Read(9, b"9"))
    deadline = time.monotonic() + PATIENCE_S
    while len(cluster.values(topic)) > 4:
        assert time.monotonic() < deadline
    behind = node(topic, "c", 5)
    behind.until_told(Missing(6))
    assert behind.hear(QUIET_S) == []
    at_the_edge = node(topic, "d", 6)
    at_the_edge.until_told(Read(6, b"6"))


def test_a_place_that_the_log_does_not_reach_is_told(
    cluster: KafkaCluster, node: Callable[..., Node]
) -> None:
    topic = cluster.create()
    first, lost = node(topic, "a"), node(topic, "b", 40)
    lost.until_told(Shrunk(0))
    first.log.append(b"new")
    lost.until_told(Read(0, b"new"))


def test_a_topic_that_was_made_again_has_lost_everything(
    cluster: KafkaCluster, node: Callable[..., Node]
) -> None:
    topic = cluster.create()
    first = node(topic, "a")
    for number in range(5):
        first.log.append(b"%d" % number)
    first.until(lambda: len(first.read()) == 5)
    cluster.delete(topic)
    cluster.create(topic)
    first.until_told(Shrunk(0))
    first.until_caught_up()
    first.events.clear()
    deadline = time.monotonic() + PATIENCE_S
    while b"new" not in first.read():  # what is on its way to the old topic is lost
        assert time.monotonic() < deadline
        first.log.append(b"new")
        first.hear(1.0)
    assert first.events[0] == CaughtUp(0) or Read(0, b"new") in first.events


def test_a_leader_that_was_not_in_sync_has_lost_records_and_that_is_told(
    cluster: KafkaCluster, node: Callable[..., Node]
) -> None:
    topic = cluster.create(
        replicas=2, min_insync_replicas="1", unclean_leader_election_enable="true"
    )
    nodes = [node(topic, "a"), node(topic, "b")]
    (partition,) = (
        cluster.admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions.values()
    )
    leader = partition.leader
    (follower,) = set(partition.replicas) - {leader}
    for number in range(3):
        nodes[0].log.append(b"%d" % number, number)
    nodes[0].until_acked(2)
    for each in nodes:
        each.until(lambda each=each: len(each.read()) == 3)
    cluster.kill(follower)
    for number in range(3, 6):
        nodes[0].log.append(b"%d" % number, number)
    nodes[0].until_acked(5)
    for each in nodes:
        each.until(lambda each=each: len(each.read()) == 6)
    cluster.kill(leader)
    cluster.revive(follower)
    for each in nodes:
        each.until(lambda each=each: any(isinstance(x, Shrunk) for x in each.events))
        assert [x for x in each.events if isinstance(x, Shrunk)] == [Shrunk(3)]


def test_it_ends_while_no_broker_answers(cluster: KafkaCluster) -> None:
    topic = cluster.create()
    log = Node(cluster, topic, "a").log
    for broker in cluster.ports:
        cluster.freeze(broker)
    log.append(b"lost", 1)
    started = time.monotonic()
    log.close()
    assert time.monotonic() - started < 30
    assert log.take()[-1:] == [Unknown(1, "closed")]


def test_the_topic_is_made_as_it_must_be_and_once(cluster: KafkaCluster) -> None:
    access = client.Access(cluster.servers, "a")
    assert topics.create_topic(access, "made") is True
    assert topics.check_topic(access, "made", is_new=True) == []
    cluster.until_there("made")
    assert topics.create_topic(access, "made") is False
    assert topics.check_topic(access, "made", 5) == [
        "topic made: 3 replica(s): expected at least 5"
    ]


def test_a_topic_with_wrong_settings_is_told_line_by_line(cluster: KafkaCluster) -> None:
    access = client.Access(cluster.servers, "a")
    topic = cluster.create(
        partitions=2,
        replicas=2,
        min_insync_replicas="1",
        unclean_leader_election_enable="true",
        retention_ms="60000",
        max_message_bytes="1000",
    )
    lines = topics.check_topic(access, topic)
    assert [line.removeprefix(f"topic {topic}: ").split(" ")[0] for line in lines] == [
        "2",
        "2",
        "min.insync.replicas",
        "retention.ms",
        "unclean.leader.election.enable",
        "max.message.bytes",
    ]


def test_a_topic_that_is_not_there_is_told(cluster: KafkaCluster) -> None:
    access = client.Access(cluster.servers, "a")
    with pytest.raises(topics.TopicError, match=r"topic nowhere: .*[Uu]nknown topic"):
        topics.check_topic(access, "nowhere")
    with pytest.raises(topics.TopicError, match="replication factor"):
        topics.create_topic(access, "large", 9)


def test_the_command_makes_and_checks_the_topic(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST__STORAGE__KAFKA__SERVERS", ",".join(cluster.servers))
    monkeypatch.setenv("HOLDFAST__STORAGE__KAFKA__TOPIC", "by-command")
    assert main(["cluster", "check"]) == 1
    assert "topic by-command: " in capsys.readouterr().err
    assert main(["cluster", "init"]) == 0
    cluster.until_there("by-command")
    assert main(["cluster", "init"]) == 0
    assert main(["cluster", "check"]) == 0
    assert capsys.readouterr().out.endswith("topic by-command: is as it must be\n")
    wrong = cluster.create(min_insync_replicas="1")
    monkeypatch.setenv("HOLDFAST__STORAGE__KAFKA__TOPIC", wrong)
    assert main(["cluster", "init"]) == 1
    (*_, line) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"holdfast: topic {wrong}: ")
