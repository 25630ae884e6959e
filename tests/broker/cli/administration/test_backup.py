"""`holdfast db backup` and `restore`: under load, to another place, and back to a broker."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.broker.cli.commands import Run, complaint
from tests.durability.process import BrokerProcess, holdfast
from tests.durability.rawclient import RawClient


class Load:
    """A client that publishes one message after the other until it is told to end."""

    def __init__(self, port: int) -> None:
        self.acknowledged = 0
        self._client = RawClient(port, "load")
        self._client.durable()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            number = self.acknowledged
            self._client.publish("t", f"{number} ".encode() + b"x" * 500, qos=1 + number % 2)
            self.acknowledged += 1

    def wait_for(self, count: int) -> None:
        """Wait until so many more messages are acknowledged."""
        until = self.acknowledged + count
        while self.acknowledged < until:
            assert self._thread.is_alive()
            self._ended.wait(0.01)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.mark.parametrize("name", ["backup", "backup.tar.gz"])
def test_nothing_acknowledged_before_a_backup_under_load_is_missing_from_it(
    run: Run, start: Callable[..., BrokerProcess], tmp_path: Path, name: str
) -> None:
    broker = start()
    away = RawClient(broker.port, "away")
    away.durable()
    away.subscribe("t", qos=1)
    away.disconnect()
    load = Load(broker.port)
    try:
        load.wait_for(200)
        before = load.acknowledged
        made = run("db", "backup", name, "--data-dir", str(broker.data_dir))
        load.wait_for(50)  # the broker goes on
    finally:
        load.end()
    assert (made.returncode, made.stderr) == (0, ""), made.stderr
    summary, maker = made.stdout.splitlines()
    assert summary.startswith(f"{name}: made at ") and " 2 sessions, " in summary
    assert maker.startswith("copied by the running broker, in ")
    assert not list(broker.data_dir.glob("backup-*"))
    broker.kill()

    restored = holdfast(tmp_path / "restored")
    try:
        done = run("db", "restore", name, "--data-dir", str(restored.data_dir))
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert "restored and read again; the backup was made at " in done.stdout
        restored.start()
        last = RawClient(restored.port, "last")
        last.durable()
        last.publish("t", b"end 0", qos=1)
        away = RawClient(restored.port, "away")
        assert away.resume().session_present
        numbers: list[int] = []
        while True:
            word, _, _ = away.expect_publish().payload.partition(b" ")
            if word == b"end":
                break
            numbers.append(int(word))
        assert numbers == list(range(len(numbers))) and len(numbers) >= before
    finally:
        restored.close()


def test_what_goes_wrong_is_said_in_one_line(
    run: Run, start: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = start()
    where = ("--data-dir", str(broker.data_dir))

    def db(*words: str, **environment: str) -> CompletedProcess[str]:
        return run("db", *words, **environment)

    assert db("backup", "b.tar", *where).returncode == 0
    assert os.stat(tmp_path / "b.tar").st_mode & 0o777 == 0o600
    assert "a backup replaces nothing" in complaint(db("backup", "b.tar", *where), 1)
    assert "expected a directory, or a name" in complaint(db("backup", "b.zip", *where), 1)
    assert "where to restore" in complaint(db("restore", "b.tar"), 2)
    assert "not empty" in complaint(db("restore", "b.tar", *where), 1)
    assert "No such file" in complaint(db("restore", "absent", "--data-dir", "new"), 1)
    checked = db("restore", "b.tar", "--dry-run", "--data-dir", "new")
    assert checked.returncode == 0 and checked.stdout.startswith("b.tar: whole, made at ")
    assert not (tmp_path / "new").exists()
    named = db("restore", "b.tar", HOLDFAST__STORAGE__DATA_DIR="new")
    assert named.returncode == 0 and (tmp_path / "new" / "db").is_dir()
