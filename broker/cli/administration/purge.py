"""`holdfast session purge`: have a running broker drop what waits for a session.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import time
from typing import TYPE_CHECKING, Final

from broker.cli.administration.asking import add_confirmation, ask_broker, confirm
from broker.cli.command import (
    EXIT_OK,
    CommandError,
    add_config_flags,
    age,
    client_id,
    load_config,
    now_ms,
    open_inventory,
    print_lines,
    topic_filter,
)

if TYPE_CHECKING:
    from broker.operations.control_socket import Request

LOOK_S: Final = 0.05  # between two questions how far it is


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("client_id", type=client_id, metavar="CLIENT_ID")
    parser.add_argument(
        "--kick",
        action="store_true",
        help="end its connection first, and keep the client out until the purge is over",
    )
    add_choice(parser)
    parser.set_defaults(run=run)


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every purge has: what is dropped, why, and whether at all."""
    parser.add_argument(
        "--topic", metavar="FILTER", type=topic_filter, help="only topics that this filter matches"
    )
    parser.add_argument(
        "--older", metavar="TIME", type=age, default=0, help="only what is older: 2d"
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="for the history")
    parser.add_argument("--dry-run", action="store_true", help="only print what waits")
    add_confirmation(parser)
    add_config_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Drop what waits for a session; on return that is durable."""
    name = options.client_id
    with open_inventory(options) as inventory:
        report = inventory.session(name)
    if report is None:
        raise CommandError(f"no session {name!r}")
    waiting = f"{report.backlog.waiting} messages wait for it"
    if options.dry_run and options.topic is not None:
        return _count_topic(options)
    if options.dry_run:
        print_lines([f"{name!r}: {waiting}, {len(report.session.in_flight)} in flight stay"])
        return EXIT_OK
    old = "those that are older than you say" if options.older else "all of them"
    if options.topic is not None:
        old = f"{old}, if {options.topic!r} matches,"
    first = " Its connection ends first." if options.kick and report.is_connected else ""
    confirm(options, f"Drop what waits for {name!r}? {waiting}; {old} will be gone.{first}")
    request = {
        "do": "session_purge",
        "client_id": name,
        "reason": options.reason,
        "older_ms": str(options.older),
        "topic": options.topic or "",
        "kick": "1" if options.kick else "",
    }
    follow(options, request, repr(name))
    return EXIT_OK


def _count_topic(options: argparse.Namespace) -> int:
    """Print how many of the messages that wait are on topics that match; reads all of them."""
    from broker.operations.sessions.owed import WAITS, waiting
    from mqtt.topics import matches

    settings = load_config(options).settings
    with open_inventory(options) as inventory:
        report = inventory.session(options.client_id)
        if report is None:
            raise CommandError(f"no session {options.client_id!r}")
        found = sum(
            each.state == WAITS
            and each.message is not None
            and matches(options.topic, each.message.topic)
            for each in waiting(inventory, report, settings, now_ms(inventory))
        )
    print_lines(
        [f"{options.client_id!r}: {found} messages on topics that {options.topic!r} matches"]
    )
    return EXIT_OK


def follow(options: argparse.Namespace, request: "Request", name: str) -> None:
    """Begin a purge, wait for its end and print it. Raises `CommandError` if it ended early."""
    number = ask_broker(options, request)["purge"]
    while True:
        status = ask_broker(options, {"do": "session_purge_status", "purge": number})
        if status["over"] == "1":
            break
        time.sleep(LOOK_S)
    if status["why"]:
        raise CommandError(f"{name}: {status['dropped']} messages dropped; then {status['why']}")
    print_lines([f"{name}: {status['dropped']} messages dropped"])
