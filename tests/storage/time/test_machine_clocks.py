"""The clocks of the machine that runs the tests."""

import uuid
from pathlib import Path

import pytest

from storage.time import machine_clocks


def test_the_boot_id_is_the_same_until_the_next_boot() -> None:
    assert uuid.UUID(machine_clocks.boot_id())
    assert machine_clocks.boot_id() == machine_clocks.boot_id()


def test_where_there_is_no_boot_id_it_is_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_clocks, "BOOT_ID", tmp_path / "none")
    assert machine_clocks.boot_id() == ""


def test_the_boot_time_clock_goes_forward_in_milliseconds() -> None:
    first = machine_clocks.boottime_ms()
    uptime_ms = float(Path("/proc/uptime").read_text().split()[0]) * 1000
    assert first <= machine_clocks.boottime_ms()
    assert abs(first - uptime_ms) < 5000


def test_the_wall_clock_is_in_this_century() -> None:
    assert 1_700_000_000_000 < machine_clocks.wall_ms() < 4_000_000_000_000
