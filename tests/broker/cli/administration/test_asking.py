"""Questions before a command changes something: who may answer, and what is a yes."""

import argparse
import contextlib
import io
from pathlib import Path

import pytest

from broker.cli.administration.asking import add_confirmation, ask_broker, confirm
from broker.cli.command import EXIT_USAGE, CommandError
from storage.local.data_directory import DataDirectory


class Terminal(io.StringIO):
    """Somebody at a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def parsed(*arguments: str) -> argparse.Namespace:
    """Return the options of a command with `--yes`."""
    parser = argparse.ArgumentParser()
    add_confirmation(parser)
    return parser.parse_args(arguments)


def test_yes_needs_nobody() -> None:
    confirm(parsed("--yes"), "Really?")


@pytest.mark.parametrize("answer", ["y\n", "YES\n", " yes \n"])
def test_a_person_says_yes(answer: str) -> None:
    confirm(parsed(), "Really?", Terminal(answer))


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "yesterday\n"])
def test_anything_else_is_a_no(answer: str) -> None:
    with pytest.raises(CommandError, match="nothing was done"):
        confirm(parsed(), "Really?", Terminal(answer))


def test_without_a_terminal_nobody_is_asked() -> None:
    with pytest.raises(CommandError, match="Really\\? Nothing was done: say --yes") as caught:
        confirm(parsed(), "Really?", io.StringIO("y\n"))
    assert caught.value.exit_code == EXIT_USAGE


def test_a_broker_that_does_not_run_is_told_from_one_that_starts(tmp_path: Path) -> None:
    options = argparse.Namespace(config=None, data_dir=str(tmp_path))
    with pytest.raises(CommandError, match=r"no broker runs on data directory .* --data-dir DIR"):
        ask_broker(options, {"do": "client_list"})
    with (
        contextlib.closing(DataDirectory(tmp_path)),
        pytest.raises(CommandError, match="it may be starting or ending"),
    ):
        ask_broker(options, {"do": "client_list"})
