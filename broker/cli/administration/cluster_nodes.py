"""`holdfast cluster status` and `promote`: who leads, how far each node is, and another leader.

Asks the node whose data directory it is given, by its control socket. Read next:
`broker.cluster.describing`.
"""

import argparse
import json
from collections.abc import Iterator, Mapping

from broker.cli.administration.asking import ask_broker
from broker.cli.command import EXIT_FAILED, EXIT_OK, print_lines

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
