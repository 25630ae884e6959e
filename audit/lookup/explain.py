"""`holdfast audit explain`: what became of a message or of a session, in sentences.

A message is followed from its publisher to every session that it was stored for or sent to, a
session from its beginning to its end, over all starts of its broker, to the sessions of the same
client before and after it, on other nodes as well. Read next: `audit.lookup.history`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow.compute as pc

from audit.lookup.history import History, Row, boot_of_session, moment, order
from storage.history.words import describe, printable

ROWS_MAX: Final = 200  # told row by row, the first and the last
BEGINNINGS: Final = ("session_created", "session_restored", "session_resumed")
ENDS: Final = ("session_expired", "session_terminated")
STARTS: Final = ("boot", "shutdown", "recovered")
OF_MESSAGES: Final = (
    *("msg_accepted", "msg_persisted", "pub_acked", "pub_completed", "pub_released"),
    *("pub_dup_received", "msg_enqueued", "msg_delivered", "msg_acked", "msg_completed"),
    *("msg_dropped", "msg_expired", "msg_moved", "retained_sent"),
)
# Event -> what a session did with a message, the later the better known.
_FATES: Final = {
    "msg_delivered": "was sent it",
    "msg_acked": "acknowledged it",
    "msg_completed": "completed it",
    "msg_dropped": "did not get it: dropped",
    "msg_expired": "did not get it: expired",
    "msg_moved": "gave it to another member",
}


def message(history: History, number: int, node: str | None = None) -> list[str]:
    """Return what became of a message; [] if no node knows it."""
    same = pc.field("msg") == number
    # Of a range only the first message is named, and the last.
    inside = (pc.field("msg") <= number) & (pc.field("msg_last") >= number)
    rows = sorted(history.rows(same | inside, node=node), key=order)
    lines = []
    for name in sorted({str(row["node"]) for row in rows}):
        mine = [row for row in rows if row["node"] == name]
        lines += [f"message {number} on node {printable(name)}:"]
        lines += [f"  {line}" for line in _lineage(history, name, mine, number)]
        lines += ["row by row:", *_told(mine)]
    return lines


def _lineage(history: History, node: str, rows: Sequence[Row], number: int) -> Iterator[str]:
    accepted = next((row for row in rows if row["ev"] == "msg_accepted"), None)
    if accepted is None:
        yield "its acceptance is not in this history: too old, not recorded, or lost"
    else:
        yield (
            f"published by {_client(accepted)} to '{printable(str(accepted['topic']))}' at QoS "
            f"{accepted['pub_qos']}, {moment(accepted)} UTC"
        )
    for ev, words in (("msg_persisted", "durable"), ("pub_acked", "acknowledged to it")):
        found = next((row for row in rows if row["ev"] == ev), None)
        yield f"{words} {moment(found)}" if found else f"nothing says that it was {words}"
    streams = sorted({row["stream"] for row in rows if row["ev"] == "msg_enqueued"})
    if streams:
        yield f"stored for {len(streams)} stream{'s' * (len(streams) != 1)} of sessions"
    else:
        yield "stored for no durable session"
    sessions = [row["session"] for row in rows if row["ev"] in _FATES]
    for session in dict.fromkeys(each for each in sessions if each is not None):
        mine = [row for row in rows if row["session"] == session and row["ev"] in _FATES]
        yield f"{_client(mine[0])}, session {session}: {_fate(mine)}"
        yield from (f"  {line}" for line in _end_of(history, node, session))


def _fate(rows: Sequence[Row]) -> str:
    sent = sum(row["ev"] == "msg_delivered" for row in rows)
    parts = [f"was sent it {sent} times" if sent > 1 else ""]
    last = next((row for row in reversed(rows) if row["ev"] != "msg_delivered"), rows[-1])
    if last["ev"] == "msg_delivered":
        parts.append("" if sent > 1 else "was sent it")
        parts.append("nothing says that it acknowledged it" if last["qos"] else "at QoS 0")
    else:
        parts.append(f"{_FATES[last['ev']]} {moment(last)}")
    return ", ".join(part for part in parts if part)


def _end_of(history: History, node: str, session: int) -> Iterator[str]:
    where = (pc.field("session") == session) & pc.field("ev").isin(ENDS)
    for row in history.rows(where, node=node, from_boot=boot_of_session(session)):
        yield f"that session ended {moment(row)}: {describe(row)}"


def session(history: History, number: int, node: str | None = None) -> list[str]:
    """Return the life of a session, and those of its client before and after; [] if unknown."""
    from_boot = boot_of_session(number)
    mine = pc.field("session") == number
    # Of a busy session there are millions of rows about messages: they are only counted.
    about_messages = pc.field("ev").isin(OF_MESSAGES)
    lines = []
    for name in history.nodes() if node is None else [node]:
        counts = history.counts(name, mine, from_boot=from_boot)
        where = mine if sum(counts.values()) <= ROWS_MAX else mine & ~about_messages
        rows = sorted(history.rows(where, node=name, from_boot=from_boot), key=order)
        if not rows:
            continue
        lines += [f"session {number} of {_client(rows[0])} on node {printable(name)}:"]
        lines += [f"  {line}" for line in _life(rows, counts)]
        lines += [f"  {line}" for line in _relatives(history, rows)]
        lines += ["row by row:", *_told([*rows, *_starts(history, name, rows)])]
    return lines


def _life(rows: Sequence[Row], counts: Mapping[str, int]) -> Iterator[str]:
    first, last = rows[0], rows[-1]
    begun = "began" if first["ev"] == "session_created" else "is first seen"
    yield f"{begun} {moment(first)} UTC: {describe(first)}"
    boots = sorted({row["boot"] for row in rows})
    yield (
        f"resumed {_times(counts.get('session_resumed', 0))}, disconnected "
        f"{_times(counts.get('session_disconnected', 0))}, taken over "
        f"{_times(counts.get('session_taken_over', 0))}, over {len(boots)} "
        f"start{'s' * (len(boots) != 1)} of the broker ({', '.join(map(str, boots[:10]))})"
    )
    told = [f"{ev} {counts[ev]:,}" for ev in OF_MESSAGES if counts.get(ev)]
    yield f"messages: {', '.join(told)}" if told else "no message of it is recorded"
    ended = next((row for row in rows if row["ev"] in ENDS), None)
    if ended is None:
        yield f"its end is not in this history; last seen {moment(last)}: {describe(last)}"
    else:
        yield f"ended {moment(ended)}: {describe(ended)}"


def _relatives(history: History, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the sessions of the same client before and after it, on all nodes."""
    names = [str(row["client_id"]) for row in rows if row["client_id"]]
    if not names:
        return
    mine = {(rows[0]["node"], rows[0]["session"])}
    where = (pc.field("client_id") == names[0]) & pc.field("ev").isin([*BEGINNINGS, *ENDS])
    seen: dict[tuple[str, int], list[Row]] = {}
    for row in history.rows(where):
        if row["session"] is not None:
            seen.setdefault((row["node"], row["session"]), []).append(row)
    at = rows[0]["at_us"]
    for (node, number), theirs in sorted(seen.items(), key=lambda item: item[1][0]["at_us"]):
        if (node, number) in mine:
            continue
        begun, ended = theirs[0], theirs[-1] if theirs[-1]["ev"] in ENDS else None
        when = "before it" if begun["at_us"] < at else "after it"
        until = f", ended {moment(ended)}: {describe(ended)}" if ended else ", its end is not here"
        yield f"{when}: session {number} on node {printable(node)}, {moment(begun)}{until}"


def _starts(history: History, node: str, rows: Sequence[Row]) -> list[Row]:
    """Return when the broker started and ended while there was the session."""
    first, last = rows[0]["at_us"], rows[-1]["at_us"]
    found = history.rows(pc.field("ev").isin(STARTS), node=node, from_boot=rows[0]["boot"])
    return [row for row in found if first <= row["at_us"] <= last]


def _told(rows: Iterable[Row]) -> list[str]:
    ordered = sorted(rows, key=order)
    lines = [_line(row) for row in ordered]
    if len(lines) <= ROWS_MAX:
        return lines
    half = ROWS_MAX // 2
    left = f"  ... {len(lines) - ROWS_MAX:,} rows more ..."
    return [*lines[:half], left, *lines[-half:]]


def _line(row: Row) -> str:
    who = f" {_client(row)}" if row["client_id"] else ""
    return f"  {moment(row)}  {row['boot']}/{row['seq']}{who}: {describe(row)}"


def _client(row: Row) -> str:
    return f"'{printable(str(row['client_id']))}'" if row["client_id"] else "an unnamed client"


def _times(number: int) -> str:
    return {0: "never", 1: "once"}.get(number, f"{number:,} times")
