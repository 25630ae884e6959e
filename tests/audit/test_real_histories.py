"""The verdict on histories that real clients made against real brokers."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from audit.analytics import merge
from audit.checks.verdict import INVARIANTS
from audit.report import page
from audit.run import Verdict, run
from broker.operations.control_socket import ControlError, ask
from storage.history.witness import Mark, Witness, read
from storage.tables.tables import HISTORY, scan_all
from tests.audit.real_broker import MosquittoStream, Paho, recording, rows, whole_history
from tests.broker.operations.damage.databases import opened

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        shutil.which("mosquitto_sub") is None, reason="Debian's mosquitto-clients is not installed"
    ),
]

KILLS = 3
MESSAGES = 20


def audit(spark: SparkSession, history: Path, out: Path, *witnesses: Witness) -> Verdict:
    """Audit a history."""
    return run(spark, str(history), str(out), progress=lambda line: None, witnesses=witnesses)


def told(verdict: Verdict) -> dict[str, str]:
    """Return what the verdict says of each invariant that is not ok, with its first witness."""
    return {
        name: f"{each['status']} {each['witnesses'][:1]}"
        for name, each in verdict.document["invariants"].items()
        if each["status"] != "ok"
    }


def picture_of(spark: SparkSession, out: Path, verdict: Verdict) -> str:
    """Return the page of the report."""
    return page.render(merge.picture(spark, str(out), verdict.document, made_us=0, seconds=1.0))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The history, at `full`, of a broker that was killed in streams at QoS 2."""
    directory = tmp_path_factory.mktemp("killed")
    broker = recording(directory / "broker", node="killed", WITNESS=str(directory / "witness"))
    broker.start()
    try:
        stream = MosquittoStream(broker, "mosquitto", "stream")
        receiver = Paho(broker.port, "receiver").connect().subscribe("a", 2)
        other = Paho(broker.port, "other", version=4).connect().subscribe("b", 1)
        publisher = Paho(broker.port, "publisher").connect()
        clients = (receiver, other, publisher)
        for number in range(KILLS):
            # The batch that is durable with the PUBACK has the event of the receiver's PUBCOMP,
            # and not yet its progress, which may wait.
            publisher.publish("a", b"%d" % number, 2)
            receiver.receive(number + 1)
            publisher.publish("b", b"", 1)
            broker.kill()
            for client in clients:
                client.lost()
            broker.start()
            for client in clients:
                client.reconnected()
        for _ in range(KILLS):
            with stream.flowing(200):
                broker.kill()
            broker.start()
        for client in clients:
            client.reconnected().leave()
        assert broker.stop() == 0
        yield whole_history(broker, directory / "whole")
    finally:
        broker.close()


@pytest.fixture(scope="module")
def three(killed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The histories of three brokers: two at `full`, and one at `books` that lived some seconds."""
    directory = tmp_path_factory.mktemp("three")
    history = directory / "whole"
    shutil.copytree(killed, history)
    for node, detail in (("short", "books"), ("calm", "full")):
        broker = recording(directory / node, detail=detail, node=node)
        broker.start()
        try:
            receiver = Paho(broker.port, "receiver").connect().subscribe("a", 2)
            publisher = Paho(broker.port, "publisher").connect()
            for number in range(MESSAGES):
                publisher.publish("a", b"%d" % number, 2)
            receiver.receive(MESSAGES).leave()
            publisher.leave()
            assert broker.stop() == 0
            whole_history(broker, history)
        finally:
            broker.close()
    return history


def damage_history_row(data_dir: Path, place: float) -> None:
    """Tear a row of the history that is not exported yet, at this part of its rows."""
    with opened(data_dir) as store:
        keys = [key for key, _ in scan_all(store, HISTORY, b"", None)]
        assert len(keys) > 10
        store.write([(HISTORY, keys[int(place * len(keys))], b"torn")])
        store.sync()


def gone(data_dir: Path, client_id: str) -> None:
    """Wait until a running broker has seen the DISCONNECT of a client."""
    for _ in range(100_000):
        try:
            ask(data_dir, {"do": "client_show", "client_id": client_id})
        except ControlError:
            return
    raise AssertionError(f"{client_id} stays connected")


def purge(data_dir: Path, client_id: str) -> int:
    """Drop what waits for a session; return how many messages that were."""
    request = {"do": "session_purge", "client_id": client_id, "reason": "make room"}
    number = ask(data_dir, request)["purge"]
    for _ in range(100_000):
        status = ask(data_dir, {"do": "session_purge_status", "purge": number})
        if status["over"] == "1":
            assert status["why"] == ""
            return int(status["dropped"])
    raise AssertionError("the purge does not end")


def inflight_after_boot(history: Path, client_id: str) -> list[int]:
    """Return how many messages were in flight to a client when each boot found its session."""
    found: list[dict[str, Any]] = rows(history, ["session_restored"], ["client_id", "inflight"])
    return [row["inflight"] for row in found if row["client_id"] == client_id]


def test_a_kill_in_a_stream_at_qos_2_is_no_violation(
    killed: Path, spark: SparkSession, tmp_path: Path
) -> None:
    completed = rows(killed, ["msg_completed"], ["client_id", "msg"])
    received = [row["msg"] for row in completed if row["client_id"] == "receiver"]
    assert len(received) > len(set(received)), "no crash took the end of an exchange"
    assert 1 in inflight_after_boot(killed, "receiver")
    witness = read(killed.with_name("witness"))
    newest = witness.newest
    assert newest is not None
    assert newest.boot == 2 * KILLS + 1
    verdict = audit(spark, killed, tmp_path / "out", witness)
    assert told(verdict) == {}
    assert (verdict.status, verdict.exit_code) == ("ok", 0)
    chain = verdict.document["invariants"]["H1"]["facts"]["chain"]
    assert (chain["not_chained"], chain["unproven_files"], chain["witness_ahead"]) == (0, [], [])
    assert chain["chained"] == verdict.document["segments"] > KILLS
    # Nothing is new for the next run, and a witness that knows more is compared all the same.
    more = replace(witness, marks=(*witness.marks, Mark(99, 5, 5, "head")))
    again = audit(spark, killed, tmp_path / "out", more)
    assert (again.status, again.exit_code) == ("violated", 2)
    assert again.document["invariants"]["H1"]["witnesses"][0]["to"] == {"boot": 99, "seq": 5}


def test_the_books_of_a_broker_that_lived_some_seconds_are_told_before_its_end(
    three: Path,
) -> None:
    names = ("books", "gc_run", "history_gap", "shutdown")
    last = [row for row in rows(three, names, ["stage", "count"]) if row["node"] == "short"]
    assert (last[-1]["ev"], {row["ev"] for row in last[:-1]}) == ("shutdown", {"books"})
    counted: dict[str, int] = {}
    for row in last[:-1]:
        counted[row["stage"]] = counted.get(row["stage"], 0) + row["count"]
    stages = ("accepted", "stored", "persisted", "ack_owed", "pub_acked", "delivered", "completed")
    assert {stage: counted.get(stage) for stage in stages} == dict.fromkeys(stages, MESSAGES)


def test_a_history_with_a_damaged_row_lacks_rows_and_accuses_nobody_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    broker = recording(tmp_path / "broker", SEAL_SECONDS="3600")
    broker.start()
    try:
        receiver = Paho(broker.port, "receiver").connect().subscribe("a", 2)
        publisher = Paho(broker.port, "publisher").connect()
        for number in range(MESSAGES):
            publisher.publish("a", b"%d" % number, 2)
        receiver.receive(MESSAGES)
        broker.kill()
        receiver.lost()
        publisher.lost()
        damage_history_row(broker.data_dir, 0.6)
        broker.start()
        for client in (receiver, publisher):
            client.reconnected()
        publisher.publish("a", b"last", 2)
        receiver.receive(MESSAGES + 1).leave()
        publisher.leave()
        assert broker.stop() == 0
        # The command says so, and writes the rest.
        history = whole_history(broker, tmp_path / "whole", status=1)
    finally:
        broker.close()
    verdict = audit(spark, history, tmp_path / "out")
    found = verdict.document["invariants"]
    assert [name for name, each in found.items() if each["status"] == "violated"] == ["H1"]
    assert verdict.exit_code == 2, told(verdict)
    # Each message may have had an event in that row, so nothing about messages holds.
    assert {name for name in found if INVARIANTS[name].needs == "messages"} <= set(told(verdict))


def test_what_an_operator_drops_and_ends_is_told_and_accuses_nobody(
    spark: SparkSession, tmp_path: Path
) -> None:
    broker = recording(tmp_path / "broker", node="tidied")
    broker.start()
    try:
        away = Paho(broker.port, "away").connect().subscribe("a", 2)
        ended = Paho(broker.port, "ended").connect().subscribe("a", 1)
        reader = Paho(broker.port, "reader").connect().subscribe("a", 2)
        publisher = Paho(broker.port, "publisher").connect()
        for client in (away, ended):
            client.leave()
            gone(broker.data_dir, client.name)
        for number in range(MESSAGES):
            publisher.publish("a", b"%d" % number, 1)
        assert purge(broker.data_dir, "away") == MESSAGES
        ask(broker.data_dir, {"do": "session_end", "client_id": "ended", "reason": "sold"})
        reader.receive(MESSAGES)
        ask(broker.data_dir, {"do": "client_kick", "client_id": "reader", "reason": "too loud"})
        reader.lost().reconnected()
        publisher.publish("a", b"between", 1)
        broker.kill()
        for client in (reader, publisher):
            client.lost()
        broker.start()
        for client in (reader, publisher):
            client.reconnected()
        away = Paho(broker.port, "away").connect().receive(1)
        assert away.received == [b"between"]
        reader.receive(MESSAGES + 1)
        for client in (away, reader, publisher):
            client.leave()
        assert broker.stop() == 0
        history = whole_history(broker, tmp_path / "whole")
    finally:
        broker.close()
    names = ("session_purged", "session_terminated", "session_disconnected")
    told_by = rows(history, names, ["client_id", "actor", "detail"])
    by_operator = [
        (row["ev"], row["client_id"], str(row["detail"]).partition(": ")[2])
        for row in told_by
        if row["actor"] == "admin"
    ]
    assert by_operator == [
        ("session_purged", "away", "make room"),
        ("session_terminated", "ended", "sold"),
        ("session_disconnected", "reader", "too loud"),
    ]
    verdict = audit(spark, history, tmp_path / "out")
    assert told(verdict) == {}
    assert (verdict.status, verdict.exit_code) == ("ok", 0)


def test_one_broker_of_three_that_recorded_no_messages_makes_their_invariants_unknown(
    three: Path, spark: SparkSession, tmp_path: Path
) -> None:
    verdict = audit(spark, three, tmp_path / "out")
    assert (verdict.status, verdict.exit_code) == ("unknown", 3)
    assert set(told(verdict)) == {
        name for name in verdict.document["invariants"] if INVARIANTS[name].needs != "sessions"
    }
    for name in told(verdict):
        found = verdict.document["invariants"][name]
        assert (found["status"], found["unknown"]) == ("unknown", 1)
        (span,) = found["untested"]
        assert (span["node"], span["recorded"]) == ("short", "sessions")
        assert span["reason"] == "detail books"
    recorded = {span["node"]: span["recorded"] for span in verdict.document["coverage"]}
    assert recorded == {"calm": "full", "killed": "full", "short": "sessions"}

    shown = picture_of(spark, tmp_path / "out", verdict)
    assert "All 20 invariants hold" not in shown
    assert "cannot be told: L1, L2, L3, D1" in shown
    row = shown[shown.index('<th scope="row"><bdi>short</bdi>') :].partition("</tr>")[0]
    assert row.count("? no") == 2
    assert row.count("? in part") == 1
