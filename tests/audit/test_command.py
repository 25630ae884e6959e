"""The command line: exit codes, one clear line for whatever cannot be done, and what it prints."""

import argparse
import fcntl
import json
import os
import signal
import socket
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
     ("run", "--history", "x", "--master", "local[0]"),
     ("run", "--history", "x", "--webhook", "example.com"),
     ("explain", "--history", "x"), ("explain", "--history", "x", "--message", "L2"),
     ("explain", "--history", "x", "--message", "1", "--session", "1"),
     ("diff", "a"), ("diff", "a", "b", "--tolerance", "2"), ("views", "--dialect", "oracle")],
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


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "witness: damaged, or not a witness of a history"),
        (("--from", "2026-01-01T00"), "--witness takes the whole history, without --from and --to"),
    ],
)
def test_a_witness_that_cannot_be_compared_is_one_line(
    options: tuple[str, ...],
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "_need", lambda options: None)  # with or without Java
    (tmp_path / "witness").write_bytes(b"torn")
    out, witness = str(tmp_path / "out"), str(tmp_path / "witness")
    history = ("run", "--history", str(tmp_path), "--out", out, "--witness", witness)
    assert call(*history, *options) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("holdfast audit: ") and line.endswith(problem)
    assert not Path(out).exists()


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


def options(*arguments: str) -> argparse.Namespace:
    """Return what a run would be asked with."""
    return command.build_parser("holdfast audit").parse_args(["run", "--history", "h", *arguments])


DOCUMENT: dict[str, object] = {
    "status": "ok", "batch": 0, "rows": 1, "from": "2026-01-01T00:00:00+00:00",
    "to": "2026-01-01T00:00:00+00:00", "invariants": {}, "suppressions": [],
}  # fmt: skip


def test_an_ok_that_could_not_be_told_has_a_status_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = options("--textfile", str(tmp_path / "none" / "x.prom"))
    assert command._tell(asked, DOCUMENT, None, 0) == command.EXIT_UNTOLD == 4
    assert command._tell(asked, DOCUMENT, None, 2) == 2
    assert command._tell(asked, DOCUMENT, None, 3) == 3
    lines = capsys.readouterr().err.splitlines()
    path = tmp_path / "none" / "x.prom"
    assert lines == [f"holdfast audit: --textfile {path}: No such file or directory"] * 3
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/token"
        assert command._tell(options("--webhook", url), DOCUMENT, None, 0) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("holdfast audit: --webhook: 127.0.0.1: ")
    asked = options("--textfile", str(tmp_path / "x.prom"))
    assert command._tell(asked, DOCUMENT, None, 0) == 0
    assert "holdfast_audit_status" in (tmp_path / "x.prom").read_text()


def test_a_textfile_without_a_folder_and_bad_rules_are_found_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ("run", "--history", str(tmp_path), "--out", str(tmp_path / "out"))
    assert call(*base, "--textfile", str(tmp_path / "none" / "x.prom")) == 1
    rules = tmp_path / "rules.toml"
    assert call(*base, "--suppressions", str(rules)) == 1
    rules.write_text("[[suppress]]\ninvariant = 'L2'\nnode = 'n'\nreason = 'r'\n")
    assert call(*base, "--suppressions", str(rules)) == 1
    rules.write_bytes(b"\xff")
    assert call(*base, "--suppressions", str(rules)) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"holdfast audit: --textfile {tmp_path / 'none' / 'x.prom'}: no such folder",
        f"holdfast audit: --suppressions {rules}: No such file or directory",
        f"holdfast audit: --suppressions {rules}: suppress[1].expires: missing; "
        "expected a day such as 2027-01-31",
        f"holdfast audit: --suppressions {rules}: no UTF-8",
    ]
    assert not (tmp_path / "out").exists()


def test_what_is_suppressed_and_what_expired_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    document = {
        "status": "violated",
        "invariants": {"L2": {"status": "violated", "violated": 3, "suppressed": 2, "title": "t"},
                       "D2": {"status": "ok", "violated": 1, "suppressed": 1, "title": "u"}},
        "suppressions": [{"state": "expired", "expires": "2026-01-01", "invariant": "W1",
                          "whom": "node n"}],
    }  # fmt: skip
    command._say(document, None)
    assert capsys.readouterr().out.splitlines() == [
        "verdict: violated", "  L2 violated 1 time: t", "  L2 suppressed 2 times",
        "  D2 suppressed 1 time", "  suppression expired on 2026-01-01: W1, node n",
    ]  # fmt: skip


def test_explain_says_it_or_says_that_nothing_is_known(
    tmp_path: Path, history, capsys: pytest.CaptureFixture[str]
) -> None:
    history.boot()
    client = history.session("c")
    client.create()
    client.row("msg_accepted", msg=5, topic="t", pub_qos=1)
    history.write(tmp_path)
    asked = ("explain", "--history", str(tmp_path))
    assert call(*asked, "--message", "5") == 0
    assert capsys.readouterr().out.startswith("message 5 on node n1:\n  published by 'c' to 't'")
    assert call(*asked, "--session", str(client.number), "--node", "n1") == 0
    assert f"session {client.number} of 'c' on node n1:" in capsys.readouterr().out
    assert call(*asked, "--message", "6") == 1
    assert call(*asked, "--message", "5", "--node", "n2") == 1
    assert call("explain", "--history", str(tmp_path / "x"), "--message", "5") == 1
    assert capsys.readouterr().err.splitlines() == [
        "holdfast audit: no row of this history is about message 6",
        "holdfast audit: n2: no such node; there are n1",
        f"holdfast audit: {tmp_path / 'x'}: no such folder",
    ]


def test_diff_and_views_say_what_they_find(
    tmp_path: Path, history, capsys: pytest.CaptureFixture[str]
) -> None:
    for node in ("n1", "n2"):
        history.node = node
        history.boot()
    history.write(tmp_path)
    nodes = ("diff", "--history", str(tmp_path))
    assert call(*nodes, "n1", "n2") == 0
    assert capsys.readouterr().out.endswith("nothing differs\n")
    history.session("c").create()
    history.write(tmp_path)
    assert call(*nodes, "n1", "n2") == command.EXIT_DIFFERS == 2
    assert capsys.readouterr().out.endswith("2 differ\n")
    assert call("diff", str(tmp_path), str(tmp_path)) == 1
    assert "no verdict.json" in capsys.readouterr().err
    assert call("views", "--out", str(tmp_path)) == 1
    told = f"holdfast audit: {tmp_path}: no tables in it: expected the --out of `audit run`\n"
    assert capsys.readouterr().err == told
    assert call("views", "--out", "s3a://b/o", "--dialect", "spark") == 0
    assert "CREATE OR REPLACE TEMPORARY VIEW audit_sessions" in capsys.readouterr().out


def test_what_needs_no_spark_starts_without_it(tmp_path: Path, history) -> None:
    history.boot()
    history.row("msg_accepted", msg=5, topic="t", pub_qos=0)
    history.write(tmp_path)
    script = (
        "import sys\n"
        "for name in ('pyspark', 'jinja2'): sys.modules[name] = None\n"
        "from audit.command import main\n"
        f"sys.exit(main(['explain', '--history', {str(tmp_path)!r}, '--message', '5'])"
        " or main(['views', '--out', 's3a://b/x']))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
