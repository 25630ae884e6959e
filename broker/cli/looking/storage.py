"""`holdfast storage`: how much the log of a running broker takes; give back what nobody needs.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import json
import time
from typing import Final

from broker.cli.administration.asking import ask_broker
from broker.cli.command import (
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    Commands,
    add_config_flags,
    print_lines,
)
from broker.cli.looking import pins

WAIT_S: Final = 10.0  # a closed generation that nobody needs is found within a few seconds
LOOK_S: Final = 0.2
SHOW: Final = {"do": "storage_show"}


def add(commands: Commands) -> None:
    storage = commands.add_parser("storage", help="the space that messages take; give it back")
    actions = storage.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print how much the log takes")
    show.add_argument(
        "--pins",
        action="store_true",
        help="print the generations of the log, and who needs each: it goes when nobody does",
    )
    show.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table")
    reclaim = actions.add_parser(
        "reclaim", help="close the open generation now: it goes when nobody needs a message of it"
    )
    for parser, run in ((show, run_show), (reclaim, run_reclaim)):
        add_config_flags(parser)
        parser.set_defaults(run=run)


def run_show(options: argparse.Namespace) -> int:
    """Print the size of the log, and what is in the store."""
    if options.pins:
        return pins.run(options)
    if options.output == "csv":
        raise CommandError("-o csv: expected with --pins", EXIT_USAGE)
    figures = {name: int(value) for name, value in ask_broker(options, SHOW).items()}
    if options.output == "json":
        print_lines([json.dumps(figures, indent=2)])
    else:
        print_lines(f"{name:<24} {value}" for name, value in figures.items())
    return EXIT_OK


def run_reclaim(options: argparse.Namespace) -> int:
    """Have the broker give back generations that nobody needs; wait a little to see it."""
    before = int(ask_broker(options, SHOW)["log_bytes"])
    figures = ask_broker(options, {"do": "storage_reclaim"})
    until = time.monotonic() + WAIT_S
    while int(figures["generations"]) > 1 and time.monotonic() < until:
        time.sleep(LOOK_S)
        figures = ask_broker(options, SHOW)
    freed = max(0, before - int(figures["log_bytes"]))
    lines = [f"{freed} bytes of the log are free again, {figures['log_bytes']} are needed"]
    if int(figures["generations"]) > 1:
        lines.append("somebody needs the rest: `holdfast storage show --pins` says who")
    print_lines(lines)
    return EXIT_OK
