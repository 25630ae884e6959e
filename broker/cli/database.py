"""`holdfast db`: look after the database of a data directory."""

import argparse
import os

from broker.cli.administration import backup
from broker.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
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
    check = actions.add_parser(
        "check", help="read everything; 0 = whole, 1 = damaged, 2 = it could not be checked"
    )
    check.add_argument("data_dir", metavar="DATA_DIR")
    check.set_defaults(run=run_db_check)
    repair = actions.add_parser(
        "repair", help="save what can be read of a damaged database in a new directory"
    )
    repair.add_argument("source", metavar="SRC", help="the data directory; it is only read")
    repair.add_argument("new", metavar="NEW", help="a new directory, to start a broker on")
    repair.set_defaults(run=run_db_repair)
    backup.add(actions)
    for parser in (check, repair):
        parser.add_argument("--json", action="store_true", help="print one JSON object")


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


def run_db_check(options: argparse.Namespace) -> int:
    """Read everything in a database and print what is damaged."""
    from broker.operations.damage import check, report

    os.umask(PRIVATE)
    try:
        found = check.check(options.data_dir)
    except check.CheckError as problem:
        raise CommandError(str(problem), EXIT_USAGE) from None
    if options.json:
        print_lines([report.as_json({"data_dir": options.data_dir, **found.as_object()})])
    elif found.is_whole:
        rows = sum(found.rows.values())
        print_lines([f"{options.data_dir}: whole; all {rows} rows can be read"])
    else:
        print_lines(
            [
                f"{options.data_dir}: damaged",
                *found.lines(),
                "restore a backup; or stop the broker, and save the rest with "
                f"`holdfast db repair {options.data_dir} NEW`",
            ]
        )
    return EXIT_OK if found.is_whole else EXIT_FAILED


def run_db_repair(options: argparse.Namespace) -> int:
    """Save what can be read of a damaged database, and print what was lost."""
    from broker.operations.damage import repair, report

    os.umask(PRIVATE)
    try:
        repaired = repair.repair(options.source, options.new)
    except repair.RepairError as problem:
        raise CommandError(str(problem)) from None
    if options.json:
        told = repair.report_object(options.source, options.new, repaired)
        print_lines([report.as_json(told)])
    else:
        print_lines(repair.report_lines(options.source, options.new, repaired))
    return EXIT_OK
