"""`holdfast db backup` and `db restore`: a database to another disk, and back.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import os

from broker.cli.command import (
    EXIT_OK,
    EXIT_USAGE,
    PRIVATE,
    CommandError,
    Commands,
    add_config_flags,
    load_config,
    print_lines,
)


def add(actions: Commands) -> None:
    """Add both commands to those of `db`."""
    backup = actions.add_parser(
        "backup", help="copy the database to a new directory or file; the broker may be running"
    )
    backup.add_argument(
        "target", metavar="TARGET", help="a new directory, or a name ending in .tar or .tar.gz"
    )
    add_config_flags(backup)
    backup.set_defaults(run=run_backup)
    restore = actions.add_parser("restore", help="make a data directory of a backup")
    restore.add_argument("backup", metavar="BACKUP")
    restore.add_argument("--dry-run", action="store_true", help="only check the backup")
    add_config_flags(restore)
    restore.set_defaults(run=run_restore)


def run_backup(options: argparse.Namespace) -> int:
    """Make a backup and check it; on return it is durable."""
    from broker.operations.backups import making
    from broker.operations.backups.contents import BackupError

    os.umask(PRIVATE)
    try:
        contents, maker = making.make(load_config(options).shell.data_dir, options.target)
    except BackupError as problem:
        raise CommandError(str(problem)) from None
    print_lines([f"{options.target}: {contents.line()}", f"copied by {maker}, read again: whole"])
    return EXIT_OK


def run_restore(options: argparse.Namespace) -> int:
    """Check a backup, and make a data directory of it."""
    from broker.operations.backups import restoring
    from broker.operations.backups.contents import BackupError

    os.umask(PRIVATE)
    try:
        if options.dry_run:
            contents = restoring.inspect(options.backup)
            print_lines([f"{options.backup}: whole, {contents.line()}"])
            return EXIT_OK
        config = load_config(options)
        if config.origins["storage.data_dir"] == "default":
            raise CommandError("expected --data-dir DIR or -c FILE: where to restore", EXIT_USAGE)
        data_dir = config.shell.data_dir
        contents = restoring.restore(options.backup, data_dir)
    except BackupError as problem:
        raise CommandError(str(problem)) from None
    print_lines([f"{data_dir}: restored and read again; the backup was {contents.line()}"])
    return EXIT_OK
