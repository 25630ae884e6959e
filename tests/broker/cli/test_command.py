"""What holds for every command: names as clients have them, and an output that fails."""

import argparse
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from broker.cli.command import share_name, told_if_slow, topic_filter, topic_name
from tests.broker.cli.commands import ROOT, Run

pytestmark = pytest.mark.full  # starts processes


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("history", "timeline", "\udcff"), "argument CLIENT_ID: '\\udcff': expected UTF-8"),
        (("session", "show", "\udcff"), "argument CLIENT_ID: '\\udcff': expected UTF-8"),
        (("history", "timeline", "--message", f"{1 << 63}"), "the id of a message, below 2 ** 63"),
    ],
)
def test_what_no_client_and_no_message_is_called_is_a_usage_error(
    run: Run, arguments: tuple[str, ...], expected: str
) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert expected in result.stderr.splitlines()[-1]


def test_a_terminal_that_knows_no_accents_is_served(run: Run, history: Path) -> None:
    result = run(
        "history", "tail", "-n", "1", "--data-dir", str(history),
        HOLDFAST__HISTORY__NODE="edge", PYTHONIOENCODING="ascii",
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("m\\xe8tre: session expired\n")


@pytest.mark.parametrize("asked", ["history tail", "session list", "config show", "retained list"])
@pytest.mark.parametrize(
    ("into", "said"),
    [
        ("> /dev/full", "holdfast: cannot write the output: No space left on device\n"),
        ("| true", ""),
    ],
)
def test_an_output_that_is_not_taken_is_one_line_or_none(
    history: Path, asked: str, into: str, said: str
) -> None:
    command = f"{sys.executable} -m broker {asked} --data-dir '{history}' {into}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOLDFAST__HISTORY__NODE": "edge"}
    result = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=300, env=environment
    )
    assert result.stderr == said


@pytest.mark.parametrize("text", ["a", "a/b", "$SYS/x", "/", "$share/g/a", "m\u00e8tre"])
def test_a_topic_name_is_taken_as_it_is(text: str) -> None:
    assert topic_name(text) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [("a/#", "wildcards"), ("+", "wildcards"), ("", "one character"), ("\udcff", "surrogate"),
     ("a\0", "U.0000"), ("a" * 65_536, "65535")],
)  # fmt: skip
def test_what_no_topic_can_be_is_refused(text: str, why: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=why):
        topic_name(text)


@pytest.mark.parametrize("text", ["a", "#", "+/a/#", "$SYS/#"])
def test_a_topic_filter_is_taken_as_it_is(text: str) -> None:
    assert topic_filter(text) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [("a/#/b", "must be last"), ("a+", "whole level"), ("", "one character"),
     ("$share/g/a", "not shared"), ("\udcff", "surrogate")],
)  # fmt: skip
def test_what_no_filter_can_be_is_refused(text: str, why: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=why):
        topic_filter(text)


@pytest.mark.parametrize("text", ["", "a/b", "+", "a#", "\udcff"])
def test_what_no_share_name_can_be_is_refused(text: str) -> None:
    assert share_name("workers") == "workers"
    with pytest.raises(argparse.ArgumentTypeError, match="expected a name"):
        share_name(text)


def test_who_waits_long_is_told_for_what_and_who_does_not_is_not() -> None:
    told, was_told = list[str](), threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        was_told.set()

    with told_if_slow("waiting", 3600, tell):
        pass
    with told_if_slow("waiting for long", 0, tell):
        assert was_told.wait(60)
    assert told == ["waiting for long"]
