"""Databases for the tests of forensics: rows that the real engine wrote, in a real RocksDB."""

from pathlib import Path
from typing import Any

from audit.database.reader import Database
from audit.database.reading import plan, read
from storage.local.rocks import RocksStore
from tests.session.harness import Broker, will

NODE = "pier_7"


def harbour(history_detail: str = "off") -> Broker:
    """Run a broker until there is something in every table; nothing of it is a matter of time.

    Three generations: messages 1 and 2, 3, and 4 to 6. `boat` and `crane` have been away since the
    first one, `pilot` is connected, `ferry` has left a will that waits, `tug` was a member of a
    shared subscription. `history_detail` is the level of the history.
    """
    broker = Broker(generation_age_s=10, max_inflight=2, history_detail=history_detail)
    broker.durable("boat", "fleet/#").drop()
    broker.durable("crane", "fleet/1", "fleet/+", "dock").drop()
    pilot = broker.connect("pilot", expiry=3600, will=will("pilot/gone", b"adrift", delay=5))
    pilot.subscribe("fleet/2", qos=2)
    tug = broker.durable("tug", "$share/tugs/fleet/#", expiry=7200)
    tug.stop_taking()
    tug.drop()
    broker.publish("fleet/1", b"a")
    broker.publish("fleet/1", b"bb")
    broker.advance(s=11)
    broker.publish("dock", b"ccc", retain=True)
    broker.advance(s=11)
    broker.publish("fleet/2", b"dddd", 2)
    broker.publish("fleet/2", b"eeeee", 2)
    broker.publish("fleet/2", b"ffffff", 1, message_expiry_interval=60)
    broker.connect("ferry", expiry=100, will=will("ferry/gone", b"lost", delay=60)).drop()
    return broker


def written(broker: Broker, path: Path) -> Path:
    """Write all that the broker's store holds into RocksDB; return its data directory."""
    families = broker.store.families()
    store = RocksStore(path / "db", families=families)
    store.write(
        [
            (family, key, value)
            for family in families
            for key, value in broker.store.scan(family, b"", count=1_000_000)
        ]
    )
    store.close()
    (path / "history.node").write_text(f"{NODE}\n")
    return path


def rows_of(path: Path, table: str, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of a table, part by part."""
    with Database(path, **options) as database:
        return [
            row
            for part in plan(database, table)
            for batch in read(database, table, part)
            for row in batch.to_pylist()
        ]
