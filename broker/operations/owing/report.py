"""What a census has found as fields and as text: what is owed, and who needs which generation.

The broker hands the fields to whoever asks at its control socket; `broker.cli.looking.pins`
prints them. Read next: `broker.operations.owing.census`.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from broker.operations.looking.store_time import StoreTime
from broker.operations.owing.census import Census, Sum
from broker.operations.owing.pins import Needing, Pinned
from broker.operations.sessions.columns import csv_lines, table
from storage.history.words import printable

Fields = dict[str, Any]

COLUMNS: Final = (
    "GENERATION", "STATE", "SINCE", "MESSAGES", "BYTES", "SESSIONS", "GROUPS", "BACKENDS",
    "NEEDED_BY",
)  # fmt: skip
NUMBERS: Final = ("GENERATION", "MESSAGES", "BYTES", "SESSIONS", "GROUPS", "BACKENDS")
CSV_COLUMNS: Final = (
    "generation", "state", "created_at", "age_seconds", "first_offset", "last_offset", "messages",
    "bytes", "sessions", "groups", "backends", "unreadable",
)  # fmt: skip
NOT_PINNING: Final = (
    "Retained messages, wills and dead letters are kept elsewhere and need no generation."
)


def totals(census: Census) -> Fields:
    """Return what is owed in all; ages are those at the time of the census."""
    age_ms = census.counted_ms - census.oldest_ms if census.oldest_ms else 0
    return {
        "messages": census.messages,
        "bytes": census.size_bytes,
        "oldest_ms": max(0, age_ms),
        "sessions": census.offline.holders + census.online.holders,
        "sessions_stored": census.sessions,
        "offline": _sum(census.offline),
        "online": _sum(census.online),
        "groups": _sum(census.groups),
        "unreadable": census.unreadable,
        "top": [
            {
                "client_id": each.client_id,
                "state": "online" if each.is_connected else "offline",
                "messages": each.messages,
                "bytes": each.size_bytes,
                "oldest_ms": max(0, census.counted_ms - each.oldest_ms) if each.oldest_ms else 0,
            }
            for each in census.top
        ],
    }


def _sum(found: Sum) -> Fields:
    return {"holders": found.holders, "messages": found.messages, "bytes": found.size_bytes}


def pins(census: Census, time: StoreTime) -> list[Fields]:
    """Return each generation with those that need it, the oldest first."""
    return [_pinned(each, census.counted_ms, time) for each in census.pinned()]


def _pinned(pinned: Pinned, now_ms: int, time: StoreTime) -> Fields:
    generation = pinned.report.generation
    return {
        "generation": generation.number,
        "state": "closed" if generation.is_closed else "open",
        "created_at": time.text(generation.created_ms),
        "age_seconds": max(0, now_ms - generation.created_ms) // 1000,
        "first_offset": generation.first_offset,
        "last_offset": generation.last_offset,
        "messages": pinned.report.rows,
        "bytes": pinned.report.size_bytes,
        "sessions": pinned.sessions.count,
        "groups": pinned.groups.count,
        "backends": pinned.backends.count,
        "unreadable": pinned.unreadable,
        "largest_sessions": _largest(pinned.sessions),
        "largest_groups": _largest(pinned.groups),
        "largest_backends": _largest(pinned.backends),
    }


def _largest(needing: Needing) -> list[Fields]:
    return [{"name": name, "messages": messages} for messages, name in needing.largest]


def as_table(rows: Iterable[Fields]) -> Iterator[str]:
    """Yield a table's lines, a generation each."""
    yield from table(COLUMNS, (_cells(row) for row in rows), right=NUMBERS)


def as_csv(rows: Iterable[Fields]) -> Iterator[str]:
    """Yield lines of CSV: the fields of JSON, without names."""
    yield from csv_lines(CSV_COLUMNS, rows)


def _cells(row: Fields) -> tuple[str, ...]:
    return (
        str(row["generation"]),
        str(row["state"]),
        str(row["created_at"] or "-"),
        str(row["messages"]),
        str(row["bytes"]),
        str(row["sessions"]),
        str(row["groups"]),
        str(row["backends"]),
        _needed_by(row),
    )


def _needed_by(row: Fields) -> str:
    """Return those that need a generation, the most owed first, and how many more there are."""
    shown: list[str] = []
    for kind in ("sessions", "groups", "backends"):
        named = row[f"largest_{kind}"]
        what = {"sessions": "", "groups": "", "backends": "backend "}[kind]
        shown += [f"{what}{printable(each['name'])} ({each['messages']})" for each in named]
        more = row[kind] - len(named)
        if more:
            shown.append(f"{more} more {kind}")
    if row["unreadable"]:
        shown.append(f"{row['unreadable']} that cannot be read")
    if shown:
        return ", ".join(shown)
    return "nobody: it takes messages" if row["state"] == "open" else "nobody: it goes soon"
