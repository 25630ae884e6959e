"""The judgement of one client and of one topic, as Spark's workers call it: tables in and out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa

from audit.clients import judgement, topics
from audit.clients.judgement import Life, Record

_SHARE: Final = "$share/"
_TYPES: Final[dict[str, tuple[str, pa.DataType]]] = {
    "text": ("string", pa.string()),
    "long": ("long", pa.int64()),
    "flag": ("boolean", pa.bool_()),
}
# kind: "finding", "count" (of an invariant), and what the judgement of a topic reads.
FOLDED: Final = {
    **dict.fromkeys(("kind", "client_id", "invariant", "what", "node", "topic"), "text"),
    **dict.fromkeys(("hash", "log", "publisher"), "text"),
    **dict.fromkeys(("certain", "durable", "retain", "dup"), "flag"),
    **dict.fromkeys(("count", "from_gseq", "to_gseq", "pid", "n", "at_us", "place"), "long"),
    **dict.fromkeys(("answered", "epoch", "qos", "gseq"), "long"),
}
DDL: Final = ", ".join(f"`{name}` {_TYPES[kind][0]}" for name, kind in FOLDED.items())
_ARROW: Final = pa.schema([(name, _TYPES[kind][1]) for name, kind in FOLDED.items()])

_Out = dict[str, Any]


def of_client(lives: Sequence[Life]) -> Callable[[pa.Table, pa.Table], pa.Table]:
    """Return what Spark calls with the log of a client and with its rows."""

    def run(log: pa.Table, rows: pa.Table) -> pa.Table:
        records = log.to_pylist()
        if not records:
            return _table([])
        return _table(list(client(records, rows.to_pylist(), lives)))

    return run


def of_topic(rows: pa.Table) -> pa.Table:
    """Judge what clients published to a topic and received: findings of C5."""
    lines = rows.to_pylist()
    checked, lost = topics.judge(lines)
    topic = lines[0]["topic"] if lines else None
    found: list[_Out] = [{"kind": "count", "invariant": "C5", "count": checked}]
    for each in lost:
        found.append(
            {
                **asdict(each),
                "kind": "finding",
                "invariant": "C5",
                "what": "acknowledged to its publisher, and not received",
                "topic": topic,
            }
        )
    return _table(found)


def client(records: list[Record], rows: list[Record], lives: Sequence[Life]) -> Iterator[_Out]:
    """Judge one client: its findings, what was checked, and what the topics need of it."""
    judged = judgement.judge(records, rows, lives)
    name = records[0]["client_id"]
    for finding in judged.findings:
        yield {"kind": "finding", "client_id": name, **asdict(finding)}
    for invariant, count in judged.checked.items():
        yield {"kind": "count", "invariant": invariant, "count": count}
    places = {record["place"]: row for record, row in judged.pairs}
    ordered = sorted(records, key=lambda record: int(record["place"]))
    epochs = _epochs(ordered, rows)
    for record in ordered:
        if record["event"] not in ("published", "received") or not record["qos"]:
            continue
        row = places.get(record["place"], {})
        yield {
            "kind": record["event"],
            "client_id": name,
            **{each: record[each] for each in ("topic", "hash", "log", "n", "at_us", "place")},
            "qos": record["qos"],
            "retain": bool(record["retain"]),
            "dup": bool(record["dup"]),
            "answered": judged.acked_at.get(record["place"]),
            "epoch": epochs.get(record["place"]),
            "node": row.get("node"),
            "gseq": row.get("gseq"),
        }
    for topic in {row["topic"] for row in rows if row["ev"] in ("msg_dropped", "msg_expired")}:
        yield {"kind": "dropped", "client_id": name, "topic": topic}


def _epochs(ordered: list[Record], rows: list[Record]) -> dict[int, int]:
    """Return a number for the subscriptions in force at each place where all of them are known.

    They are known from the beginning of a session on, if no line is missing, none is shared, and
    the broker does not say that it dropped something without saying what.
    """
    nameless = any(
        row["ev"] == "session_purged"
        or (row["ev"] in ("msg_dropped", "msg_expired") and row["topic"] is None)
        for row in rows
    )
    if nameless or any((record["filter"] or "").startswith(_SHARE) for record in ordered):
        return {}
    found = {}
    epoch, known = 0, False
    before: Record | None = None
    for record in ordered:
        follows = before is not None and (before["log"], before["n"] + 1) == (
            record["log"],
            record["n"],
        )
        if not follows:
            epoch, known = epoch + 1, False
        if record["event"] == "connected" and not record["session_present"]:
            epoch, known = epoch + 1, True
        elif record["event"] in ("subscribed", "unsubscribed"):
            epoch += 1
        if known:
            found[record["place"]] = epoch
        before = record
    return found


def _table(found: list[_Out]) -> pa.Table:
    columns = [pa.array([row.get(field.name) for row in found], field.type) for field in _ARROW]
    return pa.Table.from_arrays(columns, schema=_ARROW)
