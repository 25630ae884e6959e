"""The command line: exit codes, one clear line for whatever cannot be done, and what it prints."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from audit import command, doctor
from broker.cli.main import main as holdfast

ROOT = Path(__file__).parents[2]


def call(*arguments: str) -> int:
    """Run the command; usage errors end it as they would end the process."""
    try:
        return command.main(arguments)
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code


@pytest.mark.parametrize(
    "arguments",
    [(), ("run",), ("dance",), ("run", "--history", "x", "--from", "noon"),
     ("watch", "--history", "x", "--every", "0s"), ("watch", "--history", "x", "--every", "s"),
     ("run", "--history", "x", "--memory", "lots"), ("run", "--history", "x", "--horizon", "-1"),
     ("run", "--history", "x", "--memory", "100m"), ("run", "--history", "x", "--master", "any"),
     ("run", "--history", "x", "--master", "local[x]"),
     ("run", "--history", "x", "--master", "local[0]")],
)  # fmt: skip
def test_a_usage_error_is_no_verdict(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """argparse's own 2 would say `violated`."""
    assert call(*arguments) == command.EXIT_USAGE == 64
    assert capsys.readouterr().err.startswith("usage: ")


def test_holdfast_hands_over_and_keeps_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        holdfast(["audit", "run"])
    assert end.value.code == 64
    assert "holdfast audit run" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        holdfast(["audit", "--help"])
    assert end.value.code == 0
    assert "64 asked for in a wrong way" in capsys.readouterr().out


def test_logs_of_clients_that_are_not_there_are_named_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--history", str(tmp_path), "--out", str(tmp_path / "out"))
    assert call("run", *given, "--clients", f"{tmp_path}/none-*.jsonl") == 1
    assert capsys.readouterr().err == (
        f"holdfast audit: {tmp_path}/none-*.jsonl: expected a file with the log of a client, "
        "found none\n"
    )


def test_a_history_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert call("run", "--history", str(tmp_path / "none"), "--out", out) == 1
    assert capsys.readouterr().err == f"holdfast audit: {tmp_path / 'none'}: no such folder\n"


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,3]", "yarn",
                                    "spark://host:7077", "k8s://https://host:6443"])  # fmt: skip
def test_every_kind_of_master_is_taken(master: str) -> None:
    assert command._master(master) == master


def test_nothing_is_written_before_the_history_is_found(tmp_path: Path) -> None:
    assert call("run", "--history", str(tmp_path / "none"), "--out", str(tmp_path / "out")) == 1
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_folder_of_a_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for history, out, said in (("file", "out", "no folder, but a file"), (".", "file", "a file;")):
        assert call("run", "--history", f"{tmp_path}/{history}", "--out", f"{tmp_path}/{out}") == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line


def test_a_time_that_is_over_before_it_begins_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = ("--from", "2026-01-03", "--to", "2026-01-02")
    assert call("run", "--history", str(tmp_path), *times) == 1
    assert "no time lies between" in capsys.readouterr().err


def test_a_broken_package_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found, but cannot be imported."""
    monkeypatch.setitem(sys.modules, "pyspark.errors", None)
    assert call("run", "--history", str(tmp_path), "--out", str(tmp_path / "out")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(doctor.PIP)


def test_ctrl_c_waits_until_spark_has_started() -> None:
    """Or a JVM is left behind: it ends with its parent only once it has told it where it is."""
    before = signal.getsignal(signal.SIGINT)
    steps = []
    with pytest.raises(KeyboardInterrupt), command._uninterrupted():
        signal.raise_signal(signal.SIGINT)
        steps.append("started")
    assert steps == ["started"]
    assert signal.getsignal(signal.SIGINT) is before


def test_without_the_extra_it_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "pyspark" else name)
    assert call("run", "--history", str(tmp_path)) == 1
    assert capsys.readouterr().err == (f"holdfast audit: pyspark not installed: {doctor.PIP}\n")


def test_without_java_it_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert call("run", "--history", str(tmp_path), "--out", str(tmp_path / "out")) == 1
    err = capsys.readouterr().err
    assert err.startswith("holdfast audit: Java 17 or newer is needed: ")
    assert doctor.java_help() in err
    assert len(err.splitlines()) == 1


def test_two_audits_do_not_work_in_one_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert call("run", "--history", str(tmp_path), "--out", str(tmp_path)) == 1
    assert "another audit is at work in it" in capsys.readouterr().err


def test_results_that_cannot_be_written_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert call("run", "--history", str(tmp_path), "--out", str(tmp_path / "file/out")) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_the_doctor_finds_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert call("doctor", "--history", str(tmp_path)) == 1
    out = capsys.readouterr().out
    assert "✕ Java" in out
    assert f"-> {doctor.java_help()}" in out
    assert "An audit cannot run: Java missing." in out


def test_the_command_needs_nothing_of_the_extra_to_start() -> None:
    script = (
        "import sys\n"
        "for name in ('pyspark', 'pyarrow', 'pandas', 'numpy'): sys.modules[name] = None\n"
        "from audit.command import main\n"
        "sys.exit(main(['doctor', '--out', 'x']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "JAVA_HOME": "/nowhere"},
    )  # fmt: skip
    assert done.returncode == 1
    assert "An audit cannot run: Java missing." in done.stdout
    assert done.stderr == ""


def test_the_cause_of_a_java_stack_is_one_line() -> None:
    problem = ValueError("An error\n\tat x\nCaused by: java.io.IOException: No space left\n\tat y")
    hint = "(HOLDFAST_AUDIT_TRACE=1 shows all)"
    assert command._one_line(problem) == f"ValueError: java.io.IOException: No space left {hint}"
    assert command._one_line(OSError("disk")) == f"OSError: disk {hint}"
    assert command._one_line(ValueError("our own sentence")) == "our own sentence"


def test_the_verdict_names_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    def invariant(status: str, violated: int) -> dict[str, object]:
        return {"status": status, "violated": violated, "title": "no message is lost"}

    document = {
        "status": "violated",
        "invariants": {
            "L2": invariant("violated", 1234), "O1": invariant("unknown", 0),
            "H1": invariant("ok", 0),
        },
    }  # fmt: skip
    command._say(json.loads(json.dumps(document)), "out/report.html")
    assert capsys.readouterr().out == (
        "verdict: violated\n  L2 violated 1,234 times: no message is lost\n"
        "  cannot be told: O1\nreport: out/report.html\n"
    )
