"""`holdfast session`: look at the sessions of a data directory, its broker running or not."""

import argparse
import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.cli.command import (
    EXIT_OK,
    CommandError,
    Commands,
    add_config_flags,
    client_id,
    load_config,
    print_lines,
)

if TYPE_CHECKING:
    from broker.operations.inventory import Inventory


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


def run_session_list(options: argparse.Namespace) -> int:
    """Print the sessions of a data directory, whether its broker runs or not."""
    from broker.operations import sessions_report

    with _inventory(options) as inventory:
        reports = inventory.sessions()
        if options.output == "json":
            print_lines([sessions_report.as_json(inventory, reports)])
        else:
            print_lines(sessions_report.as_table(inventory, reports))
    return EXIT_OK


def run_session_show(options: argparse.Namespace) -> int:
    """Print one session of a data directory with its subscriptions."""
    from broker.operations import sessions_report

    with _inventory(options) as inventory:
        report = inventory.session(options.client_id)
        if report is None:
            raise CommandError(f"no session {options.client_id!r}")
        if options.output == "json":
            print_lines([sessions_report.as_json(inventory, [report])])
        else:
            print_lines(sessions_report.as_page(inventory, report))
    return EXIT_OK


@contextlib.contextmanager
def _inventory(options: argparse.Namespace) -> "Iterator[Inventory]":
    """Open the configured data directory for reading."""
    from broker.operations.inventory import Inventory
    from storage.errors import StorageError
    from storage.local.rocks import RocksStore

    config = load_config(options)
    database = os.path.join(config.shell.data_dir, "db")
    if not os.path.isdir(database):
        raise CommandError(f"data directory {config.shell.data_dir}: no database in it")
    try:
        with contextlib.closing(RocksStore(database, read_only=True)) as store:
            yield Inventory(store)
    except StorageError as problem:
        raise CommandError(str(problem)) from None
