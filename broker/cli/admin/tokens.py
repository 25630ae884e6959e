"""`holdfast token`: bearer tokens of the HTTP API.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from broker.cli.command import (
    EXIT_OK,
    CommandError,
    Commands,
    add_config_flags,
    add_list_options,
    age,
    load_config,
    print_lines,
    print_list,
)
from broker.operations.looking.listing import Listing

if TYPE_CHECKING:
    from broker.admin.access.tokens import Tokens

ROLES: Final = ("viewer", "operator", "admin")  # as `broker.admin.access.roles` has them
EXPIRES_DAYS_MAX: Final = 3660
TOKENS: Final = Listing(
    (
        ("NAME", "name"),
        ("ROLE", "role"),
        ("PAYLOADS", "payloads"),
        ("CREATED_AT", "created_at"),
        ("EXPIRES_AT", "expires_at"),
        ("EXPIRED", "expired"),
    ),
    name="name",
)


def add(commands: Commands) -> None:
    token = commands.add_parser("token", help="tokens for programs that use the HTTP API")
    actions = token.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser("add", help="make a token; it is printed this once")
    new.add_argument("name", metavar="NAME")
    new.add_argument("--role", choices=ROLES, required=True)
    new.add_argument("--payloads", action="store_true", help="it may read payloads")
    new.add_argument(
        "--expires", metavar="TIME", type=_expiry, required=True, help="90d, 12h: it ends then"
    )
    listing = actions.add_parser("list", help="print who has which role, and until when")
    add_list_options(listing, TOKENS.orders, match="names")
    remove = actions.add_parser("remove", help="end a token at once")
    remove.add_argument("name", metavar="NAME")
    for parser, run in ((new, run_add), (listing, run_list), (remove, run_remove)):
        add_config_flags(parser)
        parser.set_defaults(run=run)


def _expiry(text: str) -> int:
    ms = age(text)
    if ms > EXPIRES_DAYS_MAX * 86_400_000:
        raise argparse.ArgumentTypeError(f"{text!r}: expected at most {EXPIRES_DAYS_MAX}d")
    return ms


def _tokens(options: argparse.Namespace) -> "Tokens":
    from broker.admin.access.tokens import Tokens

    return Tokens(load_config(options).shell.data_dir)


def run_add(options: argparse.Namespace) -> int:
    """Make a token and print it; its hash is durable then."""
    from broker.admin.access.private_file import AccessFileError
    from broker.admin.access.roles import role_of
    from storage.time.machine_clocks import wall_ms

    now_ms = wall_ms()
    try:
        text = _tokens(options).add(
            options.name,
            role_of(options.role),
            payloads=options.payloads,
            now_ms=now_ms,
            expires_ms=now_ms + options.expires,
        )
    except AccessFileError as problem:
        raise CommandError(str(problem)) from None
    print_lines([text])
    return EXIT_OK


def run_list(options: argparse.Namespace) -> int:
    """Print the tokens, never themselves."""
    from broker.admin.access.private_file import AccessFileError
    from storage.time.machine_clocks import wall_ms

    now_ms = wall_ms()
    try:
        rows: list[dict[str, object]] = [
            {
                "name": each.name,
                "role": each.role.word,
                "payloads": each.payloads,
                "created_at": moment(each.created_ms),
                "expires_at": moment(each.expires_ms),
                "expired": each.expires_ms <= now_ms,
            }
            for each in _tokens(options).all()
        ]
    except AccessFileError as problem:
        raise CommandError(str(problem)) from None
    print_list(TOKENS, options, rows)
    return EXIT_OK


def run_remove(options: argparse.Namespace) -> int:
    """Remove a token; a request that comes after this is refused."""
    from broker.admin.access.private_file import AccessFileError

    try:
        _tokens(options).remove(options.name)
    except AccessFileError as problem:
        raise CommandError(str(problem)) from None
    print_lines([f"{options.name!r}: its token is removed"])
    return EXIT_OK


def moment(wall_ms: int) -> str:
    """Return a wall-clock time, ms since 1970, as text."""
    text = datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="seconds")
    return text.replace("+00:00", "Z")
