"""What the commands share: problems that are told, a store that is not there."""

import argparse

import pytest

from broker.cli.command import CommandError
from broker.cli.looking.opening import look, print_found
from broker.operations.looking.rows import Problems


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
