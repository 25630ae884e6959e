"""Is a database found, opened without a change to it, and refused with a reason?"""

import os
from pathlib import Path

import pytest

from audit.database.reader import SKIP, Database, SourceError
from storage.local.data_directory import DataDirectory
from storage.local.rocks import RocksStore
from storage.tables.tables import FORMAT_KEY, META, SESSIONS, seal
from tests.audit.databases import NODE, harbour, rows_of, written
from tests.durability.process import holdfast
from tests.durability.rawclient import RawClient
from tests.session.backlogs import with_a_gap
from tests.session.harness import Broker


def change(path: Path, family: str, key: bytes, value: bytes) -> None:
    """Overwrite one row of a database."""
    store = RocksStore(path / "db")
    store.write([(family, key, value)])
    store.close()


def contents(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_checkpoint_and_a_data_directory_are_found(tmp_path: Path) -> None:
    data = written(harbour(), tmp_path / "data")
    store = RocksStore(data / "db")
    store.checkpoint(tmp_path / "checkpoint")
    store.close()
    for path in (data, data / "db", tmp_path / "checkpoint"):
        with Database(path) as database:
            assert not database.is_live
            assert [generation.number for generation in database.generations] == [1, 2, 3]


def test_looking_changes_no_file(tmp_path: Path) -> None:
    data = written(harbour(), tmp_path)
    before = contents(data)
    assert len(rows_of(data, "sessions")) == 5
    assert contents(data) == before


def test_the_database_of_a_running_broker_is_one_moment(tmp_path: Path) -> None:
    broker = harbour()
    data = written(broker, tmp_path)
    with_lock = DataDirectory(data)
    store = RocksStore(data / "db")
    boat = broker.store.get(SESSIONS, b"boat")
    store.write([(SESSIONS, b"boat1", boat)])
    with Database(data) as database:
        assert database.is_live
        store.write([(SESSIONS, b"boat2", boat)])
        assert database.store.get(SESSIONS, b"boat1") == boat
        assert database.store.get(SESSIONS, b"boat2") is None
    store.close()
    with_lock.close()
    with Database(data) as database:
        assert not database.is_live
        assert database.store.get(SESSIONS, b"boat2") == boat


def test_a_broker_is_looked_at_while_it_serves(tmp_path: Path) -> None:
    process = holdfast(tmp_path)
    process.start()
    try:
        client = RawClient(process.port, "boat").open()
        client.durable()
        client.subscribe("fleet/#")
        with Database(process.data_dir) as database:
            assert database.is_live
        (row,) = rows_of(process.data_dir, "sessions")
        assert (row["client_id"], row["connected"], row["subs"]) == ("boat", True, 1)
        client.drop()
        publisher = RawClient(process.port, "publisher").open()
        publisher.connect()
        publisher.publish("fleet/1", b"x")
        assert [row["topic"] for row in rows_of(process.data_dir, "messages")] == ["fleet/1"]
        publisher.drop()
    finally:
        process.close()


def test_rows_of_the_history_get_the_name_of_the_data_directory(tmp_path: Path) -> None:
    data = written(Broker(), tmp_path)
    assert Database(data).node == NODE
    assert Database(data, node="other").node == "other"
    (data / "history.node").unlink()
    assert Database(data).node == "unknown"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "no such directory"),
        (Path.mkdir, "no database, expected a checkpoint or a data directory of Holdfast"),
        (lambda path: path.write_bytes(b""), "no database, expected"),
        (lambda path: RocksStore(path).close(), "a database, but none of Holdfast's"),
    ],
)
def test_what_is_no_database_is_refused(make: object, said: str, tmp_path: Path) -> None:
    assert callable(make)
    make(tmp_path / "x")
    with pytest.raises(SourceError, match=said) as caught:
        Database(tmp_path / "x")
    assert str(tmp_path / "x") in str(caught.value) and "\n" not in str(caught.value)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    data = written(Broker(), tmp_path)
    change(data, META, FORMAT_KEY, seal((99).to_bytes(2, "big")))
    with pytest.raises(SourceError, match="data format 99, but this version of Holdfast reads"):
        Database(data)


def test_a_damaged_table_file_is_refused_with_its_reason(tmp_path: Path) -> None:
    data = written(harbour(), tmp_path)
    (table,) = [file for file in (data / "db").glob("*.sst") if b"boat" in file.read_bytes()][:1]
    table.write_bytes(os.urandom(table.stat().st_size))
    with pytest.raises(SourceError, match=r"failed: .*([Cc]orruption|magic)"):
        rows_of(data, "sessions")


def test_a_damaged_row_fails_or_is_left_out_and_told(tmp_path: Path) -> None:
    data = written(harbour(), tmp_path)
    change(data, SESSIONS, b"boat", b"damaged")
    with pytest.raises(SourceError, match=r"damaged: session b'boat': value: checksum"):
        rows_of(data, "sessions")
    told: list[str] = []
    with Database(data, damaged=SKIP) as database:
        database.on_damage = told.append
        assert database.session(b"boat", b"damaged") is None
    assert told == ["session b'boat': value: checksum does not match its 3 bytes"]


def test_another_word_for_damaged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="damaged = 'ignore': expected fail or skip"):
        Database(tmp_path, damaged="ignore")


def test_times_are_those_of_the_wall_clock(tmp_path: Path) -> None:
    with Database(written(harbour(), tmp_path)) as database:
        assert database.time(0) is None
        shown = database.time(1_700_000_000_000)
        assert shown is not None and shown.isoformat() == "2023-11-14T22:13:20+00:00"


def test_a_queue_is_counted_as_far_as_it_was_told(tmp_path: Path) -> None:
    data = written(harbour(), tmp_path)
    with Database(data, waiting_max=4) as database:
        stream = database.stream("fleet/#", 0)
        assert stream is not None
        assert database.waiting([stream], 0) == {1: 2, 3: 2}
        assert database.waiting([stream], 0) == {1: 2, 3: 2}, "the second time it is remembered"
        assert database.waiting([stream], 4) == {3: 2}
        assert database.waiting([stream], 6) == {}


def test_what_is_in_a_gap_does_not_wait(tmp_path: Path) -> None:
    data = written(harbour(), tmp_path / "harbour")
    with Database(data) as database:
        stream = database.stream("fleet/#", 0)
        assert stream is not None
        assert database.waiting([stream], 0, ((2, 4),)) == {1: 1, 3: 2}
        assert database.waiting([stream], 0, ((5, 5),)) == {1: 2, 3: 2}
        assert database.waiting([stream], 0, ((1, 3), (5, 9))) == {3: 1}
        assert database.waiting([stream], 0, ((1, 9),)) == {}
    (row,) = rows_of(written(with_a_gap(), tmp_path / "gap"), "sessions")
    assert (row["client_id"], row["waiting"]) == ("boat", 4)
    queues = rows_of(tmp_path / "gap", "queues")
    assert [(row["generation"], row["waiting"]) for row in queues] == [(1, 2), (5, 1), (6, 1)]
