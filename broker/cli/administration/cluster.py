"""`holdfast cluster`: the nodes of a replicated store, and the topic that they share."""

import argparse
from typing import TYPE_CHECKING

from broker.cli.administration import cluster_nodes
from broker.cli.administration.asking import add_confirmation
from broker.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    Commands,
    add_config_flags,
    complain,
    print_lines,
    read_config,
    told_if_slow,
)

if TYPE_CHECKING:
    from broker.configuration.cluster_options import ClusterOptions


def add(commands: Commands) -> None:
    """Add `cluster init`, `check`, `status`, `promote` and `renew`."""
    cluster = commands.add_parser("cluster", help="the nodes of a replicated store, and its topic")
    actions = cluster.add_subparsers(dest="action", required=True, metavar="ACTION")
    init = actions.add_parser(
        "init", help="make the topic if it is not there, and check it; 0 = it is as it must be"
    )
    init.set_defaults(run=run_init)
    check = actions.add_parser(
        "check", help="check the topic's settings; 0 = it is as it must be, 1 = it is not"
    )
    check.set_defaults(run=run_check)
    for parser in (init, check):
        add_config_flags(parser)
        parser.add_argument(
            "--replicas", metavar="N", help="how many Kafka brokers must keep the topic (3)"
        )

    status = actions.add_parser(
        "status", help="who leads, and how far each node is; 0 = somebody leads"
    )
    status.set_defaults(run=cluster_nodes.run_status)
    promote = actions.add_parser("promote", help="have another node lead; asked of the leader")
    promote.add_argument("node", metavar="NODE", help="the node that is to lead")
    promote.set_defaults(run=cluster_nodes.run_promote)
    renew = actions.add_parser(
        "renew", help="the log is gone: begin a new one with the database of this node, stopped"
    )
    add_confirmation(renew)
    renew.set_defaults(run=cluster_nodes.run_renew)
    for parser in (status, promote, renew):
        add_config_flags(parser)


def run_init(options: argparse.Namespace) -> int:
    """Make the topic, unless it is there, and check it."""
    cluster = _options(options)  # tells whether the library is there
    from broker.operations import cluster_topic
    from storage.replicated.kafka.topic import TopicError

    try:
        with told_if_slow(_waiting(cluster)):
            is_new = cluster_topic.make(cluster)
        print_lines([f"topic {cluster.topic}: {'made' if is_new else 'is there'}"])
        return _check(cluster, is_new=is_new)
    except TopicError as problem:
        raise CommandError(str(problem)) from None


def run_check(options: argparse.Namespace) -> int:
    """Check the topic."""
    cluster = _options(options)  # tells whether the library is there
    from storage.replicated.kafka.topic import TopicError

    try:
        return _check(cluster)
    except TopicError as problem:
        raise CommandError(str(problem)) from None


def _options(options: argparse.Namespace) -> "ClusterOptions":
    """Return what the configuration says of the cluster. Raises `CommandError`."""
    from broker.configuration.config import ConfigError
    from broker.process import preflight

    flags = {"storage.data_dir": options.data_dir, "storage.kafka.replicas": options.replicas}
    try:
        config = read_config(options.config, flags)
        if not config.cluster.servers:
            raise ConfigError(
                "storage.kafka.servers is missing: expected host:port of the Kafka brokers"
            )
        preflight.check_cluster_files(config)
    except ConfigError as problem:
        raise CommandError(str(problem), EXIT_USAGE) from None
    return config.cluster


def _waiting(cluster: "ClusterOptions") -> str:
    return f"waiting for Kafka at {', '.join(cluster.servers)}"


def _check(cluster: "ClusterOptions", *, is_new: bool = False) -> int:
    from broker.operations import cluster_topic

    with told_if_slow(_waiting(cluster)):
        problems = cluster_topic.problems(cluster, is_new=is_new)
    for line in problems:
        complain(line)
    if problems:
        return EXIT_FAILED
    print_lines([f"topic {cluster.topic}: is as it must be"])
    return EXIT_OK
