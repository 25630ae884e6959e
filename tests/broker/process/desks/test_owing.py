"""What is owed is answered as it was counted last; nothing is counted for an answer."""

import json
import time
from typing import Any

import pytest

from broker.operations.control_socket import ControlError
from broker.operations.owing.count_thread import Counted
from broker.process.desks.owing import PAGE_BYTES, PINS, TOTALS, OwedDesk


def counted(pins: list[dict[str, Any]], problems: list[str] | None = None) -> Counted:
    none = {"holders": 0, "messages": 0, "bytes": 0}
    totals = {"messages": 7, "bytes": 70, "oldest_ms": 5, "sessions": 1, "groups": none, "top": []}
    answer = {"totals": totals, "pins": pins, "problems": problems or []}
    return Counted(answer, time.monotonic() - 3)


def test_totals_are_strings_and_lists_are_json() -> None:
    desk = OwedDesk(is_on=True)
    desk.found(counted([]))
    answer = desk.answer({"do": TOTALS})
    assert (answer["messages"], answer["bytes"], answer["oldest_ms"]) == ("7", "70", "5")
    assert json.loads(answer["groups"])["holders"] == 0
    assert json.loads(answer["top"]) == []
    assert int(answer["age_ms"]) >= 3000
    assert answer["problem"] == ""


def test_generations_come_in_pages() -> None:
    rows = [{"generation": number, "name": "x" * (PAGE_BYTES // 4)} for number in range(1, 12)]
    desk = OwedDesk(is_on=True)
    desk.found(counted(rows, ["session 'boat': damaged"]))
    found: list[dict[str, Any]] = []
    after, pages = "0", 0
    while after:
        answer = desk.answer({"do": PINS, "after": after})
        assert answer["problem"] == "session 'boat': damaged"
        found += json.loads(answer["pins"])
        after = answer["after"]
        pages += 1
    assert found == rows
    assert pages == 3
    assert json.loads(desk.answer({"do": PINS})["pins"]) == rows[:4]


def test_what_cannot_be_answered_is_said() -> None:
    for is_on, why in ((False, "metrics.backlog_interval is 0"), (True, "was not counted yet")):
        with pytest.raises(ControlError, match=why):
            OwedDesk(is_on=is_on).answer({"do": TOTALS})
    desk = OwedDesk(is_on=True)
    desk.found(counted([]))
    for after in ("-1", "x", "9" * 20):
        with pytest.raises(ControlError, match="expected the number of a generation"):
            desk.answer({"do": PINS, "after": after})
