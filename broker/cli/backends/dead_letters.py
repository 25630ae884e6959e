"""`holdfast backend dead`: rows that a store has refused; look at them, send them again, drop them.

Asks the running broker, page by page. Read next: `broker.process.dead_letters`, which answers.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from broker.cli.administration.asking import ask_at
from broker.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    Commands,
    add_config_flags,
    load_config,
    print_lines,
)

LIST_LIMIT: Final = 100
REQUEST_LETTERS: Final = 32  # asked for at once; the broker gives no more
PROBLEMS_SHOWN_MAX: Final = 10


def add(actions: Commands) -> None:
    """Add `dead list`, `dead retry` and `dead drop`."""
    dead = actions.add_parser("dead", help="rows that a store has refused")
    parsers = dead.add_subparsers(dest="order", required=True, metavar="ORDER")
    listing = parsers.add_parser("list", help="show them, the oldest first")
    listing.add_argument("--limit", type=_number, default=LIST_LIMIT, metavar="N", help="at most")
    listing.add_argument(
        "--after", type=_number, default=0, metavar="ID", help="behind this one, for the next page"
    )
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=run_list)
    retry = parsers.add_parser("retry", help="send them to the store again, behind what waits")
    drop = parsers.add_parser("drop", help="delete them: the store never gets these rows")
    for parser, request in ((retry, "backend_dead_retry"), (drop, "backend_dead_drop")):
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--id", type=_number, action="append", metavar="ID", help="this one")
        which.add_argument("--limit", type=_number, metavar="N", help="the N oldest")
        which.add_argument("--all", action="store_true", help="all that there are now")
        parser.set_defaults(run=run_order, request=request)
    for parser in (listing, retry, drop):
        parser.add_argument("name", metavar="NAME", help="the backend")
        add_config_flags(parser)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18 or (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 on")
    return number


def run_list(options: argparse.Namespace) -> int:
    """Print the dead letters of a backend."""
    data_dir = load_config(options).shell.data_dir
    letters: list[dict[str, Any]] = []
    after, has_more = options.after, True
    while has_more and len(letters) < options.limit:
        page = _ask(
            data_dir, options.name, "backend_dead_list", after, options.limit - len(letters)
        )
        letters += page["letters"]
        has_more = page["has_more"] and bool(page["letters"])
        after = letters[-1]["id"] if letters else after
    if options.json:
        print_lines([json.dumps(letters, indent=2)])
        return EXIT_OK
    print_lines(_lines(letters) if letters else ["no dead letters"])
    if has_more:
        print_lines([f"there may be more: --after {after}"])
    return EXIT_OK


def run_order(options: argparse.Namespace) -> int:
    """Have dead letters sent again, or dropped."""
    data_dir = load_config(options).shell.data_dir
    done = after = 0
    problems: list[str] = []
    numbers: list[int] = options.id or []
    left = len(numbers) or options.limit or 1 << 62
    has_more = True
    while has_more and left > 0:
        count = min(left, REQUEST_LETTERS)
        asked, numbers = numbers[:count], numbers[count:]
        answer = _ask(data_dir, options.name, options.request, after, count, asked)
        done += answer["done"]
        problems += answer["problems"]
        after = answer["last"]
        left -= count
        has_more = not answer["is_full"] and (bool(numbers) or answer["has_more"])
    what = "sent again" if options.order == "retry" else "dropped"
    print_lines([f"{options.name}: {done} dead letters {what}"])
    if not problems:
        return EXIT_OK
    shown = problems[:PROBLEMS_SHOWN_MAX]
    more = len(problems) - len(shown)
    raise CommandError("; ".join(shown) + (f"; and {more} more" if more else ""), EXIT_FAILED)


def _ask(
    data_dir: str | Path,
    name: str,
    request: str,
    after: int,
    count: int,
    numbers: list[int] | None = None,
) -> dict[str, Any]:
    from broker.operations.control_socket import ControlError

    told = {"do": request, "name": name, "after": str(after)}
    told |= {"limit": str(min(count, REQUEST_LETTERS)), "ids": ",".join(map(str, numbers or ()))}
    try:
        answer = json.loads(ask_at(data_dir, told)["answer"])
    except ControlError as problem:
        raise CommandError(str(problem), EXIT_USAGE) from None
    assert isinstance(answer, dict)
    return answer


def _lines(letters: list[dict[str, Any]]) -> Iterator[str]:
    for letter in letters:
        age = "age unknown" if letter["age_seconds"] is None else f"{letter['age_seconds']} s ago"
        state = ", being sent again" if letter["retrying"] else ""
        tries = "once" if letter["tries"] == 1 else f"{letter['tries']} times"
        yield f"{letter['id']}: rule {letter['rule']}, refused {tries}, first {age}{state}"
        yield f"  why: {letter['why']}"
        row = letter["row"]
        if row is None:
            yield "  row: not kept"
            continue
        words = [f"{key}={value!r}" for key, value in row.items() if key != "kind"]
        yield f"  row: {row['kind']} {' '.join(words)}"
