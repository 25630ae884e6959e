"""What commands share: exit statuses, expected failures, the configuration, output.

Must stay quick to import, as `broker.cli.main` must.
"""

import argparse
import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from broker.operations.looking.listing import OUTPUTS, Asked, Listing, Row

if TYPE_CHECKING:
    from broker.configuration.config import Config
    from broker.operations.sessions.inventory import Inventory
    from storage.api import Store

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

LIMIT_MAX: Final = 1 << 62  # of what `islice` takes
UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
MS_MAX: Final = 1 << 52  # of an age
SILENT_S: Final = 2.0  # so long a person waits without a word
PRIVATE: Final = 0o077  # umask: copies of a data directory are for its owner alone
SORT: Final = "numbers and yes first, the largest first; texts and times upwards"


class CommandError(Exception):
    """An expected failure of a command: one line for the operator and an exit status."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code: int = exit_code


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `load_config` reads."""
    parser.add_argument("-c", "--config", metavar="FILE", help="configuration file (TOML)")
    parser.add_argument("--data-dir", metavar="DIR", help="directory of the database")


def load_config(options: argparse.Namespace) -> "Config":
    """Return the configuration that the flags of `add_config_flags` name."""
    from broker.configuration.config import ConfigError

    try:
        return read_config(options.config, {"storage.data_dir": options.data_dir})
    except ConfigError as problem:
        raise CommandError(str(problem), EXIT_USAGE) from None


def read_config(path: str | None, flags: dict[str, object]) -> "Config":
    """Return the configuration with its rules checked. Raises `ConfigError`."""
    from broker.configuration.load import load

    config = load(path, flags=flags)
    if config.rules or config.backends:
        from broker.backends import rules

        rules.check(config)
    return config


@contextlib.contextmanager
def open_inventory(options: argparse.Namespace) -> "Iterator[Inventory]":
    """Open the configured data directory for reading. Raises `CommandError`."""
    from broker.operations.sessions.inventory import Inventory

    with open_store(options) as store:
        yield Inventory(store)


def now_ms(inventory: "Inventory") -> int:
    """Return the broker time now: that of the running broker, or of one that starts now."""
    from storage.time import broker_clock, machine_clocks

    return broker_clock.resume(
        inventory.heartbeat,
        machine_clocks.wall_ms(),
        machine_clocks.boot_id(),
        machine_clocks.boottime_ms(),
    )


@contextlib.contextmanager
def open_store(options: argparse.Namespace) -> "Iterator[Store]":
    """Open the database of the configured data directory for reading. Raises `CommandError`.

    So does what happens to the store while it is used.
    """
    from storage.errors import StorageError
    from storage.local.rocks import RocksStore

    config = load_config(options)
    database = os.path.join(config.shell.data_dir, "db")
    if not os.path.isdir(database):
        raise CommandError(f"data directory {config.shell.data_dir}: no database in it")
    try:
        with contextlib.closing(RocksStore(database, read_only=True)) as store:
            yield store
    except StorageError as problem:
        raise CommandError(str(problem)) from None


def client_id(text: str) -> str:
    """Return an argument that a client may be called by: UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected UTF-8") from None
    return text


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


def whole_number(text: str) -> int:
    """Return an argument that is a whole number of at most 19 digits."""
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number")
    return int(text)


def age(text: str) -> int:
    """Return a time with a unit, ms."""
    found = re.fullmatch(r"([0-9]{1,12})([smhd])", text)
    ms = int(found[1]) * UNITS_MS[found[2]] if found else 0
    if not 0 < ms <= MS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a time such as 90d, 12h, 30m or 45s")
    return ms


def within_a_day(text: str) -> int:
    """Return a time with a unit, ms: as long as a running broker may be watched."""
    ms = age(text)
    if ms > UNITS_MS["d"]:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 24h at most")
    return ms


def limit(text: str) -> int:
    """Return an argument that limits how much is printed: at least 1."""
    number = whole_number(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 1 or more")
    return min(number, LIMIT_MAX)


def add_list_options(
    parser: argparse.ArgumentParser,
    orders: Iterable[str],
    *,
    match: str,
    sort: str = SORT,
    default: str | None = None,
) -> None:
    """Add the options of every list; `match` says what is matched, `orders` what sorts it."""
    parser.add_argument("--match", metavar="GLOB", help=match)
    parser.add_argument("--sort", choices=tuple(orders), default=default, help=sort)
    parser.add_argument("--limit", type=limit, metavar="N", help="print at most N")
    parser.add_argument("-o", "--output", choices=OUTPUTS, default="table")


def asked(options: argparse.Namespace) -> Asked:
    """Return what the options of a list ask for."""
    return Asked(options.match, options.sort, options.limit, options.output)


def print_list(listing: Listing, options: argparse.Namespace, rows: Iterable[Row]) -> None:
    """Print rows as the options of a list say. Raises `CommandError` as `print_lines` does."""
    print_lines(listing.lines(asked(options), rows))


def complain(line: str) -> None:
    """Print a line on stderr, for a command that goes on."""
    print(f"holdfast: {line}", file=sys.stderr)


@contextlib.contextmanager
def told_if_slow(
    line: str, after_s: float = SILENT_S, tell: Callable[[str], None] = complain
) -> Iterator[None]:
    """Tell a person what is waited for, if that takes longer than `after_s`."""
    timer = threading.Timer(after_s, tell, (line,))
    timer.daemon = True  # it must not hold up a command that ends
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_lines(lines: Iterable[str], *, flush: bool = False) -> None:
    """Print lines, the only way a command writes to stdout.

    Raises `CommandError` where they cannot be written, `BrokenPipeError` where the reader has gone.
    """
    for line in lines:
        with _write_errors():
            print(line, flush=flush)
    with _write_errors():
        sys.stdout.flush()


@contextlib.contextmanager
def _write_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        forget_output()
        raise CommandError(f"cannot write the output: {problem.strerror}") from None


def forget_output() -> None:
    """Drop what is still buffered: at its exit Python would try to write it and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
