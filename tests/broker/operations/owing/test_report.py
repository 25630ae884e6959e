"""What a census has found is told as fields and as a table that no name can disturb."""

from typing import Any

from broker.operations.looking.store_time import StoreTime
from broker.operations.owing import census, report
from tests.session.harness import Broker
from tests.session.lifetime.test_collection import rotate


def told(broker: Broker) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    found = census.take(broker.store, broker.now)
    return report.totals(found), report.pins(found, StoreTime(broker.store, 0, "", 0))


def lines(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [line.split(maxsplit=8) for line in report.as_table(rows)][1:]


def test_totals_have_ages_and_those_that_are_owed_most() -> None:
    broker = Broker()
    broker.durable("boat", "a").drop()
    broker.publish("a", b"12")
    broker.advance(s=5)
    totals, _ = told(broker)
    assert totals.pop("top") == [
        {"client_id": "boat", "state": "offline", "messages": 1, "bytes": 3, "oldest_ms": 5000}
    ]
    none = {"holders": 0, "messages": 0, "bytes": 0}
    assert totals == {
        "messages": 1,
        "bytes": 3,
        "oldest_ms": 5000,
        "sessions": 1,
        "sessions_stored": 1,
        "offline": {"holders": 1, "messages": 1, "bytes": 3},
        "online": none,
        "groups": none,
        "unreadable": 0,
    }
    assert told(Broker())[0]["oldest_ms"] == 0


def test_generations_are_told_with_their_age_and_who_needs_them() -> None:
    broker = Broker()
    broker.durable("boat", "a").drop()
    broker.durable("w", "$share/g/a").drop()
    for _ in range(2):
        broker.publish("a")
    rotate(broker)
    broker.advance(s=2)
    _, rows = told(broker)
    assert [row["generation"] for row in rows] == [1, 2]
    (first, second) = rows
    assert (first["state"], first["messages"], first["age_seconds"]) == ("closed", 2, 2)
    assert first["largest_sessions"] == [{"name": "boat", "messages": 2}]
    assert first["largest_groups"] == [{"name": "$share/g/a", "messages": 2}]
    assert (second["state"], second["sessions"], second["bytes"]) == ("open", 0, 0)
    assert [cells[-1] for cells in lines(rows)] == [
        "boat (2), $share/g/a (2)",
        "nobody: it takes messages",
    ]


def test_those_without_a_name_are_counted() -> None:
    broker = Broker()
    for number in range(5):
        broker.durable(f"c{number}", "a").drop()
    broker.publish("a")
    rotate(broker)
    _, rows = told(broker)
    assert lines(rows)[0][-1] == "c2 (1), c3 (1), c4 (1), 2 more sessions"
    rows[0]["unreadable"] = 1
    assert lines(rows)[0][-1].endswith(", 1 that cannot be read")
    rows[0] |= {"sessions": 0, "largest_sessions": [], "unreadable": 0}
    assert lines(rows)[0][-1] == "nobody: it goes soon"


def test_csv_has_a_line_for_each_generation() -> None:
    broker = Broker()
    broker.durable("boat", "a").drop()
    broker.publish("a")
    _, rows = told(broker)
    header, line = report.as_csv(rows)
    assert dict(zip(header.split(","), line.split(","), strict=True))["sessions"] == "1"


def test_hostile_names_cannot_disturb_the_terminal() -> None:
    broker = Broker()
    broker.durable("\x1b[31m\u202e", "a").drop()
    broker.publish("a")
    _, rows = told(broker)
    assert all(line.isprintable() for line in report.as_table(rows))
