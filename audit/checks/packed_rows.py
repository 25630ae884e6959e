"""Rows of the history as numbers, to judge sessions with numpy.

`audit.checks.session_rowset` packs them in Spark, `audit.checks.judge_session` judges them in
Spark's Python workers. All rows of a session are judged together and must fit in memory (about 300
bytes per row), which is why a run takes a bounded piece of the history.

A shared group is judged like a session of its own: messages sent to its members count as sent to
the group. This module does not use Spark and does no I/O.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Columns of a packed row. `owner`: index of the node * 2, + 1 for a group. `a` depends on the kind:
# connection, position in the log, end of a holding, or last message of a range.
PACKED: Final = ("owner", "session", "gseq", "ts", "msg", "a", "b", "stream")

# Kinds, bits 0-4 of `b`.
OWED: Final = 1  # a: gseq of the end of the holding, or OPEN_END
DELIVERED: Final = 2  # a: connection
ACKED: Final = 3  # a: connection
COMPLETED: Final = 4  # a: connection
DROPPED: Final = 5  # a: last message of the range, or -1
EXPIRED: Final = 6
MOVED: Final = 7  # the message of a shared group was passed to another member
RETAINED: Final = 8  # a copy of a retained message was sent; a: connection
CONNECTED: Final = 9  # a: connection; extra: Receive Maximum; the flag dup: session present
OFFLINE: Final = 10  # disconnected, or found at a start of the broker; a: -1
POSITION: Final = 11  # a: position in the log
ENDED: Final = 12  # expired or terminated

# The other fields of `b`: (shift, bits).
QOS: Final = (5, 2)
DUP: Final = (7, 1)
ATTEMPT: Final = (8, 2)
SHARED: Final = (10, 1)
DOUBT: Final = (7, 1)  # of OWED, in the place of DUP: the subscription may have ended in a hole
CARRIED: Final = (11, 1)
REASON: Final = (12, 12)
PID: Final = (24, 16)
EXTRA: Final = (40, 20)

OPEN_END: Final = 1 << 60  # the gseq of an end that is not in the history
UNSTORED: Final = 1 << 62  # messages from here on were never in the log
SEQ_BITS: Final = 40
REFUSED: Final = 0x80  # reason codes from here on end a QoS 2 exchange at PUBREC
RMAX_DEFAULT: Final = 65535
# Progress at QoS 1 and the end of an exchange at QoS 2 (PUBCOMP, or PUBREC with an error) reach the
# disk up to 200 ms late, and a crash may lose them. This is generous.
LATE_US: Final = 1_000_000

OUTCOMES: Final = (
    "open",
    "acked",
    "completed",
    "delivered_qos0",
    "expired",
    "dropped",
    "lost",
    "moved",
    "session_ended",
    "unsubscribed",
    "unknown",
)
OUTCOME: Final = {name: code for code, name in enumerate(OUTCOMES)}

SUSPICIONS: Final = {
    1: ("L2", "passed_over"),  # the session's position is beyond it, and it has no end
    2: ("L2", "not_sent_again"),  # in flight, never acknowledged, not sent again at a resume
    3: ("L2", "stuck"),  # the session is connected and idle, but it is not sent
    4: ("D1", "delivered_after_pubrec"),
    5: ("D1", "delivered_after_pubcomp"),
    6: ("D2", "without_reconnect"),
    7: ("D2", "after_acknowledgement"),
    8: ("D2", "other_packet_id"),
    9: ("D2", "without_dup"),
    10: ("D2", "dup_on_first"),
    11: ("D3", "in_use_twice"),
    12: ("F1", "receive_maximum_exceeded"),
    15: ("O1", "before_its_acceptance"),
    14: ("D3", "acknowledged_another"),
    13: ("O1", "before_an_earlier_one"),  # of any publisher: audit.checks.order_check asks for more
}
CODE: Final = {words: code for code, words in SUSPICIONS.items()}


@dataclass(frozen=True)
class Clock:
    """Facts about the nodes that the judgement needs, by index of the node.

    `end_us` is the time of the newest row, `boot` the newest boot, `crashed` the boots that ended
    without a shutdown, sorted, and `died_us` the time of the last row of each. `horizon_us` is how
    long a message may wait for an idle session.
    """

    end_us: dict[int, int]
    boot: dict[int, int]
    crashed: dict[int, list[int]]
    died_us: dict[int, list[int]]
    horizon_us: int


class Rows:
    """The packed rows in the order of (session, gseq), unpacked."""

    def __init__(self, columns: dict[str, Longs]) -> None:
        order = np.lexsort((columns["gseq"], columns["session"], columns["owner"]))
        self.owner = columns["owner"][order]
        self.session = columns["session"][order]
        self.gseq = columns["gseq"][order]
        self.ts = columns["ts"][order]
        self.msg = columns["msg"][order]
        self.a = columns["a"][order]
        self.b = columns["b"][order]
        self.stream = columns["stream"][order]
        self.kind = self.b & 31
        self.qos = field_of(self.b, QOS)
        self.dup = field_of(self.b, DUP) == 1
        self.attempt = field_of(self.b, ATTEMPT)
        self.shared = field_of(self.b, SHARED) == 1
        self.carried = field_of(self.b, CARRIED) == 1
        self.reason = field_of(self.b, REASON)
        self.pid = field_of(self.b, PID)
        self.extra = field_of(self.b, EXTRA)
        self.boot = self.gseq >> SEQ_BITS
        self.size = len(self.gseq)
        starts = changes(self.owner, self.session)
        self.sid = np.cumsum(starts) - 1
        self.first = np.flatnonzero(starts)  # of each session
        self.last = np.append(self.first[1:], self.size) - 1

    def cut_off(self, clock: Clock, earlier: Longs, later: Longs) -> Flags:
        """Return for which pairs of rows a crash between them may have undone the earlier one.

        That is so if the earlier row was too recent at the crash to be on disk for certain.
        """
        found = np.zeros(len(earlier), np.bool_)
        for node, crashed in clock.crashed.items():
            boots = np.asarray(crashed, np.int64)
            here = (self.owner[earlier] >> 1) == node
            before = np.searchsorted(boots, self.boot[earlier])
            after = np.searchsorted(boots, self.boot[later])
            died_us = np.append(np.asarray(clock.died_us[node], np.int64), -1)
            fresh = self.ts[earlier] >= died_us[before] - LATE_US
            found |= here & (after > before) & fresh
        return found


class Suspicions:
    """Suspicions as rows of numbers, collected in pieces; rows are indexes into `Rows`."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._pieces: list[tuple[Longs, Longs, Longs, Longs, Longs]] = []

    def add(self, check: tuple[str, str], at: Longs, since: Longs, other: Longs) -> None:
        """Add suspicions about the rows `at` (indexes), with evidence back to the gseqs `since`.

        `other` is a second message, or number, that explains the first. Rows already judged by an
        earlier run are left out.
        """
        keep = ~self._rows.carried[at]
        code = np.full(int(keep.sum()), CODE[check], np.int64)
        to = self._rows.gseq[at][keep]
        self._pieces.append((code, at[keep], since[keep], to, other[keep]))

    def add_pairs(
        self, check: tuple[str, str], at: Longs, since: Longs, to: Longs, other: Longs
    ) -> None:
        """Add suspicions about the deliveries of the rows `at`, with evidence `since` to `to`."""
        code = np.full(len(at), CODE[check], np.int64)
        self._pieces.append((code, at, since, to, other))

    def columns(self) -> dict[str, Longs]:
        """Return the table of suspicions."""
        if not self._pieces:
            empty = np.zeros(0, np.int64)
            code, at, since, to, other = empty, empty, empty, empty, empty
        else:
            code, at, since, to, other = (
                np.concatenate(column) for column in zip(*self._pieces, strict=True)
            )
        rows = self._rows
        return {
            "code": code,
            "owner": rows.owner[at],
            "session": rows.session[at],
            "msg": rows.msg[at],
            "pid": rows.pid[at],
            "conn": np.where(np.isin(rows.kind[at], (DELIVERED, RETAINED)), rows.a[at], -1),
            "qos": rows.qos[at],
            "from_gseq": since,
            "to_gseq": to,
            "ts": rows.ts[at],
            "other": other,
        }


def field_of(b: Longs, place: tuple[int, int]) -> Longs:
    """Return a field of the packed number `b`."""
    shift, bits = place
    return (b >> shift) & ((1 << bits) - 1)


def changes(*columns: Longs) -> Flags:
    """Return which rows differ from the row before in any of the columns; the first one does."""
    size = len(columns[0])
    changed = np.zeros(size, np.bool_)
    changed[:1] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return changed


def running_max(values: Longs, group: Longs) -> tuple[Longs, Longs]:
    """Return the running maximum within sorted groups, as (ranks with groups, sorted values).

    The first is ascending over all groups: group * (n + 1) + rank of the maximum so far. So one
    binary search finds when group g reached value v.
    """
    ordered = np.unique(values)
    ranks = np.searchsorted(ordered, values)
    keys = group * np.int64(len(ordered) + 1) + ranks
    return np.maximum.accumulate(keys) if len(keys) else keys, ordered


def segment_starts(starts: Flags) -> Longs:
    """Return, for every row, the index of the first row of its segment."""
    index = np.arange(len(starts), dtype=np.int64)
    return np.maximum.accumulate(np.where(starts, index, 0)) if len(starts) else index
