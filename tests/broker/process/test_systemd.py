"""sd_notify over a real socket, and silence where there is nobody to tell."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.process import systemd
from broker.process.systemd import Watchdog, notify, watchdog_period_s


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(5)
        yield listening


def test_variables_reach_the_service_manager(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    assert notify(READY=1, STATUS="recovered 5 sessions")
    assert manager.recv(1000) == b"READY=1\nSTATUS=recovered 5 sessions"


def test_an_abstract_socket_works_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0holdfast-test-{os.getpid()}")
        listening.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@holdfast-test-{os.getpid()}")
        assert notify(STOPPING=1)
        assert listening.recv(1000) == b"STOPPING=1"


@pytest.mark.parametrize("address", [None, "", "relative", "/nonexistent/socket"])
def test_nobody_to_tell_is_no_error(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify(READY=1)


def test_the_watchdog_is_fed_twice_per_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    assert watchdog_period_s() == 15
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_period_s() is None
    monkeypatch.delenv("WATCHDOG_PID")
    monkeypatch.setenv("WATCHDOG_USEC", "soon")
    assert watchdog_period_s() is None


def test_a_watchdog_is_fed_not_too_often_and_only_if_there_is_one(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    watchdog = Watchdog()
    watchdog.feed()
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setattr(systemd, "FED_S", 1000.0)
    watchdog.feed()
    watchdog.feed()
    notify(STATUS="that was all")
    assert manager.recv(1000) == b"WATCHDOG=1"
    assert manager.recv(1000) == b"STATUS=that was all"
