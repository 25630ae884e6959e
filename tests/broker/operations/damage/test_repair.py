"""Is the new directory usable at once or not there at all, and the old one never changed?"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broker.operations.damage import repair as module
from broker.operations.damage.check import check
from broker.operations.damage.repair import RepairError, repair, report_lines, report_object
from storage.local.data_directory import DataDirectory
from storage.local.opening import open_database
from storage.tables.tables import FAMILIES, SESSIONS
from tests.broker.operations.damage.databases import (
    contents,
    fleet,
    flip,
    opened,
    rows_of,
    saved,
    table_of,
    tables,
)
from tests.durability.process import holdfast
from tests.durability.rawclient import RawClient


def test_the_new_directory_is_opened_like_any_other(tmp_path: Path) -> None:
    data = saved(fleet(), tmp_path / "data")
    (data / "history.node").write_text("pier\n")
    before = contents(data)
    new = tmp_path / "new"
    new.mkdir()
    repair(str(data), str(new))
    assert contents(data) == before
    place = DataDirectory(new)
    store, watermark, notes = open_database(place, families=FAMILIES)
    assert notes == [] and watermark.sequence == store.sequence()
    store.close()
    watermark.close()
    place.close()
    assert (new / "history.node").read_text() == "pier\n"
    assert new.stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "new"]


@pytest.mark.parametrize("damage", ["block", "footer", "missing", "MANIFEST", "CURRENT", "mixed"])
def test_the_damaged_directory_is_only_read(tmp_path: Path, damage: str) -> None:
    data = saved(fleet(), tmp_path / "data")
    sessions = table_of(data, b"idle\0nothing/+")
    if damage in ("block", "mixed"):
        flip(sessions, 10)
    if damage == "footer":
        flip(sessions, sessions.stat().st_size - 2)
    if damage == "missing":
        sessions.unlink()
    if damage in ("MANIFEST", "mixed"):
        (file,) = (data / "db").glob("MANIFEST-*")
        flip(file, file.stat().st_size // 2)
    if damage in ("CURRENT", "mixed"):
        (data / "db" / "CURRENT").unlink()
    before = contents(data)
    repaired = repair(str(data), str(tmp_path / "new"))
    assert contents(data) == before
    assert not repaired.found.is_whole and check(str(tmp_path / "new")).is_whole
    whole = damage in ("MANIFEST", "CURRENT")
    assert set(repaired.ended) == (
        set() if whole else {"boat", "crane", "diver", "idle", "pilot"}
    ), "without subscriptions a session would wait for nothing"
    assert set(rows_of(tmp_path / "new")[SESSIONS]) == (
        {b"boat", b"crane", b"diver", b"idle", b"pilot", b"tug"} if whole else {b"tug"}
    )


def test_what_is_in_the_way_is_one_line_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = saved(fleet(), tmp_path / "data")
    new = tmp_path / "new"
    with pytest.raises(RepairError, match="no database in it"):
        repair(str(tmp_path), str(new))
    with pytest.raises(RepairError, match="in the database itself"):
        repair(str(data), str(data / "db" / "new"))
    place = DataDirectory(data)
    with pytest.raises(RepairError, match="in use; stop the broker first"):
        repair(str(data), str(new))
    place.close()
    new.mkdir()
    (new / "file").touch()
    with pytest.raises(RepairError, match="not empty; expected a new directory"):
        repair(str(data), str(new))
    shutil.rmtree(new)
    monkeypatch.setattr(module, "ROOM_MORE", 1 << 60)
    with pytest.raises(RepairError, match="bytes free, expected 11529"):
        repair(str(data), str(new))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    (tmp_path / "new.unfinished").mkdir()
    with pytest.raises(RepairError, match="left by a repair that did not finish"):
        repair(str(data), str(new))


def test_a_full_disk_is_one_line_and_nothing_is_left(tmp_path: Path) -> None:
    """Does a failing write end the copy with one line, and no new directory?"""
    data = saved(fleet(), tmp_path / "data")
    limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (3000, 3000)); "
    program = (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        + limit
        + "from broker.cli.main import main; "
        + f"raise SystemExit(main(['db', 'repair', {str(data)!r}, {str(tmp_path / 'new')!r}]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1, result.stderr
    assert "File too large" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_the_report_says_what_is_kept_and_what_is_lost(tmp_path: Path) -> None:
    data = saved(fleet(), tmp_path / "data")
    lines = report_lines("SRC", "NEW", repair(str(data), str(tmp_path / "first")))
    assert lines[0].startswith("NEW: saved from SRC")
    assert lines[1].startswith("kept: 6 sessions, 6 subscriptions, 4 retained messages, ")
    assert lines[2] == "nothing was damaged, nothing is lost"
    with opened(data) as store:
        store.write([(SESSIONS, b"boat", b"torn")])
    repaired = repair(str(data), str(tmp_path / "new"))
    lines = report_lines("SRC", "NEW", repaired)
    assert "sessions that are lost, with all that waited for them: 1" in lines
    assert "  'boat': its row cannot be read" in lines
    told = report_object("SRC", "NEW", repaired)
    assert told["sessions_lost"] == [{"client_id": "boat", "reason": "its row cannot be read"}]


@pytest.mark.full
def test_a_broker_serves_what_was_saved(tmp_path: Path) -> None:
    """Damage the messages of one session: does the other one get all of its own?"""
    broker = holdfast(tmp_path / "data").start()
    try:
        for name in ("damaged", "whole"):
            client = RawClient(broker.port, name).open()
            client.durable()
            client.subscribe(f"{name}/t")
            client.drop()
        publisher = RawClient(broker.port, "publisher").open()
        publisher.connect()
        for number in range(40):
            publisher.publish("damaged/t", b"%02d" % number + os.urandom(2000))
        for number in range(40):
            publisher.publish("whole/t", b"%02d" % number)
        publisher.disconnect()
        running = check(str(broker.data_dir))
        assert running.is_whole and running.rows[SESSIONS] == 2
        assert not list(broker.data_dir.glob("check-*"))
        assert broker.stop() == 0
    finally:
        broker.close()
    data = broker.data_dir
    with opened(data) as store:
        store.flush()
    table = max(tables(data), key=lambda file: file.stat().st_size)
    flip(table, table.stat().st_size // 4)
    found = check(str(data))
    assert set(found.unreadable) == {"damaged"}
    lost = found.unreadable["damaged"]
    repair(str(data), str(tmp_path / "new"))
    shutil.rmtree(data)
    os.rename(tmp_path / "new", data)
    broker = holdfast(tmp_path / "data").start()
    try:
        for name, count in (("whole", 40), ("damaged", 40 - lost)):
            client = RawClient(broker.port, name).open()
            assert client.resume().session_present
            received = client.take(count)
            assert len({each.payload[:2] for each in received}) == count
            client.expect_nothing()
            client.drop()
    finally:
        broker.close()
