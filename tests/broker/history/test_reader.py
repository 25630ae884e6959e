"""What is exported and what is not, read as one history."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.history import reader
from broker.history.location import Place
from broker.history.reader import History
from broker.history.segment_files import SegmentWriter
from storage.history.packed_rows import history_key, unpack
from storage.history.segment_names import segment_names
from storage.local.rocks import RocksStore
from storage.tables.tables import HISTORY, unseal
from tests.broker.history.test_segment_process import START_MS, packed


def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "history", "edge", tmp_path / "lock")


def put(tmp_path: Path, *rows: tuple[int, int, int]) -> None:
    """Have rows (boot, first seq, events) in the database."""
    store = RocksStore(tmp_path / "db", families=[HISTORY])
    store.write([(HISTORY, history_key(b, seq), packed(seq, n)) for b, seq, n in rows])
    store.close()


def export(tmp_path: Path, boot: int, first_seq: int, count: int, *, hour: int = 0) -> None:
    row = unpack(unseal(packed(first_seq, count, START_MS + hour * 3_600_000), "row"))
    SegmentWriter(tmp_path / "history", "edge", keep_days=0).write(boot, [row])


def firsts(rows: object) -> list[tuple[int, int]]:
    return [(boot, row.first_seq) for boot, row in rows]  # type: ignore[attr-defined]


def test_rows_that_a_segment_has_are_not_told_twice(tmp_path: Path) -> None:
    put(tmp_path, (1, 1, 3), (1, 4, 2), (1, 6, 1), (2, 1, 4))
    export(tmp_path, 1, 1, 5)
    with History(tmp_path / "db", place(tmp_path)) as history:
        assert firsts(history.unexported()) == [(1, 6), (2, 1)]
        assert firsts(history.unexported_reversed()) == [(2, 1), (1, 6)]
        assert [(boot, seq) for boot, seq, _ in history.rows()] == [(1, 1), (1, 4), (1, 6), (2, 1)]
        (segment,) = history.sealed()
        events = history.events_of(segment)
        assert [event["seq"] for event in events] == [1, 2, 3, 4, 5]
        assert events[0]["ts"] == START_MS * 1000
        _, row = next(iter(history.unexported()))
        assert [set(event) for event in history.expand(1, row)] == [set(events[0])]


def test_segments_come_in_either_order_and_from_an_hour_on(tmp_path: Path) -> None:
    put(tmp_path)
    for hour, seq in enumerate((1, 11, 21)):
        export(tmp_path, 1, seq, 10, hour=hour)
    with History(tmp_path / "db", place(tmp_path)) as history:
        assert [each.first_seq for each in history.sealed()] == [1, 11, 21]
        assert [each.first_seq for each in history.sealed(newest_first=True)] == [21, 11, 1]
        second = list(history.sealed())[1].path.parent
        since = f"{second.parent.name}/{second.name}"
        assert [each.first_seq for each in history.sealed(since_hour=since)] == [11, 21]
        found = history.events_of(list(history.sealed())[1], [("seq", "==", 15)])
        assert [event["seq"] for event in found] == [15]


def test_without_pyarrow_segments_are_counted_as_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, (1, 6, 1))
    export(tmp_path, 1, 1, 5)
    monkeypatch.setattr(reader, "can_read_segments", lambda: False)
    with History(tmp_path / "db", place(tmp_path)) as history:
        (segment,) = history.sealed()
        assert history.events_of(segment) == []
        assert history.left_out == 1
        assert firsts(history.unexported()) == [(1, 6)]


def test_a_row_that_does_not_decode_is_named_once_and_left_out(tmp_path: Path) -> None:
    put(tmp_path, (1, 6, 3), (1, 12, 1))
    store = RocksStore(tmp_path / "db")
    store.write([(HISTORY, history_key(1, 9), b"nonsense"), (HISTORY, b"no key", b"")])
    store.close()
    with History(tmp_path / "db", place(tmp_path)) as history:
        assert firsts(history.unexported()) == [(1, 6), (1, 12)]
        assert firsts(history.unexported_reversed()) == [(1, 12), (1, 6)]
        assert [seq for _, seq, _ in history.rows()] == [6, 9, 12]
        row, key = history.damaged
        assert row.startswith("boot 1, from event 9 on: ") and "key" in key


def test_a_block_that_cannot_be_read_is_named_once_and_left_out(tmp_path: Path) -> None:
    count = 400
    put(tmp_path, *((1, seq, 1) for seq in range(1, count + 1)))
    store = RocksStore(tmp_path / "db")
    store.flush()
    store.close()
    (table,) = [each for each in (tmp_path / "db").glob("*.sst") if b"history" in each.read_bytes()]
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    with History(tmp_path / "db", place(tmp_path)) as history:
        found = [seq for _, seq in firsts(history.unexported())]
        assert found == sorted(set(found)) and {1, count} < set(found) < set(range(1, count + 1))
        assert firsts(history.unexported_reversed()) == [(1, seq) for seq in reversed(found)]
        assert [seq for _, seq, _ in history.rows()] == found
        (problem,) = history.damaged
        assert table.name in problem and "\n" not in problem


def test_damage_is_named_and_a_segment_that_is_gone_is_empty(tmp_path: Path) -> None:
    put(tmp_path)
    export(tmp_path, 1, 1, 5)
    (segment,) = segment_names(tmp_path / "history")
    with History(tmp_path / "db", place(tmp_path)) as history:
        segment.path.write_bytes(b"PAR1")
        assert history.events_of(segment) == []
        pq.write_table(pa.table({"seq": [1, 2]}), segment.path)
        assert history.events_of(segment) == []
        torn, foreign = history.damaged
        assert torn.startswith(f"history segment {segment.path}: ")
        assert foreign.startswith(f"history segment {segment.path}: ")
        assert "\n" not in torn + foreign
        segment.path.unlink()
        assert history.events_of(segment) == []
        assert len(history.damaged) == 2


def test_a_database_without_a_history_has_none(tmp_path: Path) -> None:
    RocksStore(tmp_path / "db").close()
    with History(tmp_path / "db", place(tmp_path)) as history:
        assert list(history.unexported()) == list(history.unexported_reversed()) == []
        assert list(history.rows()) == []
