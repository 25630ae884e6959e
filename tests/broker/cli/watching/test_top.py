"""`holdfast top` on a terminal, seen through one: it shows, follows the size, and ends with q."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator

import pyte
import pytest

from tests.broker.cli.commands import ROOT, Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

PATIENCE_S = 60.0


class Terminal:
    """A terminal of 80 by 24 with the command in it."""

    def __init__(self, data_dir: str, **environment: str) -> None:
        self._master, slave = pty.openpty()
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        self.sent = b""
        self.resize(80, 24)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "broker", "top", "--data-dir", data_dir],
            cwd=ROOT,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **environment},
        )
        os.close(slave)

    def resize(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        self.screen.resize(lines, columns)

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def until(self, condition: Callable[[str], bool]) -> str:
        """Return the screen as soon as it fulfils a condition."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(text := "\n".join(self.screen.display)):
            assert time.monotonic() < deadline, f"never:\n{text}"
            self.read()
        return text

    def read(self) -> bool:
        """Take what was written; False at its end."""
        if not select.select([self._master], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._master, 65_536)
        except OSError:
            return False
        self.sent += data
        self._stream.feed(data)
        return True

    def end(self) -> int:
        """Return the exit status; read until it has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while self.read():
            assert time.monotonic() < deadline, self.screen.display
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Return a function that opens terminals, which are closed with the test."""
    opened: list[Terminal] = []

    def make(broker: BrokerProcess, **environment: str) -> Terminal:
        opened.append(Terminal(str(broker.data_dir), **environment))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_the_figures_are_shown_follow_the_size_and_end_with_q(
    start: Callable[..., BrokerProcess], terminal: Callable[..., Terminal]
) -> None:
    broker = start()
    client = RawClient(broker.port, "c")
    client.durable()
    shown = terminal(broker, COLUMNS="132", LINES="50")  # which a shell has exported
    wanted = ("sessions 1 stored   1 of them online", "disk     ", "backlog  ")
    first = shown.until(lambda text: all(each in text for each in wanted))  # in pieces, as written
    assert first.startswith("holdfast 0.1.0   ready   up ")
    for number in range(20):
        client.publish("t", str(number), qos=1)
    shown.until(lambda text: "messages in 0/s" not in text)
    shown.resize(50, 6)
    shown.process.send_signal(signal.SIGWINCH)
    small = shown.until(lambda text: "messages in" in text and "disk" not in text)
    assert len(small.split("\n")) == 6
    shown.resize(120, 30)
    shown.process.send_signal(signal.SIGWINCH)
    shown.until(lambda text: "disk     " in text)
    shown.press(b"q")
    assert shown.end() == 0
    assert b"\x1b[?1049l" in shown.sent  # the screen of before is back


def test_a_broker_that_ends_is_said_and_one_that_comes_back_is_shown(
    start: Callable[..., BrokerProcess], terminal: Callable[..., Terminal]
) -> None:
    broker = start()
    shown = terminal(broker)
    shown.until(lambda text: "ready" in text)
    broker.kill()
    shown.until(lambda text: "NO ANSWER: no broker runs" in text)
    broker.start()
    shown.until(lambda text: "NO ANSWER" not in text)
    shown.process.send_signal(signal.SIGINT)  # Ctrl-C
    assert shown.end() == 130
    assert b"\x1b[?1049l" in shown.sent and b"Traceback" not in shown.sent


def test_a_terminal_that_cannot_show_it_is_told(
    start: Callable[..., BrokerProcess], terminal: Callable[..., Terminal]
) -> None:
    shown = terminal(start(), TERM="no-such-terminal")
    assert shown.end() == 1
    assert b"say --once" in shown.sent and b"Traceback" not in shown.sent


def test_without_a_terminal_it_is_printed_once(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()
    for words in ((), ("--once",)):
        done = run("top", *words, "--data-dir", str(broker.data_dir))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("holdfast 0.1.0   ready   up ")
        assert "\ndisk     " in done.stdout and "\x1b" not in done.stdout
    nowhere = str(broker.data_dir / "absent")
    assert "no broker runs on data directory" in complaint(run("top", "--data-dir", nowhere), 1)
