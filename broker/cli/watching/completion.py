"""`holdfast completion`: a script with which a shell completes commands, options and files.

`shtab` writes it from the parser, so it always fits this version. Must stay quick to import, as
`broker.cli.main` must.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Final

from broker.cli.command import EXIT_OK, CommandError, Commands, print_lines

SHELLS: Final = ("bash", "zsh", "fish")
# What the value of an argument is, by the word that stands for it in the help.
FILES: Final = frozenset(("FILE", "TARGET", "BACKUP"))
DIRECTORIES: Final = frozenset(("DIR", "DATA_DIR", "SRC", "NEW"))


def add(commands: Commands, build: Callable[[], argparse.ArgumentParser]) -> None:
    """Add `completion`; `build` makes the parser of all commands."""
    completion = commands.add_parser(
        "completion", help="print a script that completes commands in a shell"
    )
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(run=run, build=build)


def run(options: argparse.Namespace) -> int:
    """Print the script for a shell."""
    try:
        import shtab
    except ImportError:
        from broker.process.preflight import how_to_install

        raise CommandError(
            f"needs the extra 'completion': {how_to_install('completion')}"
        ) from None

    parser = options.build()
    for action in _arguments(parser):
        if action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in DIRECTORIES:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    print_lines([shtab.complete(parser, options.shell)])
    return EXIT_OK


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of all commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in set(action.choices.values()):
                yield from _arguments(each)
        else:
            yield action
