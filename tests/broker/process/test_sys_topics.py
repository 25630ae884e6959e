"""The $SYS values: mosquitto's topics, published when they change, and honest load averages."""

import math

import pytest

from broker.process.sys_topics import SystemTopics
from session.counters import Counters


class Tree:
    """Retained values as a subscriber to $SYS/# would hold them."""

    def __init__(self, started_ms: int = 1_000_000) -> None:
        self.values: dict[str, str] = {}
        self.counters = Counters()
        self.now = started_ms
        self.topics = SystemTopics(
            self.publish, self.counters, version="1.2.3", started_ms=started_ms
        )

    def publish(self, topic: str, payload: bytes, now: int) -> None:
        assert now == self.now
        self.values[topic] = payload.decode()

    def refresh(self, after_s: float = 10, heap_bytes: int = 0, **stats: int) -> dict[str, str]:
        """Return only what was published by this refresh."""
        self.now += int(after_s * 1000)
        self.values = {}
        assert self.topics.refresh(self.now, stats, heap_bytes=heap_bytes) == len(self.values)
        return self.values


def test_the_first_refresh_publishes_mosquittos_whole_tree() -> None:
    values = Tree().refresh()
    names = [
        "version", "uptime", "clients/total", "clients/connected", "clients/disconnected",
        "clients/active", "clients/inactive", "clients/expired", "clients/maximum",
        "messages/received", "messages/sent", "messages/stored", "store/messages/count",
        "store/messages/bytes", "publish/messages/received", "publish/messages/sent",
        "publish/messages/dropped", "publish/bytes/received", "publish/bytes/sent",
        "bytes/received", "bytes/sent", "retained messages/count", "subscriptions/count",
        "shared_subscriptions/count", "heap/current", "heap/maximum", "packet/out/count",
        "connections/socket/count",
        "load/messages/received/1min", "load/publish/dropped/15min", "load/sockets/5min",
        "load/connections/1min", "load/bytes/sent/5min",
    ]  # fmt: skip
    assert {"$SYS/broker/" + name for name in names} <= set(values)
    assert values["$SYS/broker/version"] == "holdfast version 1.2.3"
    assert values["$SYS/broker/uptime"] == "10 seconds"


def test_only_changed_values_are_published_again() -> None:
    tree = Tree()
    tree.refresh()
    assert set(tree.refresh()) == {"$SYS/broker/uptime"}
    tree.counters.bytes_received = 5
    assert tree.refresh()["$SYS/broker/bytes/received"] == "5"


def test_numbers_come_from_counters_and_stats() -> None:
    tree = Tree()
    tree.counters.packets_received[1] = 2
    tree.counters.packets_received[3] = 5
    tree.counters.messages_sent[2] = 4
    tree.counters.drop("queue_full", 3)
    tree.counters.sessions_expired = 7
    values = tree.refresh(
        sessions_online=3,
        sessions_offline=4,
        subscriptions_stored=9,
        retained_messages=6,
        heap_bytes=50,
    )
    for name, text in {
        "messages/received": "7",
        "publish/messages/sent": "4",
        "publish/messages/dropped": "3",
        "clients/expired": "7",
        "clients/total": "7",
        "clients/connected": "3",
        "clients/active": "3",
        "clients/disconnected": "4",
        "subscriptions/count": "9",
        "retained messages/count": "6",
        "heap/current": "50",
    }.items():
        assert values["$SYS/broker/" + name] == text


def test_maxima_do_not_fall() -> None:
    tree = Tree()
    tree.refresh(sessions_online=5, heap_bytes=100)
    values = tree.refresh(sessions_online=2, heap_bytes=40)
    assert values["$SYS/broker/clients/connected"] == "2"
    assert values["$SYS/broker/heap/current"] == "40"
    assert "$SYS/broker/clients/maximum" not in values
    assert "$SYS/broker/heap/maximum" not in values


def test_load_averages_converge_to_the_rate_per_minute_and_decay() -> None:
    tree = Tree()
    last: dict[str, str] = {}
    for _ in range(600):
        tree.counters.messages_received[0] += 20  # 20 in 10 s = 120 per minute
        last.update(tree.refresh())
    for minutes in (1, 5, 15):
        assert float(last[f"$SYS/broker/load/publish/received/{minutes}min"]) == pytest.approx(
            120, rel=0.01
        )
    for _ in range(6):
        last.update(tree.refresh())
    one = float(last["$SYS/broker/load/publish/received/1min"])
    assert one == pytest.approx(120 / math.e, rel=0.01)


def test_a_load_average_weighs_what_is_new_by_the_time_it_took() -> None:
    tree = Tree()
    tree.counters.bytes_received = 1_000_000  # in 10 s
    values = tree.refresh()
    for minutes in (1, 5, 15):
        average = 6_000_000 * (1 - math.exp(-1 / (6 * minutes)))
        assert values[f"$SYS/broker/load/bytes/received/{minutes}min"] == f"{average:.2f}"


def test_no_time_passing_breaks_nothing_and_loses_nothing() -> None:
    tree = Tree()
    tree.counters.messages_received[0] = 10
    tree.refresh(after_s=0)
    values = tree.refresh(after_s=60)
    assert float(values["$SYS/broker/load/publish/received/1min"]) > 6
