"""`holdfast backend backfill`: has a store told what was there before its backend began.

Asks the running broker, which does it. Read next: `broker.process.desks.filling`, which answers.
"""

import argparse
from typing import Final

from broker.cli.administration.asking import ask_at
from broker.cli.command import (
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    Commands,
    add_config_flags,
    load_config,
    print_lines,
)

PARTS: Final = {
    "subscriptions": "those of stored sessions",
    "retained": "retained messages",
    "presence": "who is connected, with what sessions in memory subscribe to",
}


def add(actions: Commands) -> None:
    """Add `backfill`."""
    backfill = actions.add_parser(
        "backfill", help="tell a store what was there before; 0 = it has begun, 2 = it has not"
    )
    backfill.add_argument("name", metavar="NAME", help="the backend")
    for part, what in PARTS.items():
        backfill.add_argument(f"--{part}", action="store_true", help=f"only {what}")
    backfill.add_argument("--stop", action="store_true", help="end the one that is under way")
    backfill.set_defaults(run=run)
    add_config_flags(backfill)


def run(options: argparse.Namespace) -> int:
    """Have the running broker begin a backfill, or end it."""
    from broker.operations.control_socket import ControlError

    parts = [part for part in PARTS if getattr(options, part)]
    if options.stop and parts:
        raise CommandError("--stop ends all of a backfill: expected no other option", EXIT_USAGE)
    request = "backend_backfill_stop" if options.stop else "backend_backfill"
    data_dir = load_config(options).shell.data_dir
    try:
        ask_at(data_dir, {"do": request, "name": options.name, "parts": ",".join(parts)})
    except ControlError as problem:
        raise CommandError(str(problem), EXIT_USAGE) from None
    if options.stop:
        print_lines([f"{options.name}: the backfill has ended"])
    else:
        print_lines([f"{options.name}: begun; `holdfast backend status` says how far it is"])
    return EXIT_OK


def progress_line(name: str, progress: dict[str, object]) -> str:
    """Return a line about a backfill, of what `backend status` was told."""
    left = progress["left"]
    if isinstance(left, list) and left:
        return f"{name}: backfill: {progress['rows']} rows so far, now {', then '.join(left)}"
    ago = progress["ended_seconds_ago"]
    return f"{name}: backfill: ended {ago} s ago, {progress['rows']} rows"
