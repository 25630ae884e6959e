"""What the show of a cluster waits for, and how it ends."""

import io
import os
import signal
import socket
import subprocess
import sys

import pytest

from broker.cli.cluster_demo import children
from broker.cli.demo import DemoError
from tests.stand_in import replace_in


def test_ports_are_different_and_free() -> None:
    ports = children.free_ports(8)
    assert len(set(ports)) == 8
    for port in ports:
        assert port in children.PORTS
        socket.create_server(("127.0.0.1", port)).close()


def test_without_ports_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "PORTS", range(20_000, 20_000 + 3))
    with pytest.raises(DemoError, match="no 4 free ports from 20000 to 20002"):
        children.free_ports(4)


def test_what_does_not_come_is_told_and_a_pipe_sees_no_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter(range(100))
    replace_in(
        monkeypatch, children, "time", monotonic=lambda: next(times), sleep=lambda seconds: None
    )
    with pytest.raises(DemoError, match="the sun rises: still not so after 5 s"):
        children.wait_for("the sun rises", lambda: False, 5)
    answers = iter((False, True))
    assert children.wait_for("it", lambda: next(answers), 5) > 0
    assert capsys.readouterr().out == ""


class Terminal(io.StringIO):
    """What a person looks at."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_the_seconds_and_then_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    replace_in(monkeypatch, children, "sys", stdout=terminal)
    times = iter((0.0, 0.5, 1.5, 1.6, 2.0))
    replace_in(
        monkeypatch, children, "time", monotonic=lambda: next(times), sleep=lambda seconds: None
    )
    answers = iter((False, False, False, True))
    children.wait_for("Kafka", lambda: next(answers), 60)
    erase = children.ERASE
    shown = f"{erase}... Kafka, 0 s{erase}... Kafka, 1 s{erase}"
    assert terminal.getvalue() == shown


def test_sigterm_ends_the_show_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), children.ended_by_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_child_is_ended_once_or_twice() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    children.end(process)
    children.end(process)
    assert process.returncode == -signal.SIGKILL
    assert process.stdin is not None
    process.stdin.close()
