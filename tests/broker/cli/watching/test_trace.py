"""`holdfast trace`: what an operator sees of a client while it happens."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.cli.watching.trace import text_of
from mqtt import reasons
from tests.broker.cli.commands import ROOT, Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

Watch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    """Return a function that begins a trace in a process of its own."""
    processes: list[subprocess.Popen[str]] = []

    def begin(broker: BrokerProcess, *words: str) -> subprocess.Popen[str]:
        lines = broker.log().count("trace_begun")
        process = subprocess.Popen(
            [sys.executable, "-m", "broker", "trace", *words, "--data-dir", str(broker.data_dir)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        broker.wait_for_event("trace_begun", after=lines)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def until(process: "subprocess.Popen[str]", word: str) -> list[str]:
    """Return the lines that come, up to the first with this word."""
    assert process.stdout is not None
    found = []
    for line in process.stdout:
        found.append(line)
        if word in line:
            return found
    raise AssertionError(f"no {word!r} in {found}")


def test_a_client_is_watched_until_ctrl_c(
    run: Run, start: Callable[..., BrokerProcess], watch: Watch
) -> None:
    broker = start()
    process = watch(broker, "client", "boat-17", "--payload")
    boat = RawClient(broker.port, "boat-17")
    boat.durable(username="anna")
    boat.subscribe("a\x1b/#", qos=1)
    boat.publish("a\x1b/b", b"hello\n", qos=1)
    boat.drop()
    lines = until(process, "connection closed")
    text = "".join(lines)
    assert "boat-17 -> CONNECT " in lines[1] and "user 'anna'" in lines[1]
    assert "connected: " in text and "boat-17 <- CONNACK reason=0x00" in text
    assert "-> PUBLISH id=2 qos=1 topic=a\\x1b/b 17 bytes " in text, text
    assert r"'hello\n'" in text and "\x1b" not in text
    assert "lost: connection closed without DISCONNECT" in text
    (row,) = json.loads(listed(run, broker))
    assert (row["kind"], row["value"]) == ("client", "boat-17")
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 130
    assert listed(run, broker) == "[]\n"


def test_what_the_rules_deny_is_watched(
    start: Callable[..., BrokerProcess], watch: Watch, tmp_path: Path
) -> None:
    (tmp_path / "acl").write_text("topic read a/#\n")
    broker = start(HOLDFAST__AUTH__ACL_FILE=str(tmp_path / "acl"))
    process = watch(broker, "topic", "a/+")
    client = RawClient(broker.port, "c")
    client.connect(clean_start=True)
    client.publish("a/b", b"x", qos=1, reason=reasons.NOT_AUTHORIZED)
    *_, denied = until(process, "not authorized")
    assert denied.endswith(" c    topic=a/b denied: publish, not authorized\n"), denied


def listed(run: Run, broker: BrokerProcess) -> str:
    return run("trace", "list", "-o", "json", "--data-dir", str(broker.data_dir)).stdout


def test_a_topic_is_watched_as_json_until_it_is_stopped(
    run: Run, start: Callable[..., BrokerProcess], watch: Watch
) -> None:
    broker = start()
    process = watch(broker, "topic", "t/+", "-o", "json")
    sender = RawClient(broker.port, "sender")
    sender.connect(clean_start=True)
    sender.publish("t/1", b"x", qos=1)
    sender.publish("u", b"x", qos=1)
    (line,) = map(json.loads, until(process, "PUBLISH"))
    assert (line["client_id"], line["topic"], line["direction"]) == ("sender", "t/1", "in")
    stopped = run("trace", "stop", "1", "--data-dir", str(broker.data_dir))
    assert (stopped.returncode, stopped.stdout) == (0, "trace 1 has ended\n")
    rest, complaints = process.communicate(timeout=60)
    assert (process.returncode, rest, complaints) == (0, "", "")


def test_a_trace_ends_with_its_time(run: Run, start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    done = run("trace", "address", "127.0.0.1", "--for", "1s", "--data-dir", str(broker.data_dir))
    assert done.returncode == 0
    assert done.stdout == (
        "trace 1 is on for 1 s: -> from the client, <- to the client\n"
        "trace 1 has ended: its time is over\n"
    )
    assert done.stderr == ""


def test_a_client_of_whom_no_more_is_recorded_is_watched_all_the_same(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start(HOLDFAST__HISTORY__DETAIL="sessions")
    done = run("trace", "client", "c", "--for", "1s", "--data-dir", str(broker.data_dir))
    assert done.stdout.splitlines()[1:] == [
        "the history records no more: history.detail leaves out single messages on purpose",
        "trace 1 has ended: its time is over",
    ]


def test_what_cannot_be_watched_is_said(run: Run, start: Callable[..., BrokerProcess]) -> None:
    broker = start()

    def trace(*words: str) -> subprocess.CompletedProcess[str]:
        return run("trace", *words, "--data-dir", str(broker.data_dir))

    assert "expected one such as 10.0.0.7" in complaint(trace("address", "10.0"), 1)
    assert trace("client", "c", "--for", "0s").returncode == 2
    too_long = trace("client", "c", "--for", "2d")
    assert (too_long.returncode, "expected 24h at most" in too_long.stderr) == (2, True)
    assert "no trace '7' is on" in complaint(trace("stop", "7"), 1)
    assert trace("topic", "a/#/b").returncode == 2
    assert trace("list").stdout.split() == [
        *("TRACE", "KIND", "VALUE", "BY", "SECONDS_LEFT", "LINES_WAITING")
    ]


def test_a_line_shows_what_it_has() -> None:
    line = {
        "at_ms": 1_800_000_000_123,
        "client_id": "c",
        "direction": "out",
        "packet": "PUBACK",
        "packet_id": 5,
        "reason_code": 0x87,
        "size": 4,
        "after_ms": 12,
    }
    assert text_of(line) == "08:00:00.123Z c <- PUBACK id=5 reason=0x87 4 bytes after 12 ms"
    said = {"at_ms": 0, "client_id": "", "direction": "", "text": "x\x1b", "topic": ""}
    assert text_of(said) == "00:00:00.000Z -    topic unknown x\\x1b"
