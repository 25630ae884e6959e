"""The show: it plays by itself, counts honestly, and says in one line why it cannot play."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker import own_process
from broker.cli import demo
from broker.cli.demo_client import Client
from mqtt.packets import Publish
from tests.stand_in import replace_in

ROOT = Path(__file__).parents[3]


def received(*numbers: int) -> Client:
    """Return a client that received these orders with its session."""
    boat = Client("boat")
    boat.session_present = True
    for number in numbers:
        boat.received.append(Publish("a", b"%d" % number, 1 + number % 2, packet_id=1))
    return boat


def judge(boat: Client, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(demo, "OFFLINE_MESSAGES", 2)
    monkeypatch.setattr(demo, "STREAM_MESSAGES", 2)
    return demo.judge(boat, [b"0", b"1"], time.monotonic())


@pytest.mark.full  # starts brokers
def test_the_show_ends_with_nothing_lost_and_leaves_nothing_behind(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "broker", "demo"],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(tmp_path),
            "HOLDFAST__LISTENER__PORT": "none of its business",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    assert "recovered 2 sessions in" in result.stdout
    assert "session present: yes" in result.stdout
    assert "nothing was lost" in result.stdout
    assert os.listdir(tmp_path) == []


@pytest.mark.full  # starts a broker
def test_no_process_of_a_broker_outlives_it_and_writes_into_its_directory(tmp_path: Path) -> None:
    """May the export of the history make files again while the directory is removed?"""
    broker = demo.BrokerProcess(str(tmp_path / "data"), 0)
    broker.kill()
    assert (tmp_path / "data" / "db").is_dir()
    assert list((tmp_path / "data").glob("history*")) == []


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ((0, 1, 2, 3), 0),
        ((0, 0, 1, 2, 3, 2), 0),
        ((1, 2, 3), 1),
        ((0, 1, 2), 1),
        ((0, 1, 1, 2, 3), 1),
        ((2, 0, 1, 3), 1),
    ],
    ids=["all", "QoS 1 twice", "acknowledged lost", "missing", "QoS 2 twice", "out of order"],
)
def test_the_verdict_is_what_was_counted(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    numbers: tuple[int, ...],
    status: int,
) -> None:
    assert judge(received(*numbers), monkeypatch) == status
    assert ("nothing was lost" in capsys.readouterr().out) is (status == 0)


def test_what_was_delivered_twice_is_told_for_each_qos(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judge(received(0, 1, 0, 2, 0, 3, 1, 2), monkeypatch)
    counts = [line.split()[4] for line in capsys.readouterr().out.splitlines() if "twice" in line]
    assert counts == ["1", "3"]


def test_a_lost_session_is_not_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    boat = received(0, 1, 2, 3)
    boat.session_present = False
    assert judge(boat, monkeypatch) == 1


def test_a_broker_that_does_not_start_is_said_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho some words >&2\nexit 1\n")
    script.chmod(0o755)
    replace_in(monkeypatch, own_process, "sys", executable=str(script))
    with pytest.raises(demo.DemoError, match="the broker did not start: some words"):
        demo.play()


def test_a_broker_that_says_in_pieces_that_it_is_ready_is_understood(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "python"
    said = "starting\nready port=4711 recovered 2 sessions in 0.1 s\n"
    script.write_text(f"#!/bin/sh\nprintf '{said}' >&2\n")
    script.chmod(0o755)
    replace_in(monkeypatch, own_process, "sys", executable=str(script))
    replace_in(monkeypatch, demo, "os", read=lambda descriptor, _: os.read(descriptor, 20))
    broker = demo.BrokerProcess(str(tmp_path), 0)
    broker.kill()
    assert broker.port == 4711
