"""The data directory: private, locked, and clear about what is wrong with it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from storage.errors import StorageError, StoreBusy
from storage.local.data_directory import DataDirectory, is_in_use

ROOT = Path(__file__).parents[3]

HOLD = """
import sys
from storage.local.data_directory import DataDirectory
directory = DataDirectory(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""
OPEN = """
import os, sys
from storage.local.data_directory import DataDirectory
from storage.errors import StorageError
os.setuid(65534)
try:
    DataDirectory(sys.argv[1])
except StorageError as error:
    print(error)
"""


def test_a_new_directory_is_private(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "of" / "mine")
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert directory.lock.stat().st_mode & 0o777 == 0o600
    for path in (directory.database, directory.watermark, directory.ballast):
        assert path.parent == directory.path
    directory.close()
    directory.close()


def test_a_second_lock_is_refused_until_the_first_is_given_up(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path)
    with pytest.raises(StoreBusy, match=f"{tmp_path}: in use by process {os.getpid()}$"):
        DataDirectory(tmp_path)
    first.close()
    DataDirectory(tmp_path).close()


def test_whether_a_directory_is_in_use_can_be_asked_without_touching_it(tmp_path: Path) -> None:
    assert not is_in_use(tmp_path / "data")
    assert not (tmp_path / "data").exists()
    held = DataDirectory(tmp_path / "data")
    assert is_in_use(tmp_path / "data")
    held.close()
    assert not is_in_use(tmp_path / "data")


def test_another_process_is_named_and_its_death_unlocks(tmp_path: Path) -> None:
    """Does kill -9 leave a lock behind?"""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == b"locked\n"
    with pytest.raises(StoreBusy, match=f"process {holder.pid}$"):
        DataDirectory(tmp_path)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    holder.stdin.close()
    DataDirectory(tmp_path).close()


def test_a_file_in_its_place_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, match=f"data directory {path}: not a directory$"):
            DataDirectory(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_directory_of_another_user_is_said_in_one_line(mode: int) -> None:
    with tempfile.TemporaryDirectory() as base:
        os.chmod(base, 0o755)
        path = Path(base) / "data"
        path.mkdir(mode=mode)
        answer = subprocess.run(
            [sys.executable, "-c", OPEN, str(path)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert answer == (
        f"data directory {path}: permission denied: "
        "expected to be readable and writable by user 65534\n"
    )


def test_the_names_of_new_directories_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else a power cut takes the whole directory, and the next start takes it for new."""
    synced: list[Path] = []
    monkeypatch.setattr("storage.local.data_directory.sync_directory", synced.append)
    DataDirectory(tmp_path / "a" / "b").close()
    assert synced == [tmp_path, tmp_path / "a"]
    DataDirectory(tmp_path / "a" / "b").close()
    assert len(synced) == 2
