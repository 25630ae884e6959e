"""C5: one topic, what logged clients published to it and what logged clients received. No Spark.

A message is lost for a client only where nothing else can explain it. Its publisher had the answer
for an earlier message before it sent this one, and for this one before it sent a later one, all at
the same QoS; and the client received the earlier and the later one, as the history says, too, in a
session whose subscriptions are all in its log. So it held a subscription when the message was
accepted, and the order of a topic says that the message came between the two.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

Row = dict[str, Any]
WITNESSES_MAX: Final = 100


@dataclass
class Lost:
    """Messages of one publisher that a client did not get; `certain` False counts as unknown."""

    client_id: str
    publisher: str
    hash: str
    count: int
    certain: bool
    node: str
    from_gseq: int
    to_gseq: int
    log: str
    n: int
    at_us: int


def judge(rows: Iterable[Row]) -> tuple[int, list[Lost]]:
    """Return how many deliveries could be judged, and what was lost.

    Rows of `kind` "published" have place, answered (place of the answer, null = none), qos, hash;
    those of "received" place, epoch (null = its subscriptions are not all known), qos, hash. Both
    have client_id and what the history has of it: node, gseq (null = nothing).
    `kind` "dropped" names a client for which the broker says that something was dropped.
    """
    published: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    received: dict[str, list[Row]] = defaultdict(list)
    excused = set()
    for row in rows:
        if row["kind"] == "published":
            published[row["client_id"], row["log"], row["qos"]].append(row)
        elif row["kind"] == "received":
            received[row["client_id"]].append(row)
        else:
            excused.add(row["client_id"])
    checked = 0
    lost = []
    for reader, got in received.items():
        counts = Counter(row["hash"] for row in got)
        for (publisher, _, _), sent in published.items():
            judged, missing = _between(sent, got)
            checked += len(judged)
            for hash_, group in missing.items():
                short = len(group) - counts[hash_]
                if short > 0:
                    lost.append(_lost(reader, publisher, hash_, short, group, excused))
    return checked, lost


_Judged = list[tuple[Row, Row, Row]]  # the earlier message, the one in question, the later one


def _between(sent: list[Row], got: list[Row]) -> tuple[_Judged, dict[str, _Judged]]:
    """Return the messages that lie between two that were received, all of them and by hash."""
    sent.sort(key=lambda row: int(row["place"]))
    times = Counter(row["hash"] for row in sent)
    epochs: dict[str, int] = {}
    for row in got:
        is_live = row["epoch"] is not None and not row["retain"]
        if is_live and row["qos"] > 0 and row["gseq"] is not None:
            epochs.setdefault(row["hash"], row["epoch"])
    # Received, known to the history, and the only message of this payload.
    sure = [
        row
        for row in sent
        if row["hash"] in epochs
        and times[row["hash"]] == 1
        and row["gseq"] is not None
        and row["answered"] is not None
    ]
    places = [row["place"] for row in sure]
    judged: _Judged = []
    found: dict[str, _Judged] = defaultdict(list)
    for row in sent:
        if row["answered"] is None:
            continue
        at = bisect_left(places, row["place"])
        before = next(
            (one for one in reversed(sure[max(0, at - 8) : at]) if one["answered"] < row["place"]),
            None,
        )
        later = bisect_left(places, row["answered"])
        after = sure[later] if later < len(sure) else None
        if before is None or after is None or before["node"] != after["node"]:
            continue
        if epochs[before["hash"]] != epochs[after["hash"]] or before["gseq"] > after["gseq"]:
            continue
        judged.append((before, row, after))
        found[row["hash"]].append((before, row, after))
    return judged, found


def _lost(
    reader: str, publisher: str, hash_: str, short: int, group: _Judged, excused: set[str]
) -> Lost:
    row = group[-1][1]
    return Lost(
        reader,
        publisher,
        hash_,
        short,
        reader not in excused,
        group[0][0]["node"],
        group[0][0]["gseq"],
        group[-1][2]["gseq"],
        row["log"],
        row["n"],
        row["at_us"],
    )
