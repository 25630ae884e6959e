"""Databases on a disk, and damage to them."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from session.feed.dead_letters import DeadLetter
from session.settings import Fetching
from storage.local.rocks import RocksStore
from storage.local.watermark import Watermark
from storage.tables.ban_rows import ADDRESS
from storage.tables.fetch_rows import PUBSUB
from storage.tables.tables import scan_all
from tests.audit.databases import written
from tests.session.feed.backends import NAME, feed
from tests.session.harness import Broker

Rows = dict[str, dict[bytes, bytes]]


def fleet(layout: str = "blocks") -> Broker:
    """Run a broker until there is something in every family that damage may hit.

    `boat` waits for 60 messages, `crane` for 20 of them, `tug` is one of a shared subscription and
    has two in flight, `idle` waits for nothing, `diver` has an unfinished QoS 2 PUBLISH, `pilot` is
    connected with a will. A backend was told of them, has refused a row, and `crane` asks it. An
    operator has banned a network.
    """
    feeds = feed("only/for/it", fetches=(Fetching(PUBSUB, "fleet/1"),))
    broker = Broker(layout=layout, max_inflight=2, history_detail="full", feeds=feeds)
    broker.durable("boat", "fleet/#").drop()
    broker.durable("crane", "fleet/1").drop()
    broker.durable("idle", "nothing/+").drop()
    broker.publish("kept", b"k" * 50, retain=True)
    diver = broker.durable("diver", "kept", expiry=7200)
    diver.start_publish("fleet/0", b"q", 2)
    diver.drop()
    for number in range(60):
        broker.publish(f"fleet/{number % 3}", os.urandom(200), retain=number % 7 == 0)
    tug = broker.durable("tug", "$share/tugs/dock", expiry=7200)
    tug.stop_taking()
    tug.drop()
    for number in range(5):
        broker.publish("dock", b"%d" % number)
    broker.durable("pilot", "pilots", qos=2)
    broker.engine.administer(broker.now).ban(ADDRESS, "192.0.2.0/24", 1 << 40, "olga", "loud")
    broker.advance(1000)
    broker.engine.feeds.confirm(NAME, (0, 1), [DeadLetter((0, 1), "1", "WRONGTYPE", b"row")])
    broker.settle()
    return broker


def saved(broker: Broker, data_dir: Path) -> Path:
    """Write all rows of a broker into tables of a data directory, with its watermark."""
    written(broker, data_dir)
    with opened(data_dir) as store:
        store.flush()
        store.sync()
        with contextlib.closing(Watermark(data_dir / "watermark")) as watermark:
            watermark.begin(store.synced())
    return data_dir


@contextlib.contextmanager
def opened(data_dir: Path) -> Iterator[RocksStore]:
    """Open a database to change it."""
    store = RocksStore(data_dir / "db")
    try:
        yield store
    finally:
        store.close()


def rows_of(data_dir: Path) -> Rows:
    """Return all rows of a whole database, by family."""
    with contextlib.closing(RocksStore(data_dir / "db", read_only=True)) as store:
        return {family: dict(scan_all(store, family, b"", None)) for family in store.families()}


def tables(data_dir: Path) -> list[Path]:
    """Return the table files."""
    return sorted((data_dir / "db").glob("*.sst"))


def table_of(data_dir: Path, needle: bytes) -> Path:
    """Return the table file with some bytes in it."""
    (found,) = [table for table in tables(data_dir) if needle in table.read_bytes()]
    return found


def flip(file: Path, at: int) -> None:
    """Change one bit of a file."""
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def contents(data_dir: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file with its bytes and the time of its last change."""
    return {
        str(file.relative_to(data_dir)): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in sorted(data_dir.rglob("*"))
        if file.is_file()
    }
