"""`holdfast topic who` tells who gets a topic, its broker running or not."""

import json
from collections.abc import Callable

import pytest

from tests.broker.cli.commands import Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

pytestmark = pytest.mark.full  # starts processes


def test_readers_are_listed_while_the_broker_runs_and_after_it_was_killed(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()
    online = RawClient(broker.port, "online")
    online.durable()
    online.subscribe("a/+", "$share/g/a/x", qos=2)
    boat = RawClient(broker.port, "boat\x1b[31m")
    boat.durable()
    boat.subscribe("a/#", "a/x", "$SYS/#")
    boat.disconnect()
    where = ("--data-dir", str(broker.data_dir))
    for _ in range(2):
        table = run("topic", "who", "a/x", *where)
        assert (table.returncode, table.stderr) == (0, "")
        assert [line.split() for line in table.stdout.splitlines()[1:5]] == [
            ["session", "boat\\x1b[31m", "a/#", "1", "no", "no", "-", "later"],
            ["session", "boat\\x1b[31m", "a/x", "1", "no", "no", "-", "later"],
            ["session", "online", "a/+", "2", "no", "yes", "-", "now"],
            ["group", "g", "a/x", "2", "-", "1", "1", "now"],
        ]
        assert table.stdout.splitlines()[-1].startswith("clean sessions are only in the memory")
        told = json.loads(run("topic", "who", "$SYS/x", "-o", "json", *where).stdout)
        assert [row["topic_filter"] for row in told["readers"]] == ["$SYS/#"]
        picked = run("topic", "who", "a/x", "--match", "boat*", "--limit", "1", "-o", "csv", *where)
        assert [line.split(",")[2] for line in picked.stdout.splitlines()] == [
            "topic_filter",
            "a/#",
        ]
        if broker.is_running():
            broker.kill()


@pytest.mark.parametrize(("topic", "why"), [("a/#", "wildcards are for filters"), ("", "one char")])
def test_what_is_no_topic_is_a_usage_error(run: Run, topic: str, why: str) -> None:
    result = run("topic", "who", topic)
    assert (result.returncode, result.stdout) == (2, "")
    assert why in result.stderr.splitlines()[-1]


def test_no_database_is_one_line(run: Run) -> None:
    line = complaint(run("topic", "who", "a", "--data-dir", "absent"), 1)
    assert "absent: no database in it" in line
