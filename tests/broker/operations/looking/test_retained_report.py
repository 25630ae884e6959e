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


def text_of(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()


def with_properties() -> Message:
    made = message()
    made.properties = b"".join(
        (
            b"\x01\x01",
            b"\x03" + text_of("text/plain"),
            b"\x08" + text_of("answers/1"),
            b"\x09\x00\x02\x00\xff",
            b"\x26" + text_of("unit") + text_of("m"),
            b"\x26" + text_of("unit") + text_of("\x1b[31m"),
        )
    )
    return made


def test_a_page_has_the_properties_that_the_publisher_sent(time: StoreTime) -> None:
    lines = list(retained_report.message_as_page(time, with_properties()))
    assert [line.split("  ", 1)[0] for line in lines[6:]] == [
        "content_type",
        "payload_format",
        "response_topic",
        "correlation_data_base64",
        "user property",
        "user property",
        "payload",
    ]
    text = "\n".join(lines)
    assert "text/plain" in text and "answers/1" in text and "AP8=" in text
    assert "unit = m" in text and "unit = \\x1b[31m" in text


def test_json_of_one_has_every_property_or_null(time: StoreTime) -> None:
    told = json.loads(retained_report.message_as_json(time, with_properties()))
    assert (told["content_type"], told["payload_format"]) == ("text/plain", "text")
    assert (told["response_topic"], told["correlation_data_base64"]) == ("answers/1", "AP8=")
    assert told["user_properties"] == [["unit", "m"], ["unit", "\x1b[31m"]]
    bare = json.loads(retained_report.message_as_json(time, message()))
    assert bare["user_properties"] == [] and bare["properties_problem"] is None
    names = ("content_type", "payload_format", "response_topic", "correlation_data_base64")
    assert all(bare[name] is None for name in names)


def test_properties_that_cannot_be_read_are_said_and_the_payload_is_there(
    time: StoreTime,
) -> None:
    damaged = message()
    damaged.properties = b"\x03\x00"
    text = "\n".join(retained_report.message_as_page(time, damaged))
    assert "properties_problem" in text and "hello" in text
