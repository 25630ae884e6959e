"""Does the power cut take exactly what was not synced?"""

import subprocess
import sys
from pathlib import Path

import pytest

from storage.local.rocks import RocksStore
from tests.durability.iofault import Faults, build
from tests.durability.powercut import apply_power_cut, baseline

ROOT = Path(__file__).parents[2]

# Writes three files through plain system calls: synced, half synced, never synced; then is killed.
WRITER = """
import os, signal, sys
def write(name, *parts):
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for data, sync in parts:
        os.write(file, data)
        if sync:
            os.fdatasync(file)
os.chdir(sys.argv[1])
write("synced", (b"all of it", True))
write("half", (b"durable", True), (b" and lost", False))
write("never", (b"lost", False))
write("old", (b" and more", False))
os.rename("half", "renamed")
os.kill(os.getpid(), signal.SIGKILL)
"""

# Writes batches of two families through the real store and committer; says what is durable; never
# ends by itself. With `os` everything counts as durable at once.
BROKER = """
import sys, threading
from storage.local.rocks import RocksStore
from storage.local.committer import Committer
directory, durability = sys.argv[1:]
store = RocksStore(directory, families=["a", "b"])
reported = threading.Event()
def report(serial):
    print(serial, flush=True)
    reported.set()
committer = Committer(store, report, print, durability=durability)
serial = store.sequence()
while True:
    serial += 1
    key = serial.to_bytes(8, "big")
    store.write([("a", key, bytes(100)), ("b", key, bytes(100))])
    reported.clear()
    committer.request(serial)
    reported.wait()
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim"))


def test_a_power_cut_takes_what_was_not_synced(shim: Path, tmp_path: Path) -> None:
    directory, side = tmp_path / "data", tmp_path / "side"
    directory.mkdir()
    (directory / "old").write_bytes(b"from before")
    faults = Faults(shim, tmp_path / "rules", side=side)
    baseline(directory, side)

    command = [sys.executable, "-c", WRITER, str(directory)]
    assert subprocess.run(command, env=faults.environment(), check=False).returncode == -9
    assert (directory / "renamed").read_bytes() == b"durable and lost"  # kill -9 takes nothing

    assert apply_power_cut(directory, side) == len(b" and lost" + b"lost" + b" and more")
    contents = {file.name: file.read_bytes() for file in directory.iterdir()}
    assert contents == {
        "synced": b"all of it",
        "renamed": b"durable",
        "never": b"",
        "old": b"from before",
    }
    assert apply_power_cut(directory, side) == 0, "what survived one cut survives the next"


def _lost_after_power_cuts(shim: Path, tmp_path: Path, durability: str, *, cuts: int) -> int:
    """Return how many batches that were reported durable are gone after `cuts` power cuts."""
    directory, side = tmp_path / "db", tmp_path / "side"
    faults = Faults(shim, tmp_path / "rules", side=side)
    lost = 0
    for cut in range(cuts):
        side.touch()
        if cut:
            baseline(directory, side)
        process = subprocess.Popen(
            [sys.executable, "-c", BROKER, str(directory), durability],
            env=faults.environment() | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        newest = 0
        for _ in range(200 + 30 * cut):
            newest = int(process.stdout.readline())
        process.kill()
        newest = max([newest, *map(int, process.stdout.read().split())])
        process.wait()
        process.stdout.close()
        apply_power_cut(directory, side)

        store = RocksStore(directory)
        held = [len(store.scan(family, b"", count=1_000_000)) for family in ("a", "b")]
        assert held[0] == held[1] == store.sequence(), "batches are atomic across families"
        lost += max(0, newest - store.sequence())
        store.close()
    return lost


def test_fsync_loses_nothing_in_a_power_cut(shim: Path, tmp_path: Path) -> None:
    assert _lost_after_power_cuts(shim, tmp_path, "fsync", cuts=4) == 0


def test_os_loses_reported_batches_in_a_power_cut(shim: Path, tmp_path: Path) -> None:
    """Would we notice a broker that does not sync?"""
    assert _lost_after_power_cuts(shim, tmp_path, "os", cuts=2) > 0


@pytest.mark.slow
def test_fsync_loses_nothing_in_many_power_cuts(shim: Path, tmp_path: Path) -> None:
    assert _lost_after_power_cuts(shim, tmp_path, "fsync", cuts=40) == 0


def test_what_a_restart_recovered_survives_the_next_power_cut(shim: Path, tmp_path: Path) -> None:
    """Is what kill -9 left in the page cache durable once a restarted broker has read it?"""
    directory, side = tmp_path / "db", tmp_path / "side"
    faults = Faults(shim, tmp_path / "rules", side=side)
    side.touch()
    kill_unsynced = """
import os, signal, sys
from storage.local.rocks import RocksStore
store = RocksStore(sys.argv[1], families=["a"])
store.write([("a", b"key", b"value")])
os.kill(os.getpid(), signal.SIGKILL)
"""
    open_and_kill = """
import os, signal, sys
from storage.local.rocks import RocksStore
store = RocksStore(sys.argv[1])
assert store.get("a", b"key") == b"value" and store.durable_sequence() == 1
os.kill(os.getpid(), signal.SIGKILL)
"""
    for script in (kill_unsynced, open_and_kill):
        run = subprocess.run(
            [sys.executable, "-c", script, str(directory)],
            env=faults.environment() | {"PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert run.returncode == -9
    apply_power_cut(directory, side)
    store = RocksStore(directory)
    assert store.get("a", b"key") == b"value"
    store.close()


def test_families_are_durable_at_once_and_the_batches_before_them_are_not(
    shim: Path, tmp_path: Path
) -> None:
    """Does a crash after creating or dropping a family do what `storage.local.memory` says?"""
    directory, side = tmp_path / "db", tmp_path / "side"
    faults = Faults(shim, tmp_path / "rules", side=side)
    side.touch()
    script = """
import os, signal, sys
from storage.local.rocks import RocksStore
store = RocksStore(sys.argv[1], families=["a", "b"])
store.write([("a", b"synced", b"")])
store.sync()
store.write([("a", b"lost", b"")])
store.create_family("c")
store.drop_family("b")
store.write([("c", b"lost", b"")])
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.run(
        [sys.executable, "-c", script, str(directory)],
        env=faults.environment() | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert run.returncode == -9
    apply_power_cut(directory, side)
    store = RocksStore(directory)
    assert store.families() == ["a", "c"]
    assert store.scan("a", b"", count=9) == [(b"synced", b"")]
    assert store.scan("c", b"", count=9) == []
    assert store.sequence() == 1
    store.close()
