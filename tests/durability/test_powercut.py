"""Does the power cut take exactly what was not synced?"""

import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage.errors import DataLoss
from storage.local.data_directory import DataDirectory
from storage.local.opening import open_database
from storage.local.rocks import RocksStore
from tests.durability.iofault import Faults, build
from tests.durability.powercut import HOW, SHORT, apply_power_cut, baseline

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

# Makes files and removes them, as a child that has not noticed that its parent is gone.
ORPHAN = """
import os, sys
print("writing", flush=True)
while True:
    path = os.path.join(sys.argv[1], "name")
    with open(path, "w"):
        os.remove(path)
"""

# Writes batches of all sizes through the real store, committer and watermark; says what is durable;
# never ends by itself. With `os` everything counts as durable at once.
BROKER = """
import os, random, sys, threading
from contextlib import suppress
from storage.errors import WriteStalled
from storage.local.committer import Committer
from storage.local.data_directory import DataDirectory
from storage.local.opening import open_database
directory, durability, seed = sys.argv[1:]
source = random.Random(int(seed))
store, watermark, notes = open_database(DataDirectory(directory), families=["a", "b"])
room = threading.Semaphore(3)
def report(serial):
    os.write(1, b"%d\\n" % serial)  # at once, though two threads do it
    room.release()
direct = store.open_direct() if durability == "fsync" else None
committer = Committer(
    store, report, print, durability=durability, watermark=watermark, source=store, direct=direct
)
print(store.sequence(), flush=True)
serial = store.sequence()
while True:
    if direct is not None:
        committer.resume()
        found = committer.collect()
        if found:
            report(found)
    room.acquire(timeout=0.01)
    for _ in range(source.randint(1, 4)):
        key = (serial + 1).to_bytes(8, "big")
        value = source.randbytes(source.choice((10, 100, 1000, 9000)))
        with suppress(WriteStalled):
            store.write([("a", key, value), ("b", key, value[:100])])
            serial += 1
    if source.random() < 0.4:  # otherwise nobody asks for a sync of it yet
        committer.request(serial)
    if source.random() < 0.02:  # begins a new log, makes and deletes files
        store._tables[source.choice("ab")].flush(True)
    if source.random() < 0.02:
        name = f"x{serial}"
        store.create_family(name)
        store.write([(name, b"k", b"v")])
        serial += 1
        store.drop_family(name)
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


def test_what_still_writes_is_killed_before(shim: Path, tmp_path: Path) -> None:
    directory, side = tmp_path / "data", tmp_path / "side"
    directory.mkdir()
    faults = Faults(shim, tmp_path / "rules", side=side)
    baseline(directory, side)
    command = [sys.executable, "-c", ORPHAN, str(directory)]
    process = subprocess.Popen(command, env=faults.environment(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    apply_power_cut(directory, side)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert apply_power_cut(directory, side) == 0


def _lost_after_power_cuts(
    shim: Path, tmp_path: Path, durability: str, *, cuts: int, ways: Sequence[str]
) -> int:
    """Return how many batches that were reported durable are gone after `cuts` power cuts."""
    directory, side = tmp_path / "data", tmp_path / "side"
    directory.mkdir()
    faults = Faults(shim, tmp_path / "rules", side=side)
    source = random.Random(cuts)
    baseline(directory, side)
    lost = newest = 0
    for cut in range(cuts):
        process = subprocess.Popen(
            [sys.executable, "-c", BROKER, str(directory), durability, str(cut)],
            env=faults.environment() | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for _ in range(source.randrange(2, 60)):
            newest = max(newest, int(process.stdout.readline()))
        process.kill()
        newest = max([newest, *map(int, process.stdout.read().split())])
        process.wait()
        process.stdout.close()
        apply_power_cut(directory, side, how=ways[cut % len(ways)], source=source)
        if cut % 3 == 0:  # and it fails again while the next start recovers
            _crash_while_opening(faults, directory, source.randrange(1, 60))
            apply_power_cut(directory, side, how=ways[(cut + 1) % len(ways)], source=source)

        with contextlib.closing(DataDirectory(directory)) as place:
            try:
                store, watermark, _ = open_database(place)
            except DataLoss:
                assert durability != "fsync"
                store, watermark, _ = open_database(place, accept_data_loss=True)
            held = [
                [int.from_bytes(key) for key, _ in store.scan(family, b"", count=1_000_000)]
                for family in ("a", "b")
            ]
            sequence = store.sequence()
            assert held[0] == held[1], "batches are atomic across families"
            # A few batches were in families that were dropped since.
            assert len(held[0]) >= sequence * 0.9
            lost += max(0, newest - sequence)
            newest = sequence
            watermark.close()
            store.close()
        baseline(directory, side)
    return lost


def _crash_while_opening(faults: Faults, directory: Path, nth: int) -> None:
    """Open the database in a process that dies at the nth call which changes something."""
    script = (
        "import sys; from storage.local.data_directory import DataDirectory as D; "
        "from storage.local.opening import open_database; open_database(D(sys.argv[1]))"
    )
    rule = f"mode=kill ops=all path={directory.name}/ nth={nth}"
    environment = faults.environment(rule) | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", script, str(directory)],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert run.returncode in (0, -9), run.stderr


@pytest.mark.parametrize("how", HOW)
def test_fsync_loses_nothing_in_a_power_cut(shim: Path, tmp_path: Path, how: str) -> None:
    assert _lost_after_power_cuts(shim, tmp_path, "fsync", cuts=4, ways=[how]) == 0


def test_os_loses_reported_batches_in_a_power_cut(shim: Path, tmp_path: Path) -> None:
    """Would we notice a broker that does not sync?"""
    assert _lost_after_power_cuts(shim, tmp_path, "os", cuts=2, ways=[SHORT]) > 0


@pytest.mark.slow
def test_fsync_loses_nothing_in_many_power_cuts(shim: Path, tmp_path: Path) -> None:
    assert _lost_after_power_cuts(shim, tmp_path, "fsync", cuts=100, ways=HOW) == 0


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
