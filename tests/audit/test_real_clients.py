"""A real broker, clients that log, a canary, and kill -9: the audit agrees with what clients saw.

Then lies are written into copies of the logs, and each is named by its invariant.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pyspark.sql import SparkSession

from audit.clients.part import clients_part
from audit.run import Verdict, run
from holdfast_mqtt.client_log import ClientLog, payload_hash
from holdfast_mqtt.paho_log import LoggedClient
from tests.audit.real_broker import PATIENCE_SECONDS, recording, whole_history
from tests.durability.process import BrokerProcess

pytestmark = pytest.mark.ci

ROOT: Final = Path(__file__).parents[2]
MESSAGES: Final = 20
ROUNDS: Final = 25
CANARY_SECONDS: Final = 120

Record = dict[str, Any]


class Logged:
    """A durable paho client with a log, whose steps the test can wait for."""

    def __init__(self, port: int, folder: Path, name: str) -> None:
        self.received: list[bytes] = []
        self.is_connected = False
        self._answered: set[int] = set()
        self._granted = 0
        self._change = threading.Condition()
        self.client = LoggedClient(ClientLog(folder / f"{name}.jsonl", name), protocol=paho.MQTTv5)
        self.client.reconnect_delay_set(0.05, 0.05)  # type: ignore[arg-type]
        self.client.on_connect = self._noting(lambda *_: setattr(self, "is_connected", True))
        self.client.on_disconnect = self._noting(lambda *_: setattr(self, "is_connected", False))
        self.client.on_message = self._noting(lambda *a: self.received.append(a[2].payload))
        self.client.on_publish = self._noting(lambda *a: self._answered.add(a[2]))
        self.client.on_subscribe = self._noting(lambda *_: self._subscribed())
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        self.client.will_set("wills/" + name, b"gone", 1)
        self.client.connect(
            "127.0.0.1", port, keepalive=30, clean_start=False, properties=properties
        )
        self.client.loop_start()
        self.wait(lambda: self.is_connected)

    def _subscribed(self) -> None:
        self._granted += 1

    def _noting(self, what: Callable[..., Any]) -> Callable[..., None]:
        def note(*arguments: Any) -> None:
            with self._change:
                what(*arguments)
                self._change.notify_all()

        return note

    def wait(self, what: Callable[[], bool]) -> None:
        with self._change:
            assert self._change.wait_for(what, PATIENCE_SECONDS)

    def subscribe(self, topic_filter: str) -> None:
        before = self._granted
        self.client.subscribe(topic_filter, 2)
        self.wait(lambda: self._granted > before)

    def publish(self, topic: str, payload: bytes, qos: int) -> None:
        number = self.client.publish(topic, payload, qos).mid
        self.wait(lambda: number in self._answered)
        self._answered.discard(number)

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
        self.client.log.close()


def live(broker: BrokerProcess, folder: Path) -> None:
    """Let paho clients and a canary go through a kill; the broker has ended in order then."""
    broker.start()
    canary = subprocess.Popen(
        [
            *(sys.executable, "-m", "broker", "canary", f"mqtt://127.0.0.1:{broker.port}"),
            *("--interval", "0.2", "--count", str(ROUNDS), "--log", str(folder / "canary.jsonl")),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        reader, writer = (Logged(broker.port, folder, name) for name in ("reader", "writer"))
        reader.subscribe("t/#")
        for number in range(MESSAGES):
            writer.publish("t/a", b"before %d" % number, 1 + number % 2)
        broker.kill()
        for client in (reader, writer):
            client.wait(lambda client=client: not client.is_connected)  # type: ignore[misc]
        broker.start()
        for client in (reader, writer):
            client.wait(lambda client=client: client.is_connected)  # type: ignore[misc]
        for number in range(MESSAGES):
            writer.publish("t/a", b"after %d" % number, 1 + number % 2)
        reader.wait(lambda: len(set(reader.received)) == 2 * MESSAGES)
        for client in (reader, writer):
            client.leave()
        out, _ = canary.communicate(timeout=CANARY_SECONDS)
    finally:
        canary.kill()
        canary.wait()
    assert canary.returncode == 0, out
    assert broker.stop() == 0


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The history, and the folder with the logs."""
    folder = tmp_path_factory.mktemp("logged")
    logs = folder / "logs"
    logs.mkdir()
    broker = recording(folder / "broker")
    try:
        live(broker, logs)
        return whole_history(broker, folder / "whole"), logs
    finally:
        broker.close()


def audited(spark: SparkSession, history: Path, logs: Path, out: Path) -> Verdict:
    """Hold logs against a history; the other parts of an audit have tests of their own."""
    part = clients_part(spark, [f"{logs}/*.jsonl"], str(history))
    return run(spark, str(history), str(out), progress=lambda line: None, parts=(part,))


def changed(logs: Path, to: Path, name: str, change: Callable[[list[Record]], None]) -> None:
    """Write a log with a lie into another folder; its lines are numbered anew."""
    records = [json.loads(line) for line in (logs / f"{name}.jsonl").read_text().splitlines()]
    change(records)
    for number, record in enumerate(records, 1):
        record["n"] = number
    to.mkdir(exist_ok=True)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (to / f"{name}.jsonl").write_text(lines)


def acknowledge_what_never_was(records: list[Record]) -> None:
    """Add a message that was acknowledged and that the broker has never recorded."""
    at = next(n for n, record in enumerate(records) if record["event"] == "puback")
    own = {name: records[at][name] for name in ("v", "log", "client_id", "at_us")}
    records[at + 1 : at + 1] = [
        {
            **own, "event": "published", "pid": 60_000, "qos": 1, "topic": "t/a",
            "hash": payload_hash(b"never"), "bytes": 5, "retain": False,
        },
        {**own, "event": "puback", "pid": 60_000, "reason": 0},
    ]  # fmt: skip


def lie_as_a_reader(records: list[Record]) -> None:
    """Flip Session Present, double a message at QoS 2, and leave one out."""
    connected = [record for record in records if record["event"] == "connected"]
    connected[-1]["session_present"] = False
    at = next(
        n for n, each in enumerate(records) if each["event"] == "received" and each["qos"] == 2
    )
    records.insert(at + 1, dict(records[at]))
    gone = payload_hash(b"before 9")
    records[:] = [record for record in records if record.get("hash") != gone]


def test_what_clients_saw_is_what_the_history_says_over_a_kill(
    lived: tuple[Path, Path], spark: SparkSession, tmp_path: Path
) -> None:
    history, logs = lived
    verdict = audited(spark, history, logs, tmp_path / "out")
    found = verdict.document["invariants"]
    assert {name: (each["violated"], each["unknown"]) for name, each in found.items()} == {
        name: (0, 0) for name in ("C1", "C2", "C3", "C4", "C5")
    }, found
    assert verdict.exit_code == 0
    assert found["C1"]["checked"] >= 2 * MESSAGES + 2 * ROUNDS
    assert all(each["checked"] for each in found.values())


def test_each_lie_is_named_by_its_invariant(
    lived: tuple[Path, Path], spark: SparkSession, tmp_path: Path
) -> None:
    history, logs = lived
    lies = tmp_path / "lies"
    changed(logs, lies, "writer", acknowledge_what_never_was)
    changed(logs, lies, "reader", lie_as_a_reader)
    verdict = audited(spark, history, lies, tmp_path / "out")
    assert verdict.exit_code == 2
    named = {
        name: {(witness.get("client_id"), witness.get("pid")) for witness in each["witnesses"]}
        for name, each in verdict.document["invariants"].items()
    }
    assert named["C1"] == {("writer", 60_000)}
    assert {client for client, _ in named["C2"]} == {"reader"}
    assert {client for client, _ in named["C3"]} == {"reader"}
    assert named["C4"] == {("reader", None)}
    lost = verdict.document["invariants"]["C5"]["witnesses"]
    assert payload_hash(b"before 9") in {witness["hash"] for witness in lost}
    assert {witness["client_id"] for witness in lost} == {"reader"}
