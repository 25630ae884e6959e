"""What a session is owed as text for people and for programs."""

import base64
import csv
import json

import pytest

from broker.operations.sessions import queue_report
from broker.operations.sessions.inventory import Inventory
from broker.operations.sessions.owed import DAMAGED, LOG, SENT, WAITS, Owed
from broker.operations.sessions.queue_report import PAYLOAD_SHOWN_MAX, payload_text
from mqtt.message import Message
from session.state.session import Replay, Session
from session.state.subscription import Subscription
from storage.local.memory import MemoryStore

START_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z


@pytest.fixture
def inventory() -> Inventory:
    return Inventory(MemoryStore())


def message(topic: str = "a/b", payload: bytes = b"hello", expires_ms: int = 0) -> Message:
    return Message(topic, payload, 2, False, b"", "plc", START_MS, expires_ms, 7)


def queue() -> list[Owed]:
    return [
        Owed(SENT, 3, LOG, 7, 1, message()),
        Owed(WAITS, 0, LOG, 8, 2, message("t\x1b[2J", b"\xff\x00", START_MS + 60_000)),
        Owed(DAMAGED, 0, LOG, 9, None, None),
    ]


def test_a_table_says_what_is_sent_how(inventory: Inventory) -> None:
    lines = list(queue_report.as_table(inventory, queue(), with_payload=False))
    time = "2023-11-14T22:13:20Z"
    assert [line.split() for line in lines] == [
        list(queue_report.COLUMNS),
        ["sent", "3", "7", "a/b", "1", "8", time, "-", "plc"],
        ["waits", "-", "8", "t\\x1b[2J", "2", "7", time, "2023-11-14T22:14:20Z", "plc"],
        ["damaged", "-", "9", "-", "-", "-", "-", "-", "-"],
    ]


def test_payloads_are_shown_where_they_are_asked_for(inventory: Inventory) -> None:
    lines = list(queue_report.as_table(inventory, queue(), with_payload=True))
    assert [line.split()[-1] for line in lines] == ["PAYLOAD", "hello", "0xff00", "-"]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", ""),
        ("Überdruck \x1b[31m".encode(), "Überdruck \\x1b[31m"),
        (b"x" * PAYLOAD_SHOWN_MAX, "x" * PAYLOAD_SHOWN_MAX),
        (b"x" * 1_000_000, "x" * PAYLOAD_SHOWN_MAX + "..."),
        (b"\x01" * 40, ("\\x01" * 40)[:PAYLOAD_SHOWN_MAX] + "..."),
        (b"\xff" * 32, "0x" + "ff" * 32),
        (b"\xff" * 33, "0x" + "ff" * 32 + "..."),
    ],
)
def test_a_payload_is_text_or_hexadecimal_and_cut(payload: bytes, expected: str) -> None:
    assert payload_text(payload) == expected


def test_json_and_csv_have_whole_payloads_in_base64(inventory: Inventory) -> None:
    payload = bytes(range(256)) * 10
    owed = [Owed(SENT, 3, LOG, 7, 1, message(payload=payload)), queue()[2]]
    lines = queue_report.as_json(inventory, owed, with_payload=True)
    (first, second) = json.loads("\n".join(lines))
    assert base64.b64decode(first.pop("payload")) == payload
    assert first == {
        "state": "sent", "packet_id": 3, "source": "log", "offset": 7, "topic": "a/b", "qos": 1,
        "bytes": 3 + 2560, "accepted_at": "2023-11-14T22:13:20Z", "expires_at": None,
        "publisher": "plc",
    }  # fmt: skip
    assert second["payload"] is None and second["packet_id"] is None and second["offset"] == 9
    rows = list(csv.DictReader(queue_report.as_csv(inventory, owed, with_payload=True)))
    assert base64.b64decode(rows[0]["payload"]) == payload
    assert (rows[1]["topic"], rows[1]["offset"], rows[1]["payload"]) == ("", "9", "")
    assert list(rows[0]) == [*queue_report.FIELDS, "payload"]


def test_without_payload_there_is_none(inventory: Inventory) -> None:
    (first, *_) = json.loads(
        "\n".join(queue_report.as_json(inventory, queue(), with_payload=False))
    )
    assert list(first) == list(queue_report.FIELDS)
    assert next(queue_report.as_csv(inventory, [], with_payload=False)) == ",".join(
        queue_report.FIELDS
    )


def test_what_is_owed_elsewhere_is_said_in_a_line() -> None:
    session = Session("boat", "", 0)
    assert list(queue_report.notes(session)) == []
    for number in range(5):
        name = f"$share/g/\x1b{number}"
        session.add(Subscription(name, "g", name[9:], 1, False, False, 0, 0, 0, True))
    session.replays["kept/#"] = Replay("kept/#", 1, 0, b"")
    (shared, replays) = queue_report.notes(session)
    assert shared == (
        "shared subscriptions: $share/g/\\x1b0, $share/g/\\x1b1, $share/g/\\x1b2 and 2 more. "
        "What waits for them is owed to the group, and is not listed"
    )
    assert "kept/#" in replays
