"""`holdfast history`: what happened to sessions and messages."""

import argparse
import contextlib
import os
from collections.abc import Iterator
from typing import Final

from broker.cli.command import (
    EXIT_OK,
    EXIT_USAGE,
    PRIVATE,
    CommandError,
    Commands,
    add_config_flags,
    client_id,
    load_config,
    print_lines,
    whole_number,
)

EXIT_UNSOUND: Final = 2  # of `history verify`, as of `audit run`


def add(commands: Commands) -> None:
    history = commands.add_parser("history", help="what happened to sessions and messages")
    actions = history.add_subparsers(dest="action", required=True, metavar="ACTION")
    tail = actions.add_parser("tail", help="print the last events")
    tail.add_argument(
        "-n", "--lines", type=whole_number, default=20, metavar="N", help="how many (20)"
    )
    tail.add_argument("-f", "--follow", action="store_true", help="go on with new ones")
    tail.set_defaults(run=run_history_tail)
    timeline = actions.add_parser("timeline", help="tell what happened to a client or a message")
    timeline.add_argument("client_id", type=client_id, metavar="CLIENT_ID", nargs="?")
    timeline.add_argument("--message", type=_message, metavar="ID", help="as other events name it")
    timeline.add_argument("--since", type=_seconds, metavar="AGE", help="such as 12h or 7d")
    timeline.set_defaults(run=run_history_timeline)
    export = actions.add_parser("export", help="write the whole history as segments")
    export.add_argument("--to", required=True, metavar="DIR", dest="directory")
    export.set_defaults(run=run_history_export)
    verify = actions.add_parser("verify", help="check every segment; 0 = sound, 2 = it is not")
    verify.add_argument("--history", metavar="DIR", help="directory of segments, if not configured")
    verify.add_argument("--quick", action="store_true", help="names and footers, not every event")
    verify.add_argument(
        "--witness",
        metavar="FILE",
        action="append",
        default=[],
        help="what a broker's `history.witness` file knows must be there; once for each broker",
    )
    verify.set_defaults(run=run_history_verify)
    for parser in (tail, timeline, export, verify):
        add_config_flags(parser)
        if parser in (tail, timeline):
            parser.add_argument("--json", action="store_true", help="one JSON object per line")


def _message(text: str) -> int:
    """Return the id of a message."""
    number = whole_number(text)
    if number >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r}: expected the id of a message, below 2 ** 63")
    return number


def _seconds(text: str) -> int:
    """Return the seconds of an age."""
    from broker.configuration.option_types import Duration

    try:
        seconds = Duration(1000, low=1).parse(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {problem}") from None
    assert isinstance(seconds, int)
    return seconds


def run_history_tail(options: argparse.Namespace) -> int:
    """Print the last events of the history, and new ones as they come."""
    from broker.history import queries

    with _history_problems():
        lines = queries.tail(
            load_config(options), options.lines, as_json=options.json, follow=options.follow
        )
        print_lines(lines, flush=options.follow)
    return EXIT_OK


def run_history_timeline(options: argparse.Namespace) -> int:
    """Print what happened to a client, or to a message."""
    from broker.history import queries
    from storage.time import machine_clocks

    if options.client_id is None and options.message is None:
        raise CommandError(
            "timeline of what? expected CLIENT_ID, --message ID, or both", EXIT_USAGE
        )
    with _history_problems():
        lines = queries.timeline(
            load_config(options),
            options.client_id,
            options.message,
            since_s=options.since,
            as_json=options.json,
            now_ms=machine_clocks.wall_ms(),
        )
        print_lines(lines)
    return EXIT_OK


def run_history_export(options: argparse.Namespace) -> int:
    """Write the history of a data directory, running or not, as segments."""
    from broker.history import export_copy

    os.umask(PRIVATE)
    with _history_problems():
        print_lines([export_copy.export(load_config(options), options.directory)])
    return EXIT_OK


def run_history_verify(options: argparse.Namespace) -> int:
    """Print what is wrong with the segments of a directory."""
    from broker.history import queries

    with _history_problems():
        problems, summary = queries.verify(
            load_config(options),
            options.history,
            thorough=not options.quick,
            witnesses=options.witness,
        )
    print_lines([*problems, summary])
    return EXIT_UNSOUND if problems else EXIT_OK


@contextlib.contextmanager
def _history_problems() -> Iterator[None]:
    from broker.history.queries import HistoryError

    try:
        yield
    except HistoryError as problem:
        raise CommandError(str(problem)) from None
