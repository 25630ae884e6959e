"""Traces of a real client by the real command, and a broker that is killed in one: the verdict."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from audit.run import Verdict, run
from tests.audit.conftest import History
from tests.audit.real_broker import Paho, recording, whole_history
from tests.durability.process import BrokerProcess

pytestmark = pytest.mark.ci

MESSAGES = 5  # in each of the two traces, and before and after each
LEVELS = {"few": "books", "some": "sampled:1/3"}  # by node


@contextmanager
def tracing(broker: BrokerProcess, client_id: str) -> Iterator["subprocess.Popen[str]"]:
    """Trace a client in a process of its own, which is on when the block begins."""
    begun = broker.log().count("trace_begun")
    command = [sys.executable, "-m", "broker", "trace", "client", client_id]
    process = subprocess.Popen(
        [*command, "--data-dir", str(broker.data_dir)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    try:
        broker.wait_for_event("trace_begun", after=begun)
        yield process
    finally:
        process.kill()
        process.wait()


def record(node: str, directory: Path, whole: Path) -> None:
    """Let a broker be killed in a trace, and traced again, and export its history to `whole`."""
    broker = recording(directory / node, detail=LEVELS[node], node=node)
    broker.start()
    try:
        receiver = Paho(broker.port, "receiver").connect().subscribe("a", 1)
        other = Paho(broker.port, "other").connect().subscribe("a", 2)
        publisher = Paho(broker.port, "publisher").connect()
        clients = (receiver, other, publisher)
        sent = 0

        def flow() -> None:
            nonlocal sent
            for _ in range(MESSAGES):
                publisher.publish("a", b"%d" % sent, 1 + sent % 2)
                sent += 1
            receiver.wait(lambda: b"%d" % (sent - 1) in receiver.received)

        flow()
        with tracing(broker, "receiver"):
            flow()
            broker.kill()
            for client in clients:
                client.lost()
        broker.start()
        for client in clients:
            client.reconnected()
        flow()
        with tracing(broker, "receiver") as trace:
            flow()
            trace.send_signal(signal.SIGINT)
            assert trace.wait(60) == 130
        flow()
        for client in clients:
            client.leave()
        assert broker.stop() == 0
        whole_history(broker, whole)
    finally:
        broker.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The histories of a broker at `books` and one at a sample, each killed in a trace."""
    directory = tmp_path_factory.mktemp("traced")
    for node in LEVELS:
        record(node, directory, directory / "whole")
    return directory / "whole"


def audit(spark: SparkSession, history: Path, out: Path) -> Verdict:
    return run(spark, str(history), str(out), progress=lambda line: None)


def violated(verdict: Verdict) -> dict[str, list[dict[str, Any]]]:
    """Return the witnesses of what is violated."""
    return {
        name: each["witnesses"]
        for name, each in verdict.document["invariants"].items()
        if each["violated"]
    }


def test_a_broker_killed_in_a_trace_is_accused_of_nothing_and_was_tested(
    spark: SparkSession, tmp_path: Path, whole: Path
) -> None:
    verdict = audit(spark, whole, tmp_path / "out")
    assert violated(verdict) == {}
    traces = verdict.document["traces"]
    assert [(each["node"], each["client_id"], each["level"]) for each in traces] == [
        ("few", "receiver", "books"),
        ("few", "receiver", "books"),
        ("some", "receiver", "sampled"),
        ("some", "receiver", "sampled"),
    ]
    assert [(each["judged"], each["not_judged"]) for each in traces] == [(1, 0)] * 4
    # Of the trace that the kill ended the last rows may be lost with it.
    assert verdict.document["invariants"]["L2"]["checked"] >= 2 * MESSAGES


def test_a_message_that_is_lost_in_a_real_trace_is_named(
    spark: SparkSession, tmp_path: Path, whole: Path
) -> None:
    """As if the broker had forgotten to send one of the messages of the second trace."""
    history = History()
    table = ds.dataset(whole, format="parquet").to_table(filter=ds.field("node") == "few")
    history.rows = sorted(table.to_pylist(), key=lambda row: (row["boot"], row["seq"]))
    (began,) = (
        row["seq"] for row in history.rows if row["boot"] == 2 and row["ev"] == "trace_began"
    )
    sent = [
        row["msg"]
        for row in history.rows
        if (row["boot"], row["ev"]) == (2, "msg_delivered") and row["seq"] > began
    ]
    lost = sorted(set(sent))[1]
    for row in history.rows:
        if row["msg"] == lost and row["ev"] in ("msg_delivered", "msg_acked"):
            empty = dict.fromkeys(set(row) - {"v", "node", "boot", "seq", "ts", "mono_ns"})
            row.update(empty, ev="gc_run", actor="gc", count=0)
    history.write(tmp_path / "history")
    found = violated(audit(spark, tmp_path / "history", tmp_path / "out"))
    assert list(found) == ["L2"]
    (witness,) = found["L2"]
    assert (witness["client_id"], witness["msg"]) == ("receiver", lost)
