"""What the commands share that change something in a running broker: to ask it, and a person first.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import sys
from typing import TYPE_CHECKING, TextIO

from broker.cli.command import EXIT_USAGE, CommandError, load_config

if TYPE_CHECKING:
    from pathlib import Path

    from broker.operations.control_socket import Request


def ask_broker(options: argparse.Namespace, request: "Request") -> "Request":
    """Send a request to the broker of the configured data directory; return its answer.

    Raises `CommandError` with what the broker says against it.
    """
    from broker.operations.control_socket import ControlError

    try:
        return ask_at(load_config(options).shell.data_dir, request)
    except ControlError as problem:
        raise CommandError(str(problem)) from None


def ask_at(data_dir: "str | Path", request: "Request") -> "Request":
    """Send a request to the broker of a data directory; return its answer.

    Raises `ControlError`; where no broker is, that says which flags name another directory.
    """
    from broker.operations.control_socket import Unanswered, ask
    from storage.local.data_directory import is_in_use

    try:
        return ask(data_dir, request)
    except Unanswered:
        if is_in_use(data_dir):
            raise
        raise Unanswered(
            f"no broker runs on data directory {data_dir}: expected that of a broker on this "
            "machine, with -c FILE or --data-dir DIR"
        ) from None


def add_confirmation(parser: argparse.ArgumentParser) -> None:
    """Add the flag that `confirm` reads."""
    parser.add_argument("--yes", action="store_true", help="do it without a question")


def confirm(options: argparse.Namespace, question: str, answers: TextIO | None = None) -> None:
    """Ask whoever is at the terminal; raise `CommandError` unless the answer is yes.

    Without a terminal only `--yes` is a yes. `answers` is where they come from, else stdin.
    """
    if options.yes:
        return
    answers = answers or sys.stdin
    if not answers.isatty():
        raise CommandError(f"{question} Nothing was done: say --yes", EXIT_USAGE)
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if answers.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was done")
