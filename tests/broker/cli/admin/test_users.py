"""`holdfast user`: added with a password from a file or a terminal, changed, listed, removed."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.cli.commands import ROOT, Run, complaint

PASSWORD = "correct horse battery"


@pytest.fixture
def place(tmp_path: Path) -> tuple[str, str]:
    """A data directory, beside a file with a password."""
    (tmp_path / "data").mkdir()
    (tmp_path / "password").write_text(PASSWORD + "\n")
    return "--data-dir", str(tmp_path / "data")


def test_a_user_is_added_changed_listed_and_removed(run: Run, place: tuple[str, str]) -> None:
    file = ("--password-file", "password")
    assert run("user", "add", "ann", "--role", "admin", *file, *place).returncode == 0
    again = run("user", "add", "ann", "--role", "admin", *file, *place)
    assert "there is a user 'ann' already" in complaint(again, 1)
    before = json.loads(Path(place[1], "admin-users.json").read_text())["entries"][0]
    change = ("user", "change", "ann", "--role", "viewer", "--payloads", "--keep-password")
    assert run(*change, *place).returncode == 0
    after = json.loads(Path(place[1], "admin-users.json").read_text())["entries"][0]
    assert after["argon2id"] == before["argon2id"]
    (row,) = json.loads(run("user", "list", "-o", "json", *place).stdout)
    assert (row["name"], row["role"], row["payloads"]) == ("ann", "viewer", True)
    assert run("user", "remove", "ann", *place).returncode == 0
    for action in (("remove", "ann"), ("change", "ann", "--role", "viewer", *file)):
        assert "no user 'ann'" in complaint(run("user", *action, *place), 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [(b"short\n", "too short: expected 12"), (b"\n", "too short"), (b"\xff" * 20, "not UTF-8")],
)
def test_a_password_that_is_none_is_named_and_nobody_is_added(
    run: Run, place: tuple[str, str], tmp_path: Path, text: bytes, words: str
) -> None:
    (tmp_path / "password").write_bytes(text)
    file = ("--password-file", "password")
    result = run("user", "add", "ann", "--role", "admin", *file, *place)
    assert words in complaint(result, 1)
    assert not Path(place[1], "admin-users.json").exists()


def test_without_a_terminal_a_file_is_asked_for(run: Run, place: tuple[str, str]) -> None:
    result = run("user", "add", "ann", "--role", "admin", *place, input=f"{PASSWORD}\n" * 2)
    assert "say --password-file" in complaint(result, 1)
    gone = run("user", "add", "ann", "--role", "admin", "--password-file", "absent", *place)
    assert "absent: No such file" in complaint(gone, 1)


@pytest.mark.parametrize(("again", "status"), [(PASSWORD, 0), ("something else", 1)])
def test_a_terminal_is_asked_twice_and_shows_nothing(
    place: tuple[str, str], tmp_path: Path, again: str, status: int
) -> None:
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "broker", "user", "add", "ann", "--role", "admin", *place],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    ) as process:
        os.close(slave)
        shown = b""
        for question, answer in ((b"Password: ", PASSWORD), (b"Again: ", again)):
            while question not in shown:
                shown += os.read(master, 1024)
            os.write(master, answer.encode() + b"\n")
        assert process.wait(60) == status
    try:
        while more := os.read(master, 1024):
            shown += more
    except OSError:
        pass  # the terminal has gone with its process
    os.close(master)
    assert PASSWORD.encode() not in shown
    assert (b"passwords differ" in shown) == (status == 1)
