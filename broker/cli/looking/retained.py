"""`holdfast retained`: the retained messages of a data directory.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from broker.cli.command import (
    CommandError,
    Commands,
    add_config_flags,
    add_list_options,
    asked,
    topic_filter,
    topic_name,
)
from broker.cli.looking import retained_deletion
from broker.cli.looking.opening import look, print_found

if TYPE_CHECKING:
    from broker.operations.looking.retained_messages import RetainedMessages
    from mqtt.message import Message

# The columns of `broker.operations.looking.retained_report`, which a parser must not import.
ORDERS: Final = ("topic", "bytes", "qos", "stored_at", "expires_at", "publisher")


def add(commands: Commands) -> None:
    retained = commands.add_parser("retained", help="look at the retained messages, delete some")
    actions = retained.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="print their topics, sizes and times")
    listing.add_argument(
        "--topic", metavar="FILTER", type=topic_filter, help="only topics that this filter matches"
    )
    add_list_options(listing, ORDERS, match="topics such as '*/temperature'")
    show = actions.add_parser("show", help="print the one of a topic with its payload")
    show.add_argument("topic", type=topic_name, metavar="TOPIC")
    show.add_argument("-o", "--output", choices=("table", "json"), default="table")
    for parser, run in ((listing, run_list), (show, run_show)):
        add_config_flags(parser)
        parser.set_defaults(run=run)
    retained_deletion.add(actions.add_parser("delete", help="have the running broker delete some"))


def run_list(options: argparse.Namespace) -> int:
    """Print the retained messages whose topics match, whether the broker runs or not."""
    from broker.operations.looking import retained_report
    from broker.operations.looking.retained_messages import RetainedMessages

    with look(options) as (store, time, problems):
        retained = RetainedMessages(store, time.now_ms, problems)
        messages = retained.matching(options.topic)
        rows = (retained_report.fields(time, message) for message in messages)
        lines = retained_report.RETAINED.lines(asked(options), rows)
        if options.output == "table":
            lines = _with_expired(lines, messages, retained)
        return print_found(lines, problems)


def _with_expired(
    lines: Iterator[str], messages: "Iterator[Message]", retained: "RetainedMessages"
) -> Iterator[str]:
    """Yield the lines, and where all messages were read how many have expired."""
    yield from lines
    if next(messages, None) is None and retained.expired_count:
        yield f"{retained.expired_count} have expired, and are sent to nobody"


def run_show(options: argparse.Namespace) -> int:
    """Print the retained message of a topic with its payload."""
    from broker.operations.looking import retained_report
    from broker.operations.looking.retained_messages import RetainedMessages

    with look(options) as (store, time, problems):
        retained = RetainedMessages(store, time.now_ms, problems)
        message = retained.find(options.topic)
        if problems.count:
            return print_found((), problems)
        if message is None:
            raise CommandError(f"no retained message on {options.topic!r}")
        if retained.is_expired(message):
            expired = time.text(message.expires_at_ms)
            raise CommandError(f"the retained message on {options.topic!r} expired at {expired}")
        if options.output == "json":
            return print_found([retained_report.message_as_json(time, message)], problems)
        return print_found(retained_report.message_as_page(time, message), problems)
