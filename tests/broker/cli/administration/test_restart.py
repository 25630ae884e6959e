"""`holdfast restart-check`: what a restart costs in sentences, and what is against it."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from broker.operations.looking.restart_report import objections, sentences
from tests.broker.cli.commands import Run
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

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


def test_a_running_broker_is_asked(run: Run, start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    where = ("--data-dir", str(broker.data_dir))
    client = RawClient(broker.port, "clean")
    client.connect(clean_start=True)
    good = run("restart-check", *where)
    assert good.returncode == 0
    assert "1 have clean sessions" in good.stdout
    assert good.stdout.endswith("nothing is against a restart\n")
    missing = {"HOLDFAST__AUTH__PASSWORD_FILE": "/nowhere/passwords"}
    bad = run("restart-check", *where, **missing)
    assert bad.returncode == 1
    assert "against it: it would not start: " in bad.stdout and "/nowhere/passwords" in bad.stdout
    facts = json.loads(run("restart-check", "-o", "json", *where).stdout)
    assert facts["against_it"] == [] and facts["durability"] == "fsync"
