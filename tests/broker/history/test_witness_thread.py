"""Is the witness written away from the loop, and is a database that lost its end told of?"""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.history import witness_thread
from broker.history.witness_thread import WitnessThread
from broker.observe.structured_log import Log
from storage.errors import DamagedRows
from storage.history import events
from storage.history import witness as witness_module
from storage.history.packed_rows import history_key
from storage.history.witness import Mark, WitnessFile, read
from storage.local.memory import MemoryStore
from storage.tables.tables import BOOT_KEY, FAMILIES, HISTORY, META, encode_boot, seal
from tests.stand_in import replace_in
from tests.storage.history.history_cases import NOW_MS, Tick

NODE = "edge"


class Told:
    """A log that is read."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.log = Log(self._stream, format="json")

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines()]


@pytest.fixture
def told() -> Told:
    return Told()


def database(boot: int = 0, *, told: int = 0, last: int = 0) -> MemoryStore:
    """Return a store whose history ends with event `last` of a start; `told` are trimmed."""
    store = MemoryStore()
    for family in FAMILIES:
        store.create_family(family)
    if boot:
        store.write([(META, BOOT_KEY, encode_boot(boot, told))])
    if last:
        tick = Tick()
        tick.record(events.MSG_PERSISTED, n=2)
        row = seal(tick.pack(last - 1, NOW_MS))
        store.write([(HISTORY, history_key(boot, last - 1), row)])
    return store


def opened(path: Path, told: Told, store: MemoryStore | None = None) -> WitnessThread:
    return WitnessThread(str(path), NODE, store or database(), told.log)


def keep(path: Path, node: str, *marks: Mark) -> None:
    """Leave a witness that has these."""
    with contextlib.closing(WitnessFile(path, node)) as file:
        file.write(marks)


def test_a_second_broker_with_the_same_witness_is_told_so_once(tmp_path: Path, told: Told) -> None:
    first = opened(tmp_path / "witness", told)
    second = opened(tmp_path / "witness", told)
    second.start()
    second.note(1, 5, 7)
    second.write()
    second.close()
    assert (first.failures, second.failures) == (0, 1)
    assert told.events() == ["history_witness_failed"]
    assert "another broker writes it" in told.lines()[0]["message"]
    first.close()  # not started: it lets go of the file all the same
    assert opened(tmp_path / "witness", told).failures == 0


def test_the_last_note_is_written_at_the_end(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "witness"
    thread = opened(path, told)
    thread.start()
    thread.start()
    thread.note(1, 5, 7)
    thread.note(1, 9, 8)
    thread.note_exported(1, 6, "head", 9)
    thread.note(1, 8, 10)  # nothing goes back
    thread.note_exported(1, 4, "older", 10)
    thread.close()
    thread.close()
    assert read(path).marks == (Mark(1, 9, 6, "head", 9),)
    assert (thread.failures, thread.lost_events, told.lines()) == (0, 0, [])


def test_news_are_written_now_and_then_and_nothing_else_is(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "witness"
    thread = opened(path, told)
    thread.write()
    assert path.read_bytes().strip(b"\0") == b""
    thread.note(1, 5, 7)
    assert path.read_bytes().strip(b"\0") == b""  # the loop writes nothing
    thread.write()
    before = path.read_bytes()
    assert read(path).marks == (Mark(1, 5, 0, "", 7),)
    thread.write()
    assert path.read_bytes() == before
    turns = iter([False, True])
    monkeypatch.setattr(thread._ending, "wait", lambda timeout: next(turns))
    thread.note(1, 6, 8)
    thread._run()
    assert read(path).marks == (Mark(1, 6, 0, "", 8),)


def test_earlier_starts_stay_and_their_export_is_noted(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "witness"
    thread = opened(path, told)
    thread.note(1, 9, 1)
    thread.start()
    thread.close()
    thread = opened(path, told, database(1, told=4, last=9))
    assert thread.newest_boot == 1
    thread.note(2, 1, 2)
    thread.note_exported(1, 12, "head", 3)  # rows of one more tick were durable
    thread.start()
    thread.close()
    assert read(path).marks == (Mark(1, 12, 12, "head", 3), Mark(2, 1, 0, "", 2))
    assert told.lines() == []


@pytest.mark.parametrize(
    "store",
    [
        lambda: database(2, last=9),
        lambda: database(2, told=9),
        lambda: database(2, told=3, last=20),
        lambda: database(3, told=0),  # without a witness since
    ],
)
def test_a_database_that_has_what_was_durable_is_not_accused(
    tmp_path: Path, told: Told, store: Callable[[], MemoryStore]
) -> None:
    keep(tmp_path / "witness", NODE, Mark(1, 50), Mark(2, 9))
    thread = opened(tmp_path / "witness", told, store())
    assert (thread.lost_events, told.lines()) == (0, [])


@pytest.mark.parametrize(
    ("store", "lost", "named"),
    [
        (lambda: database(2, last=6), 3, "events 7 to 9 of start 2"),
        (lambda: database(2, told=4), 5, "events 5 to 9 of start 2"),
        (lambda: database(1, last=20), 39, "events 21 to 50 of start 1, and more up to start 2"),
        (database, 59, "events 1 to 50 of start 1, and more up to start 2"),
    ],
)
def test_a_database_that_lacks_what_was_durable_is_told_of(
    tmp_path: Path, told: Told, store: Callable[[], MemoryStore], lost: int, named: str
) -> None:
    keep(tmp_path / "witness", NODE, Mark(1, 50), Mark(2, 9))
    thread = opened(tmp_path / "witness", told, store())
    assert (thread.lost_events, thread.newest_boot) == (lost, 2)
    (line,) = told.lines()
    assert (line["event"], line["level"]) == ("history_witness_lost", "error")
    assert f"the database has lost what was durable: {named};" in line["message"]
    assert line["events"] == lost
    thread.note(3, 1, 5)  # the broker goes on
    thread.write()
    assert read(tmp_path / "witness").marks == (Mark(1, 50), Mark(2, 9), Mark(3, 1, 0, "", 5))


def test_a_database_that_does_not_tell_is_not_accused(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(store: object) -> tuple[int, int]:
        raise DamagedRows("meta: damaged")

    monkeypatch.setattr(witness_thread, "load_boot", damaged)
    keep(tmp_path / "witness", NODE, Mark(2, 9))
    thread = opened(tmp_path / "witness", told)
    assert (thread.lost_events, thread.newest_boot, told.lines()) == (0, 2, [])


def test_a_damaged_file_is_one_line_and_begins_anew(tmp_path: Path, told: Told) -> None:
    (tmp_path / "witness").write_bytes(b"rubbish")
    thread = opened(tmp_path / "witness", told)
    (line,) = told.lines()
    assert (line["event"], line["level"]) == ("history_witness_damaged", "error")
    thread.note(1, 1, 1)
    thread.write()
    assert read(tmp_path / "witness").marks == (Mark(1, 1, 0, "", 1),)


@pytest.mark.parametrize("name", ["none/witness", "theirs"])
def test_without_a_file_the_broker_goes_on(tmp_path: Path, told: Told, name: str) -> None:
    keep(tmp_path / "theirs", "other", Mark(7, 1))
    thread = opened(tmp_path / name, told)
    thread.start()
    thread.note(1, 1, 1)
    thread.write()
    thread.close()
    assert (thread.failures, thread.newest_boot) == (1, 0)
    (line,) = told.lines()
    assert (line["event"], line["level"]) == ("history_witness_failed", "error")
    assert read(tmp_path / "theirs").marks == (Mark(7, 1),)


def test_a_failing_volume_is_told_of_once_and_tried_again(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    thread = opened(tmp_path / "witness", told)
    thread.note(1, 1, 1)
    with monkeypatch.context() as patch:
        replace_in(patch, witness_module, "os", pwrite=fail)
        thread.write()
        thread.write()
    assert (thread.failures, told.events()) == (2, ["history_witness_failed"])
    thread.write()
    assert told.events() == ["history_witness_failed", "history_witness_resumed"]
    assert read(tmp_path / "witness").marks == (Mark(1, 1, 0, "", 1),)


def test_a_volume_that_hangs_holds_nobody(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = opened(tmp_path / "witness", told)

    class Hanging:
        def join(self, timeout: float) -> None:
            assert timeout == witness_thread.JOIN_S

        def is_alive(self) -> bool:
            return True

    monkeypatch.setattr(thread, "_thread", Hanging())
    thread.close()
    assert told.events() == ["history_witness_failed"]
