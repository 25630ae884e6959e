"""`holdfast cluster status` and `promote`: who leads, how far each node is, and another leader.

Asks the node whose data directory it is given, by its control socket; `renew` needs it stopped.
Read next: `broker.cluster.describing`, `broker.operations.cluster_renewal`.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from broker.cli.administration.asking import ask_broker, confirm
from broker.cli.command import EXIT_FAILED, EXIT_OK, CommandError, load_config, print_lines

STATUS = "cluster_status"
PROMOTE = "cluster_promote"


def run_status(options: argparse.Namespace) -> int:
    """Print where a node is; return 0 if somebody leads and the log is heard, else 1."""
    status = ask_broker(options, {"do": STATUS})
    print_lines(lines(status))
    return EXIT_OK if status["leader"] and not status["trouble"] else EXIT_FAILED


def run_promote(options: argparse.Namespace) -> int:
    """Have another node lead."""
    answer = ask_broker(options, {"do": PROMOTE, "node": options.node})
    print_lines([f"{answer['leader']} leads from now on; this node commits everything first"])
    return EXIT_OK


def run_renew(options: argparse.Namespace) -> int:
    """Make the database of a stopped node the beginning of a new log."""
    from broker.operations import cluster_renewal
    from storage.errors import StorageError

    path = Path(load_config(options).shell.data_dir)
    confirm(options, f"Begin a new log with {path}? Other nodes can follow only with a copy of it.")
    try:
        renewed = cluster_renewal.renew(path)
    except StorageError as problem:
        raise CommandError(str(problem)) from None
    print_lines(
        [
            f"{path}: begins a new log with all up to record {renewed.last} of the old one, "
            f"{renewed.from_tail} batches of it from its tail",
            "every other node needs a copy: holdfast db backup here, holdfast db restore there",
        ]
    )
    return EXIT_OK


def lines(status: Mapping[str, str]) -> Iterator[str]:
    """Yield what a person reads of a node."""
    yield f"node     {status['node']}, {status['role']}"
    yield f"leader   {status['leader'] or 'nobody'}, term {status['epoch']}"
    behind = int(status["written"]) - int(status["applied"])
    yield (
        f"records  read {status['read']}, applied {status['applied']} ({behind} behind), "
        f"{status['pending']} batches not committed"
    )
    if status["trouble"]:
        yield f"trouble  {status['trouble']}"
    members = json.loads(status["members"])
    width = max((len(each["node"]) for each in members), default=0)
    for each in members:
        if each["heard"]:
            where = each["address"] or "no address"
            said = f"read {each['read']}, durable {each['durable']}, {where}"
        else:
            said = "not heard since this node began"
        yield f"member   {each['node']:{width}}  {said}"
