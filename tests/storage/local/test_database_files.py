"""The files of a database that are looked up in its directory, and the options written into it."""

import os
from pathlib import Path

import pytest

from storage.local import database_files
from storage.local.database_files import (
    BOOTSTRAP,
    OPTIONS,
    PREFIX_OPTIONS,
    ManifestSync,
    NewestLog,
    current_manifest,
    log_numbers,
    write_options,
)
from tests.stand_in import replace_in


def test_logs_are_found_by_their_numbers_and_other_files_are_not(tmp_path: Path) -> None:
    for name in ("000012.log", "000009.log", "1000000.log", "000007.sst", "LOG", "x.log"):
        (tmp_path / name).touch()
    assert log_numbers(tmp_path) == [9, 12, 1_000_000]


def test_the_end_of_the_newest_log_follows_its_growth_and_its_successor(tmp_path: Path) -> None:
    (tmp_path / "000004.log").write_bytes(b"four")
    newest = NewestLog(tmp_path)
    assert newest.end() == (4, 4)
    (tmp_path / "000004.log").write_bytes(b"longer")
    assert newest.end() == (4, 6)
    (tmp_path / "000009.log").write_bytes(b"9")
    (tmp_path / "000004.log").unlink()
    newest.forget()
    assert newest.end() == (9, 1)


def test_a_log_that_was_deleted_since_is_looked_up_again(tmp_path: Path) -> None:
    (tmp_path / "000004.log").touch()
    newest = NewestLog(tmp_path)
    assert newest.end() == (4, 0)
    changed = os.stat(tmp_path)
    (tmp_path / "000005.log").write_bytes(b"five")
    (tmp_path / "000004.log").unlink()
    os.utime(tmp_path, ns=(changed.st_atime_ns, changed.st_mtime_ns))  # a clock of coarse ticks
    assert newest.end() == (5, 4)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("MANIFEST-000005\n", 5),
        ("MANIFEST-000005", 5),
        ("", 0),
        ("MANIFEST-\n", 0),
        ("MANIFEST-000005\nx", 0),
    ],
)
def test_current_names_a_manifest_or_none(tmp_path: Path, text: str, number: int) -> None:
    (tmp_path / "CURRENT").write_text(text)
    assert current_manifest(tmp_path) == number


def test_the_manifest_that_current_names_is_synced_as_it_grows(tmp_path: Path) -> None:
    (tmp_path / "CURRENT").write_text("MANIFEST-000005\n")
    manifest = ManifestSync(tmp_path)
    assert manifest.sync() == (0, 0)  # it is being replaced
    (tmp_path / "MANIFEST-000005").write_bytes(b"12")
    assert manifest.sync() == (5, 2)
    (tmp_path / "MANIFEST-000005").write_bytes(b"123")
    assert manifest.sync() == (5, 3)


def test_a_manifest_that_grows_during_the_sync_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length before may be that of half a record."""
    (tmp_path / "CURRENT").write_text("MANIFEST-000005\n")
    (tmp_path / "MANIFEST-000005").write_bytes(b"12")
    manifest = ManifestSync(tmp_path)
    assert manifest.sync() == (5, 2)
    (tmp_path / "MANIFEST-000005").write_bytes(b"half")

    def grow(file: int) -> None:
        (tmp_path / "MANIFEST-000005").write_bytes(b"half and half")

    replace_in(monkeypatch, database_files, "os", fdatasync=grow)
    assert manifest.sync() == (5, 2)
    monkeypatch.undo()
    assert manifest.sync() == (5, 13)


def test_a_new_manifest_is_told_only_when_its_name_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not bring back the name of the one before."""
    synced: list[Path] = []
    monkeypatch.setattr("storage.local.database_files.sync_directory", synced.append)
    manifest = ManifestSync(tmp_path)
    for name, times in (("MANIFEST-000005", 1), ("MANIFEST-000005", 1), ("MANIFEST-000009", 2)):
        (tmp_path / "CURRENT").write_text(f"{name}\n")
        with open(tmp_path / name, "ab") as file:
            file.write(b"x")
        manifest.sync()
        assert synced == [tmp_path] * times


def test_options_are_ours_whatever_was_there(tmp_path: Path) -> None:
    (tmp_path / "OPTIONS-999999").write_bytes(b"\xff")
    (tmp_path / BOOTSTRAP).write_bytes(b"\xff")
    write_options(tmp_path, keeps_prefix=False)
    assert [file.name for file in tmp_path.glob("OPTIONS-*")] == [BOOTSTRAP]
    assert (tmp_path / BOOTSTRAP).read_text() == OPTIONS
    write_options(tmp_path, keeps_prefix=True)
    assert (tmp_path / BOOTSTRAP).read_text() == PREFIX_OPTIONS
    assert "kPointInTimeRecovery" in PREFIX_OPTIONS
