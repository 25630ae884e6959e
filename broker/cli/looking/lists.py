"""The options that every list of the command line has: `--match`, `--sort`, `--limit`, `-o`.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
from collections.abc import Iterable
from typing import Final

from broker.cli.command import limit, print_lines
from broker.operations.looking.listing import OUTPUTS, Asked, Listing, Row

SORT: Final = "numbers and yes first, the largest first; texts and times upwards"


def add_options(
    parser: argparse.ArgumentParser,
    orders: Iterable[str],
    *,
    match: str,
    sort: str = SORT,
    default: str | None = None,
) -> None:
    """Add the options; `match` says what is matched, `orders` what it may be sorted by."""
    parser.add_argument("--match", metavar="GLOB", help=match)
    parser.add_argument("--sort", choices=tuple(orders), default=default, help=sort)
    parser.add_argument("--limit", type=limit, metavar="N", help="print at most N")
    parser.add_argument("-o", "--output", choices=OUTPUTS, default="table")


def asked(options: argparse.Namespace) -> Asked:
    """Return what the options ask for."""
    return Asked(options.match, options.sort, options.limit, options.output)


def print_list(listing: Listing, options: argparse.Namespace, rows: Iterable[Row]) -> None:
    """Print rows as the options say. Raises `CommandError` as `print_lines` does."""
    print_lines(listing.lines(asked(options), rows))
