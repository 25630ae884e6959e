"""The command line: what it prints, where, and with which status."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broker.cli.main import main as holdfast
from conformance.command import main
from conformance.connection import open_tcp
from tests.conformance.conftest import TOY

ROOT = Path(__file__).resolve().parents[2]

ADAPTER = f"""
import sys
from conformance.adapters.base import Launch

class Toy:
    name = "toy"
    def describe(self):
        return "toy 1"
    def prepare(self, place, options):
        return Launch([sys.executable, "-S", {str(TOY)!r}, str(place.port), str(place.directory)])
"""


@pytest.fixture
def adapter(tmp_path: Path) -> str:
    path = tmp_path / "toy_adapter.py"
    path.write_text(ADAPTER)
    return f"{path}:Toy"


def test_a_table_comes_out_with_the_summary_last(
    adapter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["--adapter", adapter, "--version", "5.0", "-k", "3.1.4-5 or 4.5.0-2"])
    output = capsys.readouterr()
    assert status == 0
    lines = output.out.splitlines()
    assert lines[0] == "MQTT 5.0"
    assert any(line.startswith("pass         MQTT-3.1.4-5") for line in lines)
    assert any(line.startswith("not testable MQTT-4.5.0-2") for line in lines)
    assert lines[-1].startswith("toy 1: MQTT 5.0: 1 passed, 0 failed, 1 not testable")
    assert "[  1/1] 1 passed" in output.err


def test_a_failure_makes_the_status_1(adapter: str, capsys: pytest.CaptureFixture[str]) -> None:
    # The toy knows no wildcards.
    status = main(["--adapter", adapter, "--version", "3.1.1", "-k", "4.7.1-3", "-q"])
    output = capsys.readouterr()
    assert status == 1
    assert "FAIL MQTT-4.7.1-3 (MQTT 3.1.1)" in output.out
    assert output.err == ""


def test_a_report_can_go_to_a_file(
    adapter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    arguments = ["--adapter", adapter, "-k", "3.1.4-5", "-q", "-o", "json", "--output", str(path)]
    assert main(arguments) == 0
    assert json.loads(path.read_text())["broker"] == "toy 1"
    assert capsys.readouterr().out.startswith(
        "toy 1: MQTT 3.1.1: 0 passed, 0 failed, 1 not run; MQTT 5.0: 1 passed"
    )


def test_one_run_can_be_written_in_several_forms_told_by_their_endings(
    adapter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beginnings = {"r.json": "{", "r.html": "<!doctype html>", "r.xml": "<?xml", "r.txt": "MQTT 5.0"}
    arguments = ["--adapter", adapter, "--version", "5.0", "-k", "3.1.4-5", "-q"]
    for name in beginnings:
        arguments += ["--output", str(tmp_path / name)]
    assert main(arguments) == 0
    for name, beginning in beginnings.items():
        assert (tmp_path / name).read_text().startswith(beginning)
    assert capsys.readouterr().out.count("\n") == 1


def test_a_file_that_cannot_be_written_does_not_lose_the_others(
    adapter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "good.json"
    # Longer than a file name may be: only writing it shows.
    files = ["--output", str(tmp_path / f"{'x' * 300}.json"), "--output", str(good)]
    assert main(["--adapter", adapter, "-k", "3.1.4-5", "-q", *files], prog="suite") == 1
    assert json.loads(good.read_text())["broker"] == "toy 1"
    assert "File name too long" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--output", "/"], "is a directory"),
        (["--adapter", "json:dumps"], "missing 1 required positional argument"),
        (["--adapter", "json:JSONDecoder"], "has no name and no describe and no prepare"),
        (["-k", "no_such_thing"], "no statement matches"),
        (["--adapter", "nobody"], "unknown adapter 'nobody'"),
        (["--adapter", "no.such.module:Class"], "No module named 'no'"),
        (["--adapter", "/no/such/file.py:Class"], "No such file"),
        (["--adapter", "json:Nothing"], "has no attribute 'Nothing'"),
        (["--adapter", "holdfast", "--port", "1883"], "no --port with it"),
        (["-k", "a and"], "something is missing"),
        (["--output", "/no/such/directory/x"], "no such directory"),
    ],
)
def test_what_is_asked_for_in_a_wrong_way_is_one_line_and_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments, prog="suite") == 2
    error = capsys.readouterr().err
    assert error.startswith("suite: ")
    assert said in error
    assert error.count("\n") == 1


def test_options_that_do_not_exist_are_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["--version", "3.1"],
        ["-o", "pdf"],
        ["--nonsense"],
        ["--port", "x"],
        ["--port", "99999"],
        ["--port", "0"],
        ["--patience", "0"],
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    capsys.readouterr()


def test_no_broker_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", "1", "-k", "3.12.4", "-q"], prog="suite") == 1
    output = capsys.readouterr()
    assert output.err == "suite: 127.0.0.1:1: no connection: Connection refused\n"
    assert output.out == ""


def test_a_signal_ends_the_run_and_every_broker_of_it(tmp_path: Path) -> None:
    ports = tmp_path / "ports"
    path = tmp_path / "toy_adapter.py"
    path.write_text(
        ADAPTER.replace(
            "        return Launch(",
            f"        with open({str(ports)!r}, 'a') as file:\n"
            "            file.write(f'{place.port}\\n')\n"
            "        return Launch(",
        )
    )
    command = [sys.executable, "-m", "conformance", "--adapter", f"{path}:Toy"]
    command += [
        "--version",
        "5.0",
        "-k",
        "3.1.2-22",
        "--patience",
        "60",
    ]  # the toy does not time out
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert process.stderr.readline().startswith("[  0/1]")
        while not ports.exists() or not any(map(listens, ports.read_text().split())):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30.0)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert said == "python -m conformance: interrupted\n"
    assert not any(map(listens, ports.read_text().split()))


def listens(port: str) -> bool:
    try:
        open_tcp("127.0.0.1", int(port), 1.0).close()
    except OSError:
        return False
    return True


def test_holdfast_has_the_command_and_does_not_import_it_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert holdfast(["conformance", "--adapter", "nobody", "-k", "x"]) == 2
    assert "holdfast conformance: unknown adapter" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        holdfast(["conformance", "--help"])
    assert caught.value.code == 0
    assert "usage: holdfast conformance" in capsys.readouterr().out
    assert "conformance.command" in sys.modules
