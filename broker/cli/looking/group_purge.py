"""`holdfast group purge`: have a running broker drop what waits for a shared subscription.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse

from broker.cli.administration import purge
from broker.cli.administration.asking import confirm
from broker.cli.command import (
    EXIT_OK,
    CommandError,
    share_name,
    topic_filter,
)
from broker.cli.looking.opening import look, print_found


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("share_name", type=share_name, metavar="NAME")
    parser.add_argument("topic_filter", type=topic_filter, metavar="FILTER")
    purge.add_choice(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Drop what waits for a group, its members connected or not; on return that is durable."""
    name = f"$share/{options.share_name}/{options.topic_filter}"
    if options.dry_run:
        return _show(options, name)
    which = "what is on topics that match" if options.topic else "what waits"
    old = " and is older than you say" if options.older else ""
    topic = f" {options.topic!r}" if options.topic else ""
    confirm(options, f"Drop {which}{topic}{old} for {name!r}?")
    request = {
        "do": "group_purge",
        "group": options.share_name,
        "topic_filter": options.topic_filter,
        "older_ms": str(options.older),
        "topic": options.topic or "",
        "reason": options.reason,
    }
    purge.follow(options, request, repr(name))
    return EXIT_OK


def _show(options: argparse.Namespace, name: str) -> int:
    """Print how much waits, before age and topic are asked."""
    from broker.operations.looking.shared_groups import SharedGroups

    with look(options) as (store, time, problems):
        groups = SharedGroups(store, problems)
        group = groups.find(options.share_name, options.topic_filter, time.now_ms)
        if group is None and problems.count:
            return print_found((), problems)
        if group is None:
            raise CommandError(f"no shared group {name!r} is stored")
        waiting = "what waits is unknown" if group.waiting is None else f"{group.waiting} wait"
        line = f"{name!r}: {waiting}, {group.owed} came back, {group.in_flight} in flight stay"
        return print_found([line], problems)
