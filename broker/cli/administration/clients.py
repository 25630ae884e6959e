"""`holdfast client`: who is connected to a running broker; end a connection, keep clients out.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any, Final

from broker.cli.administration import bans
from broker.cli.administration.asking import add_confirmation, ask_broker, confirm
from broker.cli.command import (
    EXIT_OK,
    Commands,
    add_config_flags,
    add_list_options,
    client_id,
    print_lines,
    print_list,
)
from broker.operations.looking.listing import Listing, cell

VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}


def _version(level: int) -> str:
    return VERSIONS.get(level, str(level))


# The table has some fields, the other formats have all.
CLIENTS: Final = Listing(
    (
        ("CLIENT_ID", "client_id"),
        ("USER", "user"),
        ("LISTENER", "listener"),
        ("ADDRESS", "address"),
        ("MQTT", "protocol_version"),
        ("CONNECTED_S", "connected_seconds"),
        ("DURABLE", "durable"),
        ("SUBSCRIPTIONS", "subscriptions"),
        ("IN_FLIGHT", "in_flight"),
    ),
    name="client_id",
    fields=(
        *("client_id", "user", "listener", "address", "protocol_version", "keep_alive_seconds"),
        *("connected_seconds", "durable", "session_expiry_interval", "subscriptions", "in_flight"),
        *("lagging", "will_topic"),
    ),
    cells={"protocol_version": _version},
)


def add(commands: Commands) -> None:
    client = commands.add_parser(
        "client", help="see who is connected, end a connection, ban clients"
    )
    actions = client.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="print the clients that are connected")
    add_list_options(
        listing, CLIENTS.orders, match="client ids such as 'sensor-*'", default="client_id"
    )
    show = actions.add_parser("show", help="print one connected client")
    kick = actions.add_parser(
        "kick", help="end a client's connection; its session stays, its will is published"
    )
    kick.add_argument("--reason", metavar="TEXT", default="", help="told to the client (MQTT 5)")
    add_confirmation(kick)
    for parser, run in ((listing, run_list), (show, run_show), (kick, run_kick)):
        if parser is not listing:
            parser.add_argument("client_id", type=client_id, metavar="CLIENT_ID")
        add_config_flags(parser)
        parser.set_defaults(run=run)
    bans.add(actions)
    show.add_argument("-o", "--output", choices=("table", "json"), default="table")


def run_list(options: argparse.Namespace) -> int:
    """Print the clients that are connected."""
    print_list(CLIENTS, options, _pages(options))
    return EXIT_OK


def _pages(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    page = 0
    while True:
        request = {"do": "client_list", "page": str(page), "match": options.match or "*"}
        answer = ask_broker(options, request)
        yield from json.loads(answer["clients"])
        if not answer["more"]:
            return
        page += 1


def run_show(options: argparse.Namespace) -> int:
    """Print one client that is connected, with its subscriptions."""
    answer = ask_broker(options, {"do": "client_show", "client_id": options.client_id})
    row = json.loads(answer["client"])
    if options.output == "json":
        print_lines([json.dumps(row, indent=2)])
        return EXIT_OK
    from storage.history.words import printable

    filters = row.pop("topic_filters")
    row["protocol_version"] = _version(row["protocol_version"])
    lines = [f"{name:<24} {printable(cell(value))}" for name, value in row.items()]
    lines += [f"  {printable(each['topic_filter'])}  qos={each['qos']}" for each in filters]
    if len(filters) < row["subscriptions"]:
        lines.append(f"  and {row['subscriptions'] - len(filters)} more")
    print_lines(lines)
    return EXIT_OK


def run_kick(options: argparse.Namespace) -> int:
    """End the connection of a client; on return its session's state is durable."""
    name = options.client_id
    confirm(options, f"End the connection of {name!r}?")
    ask_broker(options, {"do": "client_kick", "client_id": name, "reason": options.reason})
    print_lines([f"{name!r}: its connection has ended"])
    return EXIT_OK
