"""`holdfast log level`: let a running broker write more or less of its log, for a time.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
from typing import Final

from broker.cli.administration.asking import ask_broker
from broker.cli.command import EXIT_OK, Commands, add_config_flags, print_lines, within_a_day

LEVELS: Final = ("debug", "info", "warning", "error")  # of `broker.observe.structured_log`


def add(commands: Commands) -> None:
    log = commands.add_parser("log", help="let a running broker log more or less")
    actions = log.add_subparsers(dest="action", required=True, metavar="ACTION")
    level = actions.add_parser("level", help="write events from this level on")
    level.add_argument("level", choices=LEVELS)
    level.add_argument(
        "--for",
        dest="for_ms",
        type=within_a_day,
        default=0,
        metavar="TIME",
        help="how long: 10m (until a restart, SIGHUP or `config reload`)",
    )
    add_config_flags(level)
    level.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Set the level of the log of a running broker."""
    request = {"do": "log_level", "level": options.level, "for_ms": str(options.for_ms)}
    answer = ask_broker(options, request)
    until = (
        f"for {options.for_ms // 1000} s"
        if options.for_ms
        else "until a restart, SIGHUP or `holdfast config reload`"
    )
    print_lines([f"the log has {answer['level']} {until}; configured: {answer['configured']}"])
    return EXIT_OK
