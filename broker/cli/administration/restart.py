"""`holdfast restart-check`: is a restart safe, and what would it cost?

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import json

from broker.cli.administration.asking import ask_broker
from broker.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    Commands,
    add_config_flags,
    load_config,
    print_lines,
)


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "restart-check",
        help="say what a restart of the running broker would cost; 0 = nothing is against it",
    )
    add_config_flags(parser)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Ask the broker, check the files of the configuration, and say it in sentences."""
    from broker.configuration.config import ConfigError
    from broker.operations.looking.restart_report import objections, sentences
    from broker.process import preflight

    config = load_config(options)
    facts = json.loads(ask_broker(options, {"do": "restart_check"})["facts"])
    try:
        preflight.check_files(config)
    except ConfigError as problem:
        facts["configuration"] = str(problem)
    else:
        facts["configuration"] = ""
    against = list(objections(facts))
    if options.output == "json":
        print_lines([json.dumps({**facts, "against_it": against}, indent=2)])
    else:
        print_lines(sentences(facts))
        print_lines([f"against it: {each}" for each in against] or ["nothing is against a restart"])
    return EXIT_FAILED if against else EXIT_OK
