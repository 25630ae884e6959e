"""`holdfast canary` as people run it: its summary, its exit status, and wrong command lines."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker.cli.commands import ROOT, Run
from tests.durability.process import BrokerProcess, free_port

Start = Callable[..., BrokerProcess]
SUMMARY = (
    "4 published, 4 acknowledged, 8 received, 0 lost, 0 twice, 0 under way; round trip at most "
)


def test_some_rounds_end_with_a_summary_a_log_and_metrics(
    start: Start, run: Run, tmp_path: Path
) -> None:
    url = f"mqtt://127.0.0.1:{start().port}"
    files = ("--log", "canary.jsonl", "--textfile", "canary.prom")
    done = run("canary", url, "--count", "2", "--interval", "0.05", *files)
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("canary ") and last.startswith(SUMMARY)
    assert last.endswith("3 connections, 0 lost; 0 problems")
    lines = [json.loads(line) for line in (tmp_path / "canary.jsonl").read_text().splitlines()]
    assert sum(line["event"] == "received" for line in lines) >= 8
    assert "holdfast_canary_acknowledged_total 4\n" in (tmp_path / "canary.prom").read_text()


def test_ctrl_c_ends_it_in_order(start: Start, tmp_path: Path) -> None:
    url = f"mqtt://127.0.0.1:{start().port}"
    canary = subprocess.Popen(
        [sys.executable, "-m", "broker", "canary", url, "--interval", "0.05"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert canary.stdout is not None
    assert canary.stdout.readline().startswith("canary ")
    canary.send_signal(2)
    out, err = canary.communicate(timeout=60)
    assert err == ""
    assert out.splitlines()[-1].endswith("; 0 problems")
    # Interrupted before it could connect, it has nothing to be content with.
    assert canary.returncode == int("; 0 connections" in out)


def test_nobody_there_is_status_1(run: Run) -> None:
    canary = subprocess.Popen(
        [sys.executable, "-m", "broker", "canary", f"mqtt://127.0.0.1:{free_port()}"],
        env={"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert canary.stdout is not None
    canary.stdout.readline()
    assert "cannot connect to 127.0.0.1" in canary.stdout.readline()
    canary.send_signal(2)
    out, _ = canary.communicate(timeout=60)
    assert canary.returncode == 1
    assert "0 connections" in out


def test_with_a_count_nobody_has_to_end_it_where_nobody_is(run: Run) -> None:
    done = run("canary", f"mqtt://127.0.0.1:{free_port()}", "--count", "1", "--timeout", "0.1")
    assert (done.returncode, "0 connections" in done.stdout) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("http://host",), "expected mqtt://HOST:PORT or mqtts://HOST"),
        (("mqtt://host:99999",), "expected mqtt://HOST:PORT or mqtts://HOST"),
        (("mqtt://host", "--interval", "0"), "'0': expected seconds, 0.01 to 86400"),
        (("mqtt://host", "--cafile", "ca"), "--cafile, --cert and --key need mqtts://"),
        (("mqtts://host", "--key", "key"), "--key needs --cert"),
        (("mqtts://host", "--cafile", "none.pem"), "none.pem: No such file or directory"),
        (("mqtt://host", "--password-file", "none"), "none: No such file or directory"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(
    run: Run, arguments: tuple[str, ...], said: str
) -> None:
    done = run("canary", *arguments)
    assert done.returncode == 2
    assert done.stderr.strip().endswith(said)
    assert "Traceback" not in done.stderr


def test_a_log_that_cannot_be_written_is_one_line(run: Run) -> None:
    done = run("canary", "mqtt://127.0.0.1:1", "--log", "no/such/folder")
    assert (done.returncode, done.stderr) == (
        1,
        "holdfast: no/such/folder: No such file or directory\n",
    )
