"""A backup becomes a data directory, or nothing that a broker would start on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.operations.backups import making, restoring
from broker.operations.backups.contents import BackupError
from broker.operations.backups.media import Reading
from storage.errors import DataLoss
from storage.local.data_directory import DataDirectory
from storage.local.opening import open_database
from storage.tables.tables import FAMILIES, META
from tests.broker.operations.test_checkpoint import stopped


@pytest.fixture
def backup(tmp_path: Path) -> str:
    """A backup of a database with a row."""
    making.make(str(stopped(tmp_path)), str(tmp_path / "b.tar"))
    return str(tmp_path / "b.tar")


def test_a_backup_becomes_a_data_directory_that_opens(backup: str, tmp_path: Path) -> None:
    new = tmp_path / "deep" / "new"
    contents = restoring.restore(backup, str(new))
    assert contents.rows["meta"] == 1
    assert sorted(path.name for path in new.iterdir()) == ["db", "lock", "watermark"]
    assert {path.stat().st_mode & 0o777 for path in (new / "db").iterdir()} == {0o600}
    place = DataDirectory(new)
    store, watermark, notes = open_database(place, families=FAMILIES)
    assert store.get(META, b"k") == b"v" and not notes
    store.close()
    watermark.close()
    place.close()


def test_an_empty_directory_is_filled_and_another_one_is_not(backup: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    (empty / "lost+found").mkdir(parents=True)
    restoring.restore(backup, str(empty))
    with pytest.raises(BackupError, match=r"not empty \(db\)"):
        restoring.restore(backup, str(empty))
    (tmp_path / "file").touch()
    with pytest.raises(BackupError, match="Not a directory"):
        restoring.restore(backup, str(tmp_path / "file"))


def test_a_directory_in_use_is_refused(backup: str, tmp_path: Path) -> None:
    place = DataDirectory(tmp_path / "busy")
    with pytest.raises(BackupError, match=r"in use by process .*; stop the broker first"):
        restoring.restore(backup, str(tmp_path / "busy"))
    place.close()


def test_a_damaged_backup_makes_no_data_directory(backup: str, tmp_path: Path) -> None:
    data = bytearray(Path(backup).read_bytes())
    data[len(data) // 2] ^= 0xFF
    Path(backup).write_bytes(data)
    with pytest.raises(BackupError):
        restoring.restore(backup, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


class Power(Exception):
    """The end of the process."""


@pytest.mark.parametrize("pieces", [1, 2, 4, 6])
def test_no_broker_begins_an_empty_database_on_what_a_crash_leaves(
    backup: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    whole = Reading.pieces
    written = 0

    def cut(reading: Reading, name: str) -> Iterator[bytes]:
        nonlocal written
        yield from whole(reading, name)
        if (tmp_path / "new").exists():
            written += 1
            if written == pieces:
                raise Power

    monkeypatch.setattr(Reading, "pieces", cut)
    with pytest.raises(Power):
        restoring.restore(backup, str(tmp_path / "new"))
    monkeypatch.undo()
    place = DataDirectory(tmp_path / "new")
    with pytest.raises(DataLoss, match=r"no database, but .* batches were durable"):
        open_database(place, families=FAMILIES)
    place.close()
    with pytest.raises(BackupError, match="not empty"):
        restoring.restore(backup, str(tmp_path / "new"))
