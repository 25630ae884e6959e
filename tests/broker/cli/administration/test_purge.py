"""`holdfast session purge`: a backlog is dropped, and its space is free."""

import json
from collections.abc import Callable
from subprocess import CompletedProcess

from mqtt.packets import Puback, Publish
from tests.broker.cli.commands import Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


def test_a_backlog_is_dropped_and_its_space_is_free_soon(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()
    where = ("--data-dir", str(broker.data_dir))

    def purge(*words: str) -> CompletedProcess[str]:
        return run("session", "purge", *words, *where)

    away = RawClient(broker.port, "away")
    away.durable()
    away.subscribe("t", qos=1)
    away.disconnect()
    here = RawClient(broker.port, "here")
    here.durable()
    for number in range(1, 301):
        here.send(Publish("t", bytes(1000), 1, packet_id=number))
    for _ in range(300):
        here.expect(Puback)

    assert purge("away", "--dry-run").stdout == (
        "'away': 300 messages wait for it, 0 in flight stay\n"
    )
    assert "no session 'nobody'" in complaint(purge("nobody", "--yes"), 1)
    assert "300 messages wait for it; all of them will be gone. Nothing was done: say --yes" in (
        complaint(purge("away"), 2)
    )
    assert "'here' is connected: --kick ends that" in complaint(purge("here", "--yes"), 1)
    assert "Its connection ends first. Nothing was done" in complaint(purge("here", "--kick"), 2)
    assert purge("here", "--kick", "--yes").stdout == "'here': 0 messages dropped\n"
    here.expect_closed()
    here = RawClient(broker.port, "here")
    assert here.resume().session_present
    assert purge("away", "--older", "1d", "--yes").stdout == "'away': 0 messages dropped\n"
    assert purge("away", "--yes", "--reason", "full").stdout == "'away': 300 messages dropped\n"

    figures = json.loads(run("storage", "show", "-o", "json", *where).stdout)
    assert figures["log_bytes"] > 300_000 and figures["sessions_stored"] == 2
    reclaimed = run("storage", "reclaim", *where).stdout
    assert reclaimed.endswith(" bytes of the log are free again, 0 are needed\n")
    assert int(reclaimed.split()[0]) == figures["log_bytes"]
    assert "log_bytes                0\n" in run("storage", "show", *where).stdout

    broker.crash().restart()
    back = RawClient(broker.port, "away")
    assert back.resume().session_present
    back.ping()


def test_a_backlog_is_dropped_by_topic(run: Run, start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    where = ("--data-dir", str(broker.data_dir))

    def purge(*words: str) -> CompletedProcess[str]:
        return run("session", "purge", "away", *words, *where)

    away = RawClient(broker.port, "away")
    away.durable()
    away.subscribe("t/#", qos=1)
    away.disconnect()
    here = RawClient(broker.port, "here")
    here.connect(clean_start=True)
    for number in range(1, 7):
        here.send(Publish("t/ab"[: 2 + number % 2 * 2], b"%d" % number, 1, packet_id=number))
        here.expect(Puback)
    assert purge("--topic", "t/ab", "--dry-run").stdout == (
        "'away': 3 messages on topics that 't/ab' matches\n"
    )
    assert "all of them, if 't/ab' matches, will be gone" in complaint(purge("--topic", "t/ab"), 2)
    assert purge("--topic", "t/ab", "--yes").stdout == "'away': 3 messages dropped\n"
    (row,) = [
        each
        for each in json.loads(run("session", "list", "-o", "json", *where).stdout)
        if each["client_id"] == "away"
    ]
    assert row["waiting"] == 3
    broker.crash().restart()
    away.resume()
    assert [away.expect_publish().payload for _ in range(3)] == [b"2", b"4", b"6"]
    away.ping()
    assert purge("--topic", "t/#/x").returncode == 2
