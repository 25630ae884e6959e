"""Is every damage told, with whom it concerns, and nothing else?"""

import os
import random
import shutil
from pathlib import Path

import pytest

from broker.operations.damage.check import CheckError, check
from storage.local.data_directory import DataDirectory
from storage.local.watermark import Synced, Watermark
from storage.tables.tables import FAMILIES, SESSIONS, SUBSCRIPTIONS
from tests.audit.databases import harbour
from tests.broker.operations.damage.databases import (
    contents,
    fleet,
    flip,
    opened,
    rows_of,
    saved,
    table_of,
    tables,
)
from tests.session.backlogs import closed
from tests.session.harness import Broker


@pytest.mark.parametrize("layout", ["blocks", "filters", "timeline"])
def test_a_whole_database_is_whole_and_stays_as_it_is(tmp_path: Path, layout: str) -> None:
    data = saved(fleet(layout), tmp_path / "data")
    rows = rows_of(data)
    before = contents(data)
    found = check(str(data))
    assert found.is_whole and found.problems == [] and list(found.lines()) == []
    assert found.rows == {family: len(each) for family, each in rows.items()}
    assert contents(data) == before


def test_three_generations_with_sessions_of_all_kinds_are_whole(tmp_path: Path) -> None:
    assert check(str(saved(harbour("full"), tmp_path / "data"))).problems == []


def test_the_session_of_a_damaged_row_is_named(tmp_path: Path) -> None:
    data = saved(fleet(), tmp_path / "data")
    with opened(data) as store:
        store.write([(SESSIONS, b"boat", b"torn"), (SUBSCRIPTIONS, b"crane\0fleet/1", b"torn")])
    found = check(str(data))
    assert set(found.sessions) == {"boat", "crane"}
    assert found.problems[0].startswith("family sessions, row 'boat': session")
    assert any("family subscriptions, row 'crane fleet/1'" in each for each in found.problems)


@pytest.mark.parametrize("family", sorted(set(FAMILIES)))
def test_a_row_of_any_family_that_does_not_decode_is_told(tmp_path: Path, family: str) -> None:
    data = saved(fleet(), tmp_path / "data")
    (key, *_) = rows_of(data)[family]
    with opened(data) as store:
        store.write([(family, key, b"torn")])
    found = check(str(data))
    assert any(each.startswith(f"family {family}, row ") for each in found.problems)


def test_a_row_of_an_index_that_does_not_decode_is_told(tmp_path: Path) -> None:
    data = saved(fleet(), tmp_path / "data")
    (key, *_) = rows_of(data)["idx.1"]
    with opened(data) as store:
        store.write([("idx.1", key, b"torn")])
    assert any(each.startswith("family idx.1, row ") for each in check(str(data)).problems)


def test_messages_that_cannot_be_read_are_counted_for_each_session(tmp_path: Path) -> None:
    """Does the index tell exactly how many messages are lost, and whose?"""
    for layout in ("blocks", "filters"):
        data = saved(fleet(layout), tmp_path / layout)
        rows = rows_of(data)["msg.1"]
        gone = sorted(rows)[10:20]
        with opened(data) as store:
            store.write([("msg.1", key, b"torn") for key in gone])
        found = check(str(data))
        assert found.unreadable == {"boat": 10, "crane": 3}
        (first, *_), (last, *_) = gone, gone[::-1]
        assert found.lost_messages == [(1, int.from_bytes(first), int.from_bytes(last))]
        assert found.lost_count() == 10


def test_messages_in_a_gap_are_not_missed(tmp_path: Path) -> None:
    for layout in ("blocks", "filters"):
        broker = Broker(layout=layout, on_limit="drop_new", max_offline_messages=1)
        broker.durable("boat", "t").drop()
        broker.durable("crane", "#").drop()
        broker.publish("other", b"kept by the crane")
        closed(broker, b"kept by the boat", b"dropped for both")
        data = saved(broker, tmp_path / layout)
        assert not check(str(data)).problems
        with opened(data) as store:
            store.write([("msg.1", key, b"torn") for key in rows_of(data)["msg.1"]])
        assert check(str(data)).unreadable == {"boat": 1, "crane": 1}


def test_messages_lost_with_their_table_block_are_counted(tmp_path: Path) -> None:
    broker = Broker()
    broker.durable("boat", "a").drop()
    broker.durable("crane", "b").drop()
    for _ in range(100):
        broker.publish("a", os.urandom(300))
    broker.publish("b", b"only one")
    data = saved(broker, tmp_path / "data")
    table = max(tables(data), key=lambda file: file.stat().st_size)
    flip(table, table.stat().st_size // 3)
    found = check(str(data))
    assert set(found.unreadable) == {"boat"} and 5 < found.unreadable["boat"] < 30
    assert found.lost_count() == found.unreadable["boat"]
    (problem,) = found.problems
    assert str(table) in problem and "block checksum mismatch" in problem
    assert problem.startswith("family msg.1, between ") and "/links" not in problem


def test_missing_and_unreadable_tables_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    data = saved(fleet(), tmp_path / "data")
    table = table_of(data, b"idle\0nothing/+")
    content = table.read_bytes()
    for damaged in (b"", content[:-1], content[:-4] + b"torn", None):
        table.unlink()
        if damaged is not None:
            table.write_bytes(damaged)
        found = check(str(data))
        assert table.name in found.problems[0], found.problems
        assert found.rows["sessions"] == 6 and found.rows.get(SUBSCRIPTIONS, 0) == 0
        if damaged is None:
            break
        assert table.exists()


def test_a_flipped_bit_anywhere_in_a_table_is_told(tmp_path: Path) -> None:
    data = saved(fleet(), tmp_path / "data")
    random.seed(11)
    missed = []
    for table in random.sample(tables(data), 3):
        for at in (0, random.randrange(table.stat().st_size), table.stat().st_size - 20):
            flip(table, at)
            if check(str(data)).is_whole:
                missed.append((table.name, at))
            flip(table, at)
    assert check(str(data)).is_whole
    assert missed == []


def test_rows_that_do_not_fit_together_are_told(tmp_path: Path) -> None:
    data = saved(fleet(), tmp_path / "data")
    rows = rows_of(data)
    with opened(data) as store:
        store.write([("filters", b"fleet/1", None), (SESSIONS, b"idle", None)])
        store.write([("mailbox", key, None) for key in rows["mailbox"]])
    found = check(str(data))
    told = "\n".join(found.problems)
    assert "session 'idle': it has subscriptions, but no row" in told
    assert "session 'crane': the row of its filter 'fleet/1' is missing" in told
    assert "5 sessions found, expected 6" in told
    assert {"idle", "crane"} <= set(found.sessions)


def test_what_the_watermark_says_is_compared(tmp_path: Path) -> None:
    data = saved(fleet(), tmp_path / "data")
    watermark = Watermark(data / "watermark")
    watermark.begin(Synced(100))
    watermark.close()
    assert check(str(data)).problems[0].endswith("batches found, 100 were durable")
    (data / "watermark").unlink()
    assert check(str(data)).problems == [f"{data / 'watermark'}: missing"]


def test_what_cannot_be_checked_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="no database in it"):
        check(str(tmp_path))
    data = saved(fleet(), tmp_path / "data")
    place = DataDirectory(data)
    try:
        with pytest.raises(CheckError, match="in use, and no copy of it: cannot ask the broker"):
            check(str(data))
    finally:
        place.close()
    assert [file for file in data.iterdir() if file.name.startswith("check-")] == []
    shutil.rmtree(data / "db")
    (data / "db").mkdir()
    with pytest.raises(CheckError, match="no database in it"):
        check(str(data))
