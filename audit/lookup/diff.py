"""`holdfast audit diff`: two nodes of a history, or two folders of results, side by side.

What is compared is what an upgrade must not change: the verdict of each invariant, and how many
rows of each event there are for each accepted message. Counts alone differ always.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from audit.lookup.history import History, LookupFailed

TOLERANCE: Final = 0.05  # share by which rows per message may differ
ACCEPTED: Final = "msg_accepted"
FEW: Final = 20  # rows of an event, on both sides, below which a share says nothing


@dataclass(frozen=True)
class Side:
    """What one side has: rows by event, and if it was judged, the status of each invariant."""

    name: str
    events: Mapping[str, int]
    statuses: Mapping[str, str]
    violated: Mapping[str, int]
    unknown: Mapping[str, int]
    facts: Mapping[str, str]
    clients: frozenset[str] | None = None


def results(place: str) -> Side:
    """Return what a folder of results has, all its runs together."""
    folder = Path(place)
    try:
        newest = json.loads((folder / "verdict.json").read_text("utf-8"))
        documents = [
            json.loads(path.read_text("utf-8"))
            for path in sorted((folder / "verdicts").glob("batch-*.json"))
        ] or [newest]
        return _side(place, newest, documents)
    except FileNotFoundError:
        raise LookupFailed(f"{place}: no verdict.json, so no results of an audit") from None
    except OSError as problem:
        raise LookupFailed(f"{place}: {problem.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise LookupFailed(f"{place}: no verdict of an audit: {problem!r}") from None


def _side(place: str, newest: dict[str, Any], documents: Sequence[dict[str, Any]]) -> Side:
    events: dict[str, int] = {}
    worst: dict[str, str] = {}
    rank = ("ok", "unknown", "violated")
    for document in documents:
        for ev, number in document.get("facts", {}).get("events", {}).items():
            events[ev] = events.get(ev, 0) + number
        for name, found in document["invariants"].items():
            worst[name] = max(worst.get(name, "ok"), found["status"], key=rank.index)
    totals = newest["totals"]
    return Side(
        place,
        events,
        worst,
        {name: each["violated"] for name, each in totals.items()},
        {name: each["unknown"] for name, each in totals.items()},
        {
            "status of the newest run": newest["status"],
            "runs": str(newest["batch"] + 1),
            "from": str(documents[0]["from"]),
            "to": str(newest["to"]),
            "nodes": ", ".join(sorted({boot["node"] for boot in newest["boots"]})),
            "level of detail": ", ".join(
                sorted({boot["level_now"] or boot["level"] for boot in newest["boots"]} - {""})
            ),
            "horizon": f"{newest['settings']['horizon_s']} s",
        },
    )


def of_node(history: History, node: str) -> Side:
    """Return what a node of a history has."""
    history.need(node)
    clients = frozenset(history.clients(node))
    return Side(node, history.counts(node), {}, {}, {}, {}, clients)


def compare(a: Side, b: Side, tolerance: float = TOLERANCE) -> tuple[list[str], int]:
    """Return the table, line by line, and how many of its rows differ."""
    rows: list[tuple[str, str, str, str]] = [("", a.name, b.name, "")]
    rows += [
        (fact, a.facts.get(fact, ""), b.facts.get(fact, ""), "")
        for fact in dict.fromkeys([*a.facts, *b.facts])
    ]
    rows += _invariants(a, b)
    rows += _events(a, b, tolerance)
    if a.clients is not None and b.clients is not None:
        rows.append(("clients", f"{len(a.clients):,}", f"{len(b.clients):,}", ""))
        alone = (len(a.clients - b.clients), len(b.clients - a.clients))
        rows.append(("  only here", f"{alone[0]:,}", f"{alone[1]:,}", "differs" * any(alone)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join(
            (row[0].ljust(widths[0]), row[1].rjust(widths[1]), row[2].rjust(widths[2]), row[3])
        ).rstrip()
        for row in rows
    ]
    return lines, sum(row[3].startswith("differs") for row in rows)


def _invariants(a: Side, b: Side) -> list[tuple[str, str, str, str]]:
    rows = []
    for name in dict.fromkeys([*a.statuses, *b.statuses]):
        here, there = (_status(side, name) for side in (a, b))
        mark = "differs" if a.statuses.get(name) != b.statuses.get(name) else ""
        rows.append((name, here, there, mark))
    return rows


def _status(side: Side, name: str) -> str:
    status = side.statuses.get(name)
    if status is None:
        return "not there"
    number = {"violated": side.violated, "unknown": side.unknown}.get(status, {}).get(name)
    return f"{status} ({number:,})" if number else status


def _events(a: Side, b: Side, tolerance: float) -> list[tuple[str, str, str, str]]:
    rows = []
    for ev in sorted({*a.events, *b.events}):
        here, there = a.events.get(ev, 0), b.events.get(ev, 0)
        shares = [_share(side, number) for side, number in ((a, here), (b, there))]
        rows.append(
            (ev, _number(here, shares[0]), _number(there, shares[1]),
             _mark(here, there, shares, tolerance))
        )  # fmt: skip
    return rows


def _share(side: Side, number: int) -> float | None:
    accepted = side.events.get(ACCEPTED, 0)
    return number / accepted if accepted else None


def _number(number: int, share: float | None) -> str:
    return f"{number:,}" if share is None else f"{number:,} ({share:.3f} a message)"


def _mark(here: int, there: int, shares: Sequence[float | None], tolerance: float) -> str:
    if bool(here) != bool(there):
        return "differs: only one has it"
    one, other = shares
    if one is None or other is None or max(here, there) < FEW:
        return ""
    most = max(one, other)
    apart = abs(one - other) / most if most else 0.0
    return f"differs by {apart:.0%}" if apart > tolerance else ""
