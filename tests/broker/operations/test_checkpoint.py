"""A copy of a data directory: complete, usable, and never over something that is there."""

import asyncio
import os
from pathlib import Path

import pytest

from broker.operations import checkpoint
from broker.operations.checkpoint import CheckpointError
from broker.operations.control_socket import ControlError
from mqtt.packets import Puback, Suback
from storage.errors import Recoverable
from storage.local.data_directory import DataDirectory
from storage.local.opening import open_database
from storage.local.rocks import RocksStore
from storage.local.watermark import Synced, Watermark
from storage.tables.tables import FAMILIES, META, SESSIONS, scan_all
from tests.broker.inside import InsideBroker, publish, run, subscribe


def stopped(tmp_path: Path) -> Path:
    """Return the data directory of a dead broker with a row that is only in the log."""
    place = DataDirectory(tmp_path / "data")
    store, watermark, _ = open_database(place, families=FAMILIES)
    store.write([(META, b"k", b"v")])
    store.sync()
    store.close()
    watermark.close()
    place.close()
    return tmp_path / "data"


def everything(store: RocksStore) -> dict[str, list[tuple[bytes, bytes]]]:
    return {family: list(scan_all(store, family, b"", None)) for family in store.families()}


def test_a_stopped_broker_is_copied_by_the_command(tmp_path: Path) -> None:
    data_dir = stopped(tmp_path)
    assert checkpoint.make(str(data_dir), str(tmp_path / "copy")) == "this command"
    assert DataDirectory(tmp_path / "copy").database.is_dir()
    copied = RocksStore(tmp_path / "copy" / "db", read_only=True)
    try:
        assert copied.get(META, b"k") == b"v"
    finally:
        copied.close()


def test_a_running_broker_copies_everything_it_has_written(tmp_path: Path) -> None:
    async def scenario(broker: InsideBroker) -> None:
        subscriber = await broker.connect("s", expiry=3600)
        subscriber.send(subscribe("t", 1))
        await subscriber.receive(Suback)
        publisher = await broker.connect("p")
        for _ in range(20):
            publisher.send(publish("t"))
            await publisher.receive(Puback)
        target = broker.store.path.parent / "copy"
        request = {"do": "checkpoint", "directory": str(target)}
        assert checkpoint.answer(broker.store, request)["milliseconds"].isdecimal()
        live = everything(broker.store)
        assert live[SESSIONS]
        copied = RocksStore(target / "db", read_only=True)
        try:
            assert everything(copied) == live
            assert copied.sequence() == broker.store.sequence()
        finally:
            copied.close()
        await asyncio.sleep(0)

    run(scenario)


def test_a_directory_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    data_dir = stopped(tmp_path)
    target = tmp_path / "copy"
    target.mkdir()
    (target / "file").write_text("precious")
    with pytest.raises(CheckpointError, match="copy: not empty; expected a new directory"):
        checkpoint.make(str(data_dir), str(target))
    assert [path.name for path in target.iterdir()] == ["file"]
    (target / "file").unlink()
    checkpoint.make(str(data_dir), str(target))
    assert sorted(path.name for path in target.iterdir()) == ["db", "watermark"]
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file: not a directory"):
        checkpoint.make(str(data_dir), str(tmp_path / "file"))


def test_another_file_system_is_refused_because_copying_would_take_the_brokers_time(
    tmp_path: Path,
) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no other file system here")
    target = other / f"holdfast-{tmp_path.name}"
    with pytest.raises(CheckpointError, match="another file system; make the copy beside"):
        checkpoint.make(str(stopped(tmp_path)), str(target))
    assert not target.exists()


def test_a_database_that_lost_something_is_not_copied(tmp_path: Path) -> None:
    data_dir = stopped(tmp_path)
    watermark = Watermark(data_dir / "watermark")
    watermark.begin(Synced(100))
    watermark.close()
    with pytest.raises(CheckpointError, match="100 were durable"):
        checkpoint.make(str(data_dir), str(tmp_path / "copy"))


def test_a_copy_that_cannot_be_read_whole_says_which_family(tmp_path: Path) -> None:
    data_dir = stopped(tmp_path)
    store = RocksStore(data_dir / "db")
    for family, rows in ((META, 1000), (SESSIONS, 5000)):
        store.write([(family, b"%04d" % number, os.urandom(50)) for number in range(rows)])
    store.flush()
    count = sum(len(rows) for rows in everything(store).values())
    store.close()
    copy = tmp_path / "copy"
    checkpoint.make(str(data_dir), str(copy))
    assert checkpoint.read_whole(str(copy)) == count
    table = max((copy / "db").glob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 4] ^= 1
    table.write_bytes(content)
    with pytest.raises(CheckpointError) as raised:
        checkpoint.read_whole(str(copy))
    line = str(raised.value)
    assert "cannot be read whole" in line and f"family {SESSIONS}" in line
    assert f"family {META}" not in line and table.name in line and "\n" not in line


def test_what_cannot_be_copied_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no database in it"):
        checkpoint.make(str(tmp_path), str(tmp_path / "copy"))
    data_dir = stopped(tmp_path)
    place = DataDirectory(data_dir)
    try:
        with pytest.raises(CheckpointError, match="cannot ask the broker at"):
            checkpoint.make(str(data_dir), str(tmp_path / "copy"))
    finally:
        place.close()
    store = RocksStore(data_dir / "db")
    store.close()
    with pytest.raises(CheckpointError, match="is closed"):
        checkpoint.copy(store, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("copy\udcff", "takes no name that is not UTF-8"),
        ("copy\0", "takes no name that is not UTF-8"),
        ("db/copy", "in the database itself; make the copy beside it"),
        ("f" * 300, "File name too long"),
    ],
)
def test_a_place_that_cannot_be_is_refused_and_the_broker_goes_on(
    tmp_path: Path, where: str, why: str
) -> None:
    store = RocksStore(tmp_path / "db", families=FAMILIES)
    try:
        request = {"do": "checkpoint", "directory": str(tmp_path / where)}
        with pytest.raises(ControlError, match=why):
            checkpoint.answer(store, request)
        store.write([(META, b"k", b"v")])
        store.sync()
    finally:
        store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["db"]


@pytest.mark.parametrize(
    ("where", "why"), [("link/copy", "in the database itself"), ("loop", "not a directory")]
)
def test_a_link_does_not_lead_into_the_database(tmp_path: Path, where: str, why: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "db")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    store = RocksStore(tmp_path / "db", families=FAMILIES)
    try:
        before = sorted(store.path.iterdir())
        with pytest.raises(CheckpointError, match=why):
            checkpoint.copy(store, tmp_path / where)
        assert sorted(store.path.iterdir()) == before
    finally:
        store.close()


def test_what_a_failed_copy_left_is_removed(tmp_path: Path) -> None:
    """RocksDB copies into a directory aside, and renames it at the end."""
    store = RocksStore(tmp_path / "db", families=FAMILIES)
    store.write([(META, b"k", b"v")])

    def fail(target: Path) -> None:
        (target.parent / "db.tmp").mkdir()
        raise Recoverable("no space")

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "checkpoint", fail)
            with pytest.raises(CheckpointError, match="no space"):
                checkpoint.copy(store, tmp_path / "copy")
    finally:
        store.close()
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"do": "from the future"}, "does not know the request 'from the future'"),
        ({}, "does not know the request ''"),
        ({"do": "checkpoint", "directory": "relative"}, "checkpoint into an absolute path"),
    ],
)
def test_other_requests_are_refused(tmp_path: Path, request_: dict[str, str], why: str) -> None:
    store = RocksStore(tmp_path / "db")
    try:
        with pytest.raises(ControlError, match=why):
            checkpoint.answer(store, request_)
    finally:
        store.close()
