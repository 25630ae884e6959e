"""`holdfast user`: who may log in to the dashboard with a browser.

They are not the users of MQTT, which `holdfast passwd` has. Must stay quick to import, as
`broker.cli.main` must.
"""

import argparse
import sys
from typing import TYPE_CHECKING, Final

from broker.cli.admin.tokens import ROLES, moment
from broker.cli.command import (
    EXIT_OK,
    CommandError,
    Commands,
    add_config_flags,
    add_list_options,
    load_config,
    print_lines,
    print_list,
)
from broker.operations.looking.listing import Listing

if TYPE_CHECKING:
    from broker.admin.access.users import Users

USERS: Final = Listing(
    (("NAME", "name"), ("ROLE", "role"), ("PAYLOADS", "payloads"), ("CHANGED_AT", "changed_at")),
    name="name",
)


def add(commands: Commands) -> None:
    user = commands.add_parser("user", help="users of the dashboard (of MQTT: `holdfast passwd`)")
    actions = user.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser("add", help="add a user; it asks for the password twice")
    change = actions.add_parser("change", help="give a user another role or password")
    for parser in (new, change):
        parser.add_argument("name", metavar="NAME")
        parser.add_argument("--role", choices=ROLES, required=True)
        parser.add_argument("--payloads", action="store_true", help="may read payloads")
        parser.add_argument(
            "--password-file", metavar="FILE", help="its first line is the password"
        )
    change.add_argument(
        "--keep-password", action="store_true", help="change the role and payloads alone"
    )
    listing = actions.add_parser("list", help="print who has which role")
    add_list_options(listing, USERS.orders, match="names")
    remove = actions.add_parser("remove", help="remove a user, who is logged out at once")
    remove.add_argument("name", metavar="NAME")
    for parser, run in (
        (new, run_add),
        (change, run_change),
        (listing, run_list),
        (remove, run_remove),
    ):
        add_config_flags(parser)
        parser.set_defaults(run=run)


def _users(options: argparse.Namespace) -> "Users":
    from broker.admin.access.users import Users

    return Users(load_config(options).shell.data_dir)


def run_add(options: argparse.Namespace) -> int:
    """Add a user; that is durable on return."""
    from broker.admin.access.private_file import AccessFileError
    from broker.admin.access.roles import role_of
    from storage.time.machine_clocks import wall_ms

    users = _users(options)
    try:
        if users.find(options.name) is not None:
            raise CommandError(f"there is a user {options.name!r} already: `holdfast user change`")
    except AccessFileError as problem:
        raise CommandError(str(problem)) from None
    password = _password(options)
    try:
        users.add(
            options.name,
            role_of(options.role),
            payloads=options.payloads,
            password=password,
            now_ms=wall_ms(),
        )
    except AccessFileError as problem:
        raise CommandError(str(problem)) from None
    print_lines([f"{options.name!r}: added as {options.role}"])
    return EXIT_OK


def run_change(options: argparse.Namespace) -> int:
    """Change a user, who is logged out of all browsers."""
    from broker.admin.access.private_file import AccessFileError
    from broker.admin.access.roles import role_of
    from storage.time.machine_clocks import wall_ms

    users = _users(options)
    try:
        if users.find(options.name) is None:
            raise CommandError(f"no user {options.name!r}")
    except AccessFileError as problem:
        raise CommandError(str(problem)) from None
    password = None if options.keep_password else _password(options)
    try:
        users.change(
            options.name,
            role=role_of(options.role),
            payloads=options.payloads,
            password=password,
            now_ms=wall_ms(),
        )
    except AccessFileError as problem:
        raise CommandError(str(problem)) from None
    print_lines([f"{options.name!r}: changed to {options.role}"])
    return EXIT_OK


def run_list(options: argparse.Namespace) -> int:
    """Print the users."""
    from broker.admin.access.private_file import AccessFileError

    try:
        rows: list[dict[str, object]] = [
            {
                "name": each.name,
                "role": each.role.word,
                "payloads": each.payloads,
                "changed_at": moment(each.changed_ms),
            }
            for each in _users(options).all()
        ]
    except AccessFileError as problem:
        raise CommandError(str(problem)) from None
    print_list(USERS, options, rows)
    return EXIT_OK


def run_remove(options: argparse.Namespace) -> int:
    """Remove a user; a request that comes after this is refused."""
    from broker.admin.access.private_file import AccessFileError

    try:
        _users(options).remove(options.name)
    except AccessFileError as problem:
        raise CommandError(str(problem)) from None
    print_lines([f"{options.name!r}: removed"])
    return EXIT_OK


def _password(options: argparse.Namespace) -> str:
    """Return the password of the file, or of the terminal, asked twice."""
    if options.password_file is not None:
        try:
            with open(options.password_file, encoding="utf-8") as stream:
                return stream.readline(4096).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as problem:
            why = getattr(problem, "strerror", None) or "not UTF-8"
            raise CommandError(f"{options.password_file}: {why}") from None
    if not sys.stdin.isatty():
        raise CommandError("there is no terminal to ask for the password: say --password-file")
    import getpass

    first = getpass.getpass("Password: ")
    if first != getpass.getpass("Again: "):
        raise CommandError("the passwords differ; nothing was changed")
    return first
