"""`holdfast passwd`: create or change a password file."""

import argparse
import os
import sys

from broker.cli.command import EXIT_OK, EXIT_USAGE, CommandError, Commands


def add(commands: Commands) -> None:
    """Add `passwd`."""
    passwd = commands.add_parser("passwd", help="create or change a password file")
    passwd.add_argument("-c", "--create", action="store_true", help="start a new, empty file")
    passwd.add_argument("-D", "--delete", action="store_true", help="remove the user")
    passwd.add_argument(
        "-b", "--batch", action="store_true", help="take the password from the command line"
    )
    passwd.add_argument(
        "--scram",
        action="store_true",
        help="store keys for SCRAM-SHA-256: the client then never sends the password",
    )
    passwd.add_argument("file", metavar="FILE")
    passwd.add_argument("username", metavar="USERNAME")
    passwd.add_argument("password", metavar="PASSWORD", nargs="?", help="only with -b")
    passwd.set_defaults(run=run_passwd)


def run_passwd(options: argparse.Namespace) -> int:
    """Create, change or delete one user of a password file."""
    from broker.security import password_file, password_hashes

    if options.password is not None and not options.batch:
        raise CommandError("a password on the command line needs -b", EXIT_USAGE)
    if options.create and options.delete:
        raise CommandError("-c and -D exclude each other", EXIT_USAGE)
    problem = password_file.username_problem(options.username)
    if problem is None and options.scram:
        problem = password_file.scram_name_problem(options.username)
    if problem is not None:
        raise CommandError(problem, EXIT_USAGE)
    try:
        if options.create:
            if os.path.exists(options.file):
                raise CommandError(f"password file {options.file} exists; -c is for a new one")
            users: dict[str, str] = {}
        else:
            users = {name: stored.text for name, stored in password_file.load(options.file).items()}
        if options.delete:
            if users.pop(options.username, None) is None:
                raise CommandError(f"no user {options.username!r} in {options.file}")
        else:
            password = _read_password(options)
            if options.scram:
                users[options.username] = _scram_line(password)
            else:
                users[options.username] = password_hashes.hasher().hash(password)
        password_file.save(options.file, users)
    except password_file.PasswordFileError as failure:
        hint = ""
        if not options.create and not os.path.exists(options.file):
            hint = " (-c creates it)"
        raise CommandError(f"{failure}{hint}") from None
    return EXIT_OK


def _scram_line(password: bytes) -> str:
    import secrets

    from broker.security import password_hashes, scram

    try:
        return password_hashes.scram_line(password, secrets.token_bytes(scram.SALT_BYTES))
    except ValueError as problem:
        raise CommandError(f"password for SCRAM: {problem}; nothing was changed") from None


def _read_password(options: argparse.Namespace) -> bytes:
    """Return the password from the command line, the terminal (asked twice) or one stdin line."""
    if options.batch:
        if options.password is None:
            raise CommandError("-b needs the password after the user name", EXIT_USAGE)
        return str(options.password).encode()
    if sys.stdin.isatty():
        import getpass

        first = getpass.getpass("Password: ")
        if first != getpass.getpass("Again: "):
            raise CommandError("the passwords differ; nothing was changed")
        password = first.encode()
    else:
        password = sys.stdin.buffer.readline().rstrip(b"\r\n")
    if not password:
        raise CommandError("the password is empty; nothing was changed")
    return password
