"""`holdfast client ban`: clients, users and addresses that may not connect to a running broker.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from broker.cli.administration.asking import add_confirmation, ask_broker, confirm
from broker.cli.command import (
    EXIT_OK,
    Commands,
    add_config_flags,
    add_list_options,
    age,
    client_id,
    print_lines,
    print_list,
)
from broker.operations.looking.listing import Listing

if TYPE_CHECKING:
    from broker.operations.control_socket import Request

BANS: Final = Listing(
    (
        ("KIND", "kind"),
        ("VALUE", "value"),
        ("SINCE", "since"),
        ("UNTIL", "until"),
        ("BY", "by"),
        ("REASON", "reason"),
    ),
    name="value",
    fields=("kind", "value", "since", "until", "left_seconds", "by", "reason"),
)


def add(clients: Commands) -> None:
    """Add the commands to those of `holdfast client`."""
    ban = clients.add_parser("ban", help="keep clients, users or addresses out for a time")
    actions = ban.add_subparsers(dest="ban_action", required=True, metavar="ACTION")
    adding = actions.add_parser(
        "add", help="refuse them from now on (0x8A), and end the connections that they have"
    )
    _add_banned(adding)
    adding.add_argument(
        "--for", dest="time", metavar="TIME", type=age, required=True, help="for so long: 1h"
    )
    adding.add_argument("--reason", metavar="TEXT", default="", help="for the list and the history")
    add_confirmation(adding)
    listing = actions.add_parser("list", help="print the bans that are not over")
    add_list_options(listing, BANS.orders, match="client ids, users or addresses")
    removing = actions.add_parser("remove", help="let them connect again")
    _add_banned(removing)
    removing.add_argument("--reason", metavar="TEXT", default="", help="for the history")
    for parser, run in ((adding, run_add), (listing, run_list), (removing, run_remove)):
        add_config_flags(parser)
        parser.set_defaults(run=run)


def _add_banned(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--client-id", metavar="CLIENT_ID", type=client_id)
    which.add_argument("--user", metavar="NAME", type=client_id)
    which.add_argument(
        "--address", metavar="ADDRESS", type=client_id, help="10.0.0.1, or a network: 10.0.0.0/8"
    )


def _request(options: argparse.Namespace, do: str) -> "Request":
    kinds = (
        ("client-id", options.client_id),
        ("user", options.user),
        ("address", options.address),
    )
    ((kind, value),) = [each for each in kinds if each[1] is not None]
    return {"do": do, "kind": kind, "value": value, "reason": options.reason}


def run_add(options: argparse.Namespace) -> int:
    """Ban for a time; on return that is durable, and holds."""
    request = _request(options, "ban_add")
    what = f"{request['kind']} {request['value']!r}"
    confirm(options, f"Ban {what}? Whoever it is against is disconnected, and kept out.")
    answer = ask_broker(options, {**request, "for_ms": str(options.time)})
    ban = json.loads(answer["ban"])
    print_lines([f"{ban['kind']} {ban['value']!r} is banned until {ban['until']}"])
    return EXIT_OK


def run_list(options: argparse.Namespace) -> int:
    """Print the bans, by kind and value where no order is asked for."""
    print_list(BANS, options, _bans(options))
    return EXIT_OK


def _bans(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    after = ""
    while True:
        answer = ask_broker(options, {"do": "ban_list", "after": after})
        yield from json.loads(answer["bans"])
        after = answer["after"]
        if not after:
            return


def run_remove(options: argparse.Namespace) -> int:
    """Remove a ban; on return that is durable."""
    request = _request(options, "ban_remove")
    answer = ask_broker(options, request)
    print_lines([f"{request['kind']} {answer['value']!r} may connect again"])
    return EXIT_OK
