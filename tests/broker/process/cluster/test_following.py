"""What a node that follows says to systemd; `tests/replication/test_failover.py` runs the rest."""

import asyncio
import signal
import socket
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.observe.structured_log import Log
from broker.operations import cluster_topic
from broker.process.cluster import following
from broker.process.cluster.following import Following
from broker.process.reload import HangUps
from storage.errors import Recoverable
from storage.replicated.kafka.topic import TopicError
from storage.replicated.roles.terms import Leads
from tests.broker.cluster.town import NAMES, Town


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", listening.getsockname())
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield listening


def test_a_signal_ends_a_node_that_waits_for_what_kafka_says_of_the_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_check_topic", lambda *_: None)  # it never answers
    shell = SimpleNamespace(metrics_enabled=False, data_dir=str(tmp_path))
    config: Any = SimpleNamespace(listeners=[], shell=shell)
    before = {
        each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }

    async def run() -> None:
        town = Town()
        for name in NAMES:
            town.start(name)
        async with asyncio.timeout(30):
            name, _ = await town.led.get()
            member, store = town.members[name], town.stores[name]
            hang_ups = HangUps()
            node = Following(config, Log(level="error"), member, store, hang_ups)  # type: ignore[arg-type]
            member.detach()
            running = asyncio.create_task(node.run())
            await asyncio.sleep(0)
            member.led(Leads(1, 0, 0))
            await asyncio.sleep(0)
            signal.raise_signal(signal.SIGTERM)
            assert await running is None
        town.close()

    try:
        asyncio.run(run())
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class Answers:
    """What Kafka says of the topic: cannot be asked, and then a setting that loses records."""

    def __init__(self, *answers: str | list[str]) -> None:
        self._answers = deque(answers)

    def problems(self, cluster: object) -> list[str]:
        answer = self._answers.popleft()
        if isinstance(answer, str):
            raise TopicError(answer)
        return answer


def checked(monkeypatch: pytest.MonkeyPatch, answers: Answers, *, leads: bool) -> str:
    """Return what a check of the topic tells a node that leads already, or follows."""
    monkeypatch.setattr(following, "CHECK_AGAIN_S", 0.0)
    monkeypatch.setattr(cluster_topic, "problems", answers.problems)
    is_settled = threading.Event()
    if leads:
        is_settled.set()
    config: Any = SimpleNamespace(cluster=None)

    async def run() -> str:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[str] = loop.create_future()
        log = Log(level="error")
        check = (config, log, loop, told.set_result, is_settled)
        await asyncio.to_thread(following._check_topic, *check)
        return await told

    return asyncio.run(run())


def test_a_topic_is_checked_once_kafka_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nodes that start before their Kafka would lead on a topic that loses records."""
    answers = Answers("timed out", "timed out", ["retention.ms = 1000", "1 replica(s)"])
    assert checked(monkeypatch, answers, leads=False) == "retention.ms = 1000; 1 replica(s)"


def test_a_topic_that_cannot_be_asked_about_does_not_keep_a_node_from_leading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert checked(monkeypatch, Answers("no right to describe it"), leads=True) == ""


def test_without_room_for_the_database_the_ballast_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory: Any = SimpleNamespace(ballast=tmp_path / "ballast")
    config: Any = SimpleNamespace(shell=SimpleNamespace(accept_data_loss=False))
    directory.ballast.write_bytes(b"x")

    def found(*_: object, **__: object) -> str:
        if directory.ballast.exists():
            raise Recoverable("No space left on device")
        return "open"

    monkeypatch.setattr(following, "open_database", found)
    assert following._open_database(config, directory) == "open"

    def full(*_: object, **__: object) -> str:
        raise Recoverable("No space left on device")

    monkeypatch.setattr(following, "open_database", full)
    with pytest.raises(Recoverable):
        following._open_database(config, directory)


def test_a_node_that_follows_feeds_the_watchdog(manager: socket.socket) -> None:
    """It has said that it is ready, so systemd would end it."""

    async def run() -> None:
        town = Town()
        async with asyncio.timeout(30):
            member = town.start("ann")
            config: Any = SimpleNamespace()
            member.looked = Following(config, Log(level="error"), member, None, None)._note_figures  # type: ignore[arg-type]
            loop = asyncio.get_running_loop()
            manager.setblocking(False)
            assert await loop.sock_recv(manager, 1000) == b"WATCHDOG=1"
        town.close()

    asyncio.run(run())


def test_a_leader_that_recovers_feeds_the_watchdog(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recovery may take longer than the watchdog waits, and no loop runs meanwhile."""
    told: list[bytes] = []

    def recover(*_: object) -> Any:
        told.append(manager.recv(1000))

    monkeypatch.setattr(following, "OpenBroker", recover)

    async def run() -> None:
        town = Town()
        lead: Any = SimpleNamespace(member=town.start("ann"), resumed_ms=lambda: 1)
        lead.member.detach()
        stack: Any = None
        following.open_broker(lead, Log(level="error"), stack, lead)
        town.close()

    asyncio.run(run())
    assert told == [b"WATCHDOG=1"]
