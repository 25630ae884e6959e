"""`holdfast config`: show the configuration in force, or a template of one; have it read again.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import json
from typing import TYPE_CHECKING, Final

from broker.cli.administration.asking import ask_broker
from broker.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    CommandError,
    Commands,
    add_config_flags,
    complain,
    load_config,
    print_lines,
)

if TYPE_CHECKING:
    from broker.configuration.config import Config

ORIGINS: Final = ("name", "value", "origin")


def add(commands: Commands) -> None:
    """Add `config show` and `config init`."""
    config = commands.add_parser("config", help="show the configuration, or a template of one")
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print every setting in force and where it came from")
    show.add_argument(
        "--origin", action="store_true", help="as a table, with the lines of the file"
    )
    show.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table")
    add_config_flags(show)
    show.set_defaults(run=run_config_show)
    init = actions.add_parser("init", help="print a configuration file with every default")
    init.set_defaults(run=run_config_init)
    reload = actions.add_parser("reload", help="have a running broker read its files again")
    add_config_flags(reload)
    reload.set_defaults(run=run_config_reload)


def run_config_show(options: argparse.Namespace) -> int:
    """Print the configuration in force with the origin of every value."""
    from broker.configuration.show import show

    config = load_config(options)
    if options.origin or options.output != "table":
        _print_origins(options, config)
    else:
        print_lines([show(config)])
    return EXIT_OK


def _print_origins(options: argparse.Namespace, config: "Config") -> None:
    """Print name, value and origin of every setting."""
    from broker.configuration import origins
    from broker.operations.sessions import columns

    found = list(origins.rows(config, _text(options.config)))
    named = (dict(zip(ORIGINS, row, strict=True)) for row in found)
    if options.output == "json":
        print_lines(columns.json_lines(named))
    elif options.output == "csv":
        print_lines(columns.csv_lines(ORIGINS, named))
    else:
        print_lines(columns.table([name.upper() for name in ORIGINS], found))


def _text(path: str | None) -> str:
    """Return the configuration file, which could be read a moment ago."""
    if path is None:
        return ""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError as problem:
        raise CommandError(f"{path}: cannot read it: {problem.strerror}") from None


def run_config_reload(options: argparse.Namespace) -> int:
    """Have a running broker do what SIGHUP does, and print what that has changed."""
    answer = ask_broker(options, {"do": "config_reload"})
    changed = json.loads(answer["changed"])
    restart, problems = json.loads(answer["needs_restart"]), json.loads(answer["problems"])
    print_lines([f"in force: {line}" for line in changed])
    print_lines(restart)
    for line in problems:
        complain(line)
    if not (changed or restart or problems):
        print_lines(["nothing has changed"])
    return EXIT_FAILED if problems else EXIT_OK


def run_config_init(options: argparse.Namespace) -> int:
    """Print a commented configuration file."""
    from broker.configuration.show import template

    print_lines([template()])
    return EXIT_OK
