"""Are the parts of a table together all of it, each row once, and is damage told?"""

from pathlib import Path

import pyarrow as pa
import pytest

from audit.database import reading
from audit.database.reader import SKIP, Database, SourceError
from audit.database.reading import arrow_schema, columns_of, plan, read
from storage.errors import StorageError
from storage.history.columns import ARROW_SCHEMA
from storage.history.events import SESSION_CREATED, SESSION_DISCONNECTED
from storage.history.packed_rows import expand, history_key, unpack
from storage.local.rocks import RocksStore
from storage.tables.tables import RETAINED, SESSIONS, SUBSCRIPTIONS, seal
from tests.audit.databases import NODE, harbour, rows_of, written
from tests.session.harness import Broker
from tests.storage.history.history_cases import Tick


def with_history(path: Path, ticks: dict[tuple[int, int], bytes]) -> Path:
    """Write a database with these ticks, by boot and first seq."""
    data = written(Broker(history_detail="off"), path)
    store = RocksStore(data / "db")
    store.write([("history", history_key(*key), value) for key, value in ticks.items()])
    store.close()
    return data


def tick(first_seq: int, who: str = "boat") -> bytes:
    """Return a tick of two events, as it is stored."""
    recorded = Tick()
    recorded.record(SESSION_CREATED, who=f"{who}\0", proto=5)
    recorded.record(SESSION_DISCONNECTED, who=f"{who}\0")
    return seal(recorded.pack(first_seq))


def test_the_history_is_what_its_rows_expand_to(tmp_path: Path) -> None:
    ticks = {(boot, seq): tick(seq, f"c{seq}") for boot in (1, 2) for seq in (1, 3, 5)}
    rows = rows_of(with_history(tmp_path, ticks), "history")
    expected = [
        row for (boot, _), value in ticks.items() for row in expand(unpack(value[4:]), NODE, boot)
    ]
    wanted = pa.Table.from_pylist(expected, ARROW_SCHEMA).cast(arrow_schema("history"))
    assert rows == wanted.to_pylist()
    assert [(row["boot"], row["seq"]) for row in rows] == [
        (boot, seq) for boot in (1, 2) for seq in range(1, 7)
    ]


def test_what_the_engine_recorded_is_read_as_it_was(tmp_path: Path) -> None:
    broker = harbour("full")
    recorded = [
        row
        for key, value in broker.rows("history")
        for row in expand(unpack(value[4:]), NODE, int.from_bytes(key[:4], "big"))
    ]
    wanted = pa.Table.from_pylist(recorded, ARROW_SCHEMA).cast(arrow_schema("history"))
    found = rows_of(written(broker, tmp_path), "history")
    assert found == wanted.to_pylist()
    assert [row["msg"] for row in found if row["ev"] == "msg_accepted"] == [1, 2, 3, 4, 5, 6]


def test_a_large_history_comes_in_bounded_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "EVENTS_BATCH", 6)
    data = with_history(tmp_path, {(1, seq): tick(seq) for seq in range(1, 41, 2)})
    with Database(data) as database:
        (part,) = plan(database, "history")
        batches = list(read(database, "history", part))
    assert [batch.num_rows for batch in batches] == [6] * 6 + [4]
    assert [seq for batch in batches for seq in batch["seq"].to_pylist()] == list(range(1, 41))


def test_parts_together_are_all_of_the_table_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PART_KEYS", "HISTORY_PART_KEYS", "MESSAGES_PART"):
        monkeypatch.setattr(reading, name, 10)
    broker = Broker()
    for number in range(60):
        broker.durable(f"device-{number:03}", "t").drop()
    for _ in range(35):
        broker.publish("t")
    data = written(broker, tmp_path)
    with Database(data) as database:
        for name, parts in (("sessions", 6), ("subscriptions", 6), ("queues", 6), ("messages", 4)):
            found = plan(database, name)
            assert len(found) == parts, name
            together = [
                row
                for part in found
                for batch in read(database, name, part)
                for row in batch.to_pylist()
            ]
            monkeypatch.setattr(reading, "PARTS_MAX", 1)
            assert len(plan(database, name)) == 1
            assert together == rows_of(data, name), name
            monkeypatch.setattr(reading, "PARTS_MAX", 64)
        used = [list(read(database, "sessions", part)) for part in plan(database, "sessions")]
        assert sum(bool(batches) for batches in used) >= 4, "keys are spread over the parts"
        monkeypatch.setattr(reading, "PART_KEYS", 100)
        assert len(plan(database, "sessions")) == 1


def test_a_single_key_and_none_are_one_part_and_none(tmp_path: Path) -> None:
    broker = Broker()
    data = written(broker, tmp_path / "none")
    assert rows_of(data, "sessions") == []
    broker.durable("only").drop()
    with Database(written(broker, tmp_path / "one")) as database:
        assert len(plan(database, "sessions")) == 1


def test_columns_are_nullable_and_plain() -> None:
    assert columns_of("sessions")[0] == ("client_id", "string")
    for name in ("history", "damage", *reading.TABLES):
        for field in arrow_schema(name):
            assert not pa.types.is_dictionary(field.type), (name, field)
    with pytest.raises(SourceError, match=r"table 'nix': expected one of history, damage, sess"):
        columns_of("nix")


def test_damage_is_told_row_by_row_and_everything_else_is_read(tmp_path: Path) -> None:
    data = with_history(tmp_path / "h", {(1, 1): tick(1), (1, 3): tick(3), (1, 5): tick(7)})
    store = RocksStore(data / "db")
    source = harbour().store
    batch = [
        (family, key, value)
        for family in (SESSIONS, SUBSCRIPTIONS, RETAINED, "filters", "groups")
        for key, value in source.scan(family, b"", count=1000)
    ]
    batch += [
        ("history", history_key(1, 3), b"torn"),
        (SESSIONS, b"boat", b"torn"),
        (SUBSCRIPTIONS, b"crane\0dock", b"torn"),
        (RETAINED, b"dock", b"torn"),
        ("groups", b"tugs\0fleet/#", b"torn"),
    ]
    store.write(batch)
    store.close()
    assert [row["table"] for row in rows_of(data, "damage", damaged=SKIP)] == [
        "history", "history", "in_flight", "subscriptions", "queues", "retained",
    ]  # fmt: skip
    problems = [row["problem"] for row in rows_of(data, "damage", damaged=SKIP)]
    assert problems[1] == "history row 000000010000000000000005: it begins at 7, expected 5"
    assert problems[3].startswith("subscription b'crane\\x00dock': value: checksum")
    assert [row["seq"] for row in rows_of(data, "history", damaged=SKIP)] == [1, 2]
    sessions = rows_of(data, "sessions", damaged=SKIP)
    assert [(row["client_id"], row["subs"]) for row in sessions] == [
        ("crane", 2), ("ferry", 0), ("pilot", 1), ("tug", 1),
    ]  # fmt: skip
    with pytest.raises(SourceError, match="damaged: history row"):
        rows_of(data, "history")


def test_a_damaged_message_costs_no_other_one(tmp_path: Path) -> None:
    broker = Broker(layout="filters")
    broker.durable("c", "t").drop()
    for _ in range(3):
        broker.publish("t")
    data = written(broker, tmp_path)
    store = RocksStore(data / "db")
    store.write([("msg.1", (2).to_bytes(8, "big"), b"torn")])
    store.close()
    assert [row["msg"] for row in rows_of(data, "messages", damaged=SKIP)] == [1, 3]
    (row,) = rows_of(data, "damage", damaged=SKIP)
    assert row["table"] == "messages" and row["problem"].startswith("message 2: ")
    with pytest.raises(SourceError, match="damaged: message 2: "):
        rows_of(data, "messages")


def test_a_damaged_index_leaves_a_count_open(tmp_path: Path) -> None:
    broker = Broker(layout="timeline")
    broker.durable("c", "t").drop()
    broker.publish("t")
    data = written(broker, tmp_path)
    store = RocksStore(data / "db")
    store.write([("msg.1", (1).to_bytes(8, "big"), b"torn")])
    store.close()
    (row,) = rows_of(data, "queues", damaged=SKIP)
    assert (row["client_id"], row["generation"], row["waiting"]) == ("c", None, None)
    (session,) = rows_of(data, "sessions", damaged=SKIP)
    assert session["waiting"] is None and session["waiting_is_at_least"] is False
    with pytest.raises(SourceError, match="damaged: generation 1, index of "):
        rows_of(data, "queues")


def test_what_the_store_cannot_read_is_one_line(tmp_path: Path) -> None:
    data = written(harbour(), tmp_path)
    with Database(data) as database:
        (part,) = plan(database, "sessions")
        database.store.close()
        with pytest.raises(SourceError, match="is closed") as caught:
            list(read(database, "sessions", part))
        assert isinstance(caught.value.__cause__, StorageError)
