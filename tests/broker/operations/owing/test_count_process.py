"""One census as a process tells it: two lines, and what one has counted the next one knows."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from broker.operations.owing import count_process
from broker.operations.owing.count_process import NAME_MAX, Breath, serve
from session.state.records import encode_session
from session.state.session import Session
from storage.local.rocks import RocksStore
from storage.tables.tables import FAMILIES, SESSIONS, seal
from tests.stand_in import replace_in
from tests.storage.log_cases import accept, rotate, start


def database(tmp_path: Path, client_id: str = "boat") -> Path:
    """Return a database with a session, and messages in two generations that nobody needs."""
    store = RocksStore(tmp_path / "db", families=FAMILIES)
    log = start(store)
    accept(store, log, "ab")
    rotate(store, log)
    session = Session(client_id, "", 0)
    session.in_flight[1] = 1 << 8  # not a reference to a message
    store.write([(SESSIONS, client_id.encode(), seal(encode_session(session)))])
    store.sync()
    store.close()
    return tmp_path / "db"


def served(place: Path, before: bytes = b"") -> tuple[int, list[dict[str, Any]]]:
    out = io.BytesIO()
    status = serve(place, io.BytesIO(before), out)
    return status, [json.loads(line) for line in out.getvalue().splitlines()]


def test_the_first_line_is_what_was_found_and_the_second_is_for_the_next_one(
    tmp_path: Path,
) -> None:
    status, (found, known) = served(database(tmp_path))
    assert status == 0
    assert found["totals"]["sessions_stored"] == 1
    assert [row["messages"] for row in found["pins"]] == [2, 0]
    assert found["cpu_seconds"] >= 0
    assert known == {"known": []}
    status, (again, _) = served(tmp_path / "db", b'{"known": [[1, 1, 0, 2, 4, 1]]}\n')
    assert (status, again["totals"]["offline"]) == (0, found["totals"]["offline"])


def test_long_names_are_cut(tmp_path: Path) -> None:
    _, (found, _) = served(database(tmp_path, "x" * 1000))
    assert found["totals"]["top"][0]["client_id"] == "x" * NAME_MAX


def test_a_database_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    status, (line,) = served(tmp_path / "absent")
    assert status == 1
    assert "absent" in line["error"]


def test_it_rests_when_it_has_worked_and_ends_without_its_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, rested, ended = 0.0, [0.0], [0]
    replace_in(monkeypatch, count_process, "time", process_time=lambda: clock, sleep=rested.append)
    breath = Breath()
    breath()
    assert rested == [0.0]
    clock = 0.1
    breath()
    assert rested[1:] == [pytest.approx(0.3)]
    breath()
    assert len(rested) == 2
    clock = 9.0
    breath()
    assert rested[2:] == [1.0]
    parent = os.getppid()
    replace_in(monkeypatch, count_process, "os", getppid=lambda: parent + 1, _exit=ended.append)
    clock = 10.0
    breath()
    assert ended[1:] == [1]
