"""`holdfast group`: the shared groups of a data directory, and what waits for them.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
from itertools import chain
from typing import Final

from broker.cli.command import (
    CommandError,
    Commands,
    add_config_flags,
    add_list_options,
    asked,
    share_name,
    topic_filter,
)
from broker.cli.looking import group_purge
from broker.cli.looking.opening import look, print_found

# The columns of `broker.operations.looking.groups_report`, which a parser must not import.
ORDERS: Final = (
    *("name", "filter", "members", "connected", "waiting", "returned", "in_flight", "bytes"),
)


def add(commands: Commands) -> None:
    group = commands.add_parser("group", help="look at shared subscriptions, purge one")
    actions = group.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="print every stored group with what waits for it")
    listing.add_argument(
        "--bytes", action="store_true", help="count bytes: reads every message that is owed"
    )
    show = actions.add_parser("show", help="print one group with its members")
    show.add_argument("share_name", type=share_name, metavar="NAME")
    show.add_argument("topic_filter", type=topic_filter, metavar="FILTER")
    add_list_options(listing, ORDERS, match="names of groups")
    show.add_argument("-o", "--output", choices=("table", "json"), default="table")
    for parser, run in ((listing, run_list), (show, run_show)):
        add_config_flags(parser)
        parser.set_defaults(run=run)
    group_purge.add(actions.add_parser("purge", help="drop what waits for a group, and keep it"))


def run_list(options: argparse.Namespace) -> int:
    """Print the shared groups of a data directory, whether its broker runs or not."""
    from broker.operations.looking import groups_report
    from broker.operations.looking.shared_groups import SharedGroups

    with look(options) as (store, time, problems):
        with_bytes = options.bytes or options.sort == "bytes"
        groups = SharedGroups(store, problems, with_bytes=with_bytes).all(time.now_ms)
        lines = groups_report.GROUPS.lines(asked(options), map(groups_report.fields, groups))
        if options.output == "table":
            lines = chain(lines, ["", groups_report.NOT_LISTED])
        return print_found(lines, problems)


def run_show(options: argparse.Namespace) -> int:
    """Print one shared group with its members, whether the broker runs or not."""
    from broker.operations.looking import groups_report
    from broker.operations.looking.shared_groups import PAGE_MEMBERS_MAX, SharedGroups

    name = options.share_name, options.topic_filter
    with look(options) as (store, time, problems):
        groups = SharedGroups(store, problems, members_max=PAGE_MEMBERS_MAX, with_bytes=True)
        group = groups.find(*name, time.now_ms)
        if group is None and problems.count:
            return print_found((), problems)
        if group is None:
            raise CommandError(f"no shared group {name[0]!r} of {name[1]!r} is stored")
        if options.output == "json":
            return print_found([groups_report.group_as_json(group)], problems)
        return print_found(groups_report.group_as_page(group), problems)
