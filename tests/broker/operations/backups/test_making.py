"""A backup shares no file with its database, has every row, and leaves nothing beside it."""

import fcntl
from pathlib import Path

import pytest

from broker.operations.backups import making, restoring
from broker.operations.backups.contents import BackupError
from tests.broker.operations.test_checkpoint import stopped


@pytest.mark.parametrize("name", ["backup", "backup.tar", "backup.tar.gz"])
def test_a_stopped_broker_is_copied(tmp_path: Path, name: str) -> None:
    data_dir = stopped(tmp_path)
    before = sorted(path.name for path in data_dir.iterdir())
    contents, maker = making.make(str(data_dir), str(tmp_path / name))
    assert maker == "this command" and contents.rows["meta"] == 1
    assert sorted(path.name for path in data_dir.iterdir()) == before
    assert restoring.inspect(str(tmp_path / name)).rows == contents.rows
    files = [path for path in (data_dir / "db").iterdir() if path.is_file()]
    assert {path.stat().st_nlink for path in files} == {1}


def test_what_a_killed_command_has_left_is_deleted_and_a_running_one_is_not(
    tmp_path: Path,
) -> None:
    data_dir = stopped(tmp_path)
    for name in ("backup-left", "backup-runs"):
        (data_dir / name / "copy").mkdir(parents=True)
        (data_dir / name / "lock").touch()
    with open(data_dir / "backup-runs" / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        making.make(str(data_dir), str(tmp_path / "b"))
    assert [path.name for path in data_dir.glob("backup-*")] == ["backup-runs"]


def test_a_place_that_cannot_be_used_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    data_dir = stopped(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for target, words in (
        (data_dir / "inside", "in the data directory itself"),
        (tmp_path / "absent" / "b", "no directory"),
        (data_dir / "db" / "CURRENT" / "b", "in the data directory itself"),
    ):
        with pytest.raises(BackupError, match=words):
            making.make(str(data_dir), str(target))
    with pytest.raises(BackupError, match="no database in it"):
        making.make(str(tmp_path / "nowhere"), str(tmp_path / "b"))
    assert sorted(tmp_path.rglob("*")) == before


def test_damage_in_the_database_is_found_and_no_backup_is_left(tmp_path: Path) -> None:
    data_dir = stopped(tmp_path)
    making.make(str(data_dir), str(tmp_path / "good"))  # a clean end: the row is in a table
    tables = list((data_dir / "db").glob("*.sst"))
    assert tables
    for table in tables:
        data = bytearray(table.read_bytes())
        data[10] ^= 0xFF
        table.write_bytes(data)
    with pytest.raises(BackupError):
        making.make(str(data_dir), str(tmp_path / "bad.tar"))
    assert not list(tmp_path.glob("bad*")) and not list(data_dir.glob("backup-*"))
