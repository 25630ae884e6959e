"""The clocks of the machine that runs the tests."""

import uuid
from pathlib import Path

import pytest

from storage.time import machine_clocks as boottime


def test_the_boot_id_is_the_same_until_the_next_boot() -> None:
    assert uuid.UUID(boottime.boot_id())
    assert boottime.boot_id() == boottime.boot_id()


def test_where_there_is_no_boot_id_it_is_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(boottime, "BOOT_ID", tmp_path / "none")
    assert boottime.boot_id() == ""


def test_the_boot_time_clock_goes_forward_in_milliseconds() -> None:
    first = boottime.boottime_ms()
    uptime_ms = float(Path("/proc/uptime").read_text().split()[0]) * 1000
    assert first <= boottime.boottime_ms()
    assert abs(first - uptime_ms) < 5000


def test_the_wall_clock_is_in_this_century() -> None:
    assert 1_700_000_000_000 < boottime.wall_ms() < 4_000_000_000_000
