"""Broker time of a process goes on from what earlier ones left."""

from broker.process.clock import RunningClock
from storage.time import machine_clocks
from storage.time.broker_clock import Heartbeat

FAR_MS = 1 << 50  # later than any clock of a machine


def test_time_goes_on_from_the_heartbeat_and_never_behind_the_file() -> None:
    boottime_ms = machine_clocks.boottime_ms()
    last = Heartbeat(FAR_MS, machine_clocks.wall_ms(), machine_clocks.boot_id(), boottime_ms)
    assert RunningClock(last, not_before_ms=0).started_ms >= FAR_MS
    assert RunningClock(last, not_before_ms=2 * FAR_MS).started_ms == 2 * FAR_MS
    assert RunningClock(None, not_before_ms=FAR_MS).started_ms == FAR_MS


def test_it_runs_with_the_boot_time_clock() -> None:
    clock = RunningClock(None, not_before_ms=FAR_MS)
    before = machine_clocks.boottime_ms()
    now = clock.now()
    after = machine_clocks.boottime_ms()
    assert FAR_MS <= now
    written = Heartbeat.decode(clock.heartbeat(now))
    assert written.broker_ms == now
    assert before <= written.boottime_ms <= after
    assert written.boot_id == machine_clocks.boot_id()
