"""Logs of clients beside a history, through Spark: one lie each, and an honest client."""

import json
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from audit.checks.verdict import Outcome
from audit.clients import reading
from audit.clients.reconcile import check, pattern
from audit.input.segments import find
from tests.audit.clients.logbook import Logbook, hash_of
from tests.audit.conftest import History, Views

FILTERS = ("t/+/x", "t/#", "#", "+", "$share/g/a/#", "a.b/(c)", "$SYS/#", "+/b", "t/+")
TOPICS = ("t", "t/a/x", "t/a", "a/b", "a.b/(c)", "axb/(c)", "$SYS/a", "a", "/b")


def written(folder: Path, *clients: Logbook) -> list[str]:
    """Write the logs of clients as JSON lines."""
    path = folder / "clients.jsonl"
    with path.open("w") as file:
        for client in clients:
            for record in client.records:
                known = {name: value for name, value in record.items() if value is not None}
                file.write(json.dumps(known) + "\n")
    return [str(path)]


def judged(history: History, view: Views, *clients: Logbook) -> dict[str, Outcome]:
    """Return the outcomes by invariant."""
    made = view(history)
    logs = reading.read(view.spark, written(view.folder, *clients))
    segments = find(view.spark, str(view.folder / f"history-{view.made}"))
    return {outcome.invariant: outcome for outcome in check(made, (logs, segments))}


def told(outcome: Outcome) -> list[tuple[object, ...]]:
    """Return (client, what) of the witnesses."""
    return [(each["client_id"], each["what"]) for each in outcome.witnesses]


def test_each_lie_is_named_by_its_invariant_and_nobody_else_is(view: Views) -> None:
    history = History()
    history.boot()
    clients = [
        Logbook(history, name, 1 << 40 | number)
        for number, name in enumerate(("writer", "reader", "mourner", "dead", "flipped"), 1)
    ]
    writer, reader, mourner, dead, flipped = clients
    will = {"will_topic": "w", "will_hash": hash_of("gone"), "will_bytes": 4}
    for client in clients:
        client.connect(present=False, **(will if client is dead else {}))
    reader.subscribe("t/#")
    mourner.subscribe("w", stream=2)
    for msg in range(1, 8):
        writer.publish(msg, "t/a", f"message {msg}")
        if msg != 4:
            reader.receive(msg, "t/a", f"message {msg}", qos=1)
    dead.tell("will_fired", topic="w", msg=20, qos=1)
    for msg in (20, 21):  # two deliveries, one will
        history.row("msg_accepted", client_id="dead", msg=msg, topic="w", pub_qos=1, bytes=4)
        mourner.receive(msg, "w", "gone")
    # The disk lies: a message is acknowledged, and after the crash nothing knows of it.
    writer.publish(50, "t/a", "lost by the disk", row=False)
    writer.publish(51, "nobody", "promised to nobody", row=False)
    history.boot()
    for client in clients:
        client.connect(present=True)
    flipped.records[-1]["session_present"] = False
    writer.publish(60, "t/a", "after")
    reader.receive(60, "t/a", "after")
    reader.receive(61, "t/a", "of nowhere", row=False)
    history.now += 2.0
    writer.publish(63, "w", "other")
    mourner.receive(63, "w", "other")
    writer.publish(62, "t/a", "last")
    reader.receive(62, "t/a", "last")
    found = judged(history, view, *clients)
    assert told(found["C1"]) == [("writer", "acknowledged, but not in the history")]
    assert (found["C1"].violated, found["C1"].unknown) == (1, 0)
    (lost,) = found["C1"].witnesses
    assert (lost["topic"], lost["pid"], lost["node"]) == ("t/a", 50, "n1")
    assert told(found["C2"]) == [("reader", "received, but not recorded as sent")]
    wills = "a will was received more often than it was published"
    assert told(found["C3"]) == [("mourner", wills)]
    says = "CONNACK said Session Present 0, the history the opposite"
    assert told(found["C4"]) == [("flipped", says)]
    missed = "acknowledged to its publisher, and not received"
    assert sorted((each["hash"], each["publisher"]) for each in found["C5"].witnesses) == sorted(
        [(hash_of("message 4"), "writer"), (hash_of("lost by the disk"), "writer")]
    )
    assert {what for _, what in told(found["C5"])} == {missed}
    assert {name: outcome.unknown for name, outcome in found.items()} == dict.fromkeys(
        ("C1", "C2", "C3", "C4", "C5"), 0
    )


def test_what_touches_a_gap_is_unknown(view: Views) -> None:
    history = History()
    history.boot()
    client = Logbook(history, "c", 1 << 40 | 1)
    client.connect(present=False)
    client.publish(1, "t", "one")
    client.publish(2, "t", "two", row=False)
    history.lose(3)
    client.publish(3, "t", "three")
    found = judged(history, view, client)
    assert {name: (each.violated, each.unknown) for name, each in found.items()} == {
        "C1": (0, 1),
        **dict.fromkeys(("C2", "C3", "C4", "C5"), (0, 0)),
    }


@pytest.mark.parametrize("wanted", [("t/+/x", "t/a/x")])
def test_a_topic_filter_becomes_a_pattern(view: Views, wanted: tuple[str, str]) -> None:
    pairs = view.spark.createDataFrame(
        [(tfilter, topic) for tfilter in FILTERS for topic in TOPICS], "f string, t string"
    )
    found = pairs.where(F.rlike("t", pattern(F.col("f")))).collect()
    matches = {(row.f, row.t) for row in found}
    assert wanted in matches
    assert matches == {
        ("t/+/x", "t/a/x"),
        *(("t/#", topic) for topic in ("t", "t/a/x", "t/a")),
        *(("#", topic) for topic in TOPICS if topic != "$SYS/a"),
        *(("+", topic) for topic in ("t", "a")),
        *(("$share/g/a/#", topic) for topic in ("a", "a/b")),
        ("a.b/(c)", "a.b/(c)"),
        ("$SYS/#", "$SYS/a"),
        *(("+/b", topic) for topic in ("a/b", "/b")),
        ("t/+", "t/a"),
    }
