"""`holdfast backend`: look at external stores, and at what a running broker has to give them."""

import argparse
import json
from typing import Any, Final

from broker.cli.administration.asking import ask_at
from broker.cli.backends import backfill, dead_letters, importing, verify
from broker.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    Commands,
    add_config_flags,
    load_config,
    print_lines,
)

COLUMNS: Final = (
    ("backend", "BACKEND"),
    ("state", "STATE"),
    ("position", "POSITION"),
    ("event", "EVENT"),
    ("rows_behind", "BEHIND"),
    ("backlog_bytes", "BYTES"),
    ("lag_seconds", "LAG S"),
    ("rows", "ROWS"),
    ("dead_letters", "DEAD"),
)


def add(commands: Commands) -> None:
    """Add `backend check`, `create`, `status`, `verify`, `backfill` and the others."""
    backend = commands.add_parser("backend", help="look at external stores and their feeds")
    actions = backend.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser(
        "check", help="ask the stores; 0 = all can be written to, 1 = one cannot, 2 = not asked"
    )
    check.add_argument("name", metavar="NAME", nargs="?", help="one backend, instead of all")
    check.set_defaults(run=run_backend_check)
    create = actions.add_parser(
        "create", help="make the tables that are missing; 0 = all are there, 1 = they are not"
    )
    create.add_argument("name", metavar="NAME", nargs="?", help="one backend, instead of all")
    create.set_defaults(run=run_backend_create)
    status = actions.add_parser(
        "status", help="ask the running broker; 0 = all are up, 1 = one is not, 2 = not asked"
    )
    status.set_defaults(run=run_backend_status)
    for parser in (check, status):
        parser.add_argument("--json", action="store_true", help="print JSON")
    pause = actions.add_parser("pause", help="send a store nothing until `resume` or a restart")
    resume = actions.add_parser("resume", help="send a paused store its rows")
    for parser, request in ((pause, "backend_pause"), (resume, "backend_resume")):
        parser.add_argument("name", metavar="NAME")
        parser.set_defaults(run=run_backend_order, request=request)
    verify.add(actions)
    backfill.add(actions)
    dead_letters.add(actions)
    importing.add(actions)
    for parser in (check, create, status, pause, resume):
        add_config_flags(parser)


def run_backend_check(options: argparse.Namespace) -> int:
    """Ask the configured stores what they are and whether they can be written to."""
    from broker.operations import backend_check

    told = _configurations(options)
    found = backend_check.ask(told)
    if options.json:
        print_lines([backend_check.as_json(told, found)])
    else:
        print_lines(backend_check.as_lines(told, found))
    return EXIT_FAILED if any(health.why for health in found.values()) else EXIT_OK


def run_backend_create(options: argparse.Namespace) -> int:
    """Make what the configured stores need and do not have."""
    from broker.operations import backend_check

    found = backend_check.create(_configurations(options))
    print_lines(backend_check.created_lines(found))
    return EXIT_FAILED if any(health.why for health in found.values()) else EXIT_OK


def _configurations(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return what the processes of the stores are told that the command is for."""
    from broker.backends import rules
    from broker.history import location

    config = load_config(options)
    backends = [each for each in config.backends if options.name in (None, each.name)]
    if not backends:
        what = "no backend" if options.name is None else f"no backend {options.name!r}"
        raise CommandError(f"{what} in the configuration", EXIT_USAGE)
    node = location.find(config.shell).node
    return {each.name: rules.configuration(config, each, node) for each in backends}


def run_backend_status(options: argparse.Namespace) -> int:
    """Print how far the running broker has come with each store."""
    from broker.operations.control_socket import ControlError

    data_dir = load_config(options).shell.data_dir
    try:
        backends = json.loads(ask_at(data_dir, {"do": "backend_status"})["backends"])
    except ControlError as problem:
        raise CommandError(str(problem), EXIT_USAGE) from None
    if options.json:
        print_lines([json.dumps(backends, indent=2)])
    else:
        print_lines(_table(backends) if backends else ["no rule names a backend"])
    return EXIT_OK if all(each["state"] == "connected" for each in backends) else EXIT_FAILED


def run_backend_order(options: argparse.Namespace) -> int:
    """Have the running broker pause or resume a backend."""
    from broker.operations.control_socket import ControlError

    data_dir = load_config(options).shell.data_dir
    try:
        ask_at(data_dir, {"do": options.request, "name": options.name})
    except ControlError as problem:
        raise CommandError(str(problem)) from None
    print_lines([f"{options.name}: {options.action}d"])
    return EXIT_OK


def _table(backends: list[dict[str, Any]]) -> list[str]:
    """Return a line for each backend, and one more where it is not as it should be."""
    rows = [[title for _, title in COLUMNS]]
    rows += [[str(backend[key]) for key, _ in COLUMNS] for backend in backends]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    for backend in backends:
        name = backend["backend"]
        if backend["why"]:
            lines.append(f"{name}: {backend['why']}")
        if backend["paused"]:
            lines.append(f"{name}: paused; `holdfast backend resume {name}` sends its rows")
        if backend.get("backfill"):
            lines.append(backfill.progress_line(name, backend["backfill"]))
        if backend["gaps"]:
            lines.append(f"{name}: rows were lost {backend['gaps']} times; the log says which")
    return lines
