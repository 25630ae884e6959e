"""The log that a program of a user writes about its client."""

import json
import threading
from pathlib import Path
from typing import Any

from audit.clients.records import parsed
from holdfast_mqtt.client_log import ClientLog, payload_hash


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_numbered_and_good_until_the_log_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = ClientLog(path, "c", sync_seconds=0)
    log.record("connected", session_present=True, server=None)
    log.record("puback", pid=7, reason=0)
    log.close()
    log.record("puback", pid=8, reason=0)
    log.close()
    assert [(line["n"], line["event"]) for line in lines(path)] == [
        (1, "connected"),
        (2, "puback"),
        (3, "closed"),
    ]
    assert [parsed(line)[1] for line in path.read_text().splitlines()] == [None] * 3
    assert path.stat().st_mode & 0o077 == 0


def test_a_half_line_of_a_power_cut_is_removed_and_the_file_continued(tmp_path: Path) -> None:
    path = tmp_path / "log"
    ClientLog(path, "c").close()
    with path.open("a") as file:
        file.write('{"v":1,"lo')
    ClientLog(path, "c").close()
    assert len(lines(path)) == 2
    assert len({line["log"] for line in lines(path)}) == 2
    path.write_text("half")
    ClientLog(path, "c").close()
    assert [line["event"] for line in lines(path)] == ["closed"]


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = ClientLog(path, "c")
    threads = [
        threading.Thread(target=lambda: [log.record("puback", pid=1, reason=0) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert [line["n"] for line in lines(path)] == list(range(1, 202))


def test_a_payload_is_named_by_the_beginning_of_its_sha_256() -> None:
    assert payload_hash(b"one") == "7692c3ad3540bb80"
