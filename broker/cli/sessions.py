"""`holdfast session`: look at the sessions of a data directory, its broker running or not."""

import argparse
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Final

from broker.cli.administration import deletion, purge
from broker.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    CommandError,
    Commands,
    add_config_flags,
    add_list_options,
    client_id,
    complain,
    limit,
    load_config,
    now_ms,
    open_inventory,
    print_lines,
)
from broker.operations.looking.listing import OUTPUTS

if TYPE_CHECKING:
    from broker.operations.sessions.inventory import Inventory, SessionReport
    from broker.operations.sessions.owed import Owed

# Those of `broker.operations.sessions.ranking`, which a parser must not import.
ORDERS: Final = ("name", "messages", "bytes", "oldest", "since")
TOP_ORDERS: Final = ("bytes", "messages", "oldest")
TOP_LIMIT: Final = 20


def add(commands: Commands) -> None:
    session = commands.add_parser("session", help="look at the sessions of a data directory")
    actions = session.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="print every stored session")
    add_list_options(
        listing,
        ORDERS,
        match="client ids such as 'sensor-*'",
        sort="most, oldest or longest first (name)",
        default="name",
    )
    listing.add_argument("--offline", action="store_true", help="only those not connected")
    listing.add_argument(
        "--bytes", action="store_true", help="count bytes: reads every message that is owed"
    )
    show = actions.add_parser("show", help="print one session with its subscriptions")
    show.add_argument("client_id", type=client_id, metavar="CLIENT_ID")
    top = actions.add_parser("top", help="print who is owed most")
    top.add_argument("--match", metavar="GLOB", help="client ids such as 'sensor-*'")
    top.add_argument("--by", choices=TOP_ORDERS, default="bytes", help="(bytes)")
    top.add_argument(
        "--limit",
        type=limit,
        default=TOP_LIMIT,
        metavar="N",
        help=f"print at most N ({TOP_LIMIT})",
    )
    queue = actions.add_parser("queue", help="print what a session is owed, in order")
    queue.add_argument("client_id", type=client_id, metavar="CLIENT_ID")
    queue.add_argument("--topic", type=_filter, metavar="FILTER", help="only topics that match")
    queue.add_argument("--limit", type=limit, metavar="N", help="print at most N messages")
    queue.add_argument("--payload", action="store_true", help="print payloads")
    show.add_argument("-o", "--output", choices=("table", "json"), default="table")
    for parser in (top, queue):
        parser.add_argument("-o", "--output", choices=OUTPUTS, default="table")
    for parser, run in (
        (listing, run_session_list),
        (show, run_session_show),
        (top, run_session_top),
        (queue, run_session_queue),
    ):
        add_config_flags(parser)
        parser.set_defaults(run=run)
    purge.add(actions.add_parser("purge", help="drop what waits for a session, and keep it"))
    deletion.add(
        actions.add_parser(
            "delete", aliases=["expire"], help="end sessions, with all that waits for them"
        )
    )


def _filter(text: str) -> str:
    """Return an argument that is a topic filter, not a shared one."""
    from mqtt.topics import SHARE_PREFIX, filter_problem

    problem = filter_problem(client_id(text))
    if problem is not None:
        raise argparse.ArgumentTypeError(problem)
    if text.startswith(SHARE_PREFIX):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a filter without $share/NAME/")
    return text


def run_session_list(options: argparse.Namespace) -> int:
    """Print the sessions of a data directory, whether its broker runs or not."""
    from broker.operations.sessions import ranking

    with_bytes = options.bytes or options.sort == ranking.BYTES
    damage = _Damage()
    with open_inventory(options) as inventory:
        reports = inventory.sessions(
            wanted=_wanted(options),
            is_offline=options.offline,
            with_bytes=options.sort == ranking.BYTES or (with_bytes and _is_unsorted(options)),
            damaged=damage,
        )
        if _is_unsorted(options):
            reports = islice(reports, options.limit)
        else:
            reports = ranking.ranked(
                inventory,
                reports,
                options.sort,
                options.limit,
                with_bytes=with_bytes,
                damaged=damage,
            )
        _print_sessions(inventory, reports, options.output, with_bytes=with_bytes)
    return damage.exit_code


def _wanted(options: argparse.Namespace) -> Callable[[str], bool] | None:
    """Return which client ids `--match` asks for, None: all."""
    pattern: str | None = options.match
    return None if pattern is None else (lambda name: fnmatchcase(name, pattern))


def _is_unsorted(options: argparse.Namespace) -> bool:
    """Return whether sessions are printed in the order in which they are stored."""
    return bool(options.sort == "name")


def run_session_show(options: argparse.Namespace) -> int:
    """Print one session of a data directory with its subscriptions."""
    from broker.operations.sessions import report as text

    with open_inventory(options) as inventory:
        found = _session(inventory, options.client_id, with_bytes=True)
        if options.output == "json":
            print_lines(text.as_json(inventory, [found]))
        else:
            print_lines(text.as_page(inventory, found))
    return EXIT_OK


def run_session_top(options: argparse.Namespace) -> int:
    """Print the sessions that are owed most, and how much all of them are owed."""
    from broker.operations.sessions import ranking
    from broker.operations.sessions import report as text

    damage = _Damage()
    every, shown = ranking.Totals(), ranking.Totals()
    by_bytes = options.by == ranking.BYTES
    with open_inventory(options) as inventory:
        found = inventory.sessions(wanted=_wanted(options), with_bytes=by_bytes, damaged=damage)
        reports = every.counting(found)
        first = ranking.ranked(
            inventory, reports, options.by, options.limit, with_bytes=True, damaged=damage
        )
        _print_sessions(inventory, shown.counting(first), options.output, with_bytes=True)
    if options.output == "table":
        print_lines([text.totals_line(shown, every, with_bytes=by_bytes)])
    return damage.exit_code


def run_session_queue(options: argparse.Namespace) -> int:
    """Print what a session is owed, in the order in which it will be sent."""
    from broker.operations.sessions import queue_report as text
    from broker.operations.sessions.owed import owed
    from mqtt.topics import matches

    settings = load_config(options).settings
    with open_inventory(options) as inventory:
        report = _session(inventory, options.client_id)
        queue: Iterable[Owed] = owed(inventory, report, settings, now_ms(inventory))
        topic_filter: str | None = options.topic
        if topic_filter is not None:
            queue = (
                each
                for each in queue
                if each.message is not None and matches(topic_filter, each.message.topic)
            )
        queue = islice(queue, options.limit)
        if options.output == "json":
            lines = text.as_json(inventory, queue, with_payload=options.payload)
        elif options.output == "csv":
            lines = text.as_csv(inventory, queue, with_payload=options.payload)
        else:
            lines = text.as_table(inventory, queue, with_payload=options.payload)
        print_lines(lines)
        if options.output == "table":
            print_lines(text.notes(report.session))
        else:
            for line in text.notes(report.session):
                complain(line)
    return EXIT_OK


def _print_sessions(
    inventory: "Inventory", reports: "Iterable[SessionReport]", output: str, *, with_bytes: bool
) -> None:
    from broker.operations.sessions import report as text

    if output == "json":
        print_lines(text.as_json(inventory, reports))
    elif output == "csv":
        print_lines(text.as_csv(inventory, reports))
    else:
        print_lines(text.as_table(inventory, reports, with_bytes=with_bytes))


class _Damage:
    """Says on stderr what cannot be read, a line each, and remembers that there was something."""

    def __init__(self) -> None:
        self.exit_code = EXIT_OK

    def __call__(self, text: str) -> None:
        complain(text)
        self.exit_code = EXIT_FAILED


def _session(inventory: "Inventory", name: str, *, with_bytes: bool = False) -> "SessionReport":
    found = inventory.session(name, with_bytes=with_bytes)
    if found is None:
        raise CommandError(f"no session {name!r}")
    return found
