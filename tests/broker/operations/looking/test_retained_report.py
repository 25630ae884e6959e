"""Retained messages as text for people and for programs."""

import base64
import csv
import json

import pytest

from broker.operations.looking import retained_report
from broker.operations.looking.listing import Asked
from broker.operations.looking.retained_report import PAYLOAD_SHOWN_MAX
from broker.operations.looking.store_time import StoreTime
from mqtt.message import Message
from storage.local.memory import MemoryStore

WALL_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z


@pytest.fixture
def time() -> StoreTime:
    """The time of a store without heartbeat: broker time is wall time."""
    return StoreTime(MemoryStore(), WALL_MS, "boot", 5)


def message(
    topic: str = "a/x", payload: bytes = b"hello", expires_at_ms: int = 0, publisher: str = "pub"
) -> Message:
    return Message(topic, payload, 1, True, b"", publisher, WALL_MS, expires_at_ms)


def listed(time: StoreTime, *messages: Message, output: str = "table") -> list[str]:
    rows = (retained_report.fields(time, message) for message in messages)
    return list(retained_report.RETAINED.lines(Asked(output=output), rows))


def test_a_table_has_a_line_for_each(time: StoreTime) -> None:
    lines = listed(time, message(), message("b", b"", WALL_MS + 60_000))
    assert [line.split() for line in lines] == [
        ["TOPIC", "BYTES", "QOS", "STORED_AT", "EXPIRES_AT", "PUBLISHER"],
        ["a/x", "5", "1", "2023-11-14T22:13:20Z", "never", "pub"],
        ["b", "0", "1", "2023-11-14T22:13:20Z", "2023-11-14T22:14:20Z", "pub"],
    ]


def test_csv_can_be_read_back(time: StoreTime) -> None:
    rows = list(csv.DictReader(listed(time, message('a,"b', publisher=""), output="csv")))
    assert rows == [
        {"topic": 'a,"b', "bytes": "5", "qos": "1", "stored_at": "2023-11-14T22:13:20Z",
         "expires_at": "", "publisher": ""}
    ]  # fmt: skip


def test_json_is_an_array_of_any_length(time: StoreTime) -> None:
    assert json.loads("\n".join(listed(time, output="json"))) == []
    told = json.loads("\n".join(listed(time, message(), message("b"), output="json")))
    assert [row["topic"] for row in told] == ["a/x", "b"]
    assert told[0]["expires_at"] is None


def test_a_page_shows_text_escaped(time: StoreTime) -> None:
    payload = "23 \u00b0C\n\x1b[31m".encode()
    lines = list(retained_report.message_as_page(time, message(payload=payload)))
    assert [line.split(maxsplit=1) for line in lines] == [
        ["topic", "a/x"],
        ["bytes", "12"],
        ["qos", "1"],
        ["stored_at", "2023-11-14T22:13:20Z"],
        ["expires_at", "never"],
        ["publisher", "pub"],
        ["payload", "23 \u00b0C\\n\\x1b[31m"],
    ]


def test_a_page_shows_other_payloads_in_hexadecimal(time: StoreTime) -> None:
    *_, last = retained_report.message_as_page(time, message(payload=b"\xff\x00\x01"))
    assert last.split() == ["payload", "hex", "ff0001"]


@pytest.mark.parametrize("payload", [b"x", "\u00e9".encode(), b"\xff"])
def test_a_page_shows_the_beginning_of_a_large_payload(time: StoreTime, payload: bytes) -> None:
    whole = b"y" + payload * PAYLOAD_SHOWN_MAX
    *_, shown, note = retained_report.message_as_page(time, message(payload=whole))
    assert len(shown) <= 2 * PAYLOAD_SHOWN_MAX + 20
    assert str(PAYLOAD_SHOWN_MAX) in note


def test_json_of_one_has_the_whole_payload(time: StoreTime) -> None:
    payload = bytes(range(256)) * 1000
    told = json.loads(retained_report.message_as_json(time, message(payload=payload)))
    assert base64.b64decode(told["payload_base64"]) == payload
    assert told["bytes"] == 256_000


def test_hostile_names_cannot_disturb_the_terminal(time: StoreTime) -> None:
    hostile = message("a\x1b[31m\n", publisher="\u202eb")
    for lines in (
        listed(time, hostile),
        listed(time, hostile, output="csv"),
        retained_report.message_as_page(time, hostile),
        listed(time, hostile, output="json"),
    ):
        assert all(part.isprintable() for line in lines for part in line.split("\n"))
