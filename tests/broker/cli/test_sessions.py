"""`holdfast session` reads the database of a broker, running or not."""

import base64
import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.tables.tables import SESSIONS
from tests.audit.databases import written
from tests.broker.cli.commands import Run, complaint
from tests.broker.operations.damage.databases import opened
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient
from tests.session.harness import Broker

pytestmark = pytest.mark.full  # starts processes

HOSTILE = "a\x1b]0;owned\x07\u202e"


@pytest.fixture
def harbour(tmp_path: Path) -> str:
    """A data directory: `boat` has a message in flight and two that wait, `crane` one."""
    broker = Broker(max_inflight=1)
    broker.durable(HOSTILE, "idle").drop()
    boat = broker.durable("boat", "a/#", "$share/g/a/#", qos=2)
    broker.durable("crane", "a/" + HOSTILE).drop()
    broker.durable("pilot", "nothing")
    broker.publish("a/b", b"one", 2)
    broker.publish("a/b", b"\xff" * 200, 1)
    broker.publish("a/" + HOSTILE, HOSTILE.encode(), 1)
    boat.drop()
    return str(written(broker, tmp_path / "harbour"))


def names(output: str) -> list[str]:
    """Return the first words of a table's rows."""
    return [line.split()[0] for line in output.splitlines()[1:]]


def test_sessions_are_listed_while_the_broker_runs_and_after_it_was_killed(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()
    client = RawClient(broker.port, "boat")
    client.durable()
    client.subscribe("a/#", "b", "a/+")
    client.disconnect()
    publisher = RawClient(broker.port, "p")
    publisher.durable()
    publisher.publish_all([("a/x", b"x")] * 2500, qos=1)
    for _ in range(2):
        listing = run("session", "list", "--data-dir", str(broker.data_dir))
        assert listing.stderr == ""
        assert listing.stdout.splitlines()[1].split()[:2] == ["boat", "offline"]
        page = run("session", "show", "boat", "--data-dir", str(broker.data_dir))
        assert "  a/#  qos=1\n  a/+  qos=1\n  b  qos=1\n" in page.stdout
        found = run("session", "list", "-o", "json", "--data-dir", str(broker.data_dir))
        boat, _ = json.loads(found.stdout)
        assert (boat["client_id"], boat["waiting"], boat["bytes"]) == ("boat", 2500, None)
        top = run("session", "top", "--data-dir", str(broker.data_dir))
        assert top.stdout.splitlines()[-1] == (
            "1 of 1 sessions with a backlog: 2,500 of 2,500 messages, 10,000 of 10,000 bytes"
        )
        queue = run("session", "queue", "boat", "-o", "csv", "--data-dir", str(broker.data_dir))
        rows = list(csv.DictReader(queue.stdout.splitlines()))
        assert len(rows) == 2500
        assert [row["state"] for row in rows[:2]] == ["waits", "waits"]
        if broker.is_running():
            broker.kill()
    line = complaint(run("session", "show", "nobody", "--data-dir", str(broker.data_dir)), 1)
    assert line == "holdfast: no session 'nobody'"


def test_sessions_of_no_database_are_refused(run: Run) -> None:
    for action in (("list",), ("top",), ("show", "c"), ("queue", "c")):
        line = complaint(run("session", *action, "--data-dir", "absent"), 1)
        assert "absent: no database in it" in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--match", "*a*"), ["a\\x1b]0;owned\\x07\\u202e", "boat", "crane"]),
        (("--match", "BOAT"), []),
        (("--offline", "--limit", "2"), ["a\\x1b]0;owned\\x07\\u202e", "boat"]),
        (("--sort", "messages", "--limit", "2"), ["boat", "crane"]),
        (("--sort", "bytes", "--offline"), ["boat", "crane", "a\\x1b]0;owned\\x07\\u202e"]),
        (("--sort", "oldest", "--limit", "9" * 19), ["boat", "crane", "a\\x1b]0;owned\\x07\\u202e",
                                                     "pilot"]),
    ],
)  # fmt: skip
def test_a_list_has_what_was_asked_for_in_the_order_that_was(
    run: Run, harbour: str, arguments: tuple[str, ...], expected: list[str]
) -> None:
    listing = run("session", "list", *arguments, "--data-dir", harbour)
    assert (listing.returncode, listing.stderr) == (0, "")
    assert names(listing.stdout) == expected


def test_bytes_are_counted_where_they_are_asked_for(run: Run, harbour: str) -> None:
    waits = len("a/" + HOSTILE) + 2 + len(HOSTILE) + 2  # the last letter has 3 bytes
    expected = {"boat": 3 + 3 + 3 + 200 + waits, "crane": waits, "pilot": 0}
    for flags in (("--bytes",), ("--sort", "bytes"), ("--sort", "since", "--bytes")):
        found = run(
            "session", "list", *flags, "--match", "[bcp]*", "-o", "json", "--data-dir", harbour
        )
        sizes = {each["client_id"]: each["bytes"] for each in json.loads(found.stdout)}
        assert sizes == expected
    page = run("session", "show", "boat", "--data-dir", harbour).stdout
    assert f"bytes                    {expected['boat']}\n" in page


def test_the_top_is_who_is_owed_most_with_totals(run: Run, harbour: str) -> None:
    for by in ("bytes", "messages", "oldest"):
        found = run("session", "top", "--by", by, "--limit", "1", "--data-dir", harbour)
        (_, boat, totals) = found.stdout.splitlines()
        assert boat.split()[0] == "boat"
        assert totals.startswith("1 of 2 sessions with a backlog: 3 of 4 messages, ")
    found = run("session", "top", "-o", "csv", "--data-dir", harbour)
    rows = list(csv.DictReader(found.stdout.splitlines()))
    assert [row["client_id"] for row in rows] == ["boat", "crane"]


def test_a_queue_is_what_will_be_sent_in_its_order(run: Run, harbour: str) -> None:
    found = run("session", "queue", "boat", "--payload", "--data-dir", harbour)
    (_, first, second, third, note) = found.stdout.splitlines()
    assert first.split()[:6] == ["sent", "1", "1", "a/b", "2", "6"]
    assert second.split()[:6] == ["waits", "-", "2", "a/b", "1", "203"]
    assert second.endswith("0x" + "ff" * 32 + "...")
    assert third.endswith("  a\\x1b]0;owned\\x07\\u202e")
    assert note.startswith("shared subscriptions: $share/g/a/#. ")
    assert found.stdout.replace("\n", "").isprintable()
    found = run("session", "queue", "boat", "--payload", "-o", "json", "--data-dir", harbour)
    assert [base64.b64decode(each["payload"]) for each in json.loads(found.stdout)] == [
        b"one", b"\xff" * 200, HOSTILE.encode(),
    ]  # fmt: skip
    assert found.stderr.startswith("holdfast: shared subscriptions: ")
    arguments = ("--topic", "+/b", "--limit", "1", "-o", "csv", "--data-dir", harbour)
    found = run("session", "queue", "boat", *arguments)
    (row,) = csv.DictReader(found.stdout.splitlines())
    assert (row["topic"], row["packet_id"], row["qos"]) == ("a/b", "1", "2")
    line = complaint(run("session", "queue", "nobody", "--data-dir", harbour), 1)
    assert line == "holdfast: no session 'nobody'"


def test_a_damaged_session_is_a_line_on_stderr_beside_the_others(run: Run, harbour: str) -> None:
    with opened(Path(harbour)) as store:
        store.write([(SESSIONS, b"boat", b"damaged")])
    for action in (("list",), ("list", "--sort", "bytes"), ("top",), ("list", "-o", "json")):
        found = run("session", *action, "--data-dir", harbour)
        assert found.returncode == 1
        assert found.stderr.startswith("holdfast: session 'boat': ")
        assert len(found.stderr.splitlines()) == 1
        assert "crane" in found.stdout
    assert "session 'boat'" in complaint(run("session", "queue", "boat", "--data-dir", harbour), 1)
    found = run("session", "list", "--match", "crane", "--data-dir", harbour)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("list", "--limit", "0"), "argument --limit: '0': expected 1 or more"),
        (("list", "--limit", "-1"), "argument --limit: '-1': expected a whole number"),
        (("list", "--limit", "many"), "argument --limit: 'many': expected a whole number"),
        (("queue", "c", "--topic", "a/#/b"), "'#' must be last"),
        (("queue", "c", "--topic", "$share/g/a"), "expected a filter without $share/NAME/"),
    ],
)
def test_what_cannot_be_asked_for_is_a_usage_error(
    run: Run, arguments: tuple[str, ...], expected: str
) -> None:
    found = run("session", *arguments)
    assert found.returncode == 2
    assert expected in found.stderr.splitlines()[-1]
