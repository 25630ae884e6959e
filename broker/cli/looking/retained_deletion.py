"""`holdfast retained delete`: have a running broker delete retained messages.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse

from broker.cli.administration.asking import add_confirmation, ask_broker, confirm
from broker.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    CommandError,
    add_config_flags,
    print_lines,
    topic_filter,
    topic_name,
)
from broker.cli.looking.opening import look, print_found


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("topic", type=topic_name, metavar="TOPIC", nargs="?")
    which.add_argument(
        "--topic",
        dest="topic_filter",
        metavar="FILTER",
        type=topic_filter,
        help="all topics that this filter matches",
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="for the history")
    parser.add_argument("--dry-run", action="store_true", help="only print their topics")
    add_confirmation(parser)
    add_config_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Delete one retained message, or all that match; on return that is durable."""
    if options.dry_run:
        return _show(options)
    if options.topic is not None:
        what = {"topic": options.topic}
        confirm(options, f"Delete the retained message on {options.topic!r}?")
    else:
        what = {"topic_filter": options.topic_filter}
        confirm(
            options,
            f"Delete the retained messages of all topics that match {options.topic_filter!r}?",
        )
    request = {"do": "retained_delete", "reason": options.reason, **what}
    deleted = ask_broker(options, request)["deleted"]
    if options.topic is not None:
        if deleted == "0":
            raise CommandError(f"no retained message on {options.topic!r}")
        print_lines([f"{options.topic!r}: its retained message is deleted"])
    else:
        print_lines([f"{options.topic_filter!r}: {deleted} retained messages are deleted"])
    return EXIT_OK


def _show(options: argparse.Namespace) -> int:
    """Print the topics whose retained messages would go."""
    from broker.operations.looking.retained_messages import RetainedMessages
    from storage.history.words import printable

    with look(options) as (store, time, problems):
        retained = RetainedMessages(store, time.now_ms, problems)
        count = 0
        for message in retained.matching(options.topic or options.topic_filter):
            count += 1
            print_lines([f"{printable(message.topic)}  {len(message.payload)} bytes"])
        status = print_found([f"{count} retained messages would be deleted"], problems)
        return status if count or options.topic is None else EXIT_FAILED
