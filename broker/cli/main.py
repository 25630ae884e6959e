"""The command `holdfast`: reads the command line and hands over to the module that does the work.

Must stay quick to import (`--help` and `--version` answer in a blink): everything heavy is imported
inside the command that needs it. An expected failure is one line on stderr and a non-zero exit
status, never a traceback: 1 = it could not be done, 2 = it was asked for in a wrong way.
"""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from broker import build
from broker.version import VERSION

if TYPE_CHECKING:
    from broker.configuration.config import Config
    from broker.operations.inventory import Inventory

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNSOUND: Final = 2  # of `history verify`, as of `audit run`

PRIVATE: Final = 0o077  # umask: copies of a data directory are for its owner alone, as it is


class CommandError(Exception):
    """An expected failure of a command: one line for the operator and an exit status."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code: int = exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: the process's) and return its exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # clients' names may be more than it can say
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = options.run(options)
    except CommandError as problem:
        print(f"holdfast: {problem}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as shells report it
    except BrokenPipeError:
        _forget_output()  # whoever read it has gone (`| head`)
        return EXIT_FAILED
    return status


def _version() -> str:
    return f"holdfast {VERSION}, {build.find()}"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; each sets `run` to the function that serves it."""
    parser = argparse.ArgumentParser(
        prog="holdfast",
        description="An MQTT 3.1.1 / 5.0 broker whose sessions cannot be lost.",
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the broker")
    _add_config_flags(serve)
    serve.add_argument("-p", "--port", metavar="PORT", help="port to listen on (0 = any free one)")
    serve.add_argument("--host", metavar="HOST", help="address to listen on (127.0.0.1)")
    serve.add_argument("-v", "--verbose", action="store_true", help="log at level debug")
    serve.add_argument(
        "--test-config", action="store_true", help="check the configuration and exit"
    )
    serve.add_argument(
        "--accept-data-loss",
        action="store_true",
        help="start although acknowledged writes are missing; this repairs no damage",
    )
    serve.set_defaults(run=run_serve)

    demo = commands.add_parser("demo", help="watch a session survive kill -9, in a few seconds")
    demo.set_defaults(run=run_demo)

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

    config = commands.add_parser("config", help="show the configuration, or a template of one")
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print every setting in force and where it came from")
    _add_config_flags(show)
    show.set_defaults(run=run_config_show)
    init = actions.add_parser("init", help="print a configuration file with every default")
    init.set_defaults(run=run_config_init)

    for add in (_add_session_commands, _add_history_commands, _add_database_commands):
        add(commands)

    health = commands.add_parser("health", help="ask a running broker whether it is well")
    health.add_argument("-c", "--config", metavar="FILE", help="the broker's configuration file")
    health.add_argument("--url", help="address of its metrics server, instead of a configuration")
    health.set_defaults(run=run_health)

    _add_suites(commands)
    return parser


def _add_suites(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands whose own parsers read the rest, so that nothing of them is imported early.

    With this prefix character no argument looks like an option here, `--help` neither.
    """
    suites = (
        ("conformance", "hold a broker against every statement of MQTT 3.1.1 and 5.0",
         run_conformance),
        ("audit", "hold a session history against eighteen invariants "
         "(needs 'holdfast-mqtt[audit]')", run_audit),
    )  # fmt: skip
    for name, text, run in suites:
        parser = commands.add_parser(name, help=text, prefix_chars="\0", add_help=False)
        parser.add_argument("arguments", nargs="*")
        parser.set_defaults(run=run)


def _add_session_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    session = commands.add_parser("session", help="look at the sessions of a data directory")
    actions = session.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="print every stored session")
    show = actions.add_parser("show", help="print one session with its subscriptions")
    show.add_argument("client_id", type=_name, metavar="CLIENT_ID")
    for parser, run in ((listing, run_session_list), (show, run_session_show)):
        _add_config_flags(parser)
        parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
        parser.set_defaults(run=run)


def _add_history_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    history = commands.add_parser("history", help="what happened to sessions and messages")
    actions = history.add_subparsers(dest="action", required=True, metavar="ACTION")
    tail = actions.add_parser("tail", help="print the last events")
    tail.add_argument("-n", "--lines", type=_count, default=20, metavar="N", help="how many (20)")
    tail.add_argument("-f", "--follow", action="store_true", help="go on with new ones")
    tail.set_defaults(run=run_history_tail)
    timeline = actions.add_parser("timeline", help="tell what happened to a client or a message")
    timeline.add_argument("client_id", type=_name, metavar="CLIENT_ID", nargs="?")
    timeline.add_argument("--message", type=_message, metavar="ID", help="as other events name it")
    timeline.add_argument("--since", type=_seconds, metavar="AGE", help="such as 12h or 7d")
    timeline.set_defaults(run=run_history_timeline)
    export = actions.add_parser("export", help="write the whole history as segments")
    export.add_argument("--to", required=True, metavar="DIR", dest="directory")
    export.set_defaults(run=run_history_export)
    verify = actions.add_parser("verify", help="check every segment; 0 = sound, 2 = it is not")
    verify.add_argument("--history", metavar="DIR", help="directory of segments, if not configured")
    verify.add_argument("--quick", action="store_true", help="names and footers, not every event")
    verify.set_defaults(run=run_history_verify)
    for parser in (tail, timeline, export, verify):
        _add_config_flags(parser)
        if parser in (tail, timeline):
            parser.add_argument("--json", action="store_true", help="one JSON object per line")


def _add_database_commands(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> None:
    database = commands.add_parser("db", help="look after the database of a data directory")
    actions = database.add_subparsers(dest="action", required=True, metavar="ACTION")
    checkpoint = actions.add_parser(
        "checkpoint", help="make a consistent copy in a new directory; the broker may be running"
    )
    checkpoint.add_argument("directory", metavar="DIR")
    _add_config_flags(checkpoint)
    checkpoint.set_defaults(run=run_db_checkpoint)


def _count(text: str) -> int:
    """Return a number of things; `argparse` makes a usage error of ValueError."""
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number")
    return int(text)


def _message(text: str) -> int:
    """Return the id of a message."""
    number = _count(text)
    if number >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r}: expected the id of a message, below 2 ** 63")
    return number


def _name(text: str) -> str:
    """Return a name that a client may have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected UTF-8") from None
    return text


def _seconds(text: str) -> int:
    """Return the seconds of an age."""
    from broker.configuration.option_types import Duration

    try:
        seconds = Duration(1000, low=1).parse(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {problem}") from None
    assert isinstance(seconds, int)
    return seconds


def _add_config_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", help="configuration file (TOML)")
    parser.add_argument("--data-dir", metavar="DIR", help="directory of the database")


def run_serve(options: argparse.Namespace) -> int:
    """Run the broker until a signal ends it."""
    from broker.configuration import config as configuration
    from broker.process import preflight

    try:
        config = configuration.load(
            options.config,
            flags={
                "listener.port": options.port,
                "listener.host": options.host,
                "storage.data_dir": options.data_dir,
                "log.level": "debug" if options.verbose else None,
            },
        )
        config.shell.accept_data_loss = options.accept_data_loss
        if options.test_config:
            preflight.check_files(config)
            print("configuration is good")
            return EXIT_OK
    except configuration.ConfigError as problem:
        raise CommandError(str(problem), EXIT_USAGE) from None

    from broker.process.server import StartError, serve

    try:
        return serve(config)
    except StartError as problem:
        raise CommandError(str(problem)) from None


def run_demo(options: argparse.Namespace) -> int:
    """Play the kill -9 show with real processes."""
    from broker.cli import demo

    try:
        return demo.play()
    except demo.DemoError as problem:
        raise CommandError(str(problem)) from None


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


def run_config_show(options: argparse.Namespace) -> int:
    """Print the configuration in force with the origin of every value."""
    from broker.configuration import config as configuration

    print(configuration.show(_config(options)))
    return EXIT_OK


def _config(options: argparse.Namespace) -> "Config":
    """Return the configuration that `_add_config_flags` lets name."""
    from broker.configuration import config as configuration

    try:
        return configuration.load(options.config, flags={"storage.data_dir": options.data_dir})
    except configuration.ConfigError as problem:
        raise CommandError(str(problem), EXIT_USAGE) from None


def run_config_init(options: argparse.Namespace) -> int:
    """Print a commented configuration file."""
    from broker.configuration import config as configuration

    print(configuration.template())
    return EXIT_OK


def run_session_list(options: argparse.Namespace) -> int:
    """Print the sessions of a data directory, whether its broker runs or not."""
    from broker.operations import sessions_report

    with _inventory(options) as inventory:
        reports = inventory.sessions()
        if options.output == "json":
            print(sessions_report.as_json(inventory, reports))
        else:
            for line in sessions_report.as_table(inventory, reports):
                print(line)
    return EXIT_OK


def run_session_show(options: argparse.Namespace) -> int:
    """Print one session of a data directory with its subscriptions."""
    from broker.operations import sessions_report

    with _inventory(options) as inventory:
        report = inventory.session(options.client_id)
        if report is None:
            raise CommandError(f"no session {options.client_id!r}")
        if options.output == "json":
            print(sessions_report.as_json(inventory, [report]))
        else:
            for line in sessions_report.as_page(inventory, report):
                print(line)
    return EXIT_OK


@contextlib.contextmanager
def _inventory(options: argparse.Namespace) -> "Iterator[Inventory]":
    """Open the configured data directory for reading."""
    from broker.operations.inventory import Inventory
    from storage.errors import StorageError
    from storage.local.rocks import RocksStore

    config = _config(options)
    database = os.path.join(config.shell.data_dir, "db")
    if not os.path.isdir(database):
        raise CommandError(f"data directory {config.shell.data_dir}: no database in it")
    try:
        with contextlib.closing(RocksStore(database, read_only=True)) as store:
            yield Inventory(store)
    except StorageError as problem:
        raise CommandError(str(problem)) from None


def run_history_tail(options: argparse.Namespace) -> int:
    """Print the last events of the history, and new ones as they come."""
    from broker.history import queries

    with _history_problems():
        lines = queries.tail(
            _config(options), options.lines, as_json=options.json, follow=options.follow
        )
        _print(lines, flush=options.follow)
    return EXIT_OK


def run_history_timeline(options: argparse.Namespace) -> int:
    """Print what happened to a client, or to a message."""
    from broker.history import queries
    from storage.time import machine_clocks

    with _history_problems():
        lines = queries.timeline(
            _config(options),
            options.client_id,
            options.message,
            since_s=options.since,
            as_json=options.json,
            now_ms=machine_clocks.wall_ms(),
        )
        _print(lines)
    return EXIT_OK


def run_history_export(options: argparse.Namespace) -> int:
    """Write the history of a data directory, running or not, as segments."""
    from broker.history import export_copy

    os.umask(PRIVATE)
    with _history_problems():
        _print([export_copy.export(_config(options), options.directory)])
    return EXIT_OK


def run_history_verify(options: argparse.Namespace) -> int:
    """Say what is wrong with the segments of a directory."""
    from broker.history import queries

    with _history_problems():
        problems, summary = queries.verify(
            _config(options), options.history, thorough=not options.quick
        )
    _print([*problems, summary])
    return EXIT_UNSOUND if problems else EXIT_OK


def _print(lines: Iterable[str], *, flush: bool = False) -> None:
    """Print lines, and say in one of our own where their reader cannot take them."""
    for line in lines:
        try:
            print(line, flush=flush)
        except BrokenPipeError:
            raise
        except OSError as problem:
            _forget_output()
            raise CommandError(f"cannot write the output: {problem.strerror}") from None
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as problem:
        _forget_output()
        raise CommandError(f"cannot write the output: {problem.strerror}") from None


def _forget_output() -> None:
    """Keep the interpreter from writing what is left once more, and from saying that it cannot."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _history_problems() -> Iterator[None]:
    from broker.history.queries import HistoryError

    try:
        yield
    except HistoryError as problem:
        raise CommandError(str(problem)) from None


def run_db_checkpoint(options: argparse.Namespace) -> int:
    """Copy a database consistently, its broker running or not."""
    from broker.operations import checkpoint

    os.umask(PRIVATE)
    data_dir = _config(options).shell.data_dir
    try:
        maker = checkpoint.make(data_dir, options.directory)
    except checkpoint.CheckpointError as problem:
        raise CommandError(str(problem)) from None
    print(f"{options.directory}: a copy of {data_dir}, made by {maker}")
    return EXIT_OK


def run_conformance(options: argparse.Namespace) -> int:
    """Run the conformance suite against a broker, any broker."""
    from conformance.command import main as run_suite

    return run_suite(options.arguments)


def run_health(options: argparse.Namespace) -> int:
    """Ask /healthz of the broker that this configuration describes; made for HEALTHCHECK."""
    import urllib.error
    import urllib.request

    if options.url is not None:
        url = options.url.rstrip("/")
    else:
        from broker.configuration import config as configuration

        try:
            shell = configuration.load(options.config).shell
        except configuration.ConfigError as problem:
            raise CommandError(str(problem), EXIT_USAGE) from None
        host = shell.metrics_host
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1" if host == "0.0.0.0" else "::1"
        url = f"http://[{host}]" if ":" in host else f"http://{host}"
        url += f":{shell.metrics_port}"
    # No proxy: the broker is on this machine, whatever http_proxy says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/healthz", timeout=5) as response:
            print(response.read(200).decode(errors="replace").strip())
    except urllib.error.HTTPError as refusal:
        detail = refusal.read(200).decode(errors="replace").strip()
        raise CommandError(f"{url}/healthz: {refusal.code} {detail}") from None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "reason", problem)
        raise CommandError(f"{url}/healthz: {reason}") from None
    return EXIT_OK


def run_audit(options: argparse.Namespace) -> int:
    """Audit a session history with Spark; its exit statuses are its own."""
    from audit.command import main as run_command

    return run_command(options.arguments)
