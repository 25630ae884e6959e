"""`holdfast session delete`: end sessions on a running broker, with all that waits for them.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
from typing import TYPE_CHECKING

from broker.cli.administration.asking import add_confirmation, ask_broker, confirm
from broker.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    CommandError,
    add_config_flags,
    age,
    client_id,
    complain,
    open_inventory,
    print_lines,
)

if TYPE_CHECKING:
    from broker.operations.control_socket import Request
    from broker.operations.sessions.inventory import SessionReport


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("client_id", type=client_id, metavar="CLIENT_ID", nargs="?")
    which.add_argument(
        "--offline-for",
        metavar="TIME",
        type=age,
        help="all whose clients are away for so long: 90d",
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="told to the client (MQTT 5)")
    parser.add_argument("--dry-run", action="store_true", help="only print what would go")
    add_confirmation(parser)
    add_config_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """End one session, or all whose clients are away for long; on return that is durable."""
    if options.client_id is not None:
        return _delete_one(options, options.client_id)
    return _delete_all(options)


def _delete_one(options: argparse.Namespace, name: str) -> int:
    with open_inventory(options) as inventory:
        report = inventory.session(name)
    if options.dry_run:
        if report is None:
            raise CommandError(f"no session {name!r}")
        print_lines([_line(report)])
        return EXIT_OK
    waiting = "" if report is None else f" {report.backlog.waiting} messages wait for it."
    confirm(options, f"Delete the session of {name!r}?{waiting}")
    ask_broker(options, _request(options, name))
    print_lines([f"{name!r}: its session is deleted"])
    return EXIT_OK


def _delete_all(options: argparse.Namespace) -> int:
    """Ask the broker for each session that the database has; it knows how long a client is away."""
    from storage.time.machine_clocks import wall_ms

    with open_inventory(options) as inventory:
        now_ms = wall_ms()
        found = [
            _Candidate(report.session.client_id, _line(report))
            for report in inventory.sessions(is_offline=True, damaged=complain)
            if now_ms - inventory.wall_ms(report.session.disconnected_at_ms) >= options.offline_for
        ]
    if options.dry_run:
        print_lines([each.line for each in found] + [f"{len(found)} sessions would be deleted"])
        return EXIT_OK
    confirm(options, f"Delete {len(found)} sessions and what waits for them?")
    deleted = 0
    for each in found:
        try:
            ask_broker(options, _request(options, each.client_id))
        except CommandError as problem:
            print_lines([f"kept: {problem}"])
        else:
            deleted += 1
    print_lines([f"{deleted} of {len(found)} sessions are deleted"])
    return EXIT_OK if deleted == len(found) else EXIT_FAILED


class _Candidate:
    """A session that may be deleted, and its line for people."""

    __slots__ = ("client_id", "line")

    def __init__(self, client_id: str, line: str) -> None:
        self.client_id: str = client_id
        self.line: str = line


def _request(options: argparse.Namespace, name: str) -> "Request":
    offline_ms = str(options.offline_for or 0)
    return {
        "do": "session_end",
        "client_id": name,
        "reason": options.reason,
        "offline_ms": offline_ms,
    }


def _line(report: "SessionReport") -> str:
    session = report.session
    state = "connected" if report.is_connected else "away"
    return (
        f"{session.client_id!r}: {state}, {report.backlog.waiting} messages wait, "
        f"{len(session.in_flight)} in flight, {len(session.subscriptions)} subscriptions"
    )
