"""`holdfast retained` tells of retained messages, their broker running or not."""

import csv
import json
from collections.abc import Callable

import pytest

from mqtt.message import Message
from storage.local.rocks import RocksStore
from storage.tables.message_record import encode_message
from storage.tables.tables import RETAINED, retained_key
from tests.broker.cli.commands import Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = pytest.mark.full  # starts processes


def test_messages_are_listed_and_shown_past_a_damaged_and_an_expired_row(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()
    publisher = RawClient(broker.port, "sensor\x1b[31m")
    publisher.connect()
    publisher.publish("a/x", "line\n", retain=True)
    publisher.publish("a/y", b"\xff", qos=2, retain=True, message_expiry_interval=3600)
    publisher.publish("b", "2", retain=True)
    where = ("--data-dir", str(broker.data_dir))
    for _ in range(2):
        table = run("retained", "list", "--topic", "a/+", *where)
        assert (table.returncode, table.stderr) == (0, "")
        cells = [line.split() for line in table.stdout.splitlines()[1:]]
        assert [(row[0], row[1], row[2], row[5]) for row in cells] == [
            ("a/x", "5", "1", "sensor\\x1b[31m"),
            ("a/y", "1", "2", "sensor\\x1b[31m"),
        ]
        page = run("retained", "show", "a/x", *where).stdout.splitlines()
        assert page[-1].split(maxsplit=1) == ["payload", "line\\n"]
        if broker.is_running():
            broker.kill()

    store = RocksStore(broker.data_dir / "db")
    expired = Message("a/old", b"x", 1, True, b"", "p", 1, 2)
    store.write(
        [
            (RETAINED, retained_key("a/lost"), b"damaged"),
            (RETAINED, retained_key("a/old"), encode_message(expired)),
        ]
    )
    store.close()
    listing = run("retained", "list", "-o", "csv", *where)
    assert listing.returncode == 1
    rows = list(csv.DictReader(listing.stdout.splitlines()))
    assert [row["topic"] for row in rows] == ["a/x", "a/y", "b"]
    (line,) = listing.stderr.splitlines()
    assert line.startswith("holdfast: retained message of 'a/lost': ")
    table = run("retained", "list", *where)
    assert table.stdout.splitlines()[-1] == "1 have expired, and are sent to nobody"
    assert "'a/lost'" in complaint(run("retained", "show", "a/lost", *where), 1)
    assert "'a/old' expired at " in complaint(run("retained", "show", "a/old", *where), 1)
    line = complaint(run("retained", "show", "a", *where), 1)
    assert line == "holdfast: no retained message on 'a'"
    told = json.loads(run("retained", "show", "a/y", "-o", "json", *where).stdout)
    assert told["payload_base64"] == "/w=="


def test_a_limit_says_that_there_are_more(run: Run, start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    publisher = RawClient(broker.port, "p")
    publisher.connect()
    for topic in ("a", "b"):
        publisher.publish(topic, "1", retain=True)
    where = ("--data-dir", str(broker.data_dir))
    cut = run("retained", "list", "--limit", "1", *where).stdout.splitlines()
    assert [line.split()[0] for line in cut] == ["TOPIC", "a", "there"]
    whole = run("retained", "list", "--limit", "2", *where).stdout.splitlines()
    assert [line.split()[0] for line in whole] == ["TOPIC", "a", "b"]
    told = run("retained", "list", "--limit", "1", "-o", "json", *where)
    assert [row["topic"] for row in json.loads(told.stdout)] == ["a"]
    publisher.publish("c/long", "123", retain=True)
    sized = run("retained", "list", "--sort", "bytes", "--match", "[bc]*", "-o", "csv", *where)
    assert [line.split(",")[0] for line in sized.stdout.splitlines()] == ["topic", "c/long", "b"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("list", "--topic", "a/#/b"), "must be last"),
        (("list", "--topic", "$share/g/a"), "not shared"),
        (("list", "--limit", "0"), "expected 1 or more"),
        (("list", "--limit", "\u0663"), "expected a whole number"),
        (("show", "a/+"), "wildcards are for filters"),
    ],
)
def test_what_was_asked_in_a_wrong_way_exits_2(
    run: Run, arguments: tuple[str, ...], why: str
) -> None:
    result = run("retained", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert why in result.stderr.splitlines()[-1]
