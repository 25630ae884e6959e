"""`holdfast serve`: run the broker."""

import argparse
import functools

from broker.cli.command import (
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    Commands,
    add_config_flags,
    print_lines,
    read_config,
)


def add(commands: Commands) -> None:
    """Add `serve`."""
    serve = commands.add_parser("serve", help="run the broker")
    add_config_flags(serve)
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


def run_serve(options: argparse.Namespace) -> int:
    """Run the broker until a signal ends it."""
    from broker.configuration.config import ConfigError
    from broker.process import preflight

    read = functools.partial(
        read_config,
        options.config,
        {
            "listener.port": options.port,
            "listener.host": options.host,
            "storage.data_dir": options.data_dir,
            "log.level": "debug" if options.verbose else None,
        },
    )
    try:
        config = read()
        preflight.check_cluster(config)
        config.shell.accept_data_loss = options.accept_data_loss
        if options.test_config:
            preflight.check_files(config)
            print_lines(["configuration is good"])
            return EXIT_OK
    except ConfigError as problem:
        raise CommandError(str(problem), EXIT_USAGE) from None

    from broker.process.open import StartError
    from broker.process.server import serve

    try:
        return serve(config, None if options.config is None else read, _admin_arguments(options))
    except StartError as problem:
        raise CommandError(str(problem)) from None


def _admin_arguments(options: argparse.Namespace) -> list[str]:
    """Return what tells the process of the HTTP API which configuration this broker has."""
    arguments = [] if options.config is None else ["-c", options.config]
    if options.data_dir is not None:
        arguments += ["--data-dir", options.data_dir]
    return arguments
