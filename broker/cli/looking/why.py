"""`holdfast why`: what a client that misses messages has, is owed and lost, in sentences.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import json
import os
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.cli.command import (
    EXIT_OK,
    Commands,
    add_config_flags,
    client_id,
    load_config,
    now_ms,
    open_inventory,
    print_lines,
    topic_name,
)

if TYPE_CHECKING:
    from broker.configuration.config import Config
    from broker.operations.sessions.inventory import Inventory


def add(commands: Commands) -> None:
    why = commands.add_parser("why", help="say in sentences why a client may miss messages")
    why.add_argument("client_id", type=client_id, metavar="CLIENT_ID")
    why.add_argument("--topic", type=topic_name, metavar="TOPIC", help="where it misses them")
    why.add_argument("--since", metavar="TIME", type=_seconds, help="not older than: 2h, 7d")
    add_config_flags(why)
    why.set_defaults(run=run)


def _seconds(text: str) -> int:
    from broker.cli.command import age

    return max(1, age(text) // 1000)


def run(options: argparse.Namespace) -> int:
    """Print what is known of a client, its broker running or not."""
    config = load_config(options)
    print_lines(_live(options, config))
    with open_inventory(options) as inventory:
        print_lines(_now(options, config, inventory))
    print_lines(_before(options, config))
    return EXIT_OK


def _live(options: argparse.Namespace, config: "Config") -> Iterator[str]:
    """Yield what the running broker knows of the client: its connection, a clean session."""
    from broker.operations.control_socket import ControlError, ask
    from broker.operations.looking import why
    from storage.local.data_directory import is_in_use

    name = options.client_id
    data_dir = config.shell.data_dir
    if not os.path.isdir(os.path.join(data_dir, "db")):
        return  # what is next says so
    yield "by the running broker:"
    if not is_in_use(data_dir):
        yield "  none runs on this data directory: what follows is as it was left"
        return
    try:
        answer = ask(data_dir, {"do": "client_show", "client_id": name})
    except ControlError as problem:
        yield f"  {problem}"
        return
    lines = why.connection_lines(json.loads(answer["client"]), options.topic)
    yield from (f"  {line}" for line in lines)


def _now(options: argparse.Namespace, config: "Config", inventory: "Inventory") -> Iterator[str]:
    """Yield what the client has now: session, subscriptions, queue."""
    from broker.operations.looking import why
    from broker.operations.sessions import columns
    from broker.operations.sessions.owed import owed

    report = inventory.session(options.client_id)
    yield f"by the database, {options.client_id!r}:"
    session = None if report is None else report.session
    lines = why.session_lines(
        session,
        since=None if report is None else columns.moment(inventory, report.since_ms),
        expires=None if report is None else columns.moment(inventory, report.expires_ms),
        is_connected=report is not None and report.is_connected,
    )
    yield from (f"  {line}" for line in lines)
    if report is None or session is None:
        return
    if options.topic is not None:
        yield from (f"  {line}" for line in why.topic_lines(session, options.topic))
    queue = owed(inventory, report, config.settings, now_ms(inventory))
    yield from (f"  {line}" for line in why.queue_lines(queue, options.topic))


def _before(options: argparse.Namespace, config: "Config") -> Iterator[str]:
    """Yield what the history tells of the client, and what nobody can know."""
    from broker.history import queries
    from broker.operations.looking import why
    from storage.time import machine_clocks

    story = why.Story()
    events = queries.of_client(
        config, options.client_id, since_s=options.since, now_ms=machine_clocks.wall_ms()
    )
    problem = ""
    try:
        for event in events:
            story.add(event)
    except queries.HistoryError as found:
        problem = str(found)
    yield "before, by the history:"
    yield from (f"  {line}" for line in story.sentences())
    if problem:
        yield f"  {problem}"
    yield "not known here:"
    level = config.settings.history_level
    has_rules = config.shell.acl_file is not None
    yield from (f"  {line}" for line in why.limits_of_knowledge(level, has_rules=has_rules))
    name = shlex.quote(options.client_id)
    yield (
        f"next: `holdfast trace client {name} --for 10m` prints what happens to it from now on; "
        "`holdfast session queue`, `holdfast history timeline`, `holdfast topic who`"
    )
