"""Sessions as text for people and for programs."""

import csv
import json

import pytest

from broker.operations.sessions import report as text
from broker.operations.sessions.backlogs import Backlog
from broker.operations.sessions.inventory import Inventory, SessionReport
from broker.operations.sessions.ranking import Totals
from session.state.session import EXPIRY_NEVER, Session
from session.state.subscription import Subscription
from storage.local.memory import MemoryStore
from storage.tables.tables import META
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat

WALL_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z


@pytest.fixture
def inventory() -> Inventory:
    """An inventory in which broker time 10,000 was that wall time."""
    store = MemoryStore()
    store.create_family(META)
    store.write([(META, HEARTBEAT_KEY, Heartbeat(10_000, WALL_MS, "boot", 5).encode())])
    return Inventory(store)


def report(
    client_id: str = "boat",
    *,
    is_connected: bool = False,
    expiry_s: int = 60,
    backlog: Backlog | None = None,
) -> SessionReport:
    session = Session(client_id, "anna", 4_000)
    session.connected_at_ms = 5_000
    session.disconnected_at_ms = 0 if is_connected else 10_000
    session.expiry_interval_s = expiry_s
    session.protocol_version = 5
    session.add(Subscription("a/#", None, "a/#", 1, True, False, 0, 7, 0, True))
    return SessionReport(session, is_connected, 2, backlog or Backlog(3, None, 7_000))


def test_a_table_has_a_line_per_session_in_wall_time(inventory: Inventory) -> None:
    reports = [report(), report("long client id", is_connected=True), report(expiry_s=EXPIRY_NEVER)]
    lines = list(text.as_table(inventory, reports))
    assert [line.split("  ")[0].strip() for line in lines] == [
        "CLIENT_ID", "boat", "long client id", "boat",
    ]  # fmt: skip
    assert lines[1].split() == [
        "boat", "offline", "2023-11-14T22:13:20Z", "2023-11-14T22:14:20Z", "1", "0", "3",
        "2023-11-14T22:13:17Z",
    ]  # fmt: skip
    assert lines[2].split()[3:-1] == ["online", "2023-11-14T22:13:15Z", "-", "1", "0", "3"]
    assert lines[3].split()[3] == "never"
    assert len({line.index("2023") for line in lines[1:]}) == 1


def test_bytes_are_a_column_where_they_were_counted(inventory: Inventory) -> None:
    reports = [report(backlog=Backlog(1_000_000, 123_456_789, 0))]
    (header, line) = text.as_table(inventory, reports, with_bytes=True)
    assert header.split() == list(text.COLUMNS)
    assert line.split()[-3:] == ["1000000", "123456789", "-"]
    (header, _) = text.as_table(inventory, reports)
    assert "BYTES" not in header


def test_csv_has_the_fields_of_json_and_counts_subscriptions(inventory: Inventory) -> None:
    reports = [report('a,"\x1b[2J'), report("b", backlog=Backlog(5, 60, 0))]
    rows = list(csv.DictReader(text.as_csv(inventory, reports)))
    assert [row["client_id"] for row in rows] == ['a,"\\x1b[2J', "b"]
    assert [row["subscriptions"] for row in rows] == ["1", "1"]
    assert [(row["waiting"], row["bytes"], row["oldest_at"]) for row in rows] == [
        ("3", "", "2023-11-14T22:13:17Z"),
        ("5", "60", ""),
    ]
    assert set(rows[0]) == set(text.fields(inventory, reports[0]))


def test_the_last_line_of_the_top_has_totals() -> None:
    shown, every = Totals(), Totals()
    shown.sessions, shown.messages, shown.size_bytes = 2, 1500, 70_000
    every.sessions, every.messages, every.size_bytes = 3, 1501, 70_001
    assert text.totals_line(shown, every, with_bytes=True) == (
        "2 of 3 sessions with a backlog: 1,500 of 1,501 messages, 70,000 of 70,001 bytes"
    )
    assert text.totals_line(shown, every, with_bytes=False).endswith("messages, 70,000 bytes")


def test_json_is_complete_and_null_means_not(inventory: Inventory) -> None:
    (session,) = json.loads("\n".join(text.as_json(inventory, [report()])))
    assert session["client_id"] == "boat"
    assert session["identity"] == "anna"
    assert session["created_at"] == "2023-11-14T22:13:14Z"
    assert session["expires_at"] == "2023-11-14T22:14:20Z"
    assert (session["in_flight"], session["incoming_qos2"], session["waiting"]) == (0, 2, 3)
    assert (session["bytes"], session["oldest_at"]) == (None, "2023-11-14T22:13:17Z")
    assert session["subscriptions"] == [
        {
            "topic_filter": "a/#",
            "qos": 1,
            "no_local": True,
            "retain_as_published": False,
            "identifier": 7,
        }
    ]
    (online,) = json.loads("\n".join(text.as_json(inventory, [report(is_connected=True)])))
    assert online["disconnected_at"] is None
    assert online["expires_at"] is None


def test_a_page_lists_fields_and_subscriptions(inventory: Inventory) -> None:
    lines = list(text.as_page(inventory, report(is_connected=True)))
    assert any(line.split() == ["state", "online"] for line in lines)
    assert any(line.split() == ["expires_at", "-"] for line in lines)
    assert lines[-1] == "  a/#  qos=1"


def test_a_page_says_which_subscriptions_are_owed_to_a_group(inventory: Inventory) -> None:
    found = report()
    found.session.add(Subscription("$share/g/b", "g", "b", 2, False, False, 0, 0, 0, True))
    assert list(text.as_page(inventory, found))[-1] == "  $share/g/b  qos=2  (owed to its group)"


def test_hostile_client_ids_cannot_disturb_the_terminal(inventory: Inventory) -> None:
    lines = list(text.as_table(inventory, [report("a\x1b[31m\n\u202eb")]))
    assert len(lines) == 2
    assert lines[1].startswith("a\\x1b[31m\\n\\u202eb ")
