"""What the judgement of a client hands on: findings, counts, and what topics need."""

import pyarrow as pa

from audit.clients import folding
from tests.audit.clients.logbook import Logbook, lives_of, rows_of
from tests.audit.conftest import History


def begun() -> tuple[History, Logbook]:
    """Return a history with a client that subscribes and gets messages."""
    history = History()
    history.boot()
    client = Logbook(history, "c", 1 << 40 | 1)
    client.connect(present=False)
    client.subscribe("t/#")
    client.publish(1, "t/a", "one")
    client.receive(1, "t/a", "one")
    return history, client


def received(history: History, client: Logbook) -> list[tuple[object, ...]]:
    """Return (topic, epoch, has a row) of what was received."""
    lines = folding.client(client.records, rows_of(history, "c"), lives_of(history))
    return [
        (line["topic"], line["epoch"], line["gseq"] is not None)
        for line in lines
        if line["kind"] == "received"
    ]


def test_an_epoch_ends_with_each_change_of_subscriptions_and_each_hole() -> None:
    history, client = begun()
    client.subscribe("u")
    client.publish(2, "t/a", "two")
    client.receive(2, "t/a", "two")
    client.records[-1]["n"] += 1  # a line is missing before it
    client.connect(present=True)
    client.records[-1]["n"] += 1
    client.publish(3, "t/a", "three")
    client.receive(3, "t/a", "three")
    epochs = [epoch for _, epoch, _ in received(history, client)]
    assert epochs[0] == 3 and epochs[1:] == [None, None]


def test_the_subscriptions_of_an_older_session_or_shared_ones_are_not_known() -> None:
    history, client = begun()
    client.records[0]["session_present"] = True
    assert received(history, client) == [("t/a", None, True)]
    history, client = begun()
    client.subscribe("$share/g/t/#")
    assert received(history, client) == [("t/a", None, True)]


def test_a_purge_makes_all_unknown_and_a_drop_names_its_topic() -> None:
    history, client = begun()
    client.tell("msg_dropped", msg=1, reason=1021)
    lines = list(folding.client(client.records, rows_of(history, "c"), lives_of(history)))
    assert {"kind": "dropped", "client_id": "c", "topic": "t/a"} in lines
    assert received(history, client) == [("t/a", 3, True)] or received(history, client)[0][1]
    client.tell("session_purged", count=3)
    assert received(history, client) == [("t/a", None, True)]


def test_workers_return_tables_with_all_columns() -> None:
    history, client = begun()
    run = folding.of_client(lives_of(history))
    table = run(pa.Table.from_pylist(client.records), pa.Table.from_pylist(rows_of(history, "c")))
    assert table.column_names == list(folding.FOLDED)
    counts = {row["invariant"]: row["count"] for row in table.to_pylist() if row["invariant"]}
    assert counts == {"C1": 1, "C2": 2, "C3": 0, "C4": 1}
    lines = [row for row in table.to_pylist() if row["kind"] == "published"]
    of_topic = folding.of_topic(pa.Table.from_pylist(lines))
    assert [(row["invariant"], row["count"]) for row in of_topic.to_pylist()] == [("C5", 0)]
    nobody = run(pa.Table.from_pylist([]), pa.Table.from_pylist(rows_of(history, "c")))
    assert nobody.num_rows == 0
