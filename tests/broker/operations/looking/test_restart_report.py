"""What a restart costs in sentences, and what is against it."""

import re
from typing import Any

import pytest

from broker.operations.looking.restart_report import objections, sentences

FACTS: dict[str, Any] = {
    "phase": "ready",
    "connected": 3,
    "durable_sessions_connected": 2,
    "clean_sessions_connected": 1,
    "sessions_stored": 5,
    "durability": "fsync",
    "last_recovery_seconds": 0.02,
    "writes_refused": "",
    "disk_is_low": False,
    "backends_down": [],
    "configuration": "",
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"configuration": "listener.tls_key: missing"}, "would not start: listener.tls_key"),
        ({"phase": "draining"}, "the broker is draining"),
        ({"writes_refused": "no space", "disk_is_low": True}, r"takes no writes \(no space\)"),
        ({"disk_is_low": True}, "below storage.low_water"),
        ({"backends_down": ["cache"]}, "backend cache is down and required"),
    ],
)
def test_what_is_against_a_restart_is_said(change: dict[str, Any], words: str) -> None:
    (said,) = objections({**FACTS, **change})
    assert re.search(words, said)


def test_what_a_restart_costs_depends_on_the_durability() -> None:
    assert list(objections(FACTS)) == []
    assert "all that was acknowledged is on the disk" in list(sentences(FACTS))
    said = " ".join(sentences({**FACTS, "durability": "os"}))
    assert "durability = os" in said and "on the disk" not in said
