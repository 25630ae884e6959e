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


def test_a_node_that_takes_over_goes_on_from_the_last_word() -> None:
    """The wall clock of the machine that led says nothing: its heartbeat is of another boot."""
    before_ms = machine_clocks.wall_ms() - 3_600_000
    last = Heartbeat(FAR_MS, before_ms, "another boot", 5)
    clock = RunningClock.of_leader(
        last, alive_ms=FAR_MS + 500, resumed_ms=FAR_MS + 4_000, is_timed=True
    )
    assert clock.started_ms == FAR_MS + 4_000


def test_who_leads_after_all_were_away_counts_that_time() -> None:
    """The last word is old when it is read: what the clocks say since then counts as well."""
    here = machine_clocks.boot_id()
    last = Heartbeat(FAR_MS, machine_clocks.wall_ms(), here, machine_clocks.boottime_ms() - 60_000)
    word = {"alive_ms": FAR_MS + 500, "resumed_ms": FAR_MS + 4_000, "is_timed": False}
    assert FAR_MS + 60_000 <= RunningClock.of_leader(last, **word).started_ms < FAR_MS + 120_000
    elsewhere = Heartbeat(FAR_MS, machine_clocks.wall_ms() + 9_999_999, "another boot", 5)
    assert RunningClock.of_leader(elsewhere, **word).started_ms == FAR_MS + 4_000
    assert RunningClock.of_leader(None, **word).started_ms >= FAR_MS + 4_000
    never = RunningClock.of_leader(last, alive_ms=0, resumed_ms=0, is_timed=False)
    assert never.started_ms >= FAR_MS + 60_000
