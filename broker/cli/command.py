"""What commands share: exit statuses, expected failures, the configuration, output.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from broker.configuration.config import Config

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

PRIVATE: Final = 0o077  # umask: copies of a data directory are for its owner alone, as it is


class CommandError(Exception):
    """An expected failure of a command: one line for the operator and an exit status."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code: int = exit_code


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", help="configuration file (TOML)")
    parser.add_argument("--data-dir", metavar="DIR", help="directory of the database")


def load_config(options: argparse.Namespace) -> "Config":
    """Return the configuration that `add_config_flags` lets name."""
    from broker.configuration.config import ConfigError
    from broker.configuration.load import load

    try:
        return load(options.config, flags={"storage.data_dir": options.data_dir})
    except ConfigError as problem:
        raise CommandError(str(problem), EXIT_USAGE) from None


def name(text: str) -> str:
    """Return a name that a client may have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected UTF-8") from None
    return text


def print_lines(lines: Iterable[str], *, flush: bool = False) -> None:
    """Print lines, and say in one of our own where their reader cannot take them."""
    for line in lines:
        try:
            print(line, flush=flush)
        except BrokenPipeError:
            raise
        except OSError as problem:
            forget_output()
            raise CommandError(f"cannot write the output: {problem.strerror}") from None
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as problem:
        forget_output()
        raise CommandError(f"cannot write the output: {problem.strerror}") from None


def forget_output() -> None:
    """Keep the interpreter from writing what is left once more, and from saying that it cannot."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
