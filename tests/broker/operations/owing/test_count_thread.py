"""A running broker has a process count what is owed, says what it found, and outlives it."""

import io
import json
import queue
import threading
from pathlib import Path

import pytest

from broker import own_process
from broker.observe.structured_log import Log
from broker.operations.owing import count_thread
from broker.operations.owing.count_thread import FAILURES_TOLD, Counted, CountThread
from tests.broker.operations.owing.test_count_process import database
from tests.stand_in import replace_in

pytestmark = pytest.mark.full  # starts processes

PATIENCE_S = 60.0


class Lines(io.StringIO):
    """Lines of a log, and whether there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written = threading.Event()

    def write(self, text: str) -> int:
        """Keep a text."""
        size = super().write(text)
        self.is_written.set()
        return size


class Watched:
    """A thread that counts, and what it says."""

    def __init__(self, place: Path, interval_s: float = 0.01) -> None:
        self.found: queue.Queue[Counted] = queue.Queue()
        self.lines = Lines()
        self.is_low = threading.Event()
        self.asked = threading.Semaphore(0)  # released whenever it asks for the disk
        self.thread = CountThread(
            place,
            interval_s,
            Log(format="json", stream=self.lines),
            is_low=self._look,
            found=self.found.put,
        )

    def _look(self) -> bool:
        self.asked.release()
        return self.is_low.is_set()


@pytest.mark.parametrize("look_s", [count_thread.LOOK_S, 0.001])  # in less, or more than a look
def test_what_a_process_has_counted_arrives_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_s: float
) -> None:
    monkeypatch.setattr(count_thread, "SHARE", 1)
    monkeypatch.setattr(count_thread, "LOOK_S", look_s)
    watched = Watched(database(tmp_path))
    watched.thread.start()
    first = watched.found.get(timeout=PATIENCE_S)
    second = watched.found.get(timeout=PATIENCE_S)
    watched.thread.close()
    assert first.totals["offline"] == second.totals["offline"] != first.totals["online"]
    assert second.at_s > first.at_s
    assert first.totals["sessions_stored"] == 1
    figures = first.figures()
    assert figures.messages == {"offline": 1, "online": 0, "group": 0}
    assert watched.lines.getvalue() == ""


def test_nothing_is_counted_while_the_disk_is_low(tmp_path: Path) -> None:
    watched = Watched(database(tmp_path))
    watched.is_low.set()
    watched.thread.start()
    for _ in range(3):
        assert watched.asked.acquire(timeout=PATIENCE_S)
    assert watched.found.empty()
    watched.is_low.clear()
    watched.found.get(timeout=PATIENCE_S)
    watched.thread.close()


def test_the_end_does_not_wait_for_a_census(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    script = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(600)"
    command = [*own_process.command("x")[:1], "-c", script]
    replace_in(monkeypatch, count_thread, "own_process", command=lambda module: command)
    watched = Watched(tmp_path)
    watched.thread.start()
    while not begun.exists():
        assert watched.asked.acquire(timeout=PATIENCE_S)  # it looks at the disk meanwhile
    watched.thread.close()
    assert watched.found.empty()
    assert watched.lines.getvalue() == ""


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ('print(\'{"error": "the disk is gone"}\')', "could not be counted: the disk is gone"),
        ("raise SystemExit(3)", "the process ended with status 3: it said nothing"),
        ("raise ValueError('no')", "the process ended with status 1: ValueError: no"),
    ],
)
def test_a_process_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    command = [*own_process.command("x")[:1], "-c", script]
    replace_in(monkeypatch, count_thread, "own_process", command=lambda module: command)
    replace_in(monkeypatch, count_thread, "time", monotonic=lambda: 0.0)  # it cost nothing
    watched = Watched(tmp_path)
    watched.thread.start()
    assert watched.lines.is_written.wait(PATIENCE_S)
    for _ in range(4 * FAILURES_TOLD):  # it goes on, and says no more
        assert watched.asked.acquire(timeout=PATIENCE_S)
    watched.thread.close()
    (line,) = [json.loads(line) for line in watched.lines.getvalue().splitlines()]
    assert line["event"] == "backlog_not_counted"
    assert why in line["message"]
