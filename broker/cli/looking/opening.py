"""What the commands share that look into a store: where it is opened, and what is damaged in it.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from broker.cli.command import EXIT_FAILED, EXIT_OK, complain, open_store, print_lines

if TYPE_CHECKING:
    from broker.operations.looking.rows import Problems
    from broker.operations.looking.store_time import StoreTime
    from storage.api import Store


@contextlib.contextmanager
def look(options: argparse.Namespace) -> "Iterator[tuple[Store, StoreTime, Problems]]":
    """Open the store of the configured data directory, with its time and no problems yet.

    Raises `CommandError`.
    """
    from broker.operations.looking.rows import Problems
    from broker.operations.looking.store_time import StoreTime
    from storage.time import machine_clocks

    with open_store(options) as store:
        time = StoreTime(
            store,
            machine_clocks.wall_ms(),
            machine_clocks.boot_id(),
            machine_clocks.boottime_ms(),
        )
        yield store, time, Problems()


def print_found(lines: Iterable[str], problems: "Problems") -> int:
    """Print what was found, then on stderr what cannot be read; return the exit status.

    Raises `CommandError` as `print_lines` does.
    """
    print_lines(lines)
    for line in problems.lines():
        complain(line)
    return EXIT_FAILED if problems.count else EXIT_OK


def topic_name(text: str) -> str:
    """Return an argument that is a topic name."""
    from mqtt.topics import topic_problem

    problem = topic_problem(text)
    if problem is not None:
        raise argparse.ArgumentTypeError(problem)
    return text


def topic_filter(text: str) -> str:
    """Return an argument that is a topic filter, not a shared one."""
    from mqtt.topics import SHARE_PREFIX, filter_problem

    problem = filter_problem(text)
    if problem is None and text.startswith(SHARE_PREFIX):
        problem = f"topic filter {text!r}: expected one that is not shared"
    if problem is not None:
        raise argparse.ArgumentTypeError(problem)
    return text


def share_name(text: str) -> str:
    """Return an argument that is the name of a shared subscription."""
    from mqtt.topics import SHARE_PREFIX, filter_problem

    if "/" in text or filter_problem(f"{SHARE_PREFIX}{text}/#") is not None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a name without '/' and wildcards")
    return text
