"""What the commands share: arguments that are refused, problems that are told."""

import argparse

import pytest

from broker.cli.command import CommandError
from broker.cli.looking.opening import look, print_found, share_name, topic_filter, topic_name
from broker.operations.looking.rows import Problems


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


def test_problems_come_after_what_was_found_and_fail(capsys: pytest.CaptureFixture[str]) -> None:
    problems = Problems()
    assert print_found(["line"], problems) == 0
    problems.note("row 'x'", ValueError("bad"))
    assert print_found(["line"], problems) == 1
    told = capsys.readouterr()
    assert told.out == "line\nline\n"
    assert told.err == "holdfast: row 'x': bad\n"


def test_a_directory_without_database_is_refused() -> None:
    options = argparse.Namespace(config=None, data_dir="absent")
    with pytest.raises(CommandError, match="absent: no database in it"), look(options):
        pass
