"""`holdfast client`: who is connected to a running broker; end a connection, keep clients out.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any, Final

from broker.cli.administration import bans
from broker.cli.administration.asking import add_confirmation, ask_broker, confirm
from broker.cli.command import EXIT_OK, Commands, add_config_flags, client_id, limit, print_lines

# Title and field of each column of the table; the other formats have all fields.
COLUMNS: Final = (
    ("CLIENT_ID", "client_id"),
    ("USER", "user"),
    ("LISTENER", "listener"),
    ("ADDRESS", "address"),
    ("MQTT", "protocol_version"),
    ("CONNECTED_S", "connected_seconds"),
    ("DURABLE", "durable"),
    ("SUBSCRIPTIONS", "subscriptions"),
    ("IN_FLIGHT", "in_flight"),
)
FIELDS: Final = (
    *("client_id", "user", "listener", "address", "protocol_version", "keep_alive_seconds"),
    *("connected_seconds", "durable", "session_expiry_interval", "subscriptions", "in_flight"),
    *("lagging", "will_topic"),
)
VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}


def add(commands: Commands) -> None:
    client = commands.add_parser(
        "client", help="see who is connected, end a connection, ban clients"
    )
    actions = client.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="print the clients that are connected")
    listing.add_argument("--match", metavar="GLOB", default="*", help="only these client ids")
    listing.add_argument("--limit", metavar="N", type=limit, help="at most so many")
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
    listing.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table")
    show.add_argument("-o", "--output", choices=("table", "json"), default="table")


def run_list(options: argparse.Namespace) -> int:
    """Print the clients that are connected, by client id."""
    from broker.operations.sessions import columns

    found = []
    for row in _pages(options):
        found.append(row)
        if len(found) == options.limit:
            break
    found.sort(key=lambda row: str(row["client_id"]))
    if options.output == "json":
        print_lines(columns.json_lines(found))
    elif options.output == "csv":
        print_lines(columns.csv_lines(FIELDS, found))
    else:
        rows = ([_cell(name, row[name]) for _, name in COLUMNS] for row in found)
        print_lines(columns.table([title for title, _ in COLUMNS], rows))
    return EXIT_OK


def _pages(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    page = 0
    while True:
        request = {"do": "client_list", "page": str(page), "match": options.match}
        answer = ask_broker(options, request)
        yield from json.loads(answer["clients"])
        if not answer["more"]:
            return
        page += 1


def _cell(name: str, value: object) -> str:
    if name == "protocol_version" and isinstance(value, int):
        return VERSIONS.get(value, str(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value in (None, "") else str(value)


def run_show(options: argparse.Namespace) -> int:
    """Print one client that is connected, with its subscriptions."""
    answer = ask_broker(options, {"do": "client_show", "client_id": options.client_id})
    row = json.loads(answer["client"])
    if options.output == "json":
        print_lines([json.dumps(row, indent=2)])
        return EXIT_OK
    from broker.history.text import printable

    filters = row.pop("topic_filters")
    lines = [f"{name:<24} {printable(_cell(name, value))}" for name, value in row.items()]
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
