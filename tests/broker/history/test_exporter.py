"""What of the history is exported when, and what gives when nobody takes it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from broker.history import exporter as exporting
from broker.history.exporter import Exporter, why_not
from broker.history.segment_process_link import Sealed, SegmenterFailed
from broker.history.witness_thread import WitnessThread
from mqtt.packets import Puback, Suback
from session.settings import Settings
from storage.history import events
from storage.history.packed_rows import expand, history_key, split_history_key, unpack
from storage.history.witness import read
from storage.tables.export_row import EXPORT_KEY, load_progress
from storage.tables.tables import HISTORY, META, scan_all, seal, unseal
from tests.broker.history.test_export_thread import Shelf
from tests.broker.inside import InsideBroker, Peer, publish, run, subscribe

MIB = 1 << 20


class Exporting:
    """A broker with an exporter whose segments are in memory."""

    def __init__(self, broker: InsideBroker, **changes: Any) -> None:
        self.broker = broker
        self.shelf: Shelf = changes.pop("shelf", None) or Shelf()
        limits: dict[str, Any] = {
            "outbox_bytes_max": 256 * MIB,
            "seal_events": 500_000,
            "seal_s": 0.0,
            **changes,
        }
        if witnesses := limits.pop("witness", None):
            limits["witness"] = witnesses[0]
        self.exporter = Exporter(
            broker.store,
            broker.engine.outbox,
            broker.engine,
            broker.driver,
            self.shelf.open,
            log=broker.log,
            **limits,
        )
        self.exporter.start()

    def rows(self) -> list[tuple[int, int]]:
        """Return boot and first seq of the rows in the store."""
        rows = scan_all(self.broker.store, HISTORY, b"", None)
        return [split_history_key(key) for key, _ in rows]

    def told(self, *names: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for key, value in scan_all(self.broker.store, HISTORY, b"", None):
            boot, _ = split_history_key(key)
            found += expand(unpack(unseal(value, "row")), "node", boot)
        return [event for event in found if event["ev"] in names]

    async def publish(self, count: int) -> None:
        """Have `count` messages stored, in as many turns."""
        publisher = await self.broker.connect("p")
        for _ in range(count):
            publisher.send(publish("t"))
            await publisher.receive(Puback)

    async def until_empty(self) -> None:
        """Let the exporter work until the store has no row of the history."""
        self.exporter.beat()
        await self.broker.until(lambda: self._is_empty_after_a_look())

    def _is_empty_after_a_look(self) -> bool:
        self.exporter.beat()
        return not self.rows()


def scenario(
    play: Callable[[Exporting], Coroutine[Any, Any, None]],
    detail: str = "full",
    before: Callable[[InsideBroker], None] = lambda broker: None,
    **changes: Any,
) -> None:
    """Play with a broker, an exporter, and a durable session that is owed what is published."""
    settings = Settings()
    settings.history_detail = detail

    async def main(broker: InsideBroker) -> None:
        before(broker)
        made = Exporting(broker, **changes)
        try:
            subscriber: Peer = await broker.connect("s", expiry=3600)
            subscriber.send(subscribe("t", 1))
            await subscriber.receive(Suback)
            await play(made)
        finally:
            made.exporter.close()

    run(main, settings=settings)


def test_what_is_durable_is_exported_once_and_then_deleted() -> None:
    async def play(made: Exporting) -> None:
        await made.publish(exporting.TRIM_ROWS + 10)
        await made.until_empty()
        taken = [key for keys in made.shelf.sealed for key in keys]
        assert len(taken) > exporting.TRIM_ROWS
        assert taken == sorted(set(taken))
        gauges = made.exporter.gauges()
        assert gauges["history_outbox_bytes"] == 0
        assert gauges["history_segments"] == len(made.shelf.sealed)
        assert gauges["history_level"] == events.FULL
        assert gauges["history_events"] > exporting.TRIM_ROWS
        assert gauges["history_lag_ms"] == gauges["history_gap_events"] == 0

    scenario(play)


class Dying(Shelf):
    """Whoever writes it dies behind each segment, before anybody is told."""

    def seal(self) -> Sealed:
        super().seal()
        raise SegmenterFailed("died")


def test_another_machine_cuts_the_segments_that_were_begun() -> None:
    async def play(made: Exporting) -> None:
        await made.publish(3)
        first = made.shelf = Dying()
        made.exporter.close()
        died = Exporting(made.broker, shelf=first, is_replicated=True)
        died.exporter.beat()
        await made.broker.until(lambda: died.exporter.failures > 0)
        died.exporter.close()
        await made.publish(3)
        other = Exporting(made.broker, is_replicated=True)
        await other.until_empty()
        assert len(first.sealed) == 1
        assert other.shelf.sealed[0] == first.sealed[0]
        taken = [key for keys in other.shelf.sealed for key in keys]
        assert taken == sorted(set(taken)) and len(taken) > len(first.sealed[0])
        boot, last_seq = taken[-1]
        noted = load_progress(made.broker.store)
        assert noted.begun == noted.exported == noted.end == (boot, last_seq)
        assert noted.head == other.shelf.head
        other.exporter.close()
        third = Exporting(made.broker, is_replicated=True)
        await made.publish(1)
        await third.until_empty()
        assert third.shelf.before == noted
        assert third.shelf.sealed[0][0] > taken[-1]
        third.exporter.close()

    scenario(play, seal_s=1000.0)


def test_a_store_of_one_machine_is_not_told_how_far_the_export_is() -> None:
    async def play(made: Exporting) -> None:
        await made.publish(1)
        await made.until_empty()
        assert made.broker.store.get(META, EXPORT_KEY) is None

    scenario(play)


def test_what_is_not_durable_is_not_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(made: Exporting) -> None:
        await made.until_empty()
        sealed = len(made.shelf.sealed)
        gate = threading.Event()
        sync = made.broker.store.sync

        def gated() -> None:
            gate.wait(30)
            sync()

        monkeypatch.setattr(made.broker.store, "sync", gated)
        publisher = await made.broker.connect("p")
        publisher.send(publish("t"))
        await made.broker.until(lambda: bool(made.told("msg_accepted")))
        for _ in range(5):
            made.exporter.beat()
            await asyncio.sleep(0)
        assert len(made.shelf.sealed) == sealed
        gate.set()
        await publisher.receive(Puback)
        await made.until_empty()
        assert len(made.shelf.sealed) > sealed

    scenario(play)


def test_rows_of_an_earlier_boot_are_counted_and_exported_first() -> None:
    def leave(broker: InsideBroker) -> None:
        broker.store.write([(HISTORY, history_key(0, 1), b"x"), (HISTORY, history_key(0, 9), b"y")])

    async def play(made: Exporting) -> None:
        await made.broker.until(lambda: made.exporter._inherited_bytes > 0)
        await made.until_empty()
        taken = [key for keys in made.shelf.sealed for key in keys]
        assert taken[:2] == [(0, 1), (0, 9)]
        assert made.exporter.outbox_bytes() == 0

    scenario(play, before=leave, seal_s=1000.0)


def test_young_rows_wait_for_company() -> None:
    async def play(made: Exporting) -> None:
        await made.publish(3)
        for _ in range(5):
            made.exporter.beat()
            await asyncio.sleep(0)
        assert made.shelf.opened == 0
        assert made.rows()
        assert made.exporter.gauges()["history_lag_ms"] < 1000_000

    scenario(play, seal_s=1000.0)


def test_many_rows_do_not_wait() -> None:
    async def play(made: Exporting) -> None:
        await made.publish(3)
        made.exporter._exported = (1, 1)  # a first export was
        made.exporter.beat()
        await made.broker.until(lambda: made.shelf.opened == 1)

    scenario(play, seal_s=1000.0, seal_events=5)


def test_a_failure_is_logged_and_tried_again_later_and_later() -> None:
    async def play(made: Exporting) -> None:
        made.shelf.failures = 2
        await made.publish(1)
        for attempt, pause in ((1, 1), (2, 2)):
            made.exporter._retry_at = 0.0
            made.exporter.beat()
            await made.broker.until(
                lambda: len(made.broker.events("history_export_failed")) == attempt  # noqa: B023
            )
            line = made.broker.events("history_export_failed")[-1]
            assert (line["message"], line["retry_s"]) == ("no space", pause)
            opened = made.shelf.opened
            made.exporter.beat()  # too early
            assert made.shelf.opened == opened
        assert made.rows()
        made.exporter._retry_at = 0.0
        await made.until_empty()
        assert len(made.broker.events("history_export_resumed")) == 1
        assert made.exporter.gauges()["history_export_failures"] == 2

    scenario(play)


def test_behind_by_too_much_less_is_recorded_and_everything_once_there_is_room() -> None:
    async def play(made: Exporting) -> None:
        exporter = made.exporter
        await made.publish(20)
        size = exporter.outbox_bytes()
        exporter._outbox_bytes_max = size * 10 // 6  # type: ignore[misc]
        exporter._retry_at = 1e18
        exporter.beat()
        assert made.broker.engine.outbox.level == events.SAMPLED
        exporter._outbox_bytes_max = size * 100 // 95  # type: ignore[misc]
        exporter.beat()
        assert made.broker.engine.outbox.level == events.BOOKS_LEVEL
        exporter.beat()
        assert len(made.broker.events("history_lowered")) == 2
        await made.publish(20)
        exporter._outbox_bytes_max = 10 * MIB  # type: ignore[misc]
        exporter.beat()
        assert made.broker.engine.outbox.level == events.FULL
        assert len(made.broker.events("history_restored")) == 1
        await made.broker.until(lambda: len(made.told("history_gap")) >= 4)
        assert exporter.gauges()["history_gap_events"] > 0

    scenario(play)


def test_a_level_that_is_lower_already_stays() -> None:
    async def play(made: Exporting) -> None:
        await made.broker.until(made.exporter._reports.empty)
        made.exporter._inherited_bytes = 95
        made.exporter._outbox_bytes_max = 100  # type: ignore[misc]
        made.exporter._retry_at = 1e18
        made.exporter.beat()
        assert made.broker.engine.outbox.level == events.SESSIONS
        assert made.broker.events("history_lowered") == []

    scenario(play, detail="sessions", unavailable="not here")


def test_at_the_limit_the_oldest_rows_go_and_the_gap_has_their_number() -> None:
    async def play(made: Exporting) -> None:
        await made.publish(100)
        before = made.rows()
        count = made.broker.engine.outbox.events
        made.exporter._outbox_bytes_max = made.exporter.outbox_bytes() // 2  # type: ignore[misc]
        made.exporter.beat()
        await made.broker.until(lambda: not made.exporter._is_discarding)
        assert len(made.broker.events("history_discarded")) == 1
        assert made.exporter.outbox_bytes() <= made.exporter._outbox_bytes_max
        await made.broker.until(lambda: made.rows()[0] not in before[:20])
        gaps = [gap for gap in made.told("history_gap") if gap["reason"] == 1051]
        gone = sum(int(str(gap["count"])) for gap in gaps)
        assert 0 < gone < count
        first_seq = made.rows()[0][1]
        assert gone == first_seq - 1  # the seqs that are missing, and no more

    scenario(play, unavailable="nobody here can write Parquet")


def test_rows_of_an_earlier_boot_that_go_are_no_longer_in_the_way() -> None:
    def leave(broker: InsideBroker) -> None:
        row = seal(b"x" * 1000)
        broker.store.write([(HISTORY, history_key(0, seq), row) for seq in range(1, 400)])

    async def play(made: Exporting) -> None:
        exporter = made.exporter
        await made.broker.until(lambda: exporter.outbox_bytes() > 300_000)
        exporter._outbox_bytes_max = 100_000  # type: ignore[misc]
        exporter.beat()
        await made.broker.until(lambda: not exporter._is_discarding)
        held = scan_all(made.broker.store, HISTORY, b"", None)
        stored = sum(len(value) for _, value in held)
        assert 0 < stored <= 100_000
        exporter.beat()
        assert not exporter._is_discarding, "discards although there is room"

    scenario(play, before=leave, unavailable="nobody here can write Parquet")


def test_without_pyarrow_it_says_so_once_and_stays_within_its_bounds() -> None:
    async def play(made: Exporting) -> None:
        await made.publish(1)
        for _ in range(3):
            made.exporter.beat()
        assert made.shelf.opened == 0
        (line,) = made.broker.events("history_not_exported")
        assert line["message"] == "no pyarrow; install it"
        assert await made.exporter.finish(0.0)

    scenario(play, unavailable="no pyarrow; install it")
    assert why_not() == ""


def test_at_the_end_what_is_left_is_exported_and_deleted() -> None:
    async def play(made: Exporting) -> None:
        await made.publish(5)
        made.broker.engine.drain(made.broker.driver.now)
        assert await made.broker.driver.drain(15.0)
        assert await made.exporter.finish(15.0)
        assert made.rows() == []
        assert made.shelf.sealed

    scenario(play, seal_s=1000.0)


def test_the_witness_is_told_what_is_durable_and_what_is_exported(tmp_path: Path) -> None:
    path = tmp_path / "witness"
    witnesses: list[WitnessThread] = []

    def before(broker: InsideBroker) -> None:
        witnesses.append(WitnessThread(str(path), "edge", broker.store, broker.log))

    async def play(made: Exporting) -> None:
        gauges = made.exporter.gauges()
        assert (gauges["history_witness_lost_events"], gauges["history_witness_failures"]) == (0, 0)
        await made.publish(3)
        await made.until_empty()
        last = made.shelf.sealed[-1][-1]
        made.exporter.close()
        (mark,) = read(path).marks
        assert (mark.boot, mark.exported) == last
        assert mark.head == made.shelf.head
        assert mark.seq >= mark.exported
        assert 0 < mark.at_ms <= made.broker.driver.now

    scenario(play, before=before, witness=witnesses)


def test_at_the_end_the_witness_is_told_what_is_not_exported(tmp_path: Path) -> None:
    path = tmp_path / "witness"
    witnesses: list[WitnessThread] = []

    def before(broker: InsideBroker) -> None:
        witnesses.append(WitnessThread(str(path), "edge", broker.store, broker.log))

    async def play(made: Exporting) -> None:
        await made.publish(3)
        engine = made.broker.engine
        await made.broker.until(lambda: engine.durable >= engine.written)
        made.exporter.close()  # before the next beat
        last = made.rows()[-1]
        (mark,) = read(path).marks
        assert ((mark.boot, mark.seq), mark.exported) == (last, 0)

    scenario(play, before=before, witness=witnesses, seal_s=3600.0)


def test_at_the_end_a_failure_leaves_it_for_the_next_start() -> None:
    async def play(made: Exporting) -> None:
        await made.publish(5)
        made.shelf.failures = 1
        assert await made.broker.driver.drain(15.0)
        assert not await made.exporter.finish(15.0)
        assert made.rows()

    scenario(play, seal_s=1000.0)
