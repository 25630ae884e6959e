"""`holdfast cluster status` and `promote`: who leads, how far each node is, and another leader.

Asks the node whose data directory it is given, by its control socket; `renew` needs it stopped.
Read next: `broker.cluster.describing`, `broker.operations.cluster_renewal`.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from broker.cli.administration.asking import ask_broker, confirm
from broker.cli.command import EXIT_FAILED, EXIT_OK, CommandError, load_config, print_lines

STATUS = "cluster_status"
PROMOTE = "cluster_promote"
SILENT_MS_MAX: Final = 5000  # a node says every second where it is


def run_status(options: argparse.Namespace) -> int:
    """Print where a node is; return 0 if somebody leads and the log is heard, else 1."""
    status = ask_broker(options, {"do": STATUS})
    print_lines(lines(status))
    is_well = status["leader"] and not status["trouble"] and not status["unheard"]
    return EXIT_OK if is_well else EXIT_FAILED


def run_promote(options: argparse.Namespace) -> int:
    """Have another node lead."""
    leader = ask_broker(options, {"do": PROMOTE, "node": options.node})["leader"]
    print_lines(
        [f"{leader} is to lead as soon as this node has committed everything; see cluster status"]
    )
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
    written = int(status["written"])
    behind = written - int(status["applied"])
    yield f"records  read {status['read']}, applied {status['applied']} ({behind} behind)"
    if status.get("loaded"):  # not told by an older broker
        yield f"         loading the filters of sessions, {status['loaded']} so far"
    if int(status["pending"]):
        yield f"         {status['pending']} batches are not committed yet"
    members = json.loads(status["members"])
    width = max((len(each["node"]) for each in members), default=0)
    for each in members:
        yield f"member   {each['node']:{width}}  {_where(each, written)}"
    if status["unheard"]:
        yield f"log      NOT HEARD {status['unheard']}"
    if status["trouble"]:
        yield f"trouble  {status['trouble']}"


def _where(member: Mapping[str, Any], written: int) -> str:
    if not member["heard"]:
        return "not heard since this node began"
    if member["silent_ms"] > SILENT_MS_MAX:
        return f"NOT HEARD for {member['silent_ms'] // 1000} s; it had read {member['read']}"
    behind = max(0, written - member["read"])
    where = member["address"] or "no address for clients"
    return f"read {member['read']} ({behind} behind), on disk to {member['durable']}, {where}"
