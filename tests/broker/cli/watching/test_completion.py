"""Shells complete what the command knows: tried in real shells, bash always."""

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from broker.cli.main import build_parser
from broker.cli.watching.completion import SHELLS
from tests.broker.cli.commands import ROOT, Run, complaint

PATIENCE_S = 60.0

ASK_BASH = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
$(complete -p holdfast | sed 's/.* -F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(run: Run, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The script for the shell that the test names."""
    shell: str = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    made = run("completion", shell)
    assert (made.returncode, made.stderr) == (0, "")
    (tmp_path / shell).write_text(made.stdout)
    return tmp_path / shell


def ask(*command: str, cwd: Path) -> list[str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return sorted({line.split("\t")[0].strip() for line in done.stdout.splitlines() if line})


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes_commands_options_choices_and_files(script: Path) -> None:
    (script.parent / "holdfast.toml").touch()
    (script.parent / "directory").mkdir()

    def bash(*words: str) -> list[str]:
        command = ("bash", "--norc", "-c", ASK_BASH, "bash", str(script), "holdfast", *words)
        return ask(*command, cwd=script.parent)

    commands = bash("")
    assert {"serve", "client", "trace", "completion"} <= set(commands)
    assert commands == sorted(_commands())
    assert bash("cli") == ["client"]
    assert set(bash("client", "")) >= {"list", "show", "kick"}
    assert "--match" in bash("client", "list", "--")
    assert bash("log", "level", "de") == ["debug"]
    assert bash("serve", "-c", "hold") == ["holdfast.toml"]
    assert bash("client", "list", "--data-dir", "") == ["directory"]
    assert set(bash("audit", "")) >= {"run", "explain", "diff", "views"}
    assert "--suppressions" in bash("audit", "run", "--")
    assert "--patience" in bash("conformance", "--")


def _commands() -> list[str]:
    usage = build_parser()
    (action,) = [each for each in usage._actions if each.dest == "command"]
    assert action.choices is not None
    return [str(choice) for choice in action.choices]


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes_commands_and_options(script: Path) -> None:
    def fish(line: str) -> list[str]:
        text = f'source {script}; complete -C "{line}"'
        return ask("fish", "--no-config", "-c", text, cwd=script.parent)

    assert fish("holdfast cli") == ["client"]
    assert set(fish("holdfast client ")) >= {"list", "show", "kick"}
    assert "--match" in fish("holdfast client list --")
    assert fish("holdfast log level de") == ["debug"]


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_completes_commands_and_choices_at_a_terminal(script: Path) -> None:
    script.rename(script.parent / "_holdfast")
    master, slave = pty.openpty()
    zsh = subprocess.Popen(
        ["zsh", "-f", "-i"],
        cwd=script.parent,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(slave)
    try:
        os.write(
            master, b"fpath=($PWD $fpath); autoload -Uz compinit; compinit -D -u; print rea''dy\n"
        )
        _read_until(master, b"ready\r\n")
        os.write(master, b"holdfast log level de\t")
        _read_until(master, b"debug")
        os.write(master, b"\x15holdfast cli\t")
        _read_until(master, b"client")
    finally:
        zsh.kill()
        zsh.wait()
        os.close(master)


def _read_until(terminal: int, word: bytes) -> None:
    deadline = time.monotonic() + PATIENCE_S
    data = b""
    while word not in data:
        assert time.monotonic() < deadline, data
        if select.select([terminal], [], [], 0.1)[0]:
            data += os.read(terminal, 65_536)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_there_for_every_shell(run: Run, shell: str) -> None:
    made = run("completion", shell)
    assert made.returncode == 0 and "restart-check" in made.stdout


def test_other_shells_are_refused(run: Run) -> None:
    assert run("completion", "csh").returncode == 2


def test_without_the_extra_it_is_said_how_to_get_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "shtab.py").write_text("raise ImportError")
    said = run("completion", "bash", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert "pip install '.[completion]' in a checkout" in complaint(said, 1)
