"""Sessions as text for people and for programs."""

import json

import pytest

from broker.operations import sessions_report
from broker.operations.inventory import WAITING_COUNT_MAX, Inventory, SessionReport
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
    client_id: str = "boat", *, is_connected: bool = False, expiry_s: int = 60, waiting: int = 3
) -> SessionReport:
    session = Session(client_id, "anna", 4_000)
    session.connected_at_ms = 5_000
    session.disconnected_at_ms = 0 if is_connected else 10_000
    session.expiry_interval_s = expiry_s
    session.protocol_version = 5
    session.add(Subscription("a/#", None, "a/#", 1, True, False, 0, 7, 0, True))
    return SessionReport(session, is_connected, 2, waiting)


def test_a_table_has_a_line_per_session_in_wall_time(inventory: Inventory) -> None:
    reports = [report(), report("long client id", is_connected=True), report(expiry_s=EXPIRY_NEVER)]
    lines = list(sessions_report.as_table(inventory, reports))
    assert [line.split("  ")[0].strip() for line in lines] == [
        "CLIENT_ID", "boat", "long client id", "boat",
    ]  # fmt: skip
    assert lines[1].split() == [
        "boat", "offline", "2023-11-14T22:13:20Z", "2023-11-14T22:14:20Z", "1", "0", "3",
    ]  # fmt: skip
    assert lines[2].split()[3:] == ["online", "2023-11-14T22:13:15Z", "-", "1", "0", "3"]
    assert lines[3].split()[3] == "never"
    assert len({line.index("2023") for line in lines[1:]}) == 1


def test_an_unfinished_count_says_so(inventory: Inventory) -> None:
    (_, line) = sessions_report.as_table(inventory, [report(waiting=WAITING_COUNT_MAX)])
    assert line.endswith(f"{WAITING_COUNT_MAX}+")


def test_json_is_complete_and_null_means_not(inventory: Inventory) -> None:
    (session,) = json.loads(sessions_report.as_json(inventory, [report()]))
    assert session["client_id"] == "boat"
    assert session["identity"] == "anna"
    assert session["created_at"] == "2023-11-14T22:13:14Z"
    assert session["expires_at"] == "2023-11-14T22:14:20Z"
    assert (session["in_flight"], session["incoming_qos2"], session["waiting"]) == (0, 2, 3)
    assert session["subscriptions"] == [
        {
            "topic_filter": "a/#",
            "qos": 1,
            "no_local": True,
            "retain_as_published": False,
            "identifier": 7,
        }
    ]
    (online,) = json.loads(sessions_report.as_json(inventory, [report(is_connected=True)]))
    assert online["disconnected_at"] is None
    assert online["expires_at"] is None


def test_a_page_lists_fields_and_subscriptions(inventory: Inventory) -> None:
    lines = list(sessions_report.as_page(inventory, report(is_connected=True)))
    assert any(line.split() == ["state", "online"] for line in lines)
    assert any(line.split() == ["expires_at", "-"] for line in lines)
    assert lines[-1] == "  a/#  qos=1"


def test_hostile_client_ids_cannot_disturb_the_terminal(inventory: Inventory) -> None:
    lines = list(sessions_report.as_table(inventory, [report("a\x1b[31m\n\u202eb")]))
    assert len(lines) == 2
    assert lines[1].startswith("a\\x1b[31m\\n\\u202eb ")
