"""`holdfast session`: look at the sessions of a data directory, its broker running or not."""

import argparse

from broker.cli.administration import deletion, purge
from broker.cli.command import (
    EXIT_OK,
    CommandError,
    Commands,
    add_config_flags,
    client_id,
    open_inventory,
    print_lines,
)


def add(commands: Commands) -> None:
    session = commands.add_parser("session", help="look at the sessions of a data directory")
    actions = session.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="print every stored session")
    show = actions.add_parser("show", help="print one session with its subscriptions")
    show.add_argument("client_id", type=client_id, metavar="CLIENT_ID")
    for parser, run in ((listing, run_session_list), (show, run_session_show)):
        add_config_flags(parser)
        parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
        parser.set_defaults(run=run)
    purge.add(actions.add_parser("purge", help="drop what waits for a session, and keep it"))
    deletion.add(actions.add_parser("delete", help="end sessions, with all that waits for them"))


def run_session_list(options: argparse.Namespace) -> int:
    """Print the sessions of a data directory, whether its broker runs or not."""
    from broker.operations import sessions_report

    with open_inventory(options) as inventory:
        reports = inventory.sessions()
        if options.output == "json":
            print_lines([sessions_report.as_json(inventory, reports)])
        else:
            print_lines(sessions_report.as_table(inventory, reports))
    return EXIT_OK


def run_session_show(options: argparse.Namespace) -> int:
    """Print one session of a data directory with its subscriptions."""
    from broker.operations import sessions_report

    with open_inventory(options) as inventory:
        report = inventory.session(options.client_id)
        if report is None:
            raise CommandError(f"no session {options.client_id!r}")
        if options.output == "json":
            print_lines([sessions_report.as_json(inventory, [report])])
        else:
            print_lines(sessions_report.as_page(inventory, report))
    return EXIT_OK
