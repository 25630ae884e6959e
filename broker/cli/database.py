"""`holdfast db`: look after the database of a data directory."""

import argparse
import os

from broker.cli.command import (
    EXIT_OK,
    PRIVATE,
    CommandError,
    Commands,
    add_config_flags,
    load_config,
    print_lines,
)


def add(commands: Commands) -> None:
    database = commands.add_parser("db", help="look after the database of a data directory")
    actions = database.add_subparsers(dest="action", required=True, metavar="ACTION")
    checkpoint = actions.add_parser(
        "checkpoint", help="make a consistent copy in a new directory; the broker may be running"
    )
    checkpoint.add_argument("directory", metavar="DIR")
    add_config_flags(checkpoint)
    checkpoint.set_defaults(run=run_db_checkpoint)


def run_db_checkpoint(options: argparse.Namespace) -> int:
    """Copy a database consistently, its broker running or not, and read the copy."""
    from broker.operations import checkpoint

    os.umask(PRIVATE)
    data_dir = load_config(options).shell.data_dir
    try:
        maker = checkpoint.make(data_dir, options.directory)
        rows = checkpoint.read_whole(options.directory)
    except checkpoint.CheckpointError as problem:
        raise CommandError(str(problem)) from None
    print_lines(
        [f"{options.directory}: a copy of {data_dir}, made by {maker}; all {rows} rows can be read"]
    )
    return EXIT_OK
