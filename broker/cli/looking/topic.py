"""`holdfast topic`: who gets a message that is published on a topic.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
from typing import Final

from broker.cli.command import Commands, add_config_flags, add_list_options, asked, topic_name
from broker.cli.looking.opening import look, print_found

# The columns of `broker.operations.looking.topic_report`, which a parser must not import.
ORDERS: Final = (*("kind", "name", "filter", "qos", "no_local", "connected", "members", "gets_it"),)


def add(commands: Commands) -> None:
    topic = commands.add_parser("topic", help="see who gets what is published on a topic")
    actions = topic.add_subparsers(dest="action", required=True, metavar="ACTION")
    who = actions.add_parser("who", help="print the stored sessions and shared groups that get it")
    who.add_argument("topic", type=topic_name, metavar="TOPIC")
    add_list_options(who, ORDERS, match="client ids and names of groups")
    add_config_flags(who)
    who.set_defaults(run=run_who)


def run_who(options: argparse.Namespace) -> int:
    """Print who gets a message on a topic, whether the broker runs or not."""
    from broker.operations.looking import topic_report
    from broker.operations.looking.topic_readers import TopicReaders

    with look(options) as (store, _, problems):
        readers = TopicReaders(store, options.topic, problems)
        return print_found(topic_report.lines(asked(options), readers), problems)
