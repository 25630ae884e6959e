"""`holdfast group` tells of shared groups, their broker running or not."""

import csv
import json
from collections.abc import Callable

import pytest

from storage.local.rocks import RocksStore
from storage.tables.tables import GROUPS, group_key
from tests.broker.cli.commands import Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = pytest.mark.full  # starts processes


def test_groups_are_listed_with_what_waits_and_past_a_damaged_row(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()
    member = RawClient(broker.port, "w1")
    member.durable()
    member.subscribe("$share/night/a/#", "$share/work/b")
    member.disconnect()
    publisher = RawClient(broker.port, "publisher")
    publisher.connect()
    publisher.publish("a/x", "1")
    publisher.publish("a/y", "2")
    where = ("--data-dir", str(broker.data_dir))
    for _ in range(2):
        table = run("group", "list", *where)
        assert (table.returncode, table.stderr) == (0, "")
        assert [line.split() for line in table.stdout.splitlines()[1:3]] == [
            ["night", "a/#", "1", "0", "2", "0", "0", "-"],
            ["work", "b", "1", "0", "0", "0", "0", "-"],
        ]
        filled = run("group", "list", "--sort", "waiting", "--limit", "1", *where).stdout
        assert [line.split()[0] for line in filled.splitlines()[:3]] == ["NAME", "night", "there"]
        (row,) = csv.DictReader(
            run("group", "list", "--match", "w*", "-o", "csv", *where).stdout.splitlines()
        )
        assert (row["share_name"], row["waiting"]) == ("work", "0")
        counted = run("group", "list", "--bytes", *where).stdout.splitlines()
        assert [line.split()[-1] for line in counted[1:3]] == ["8", "0"]
        page = run("group", "show", "night", "a/#", *where)
        assert page.stdout.splitlines()[-1].split() == ["w1", "1", "no", "0"]
        if broker.is_running():
            broker.kill()
    told = json.loads(run("group", "show", "night", "a/#", "-o", "json", *where).stdout)
    assert (told["waiting"], told["first_members"][0]["client_id"]) == (2, "w1")
    line = complaint(run("group", "show", "day", "a/#", *where), 1)
    assert line == "holdfast: no shared group 'day' of 'a/#' is stored"

    store = RocksStore(broker.data_dir / "db")
    store.write([(GROUPS, group_key("night", "a/#"), b"damaged")])
    store.close()
    listing = run("group", "list", "-o", "json", *where)
    assert listing.returncode == 1
    assert [row["share_name"] for row in json.loads(listing.stdout)] == ["work"]
    assert listing.stderr.startswith("holdfast: shared group b'night\\x00a/#': ")
    assert "shared group b'night" in complaint(run("group", "show", "night", "a/#", *where), 1)


@pytest.mark.parametrize(
    ("name", "topic_filter", "why"),
    [("a/b", "t", "expected a name"), ("g", "a/#/b", "must be last")],
)
def test_what_no_group_is_called_is_a_usage_error(
    run: Run, name: str, topic_filter: str, why: str
) -> None:
    result = run("group", "show", name, topic_filter)
    assert (result.returncode, result.stdout) == (2, "")
    assert why in result.stderr.splitlines()[-1]
