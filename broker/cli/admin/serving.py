"""`holdfast admin serve`: the process of the HTTP API and the dashboard.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse

from broker.cli.command import (
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    Commands,
    add_config_flags,
    load_config,
)


def add(commands: Commands) -> None:
    admin = commands.add_parser("admin", help="the HTTP API and the dashboard")
    actions = admin.add_subparsers(dest="action", required=True, metavar="ACTION")
    serve = actions.add_parser(
        "serve", help="run them for the broker of a data directory (`holdfast serve` does, too)"
    )
    add_config_flags(serve)
    serve.add_argument("--until-stdin-ends", action="store_true", help=argparse.SUPPRESS)
    serve.set_defaults(run=run_serve)


def run_serve(options: argparse.Namespace) -> int:
    """Serve until a signal ends it, or the broker that has started it."""
    config = load_config(options)
    if config.shell.admin_listen is None:
        raise CommandError(
            "admin.listen is missing: expected host:port such as '127.0.0.1:8080'", EXIT_USAGE
        )
    from broker.process.preflight import admin_problem

    problem = admin_problem(config)
    if problem:
        raise CommandError(problem)
    from broker.admin import server

    try:
        server.run(config, until_stdin_ends=options.until_stdin_ends)
    except server.CannotServe as found:
        raise CommandError(str(found)) from None
    return EXIT_OK
