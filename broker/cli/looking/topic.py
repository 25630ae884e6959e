"""`holdfast topic`: who gets a message that is published on a topic.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse

from broker.cli.command import Commands, add_config_flags, topic_name
from broker.cli.looking.opening import look, print_found


def add(commands: Commands) -> None:
    topic = commands.add_parser("topic", help="see who gets what is published on a topic")
    actions = topic.add_subparsers(dest="action", required=True, metavar="ACTION")
    who = actions.add_parser("who", help="print the stored sessions and shared groups that get it")
    who.add_argument("topic", type=topic_name, metavar="TOPIC")
    who.add_argument("-o", "--output", choices=("table", "json"), default="table")
    add_config_flags(who)
    who.set_defaults(run=run_who)


def run_who(options: argparse.Namespace) -> int:
    """Print who gets a message on a topic, whether the broker runs or not."""
    from broker.operations.looking import topic_report
    from broker.operations.looking.topic_readers import TopicReaders

    with look(options) as (store, _, problems):
        readers = TopicReaders(store, options.topic, problems)
        if options.output == "json":
            return print_found(topic_report.as_json(readers), problems)
        return print_found(topic_report.as_table(readers), problems)
