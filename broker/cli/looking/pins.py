"""`holdfast storage show --pins`: who needs which generation of the log.

Reads the database in a process of its own, so the broker may be running, or not. Must stay quick to
import, as `broker.cli.main` must.
"""

import argparse
import json

from broker.cli.command import print_lines
from broker.cli.looking.opening import look, print_found


def run(options: argparse.Namespace) -> int:
    """Print each generation with its size, and who needs a message of it."""
    from broker.operations.owing import census, report

    with look(options) as (store, time, problems):
        found = census.take(store, time.now_ms, problems=problems)
        rows = report.pins(found, time)
        if options.output == "json":
            return print_found([json.dumps(rows, indent=2)], problems)
        if options.output == "csv":
            return print_found(report.as_csv(rows), problems)
        print_lines(report.as_table(rows))
        return print_found(["", report.NOT_PINNING], problems)
