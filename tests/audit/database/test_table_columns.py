"""Do the tables say what the engine has stored?"""

from pathlib import Path
from typing import Any

import pytest

from broker.operations.sessions.inventory import Inventory
from tests.audit.databases import harbour, rows_of, written
from tests.session.harness import Broker


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(harbour(), tmp_path_factory.mktemp("harbour"))


def picked(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


def test_sessions_are_what_holdfast_session_list_tells(data: Path) -> None:
    broker = harbour()
    told = [
        (
            report.session.client_id,
            report.is_connected,
            report.session.position,
            len(report.session.subscriptions),
            len(report.session.in_flight),
            report.backlog.waiting,
            report.expires_ms,
        )
        for report in Inventory(broker.store).sessions()
    ]
    rows = rows_of(data, "sessions")
    for row in rows:
        row["expires"] = int(row["expires_at"].timestamp() * 1000) if row["expires_at"] else 0
    names = ("client_id", "connected", "position", "subs", "inflight", "waiting", "expires")
    assert picked(rows, *names) == told
    assert picked(rows, "client_id", "waiting") == [
        ("boat", 5), ("crane", 6), ("ferry", 0), ("pilot", 1), ("tug", 0),
    ]  # fmt: skip
    assert not any(row["waiting_is_at_least"] for row in rows)
    assert len({row["session"] for row in rows}) == 5


def test_inbound_qos_2_ids_are_counted(tmp_path: Path) -> None:
    broker = Broker()
    client = broker.durable("c")
    client.start_publish("t", b"x", 2)
    client.start_publish("t", b"y", 2)
    client.drop()
    (row,) = rows_of(written(broker, tmp_path), "sessions")
    assert (row["client_id"], row["incoming_qos2"]) == ("c", 2)


def test_subscriptions_name_their_streams_and_options(tmp_path: Path) -> None:
    broker = Broker()
    client = broker.durable("c", "a/#", "$share/g/a/#", qos=2)
    client.subscribe("b", qos=0, no_local=True, retain_as_published=True, identifier=7)
    client.drop()
    rows = rows_of(written(broker, tmp_path), "subscriptions")
    (stream,) = {row["stream"] for row in rows if row["stream"] is not None}
    columns = ("tfilter", "share", "stream", "qos", "no_local", "retain_as_published", "identifier")
    assert picked(rows, *columns) == [
        ("$share/g/a/#", "g", stream, 2, False, False, None),
        ("a/#", None, stream, 2, False, False, None),
        ("b", None, None, 0, True, True, 7),
    ]


def test_queues_tell_what_waits_by_stream_and_generation(data: Path) -> None:
    rows = rows_of(data, "queues")
    assert picked(rows, "client_id", "share", "tfilter", "generation", "waiting") == [
        ("boat", None, "fleet/#", 1, 2),
        ("boat", None, "fleet/#", 3, 3),
        ("crane", None, "dock", 2, 1),
        ("crane", None, "fleet/+", 1, 2),
        ("crane", None, "fleet/+", 3, 3),
        ("crane", None, "fleet/1", 1, 2),
        ("pilot", None, "fleet/2", 3, 1),
        (None, "tugs", "fleet/#", 1, 2),
        (None, "tugs", "fleet/#", 3, 3),
    ]


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_queues_are_counted_in_every_layout(layout: str, tmp_path: Path) -> None:
    broker = Broker(layout=layout)
    broker.durable("c", "a", "+").drop()
    for number in range(5):
        broker.publish("ab"[number % 2], b"x")
    path = written(broker, tmp_path)
    assert picked(rows_of(path, "queues"), "tfilter", "waiting") == [("+", 5), ("a", 3)]
    assert picked(rows_of(path, "sessions"), "waiting") == [(5,)]
    assert picked(rows_of(path, "messages"), "msg", "topic") == [
        (1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "a"),
    ]  # fmt: skip


def test_a_queue_that_is_empty_has_a_row_without_a_generation(tmp_path: Path) -> None:
    broker = Broker()
    broker.durable("c", "a").drop()
    (row,) = rows_of(written(broker, tmp_path), "queues")
    assert (row["client_id"], row["generation"], row["waiting"], row["owed"]) == ("c", None, 0, 0)


def test_what_a_group_was_given_back_is_owed_in_its_generation(tmp_path: Path) -> None:
    broker = Broker()
    broker.durable("stays", "$share/g/a").drop()
    member = broker.clean("c", "$share/g/a", qos=1)
    broker.publish("a", b"1")
    broker.publish("a", b"2")
    assert len(member.messages()) == 2
    broker.crash()
    (row,) = rows_of(written(broker, tmp_path), "queues")
    assert (row["share"], row["generation"], row["waiting"], row["owed"]) == ("g", 1, 0, 2)


def test_in_flight_messages_are_named_with_their_generation(data: Path, tmp_path: Path) -> None:
    columns = ("client_id", "pid", "qos", "released", "source", "msg", "generation", "tfilter")
    assert picked(rows_of(data, "in_flight"), *columns) == [
        ("pilot", 1, 2, False, "log", 4, 3, None),
        ("pilot", 2, 2, False, "log", 5, 3, None),
    ]
    broker = Broker()
    broker.publish("kept", b"r", retain=True)
    client = broker.durable("c", "$share/g/a")
    broker.publish("a", b"1")
    client.subscribe("kept", qos=1)
    client.drop()
    assert picked(rows_of(written(broker, tmp_path), "in_flight"), *columns) == [
        ("c", 1, 1, False, "group", 1, 1, "a"),
        ("c", 2, 1, False, "mailbox", None, None, None),
    ]


def test_messages_and_retained_messages_show_sizes_and_no_payload(data: Path) -> None:
    rows = rows_of(data, "messages")
    columns = ("msg", "generation", "publisher", "topic", "pub_qos", "retain", "bytes")
    assert picked(rows, *columns) == [
        (1, 1, "publisher", "fleet/1", 1, False, 1),
        (2, 1, "publisher", "fleet/1", 1, False, 2),
        (3, 2, "publisher", "dock", 1, True, 3),
        (4, 3, "publisher", "fleet/2", 2, False, 4),
        (5, 3, "publisher", "fleet/2", 2, False, 5),
        (6, 3, "publisher", "fleet/2", 1, False, 6),
    ]
    (last,) = rows[-1:]
    assert (last["expires_at"] - last["accepted_at"]).total_seconds() == 60
    (kept,) = rows_of(data, "retained")
    assert (kept["topic"], kept["pub_qos"], kept["bytes"]) == ("dock", 1, 3)
    assert kept["accepted_at"] == rows[2]["accepted_at"] and kept["expires_at"] is None
    assert "payload" not in {**last, **kept}


def test_generations_are_told_with_their_ends(data: Path) -> None:
    rows = rows_of(data, "generations")
    assert picked(rows, "generation", "layout", "first_msg", "last_msg", "is_closed") == [
        (1, "blocks", 1, 2, True),
        (2, "blocks", 3, 3, True),
        (3, "blocks", 4, 6, False),
    ]


def test_wills_of_the_connected_and_wills_that_wait(data: Path) -> None:
    rows = rows_of(data, "wills")
    assert picked(rows, "client_id", "waits", "topic", "qos", "bytes", "delay_s") == [
        ("pilot", False, "pilot/gone", 1, 6, 5),
        ("ferry", True, "ferry/gone", 1, 4, 60),
    ]
    (gone,) = [row for row in rows_of(data, "sessions") if row["client_id"] == "ferry"]
    waited = rows[1]["due_at"] - gone["disconnected_at"]
    assert rows[0]["due_at"] is None and waited.total_seconds() == 60
