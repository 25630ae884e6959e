"""The command `holdfast`: puts the parser together and runs the command that was asked for.

Each family of commands has a module here with its flags. Must stay quick to import, so that
`--help` and `--version` answer at once: heavy modules are imported inside the command that needs
them. An expected failure is one line on stderr and a non-zero exit status, never a traceback:
1 = it could not be done, 2 = it was asked for in a wrong way.
"""

import argparse
import io
import sys
from collections.abc import Sequence

from broker import build
from broker.cli import backend, config, database, health, history, passwd, serve, sessions
from broker.cli.admin import serving, tokens, users
from broker.cli.administration import clients, cluster, publishing, restart
from broker.cli.canary import command as canary
from broker.cli.command import EXIT_FAILED, EXIT_USAGE, CommandError, Commands, forget_output
from broker.cli.looking import group, retained, storage, topic, why
from broker.cli.watching import completion, log, top, trace
from broker.version import VERSION


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: the process's) and return its exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may not have all letters
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = options.run(options)
    except CommandError as problem:
        print(f"holdfast: {problem}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as shells report it
    except BrokenPipeError:
        forget_output()  # the reader has gone (`| head`)
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

    serve.add(commands)
    _add_demo(commands)
    passwd.add(commands)
    config.add(commands)
    clients.add(commands)
    sessions.add(commands)
    topic.add(commands)
    group.add(commands)
    retained.add(commands)
    publishing.add(commands)
    history.add(commands)
    backend.add(commands)
    cluster.add(commands)
    storage.add(commands)
    database.add(commands)
    health.add(commands)
    serving.add(commands)
    tokens.add(commands)
    users.add(commands)
    restart.add(commands)
    why.add(commands)
    top.add(commands)
    trace.add(commands)
    log.add(commands)
    canary.add(commands)
    completion.add(commands, build_whole_parser)
    _add_suites(commands)
    return parser


def build_whole_parser() -> argparse.ArgumentParser:
    """Return the same with the parsers of the suites in their places: for completion."""
    from audit.command import build_parser as audit
    from conformance.command import build_parser as conformance

    parser = build_parser()
    (commands,) = (each for each in parser._actions if each.dest == "command")
    assert isinstance(commands.choices, dict)
    commands.choices["audit"] = audit("holdfast audit")
    commands.choices["conformance"] = conformance("holdfast conformance")
    return parser


def _add_demo(commands: Commands) -> None:
    demo = commands.add_parser("demo", help="watch a session survive kill -9, in a few seconds")
    demo.add_argument(
        "--cluster", action="store_true", help="two nodes and three Kafka brokers; the leader dies"
    )
    demo.add_argument("--kafka", metavar="DIR", help="where Kafka is unpacked (KAFKA_HOME)")
    demo.add_argument(
        "--servers", metavar="HOST:PORT,...", help="running Kafka brokers, in place of --kafka"
    )
    demo.set_defaults(run=run_demo)


def _add_suites(commands: Commands) -> None:
    """Add the commands that have parsers of their own, which are imported when they run.

    With this prefix character no argument looks like an option to our parser, not even `--help`.
    """
    suites = (
        ("conformance", "hold a broker against every statement of MQTT 3.1.1 and 5.0",
         run_conformance),
        ("audit", "hold a session history against twenty invariants "
         "(needs the extra 'audit')", run_audit),
    )  # fmt: skip
    for name, text, run in suites:
        parser = commands.add_parser(name, help=text, prefix_chars="\0", add_help=False)
        parser.add_argument("arguments", nargs="*")
        parser.set_defaults(run=run)


def run_demo(options: argparse.Namespace) -> int:
    """Show with real processes that a session survives kill -9."""
    from broker.cli import demo

    if not options.cluster and (options.kafka or options.servers):
        raise CommandError("--kafka and --servers are for --cluster: say that, too", EXIT_USAGE)
    if options.kafka and options.servers:
        raise CommandError("--kafka and --servers: expected one of them", EXIT_USAGE)
    try:
        if options.cluster:
            from broker.cli.cluster_demo import play

            return play.play(options.servers, options.kafka)
        return demo.play()
    except demo.DemoError as problem:
        raise CommandError(str(problem)) from None


def run_conformance(options: argparse.Namespace) -> int:
    """Run the conformance suite against a broker, any broker."""
    from conformance.command import main as run_suite

    return run_suite(options.arguments)


def run_audit(options: argparse.Namespace) -> int:
    """Audit a session history with Spark; its exit statuses are its own."""
    from audit.command import main as run_command

    return run_command(options.arguments)
