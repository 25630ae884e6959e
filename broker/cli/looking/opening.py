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
