"""`holdfast restart-check`: is a restart safe, and what would it cost?

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any

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


def sentences(facts: dict[str, Any]) -> Iterator[str]:
    """Yield what a restart costs, a line each."""
    clean, durable = facts["clean_sessions_connected"], facts["durable_sessions_connected"]
    if facts["connected"]:
        yield f"{facts['connected']} clients are connected, and have to connect again"
        yield f"{durable} of them have durable sessions, which lose nothing"
        yield (
            f"{clean} have clean sessions: these end with their connections, with what was not "
            "delivered"
        )
    else:
        yield "no client is connected"
    if facts["durability"] == "fsync":
        yield "all that was acknowledged is on the disk"
    else:
        yield (
            f"durability = {facts['durability']}: an orderly restart loses nothing, "
            "a crash of the machine the last moments"
        )
    yield (
        f"the last start took {facts['last_recovery_seconds']:g} s; "
        f"{facts['sessions_stored']} sessions are stored now"
    )


def objections(facts: dict[str, Any]) -> Iterator[str]:
    """Yield what is against a restart just now."""
    if facts["configuration"]:
        yield f"it would not start: {facts['configuration']}"
    if facts["phase"] != "ready":
        yield f"the broker is {facts['phase']}"
    if facts["writes_refused"]:
        yield (
            f"the store takes no writes ({facts['writes_refused']}): make room first, a start "
            "needs some"
        )
    elif facts["disk_is_low"]:
        yield "the disk is below storage.low_water: make room first, a start needs some"
    for name in facts["backends_down"]:
        yield f"backend {name} is down and required: the broker would not be ready"
