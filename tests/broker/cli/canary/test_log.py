"""The log of a canary: numbered lines of several clients in one file."""

import json
from pathlib import Path

from broker.cli.canary.log import CanaryLog, message_fields


def test_each_client_has_its_own_numbers_and_an_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = CanaryLog(str(path), lambda: 5)
    log.record("a", "connected", session_present=False, server=None)
    log.record("b", "received", pid=1, **message_fields(b"x"))
    log.record("a", "puback", pid=1, reason=0)
    log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["client_id"], line["n"], line["event"]) for line in lines] == [
        ("a", 1, "connected"),
        ("b", 1, "received"),
        ("a", 2, "puback"),
        ("a", 3, "closed"),
        ("b", 2, "closed"),
    ]
    assert len({line["log"] for line in lines}) == 2
    assert lines[1]["hash"] == "2d711642b726b044" and lines[1]["bytes"] == 1
    assert "server" not in lines[0] and lines[0]["at_us"] == 5000


def test_a_second_run_is_another_log_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for _ in range(2):
        log = CanaryLog(str(path), lambda: 5)
        log.record("a", "connected", session_present=False)
        log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["n"] for line in lines] == [1, 2, 1, 2]
    assert len({line["log"] for line in lines}) == 2
