"""`holdfast storage show --pins` names who needs a generation, its broker running or not."""

import json
from collections.abc import Callable

import pytest

from broker.operations.owing.report import NOT_PINNING
from storage.local.rocks import RocksStore
from storage.tables.tables import SESSIONS
from tests.broker.cli.commands import Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = pytest.mark.full  # starts processes


def test_those_that_need_a_generation_are_named(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()
    boat = RawClient(broker.port, "boat-17")
    boat.durable()
    boat.subscribe("orders/#", qos=1)
    boat.disconnect()
    shore = RawClient(broker.port, "shore")
    shore.connect()
    shore.publish("orders/1", "set sail")
    where = ("--data-dir", str(broker.data_dir))
    assert run("storage", "reclaim", *where).returncode == 0
    shore.publish("orders/2", "come back")
    for _ in range(2):
        table = run("storage", "show", "--pins", *where)
        assert (table.returncode, table.stderr) == (0, "")
        _, first, second, empty, note = table.stdout.splitlines()
        assert first.split()[:2] == ["1", "closed"] and first.endswith("  boat-17 (2)")
        assert second.split()[:2] == ["2", "open"] and second.endswith("  boat-17 (2)")
        assert (empty, note) == ("", NOT_PINNING)
        if broker.is_running():
            broker.kill()
    rows = json.loads(run("storage", "show", "--pins", "-o", "json", *where).stdout)
    assert [row["sessions"] for row in rows] == [1, 1]
    assert len(run("storage", "show", "--pins", "-o", "csv", *where).stdout.splitlines()) == 3

    store = RocksStore(broker.data_dir / "db")
    store.write([(SESSIONS, b"boat-17", b"damaged")])
    store.close()
    table = run("storage", "show", "--pins", *where)
    assert table.returncode == 1
    assert table.stdout.splitlines()[1].endswith("1 that cannot be read")
    assert table.stderr.startswith("holdfast: session b'boat-17': ")


def test_what_is_not_there_is_said(run: Run) -> None:
    line = complaint(run("storage", "show", "--pins", "--data-dir", "absent"), 1)
    assert line == "holdfast: data directory absent: no database in it"
    line = complaint(run("storage", "show", "-o", "csv", "--data-dir", "absent"), 2)
    assert line == "holdfast: -o csv: expected with --pins"
