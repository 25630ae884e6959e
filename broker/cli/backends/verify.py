"""`holdfast backend verify`: does a store have what its broker has told it?

Asks the running broker page by page, and reads the store itself, in this process. Read next:
`broker.operations.backend_verify`, which compares.
"""

import argparse
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from storage.history.words import printable

if TYPE_CHECKING:
    from broker.operations.backend_verify import Pass, Tally

LIMIT: Final = 100
MINUTES_SHOWN_MAX: Final = 60  # of those that are equal
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# The broker's loop works for us for a third of the time at most.
PAUSE_SHARE: Final = 2.0
WAIT_S: Final = 0.5
WAITS_MAX: Final = 24  # for the store to confirm what it was told a moment ago
COLUMNS: Final = ("MINUTE", "KIND", "BROKER", "STORE", "CHECKSUM", "")


def add(actions: Commands) -> None:
    """Add `verify`."""
    verify = actions.add_parser(
        "verify",
        help="compare a store with what it was told; 0 = equal, 1 = it differs, 2 = not compared",
    )
    verify.add_argument("name", metavar="NAME", help="the backend")
    verify.add_argument(
        "--since",
        type=_seconds,
        default="15m",
        metavar="TIME",
        help="messages of this time, such as 90s, 15m, 2h, 7d (15m); rewind_keep limits it",
    )
    verify.add_argument(
        "--limit", type=_count, default=LIMIT, metavar="N", help=f"name at most so many ({LIMIT})"
    )
    verify.add_argument("--json", action="store_true", help="print JSON")
    verify.set_defaults(run=run)
    add_config_flags(verify)


def _seconds(text: str) -> int:
    number, unit = text[:-1], text[-1:]
    if unit not in UNITS or not number.isascii() or not number.isdecimal() or len(number) > 6:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a time such as 90s, 15m, 2h or 7d")
    if not int(number):
        raise argparse.ArgumentTypeError(f"{text!r}: expected more than no time")
    return int(number) * UNITS[unit]


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 0 on")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Compare a store with its broker, and print where they differ."""
    from broker.operations.backend_verify import CannotCompare

    try:
        found, about = _compare(options)
    except CannotCompare as problem:
        raise CommandError(f"{options.name}: {problem}", EXIT_USAGE) from None
    if options.json:
        print_lines([json.dumps(_as_object(options.name, found, about), indent=2)])
    else:
        print_lines(_lines(options.name, found, about, options.limit))
    if found.differences:
        return EXIT_FAILED
    return EXIT_USAGE if found.behind else EXIT_OK


def _compare(options: argparse.Namespace) -> "tuple[Pass, list[str]]":
    """Return what was found, and what the first differences are about."""
    from broker.backends import rules
    from broker.backends.comparing.listing import Comparable
    from broker.backends.process import make_sink
    from broker.backends.sink import Options, Rule, Unavailable, Unusable
    from broker.history import location
    from broker.operations.backend_verify import CannotCompare, Verification

    config = load_config(options)
    backend = next((each for each in config.backends if each.name == options.name), None)
    if backend is None:
        raise CannotCompare("no such backend in the configuration")
    told = rules.configuration(config, backend, location.find(config.shell).node)
    told_rules = [Rule(rule) for rule in told["rules"]]
    try:
        sink = make_sink(
            Options(told["name"], told["type"], told["node"], told["options"], told_rules)
        )
    except Unusable as problem:
        raise CannotCompare(str(problem)) from None
    if not isinstance(sink, Comparable):
        raise CannotCompare(
            f"a backend of the type {told['type']} cannot be compared: what it was sent cannot be "
            "read there by its ids"
        )
    broker = _Broker(config.shell.data_dir, options.name)
    verification = Verification(
        broker.ask,
        sink.listing,
        json.loads(json.dumps(told)),
        ago_ms=options.since * 1000,
        wait=broker.wait,
    )
    try:
        broker.ask("begin")  # rather than the store: it is the more likely to be away
        sink.open()
        found = verification.run()
        return found, [verification.describe(each) for each in found.sorted()[: options.limit]]
    except Unavailable as problem:
        raise CannotCompare(str(problem)) from None
    finally:
        sink.close()


class _Broker:
    """Asks the running broker, and leaves it time for its clients."""

    def __init__(self, data_dir: str | Path, name: str) -> None:
        self._data_dir: Final = data_dir
        self._name: Final = name
        self._waits = 0

    def ask(self, what: str, **request: str) -> dict[str, Any]:
        """Return the answer to one request."""
        from broker.operations.backend_verify import CannotCompare
        from broker.operations.control_socket import ControlError

        began = time.monotonic()
        try:
            answer = ask_at(
                self._data_dir, {"do": f"backend_compare_{what}", "name": self._name, **request}
            )
        except ControlError as problem:
            raise CannotCompare(str(problem)) from None
        time.sleep(PAUSE_SHARE * (time.monotonic() - began))
        found = json.loads(answer["answer"])
        assert isinstance(found, dict)
        return found

    def wait(self) -> bool:
        """Wait a moment; return whether to go on waiting."""
        self._waits += 1
        time.sleep(WAIT_S)
        return self._waits < WAITS_MAX


def _lines(name: str, found: "Pass", about: list[str], limit: int) -> Iterator[str]:
    """Yield what was found for people."""
    is_equal = not found.differences
    rows = [COLUMNS, *_minute_rows(found), *_set_rows(found)]
    if len(rows) > 1:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  ".join(map(str.ljust, row, widths)).rstrip()
    differences = found.sorted()
    for difference, text in zip(differences, about, strict=False):
        place = f": {printable(difference.place)}" if difference.place else ""
        what = f" ({printable(text)})" if text else ""
        yield f"{difference.kind} {printable(difference.name)}{what}: {difference.what}{place}"
    if len(differences) > limit:
        yield f"and {len(differences) - limit} more: --limit {len(differences)} names them"
    yield from _notes(found)
    if found.behind:
        yield f"{name}: subscriptions, retained messages and clients not compared: {found.behind}"
    since = _time(found.since_ms)
    verdict = "equal" if is_equal else f"{len(differences)} differences"
    yield f"{name}: {verdict}; messages since {since}"


def _minute_rows(found: "Pass") -> Iterator[tuple[str, ...]]:
    minutes = sorted(found.minutes.items())
    shows_all = len(minutes) <= MINUTES_SHOWN_MAX
    left_out = 0
    for minute, tallies in minutes:
        if not shows_all and all(tally.is_equal for tally in tallies.values()):
            left_out += 1
            continue
        for kind, tally in tallies.items():
            yield _row(_time(minute * 60_000)[:16], kind, tally)
    if left_out:
        yield (f"{left_out} minutes", "", "", "", "", "equal")


def _set_rows(found: "Pass") -> Iterator[tuple[str, ...]]:
    for kind, tally in found.sets.items():
        yield _row("now", kind, tally)


def _row(when: str, kind: str, tally: "Tally") -> tuple[str, ...]:
    sums = f"{tally.broker_sum:016x}"
    if tally.broker_sum != tally.store_sum:
        sums += f" {tally.store_sum:016x}"
    verdict = "equal" if tally.is_equal else "differs"
    return (when, kind, str(tally.broker), str(tally.store), sums, verdict)


def _notes(found: "Pass") -> Iterator[str]:
    if found.dead_letters:
        yield f"left out: {found.dead_letters} in dead letters (`holdfast backend dead list`)"
    for first, last, why in found.gaps:
        yield f"in a gap, so in neither: offsets {first} to {last}: {printable(why)}"
    if found.unreadable:
        yield (
            f"{found.unreadable} messages cannot be read in the database (`holdfast db check`); "
            "what else the store has of that time is not judged"
        )
    if found.in_motion:
        yield f"left out: {found.in_motion} changed while they were compared"
    if found.extra:
        yield f"{found.extra} entries are only in the store: no rule removes them"
    if found.not_ours:
        yield f"not ours: {found.not_ours} entries of other nodes or applications"


def _time(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _as_object(name: str, found: "Pass", about: list[str]) -> dict[str, Any]:
    """Return everything that was found, as JSON has it."""
    minutes = [
        {"minute": _time(minute * 60_000), "kind": kind, **_sides(tally)}
        for minute, tallies in sorted(found.minutes.items())
        for kind, tally in tallies.items()
    ]
    return {
        "backend": name,
        "equal": not found.differences,
        "differences_count": len(found.differences),
        "since": _time(found.since_ms),
        "until": _time(found.until_ms),
        "minutes": minutes,
        "sets": [{"kind": kind, **_sides(tally)} for kind, tally in found.sets.items()],
        "differences": [
            {
                "kind": each.kind,
                "what": each.what,
                "id": each.name,
                "place": each.place or None,
                "message": text or None,
            }
            for each, text in zip(found.sorted(), about, strict=False)
        ],
        "not_compared": found.behind or None,
        "dead_letters": found.dead_letters,
        "acknowledged": found.acknowledged,
        "gaps": [list(gap) for gap in found.gaps],
        "unreadable": found.unreadable,
        "in_motion": found.in_motion,
        "only_in_store": found.extra,
        "not_ours": found.not_ours,
    }


def _sides(tally: "Tally") -> dict[str, Any]:
    return {
        "broker": {"count": tally.broker, "checksum": f"{tally.broker_sum:016x}"},
        "store": {"count": tally.store, "checksum": f"{tally.store_sum:016x}"},
    }
