"""How messages were sent: resent only when allowed, one per packet identifier, in order.

D1 (outgoing half), D2, D3, F1, and the first half of O1, over the rows of whole sessions. Each
check compares neighbouring rows in one sorted order. After a crash the QoS 1 progress of a session
may be a little older than its history: messages sent or acknowledged within the last second may be
sent again as new, with any identifier. At QoS 2 only the end of an exchange is that late, so a
message refused by PUBREC within the last second may be sent again.
"""

import numpy as np

from audit.checks.message_outcomes import Pairs
from audit.checks.packed_rows import (
    ACKED,
    COMPLETED,
    CONNECTED,
    DELIVERED,
    DROPPED,
    EXPIRED,
    MOVED,
    OPEN_END,
    OWED,
    REFUSED,
    RETAINED,
    RMAX_DEFAULT,
    UNSTORED,
    Clock,
    Flags,
    Longs,
    Rows,
    Suspicions,
    changes,
    running_max,
    segment_starts,
)


def sendings(rows: Rows, pairs: Pairs, clock: Clock, suspicions: Suspicions) -> None:
    """Add suspicions about the sendings of these sessions."""
    _again(rows, pairs, clock, suspicions)
    exchanges = _Exchanges(rows)
    if exchanges.size:
        _identifiers(rows, pairs, clock, suspicions, exchanges)
        _answers(rows, clock, suspicions, exchanges)
        _window(rows, suspicions, exchanges)
    _order(rows, pairs, suspicions)


def _again(rows: Rows, pairs: Pairs, clock: Clock, suspicions: Suspicions) -> None:
    """D1 and D2: compare each repeated sending with the row of its exchange before it."""
    group = (rows.owner[pairs.at] & 1) == 1
    told = np.isin(pairs.kind, (DELIVERED, ACKED, COMPLETED)) & ~group
    told &= (rows.qos[pairs.at] > 0) | (pairs.kind == COMPLETED)
    chosen = np.flatnonzero(told)
    at, number = pairs.at[chosen], pairs.number[chosen]
    kind = rows.kind[at]
    sent = kind == DELIVERED
    follows = np.zeros(len(at), np.bool_)
    follows[1:] = number[1:] == number[:-1]

    firsts = at[sent & rows.dup[at] & (rows.attempt[at] == 1)]
    none = firsts * 0 - 1
    suspicions.add(("D2", "dup_on_first"), firsts, rows.gseq[firsts], none)
    later = at[sent & ~rows.dup[at] & (rows.attempt[at] > 1)]

    # A message of a shared group that was passed on and came back is a new exchange.
    stays = pairs.first(pairs.kind == MOVED)[number] < 0
    again = np.flatnonzero(sent & follows & stays)
    here, before = at[again], at[again - 1]
    crash = rows.cut_off(clock, before, here)
    forgiven = crash & (rows.qos[here] == 1)
    twice = rows.qos[before] == 2
    completed = kind[again - 1] == COMPLETED
    pubrec = (kind[again - 1] == ACKED) & twice
    pubrec &= ~(crash & (rows.reason[before] >= REFUSED))
    _accuse(rows, suspicions, ("D1", "delivered_after_pubcomp"), here, before, completed)
    _accuse(rows, suspicions, ("D1", "delivered_after_pubrec"), here, before, pubrec)
    acked = (kind[again - 1] == ACKED) & ~twice & ~forgiven
    _accuse(rows, suspicions, ("D2", "after_acknowledgement"), here, before, acked)
    bare = (kind[again - 1] == DELIVERED) & ~forgiven
    same_conn = (rows.a[here] == rows.a[before]) & (rows.boot[here] == rows.boot[before])
    _accuse(rows, suspicions, ("D2", "without_reconnect"), here, before, bare & same_conn)
    bare &= ~same_conn
    moved_pid = bare & (rows.pid[here] != rows.pid[before])
    _accuse(rows, suspicions, ("D2", "other_packet_id"), here, before, moved_pid)
    plain = bare & ~moved_pid & ~rows.dup[here]
    _accuse(rows, suspicions, ("D2", "without_dup"), here, before, plain)
    judged = np.isin(later, here)  # already compared with their predecessor
    later = later[~judged]
    suspicions.add(("D2", "without_dup"), later, rows.gseq[later], later * 0 - 1)


def _accuse(
    rows: Rows,
    suspicions: Suspicions,
    check: tuple[str, str],
    here: Longs,
    before: Longs,
    guilty: Flags,
) -> None:
    at = here[guilty]
    suspicions.add(check, at, rows.gseq[before[guilty]], rows.gseq[before[guilty]])


class _Exchanges:
    """The rows that take and free packet identifiers, in the order of (session, pid, gseq)."""

    def __init__(self, rows: Rows) -> None:
        takes = np.isin(rows.kind, (DELIVERED, RETAINED)) & (rows.pid > 0)
        frees = np.isin(rows.kind, (COMPLETED, DROPPED)) | (
            (rows.kind == ACKED) & ((rows.qos != 2) | (rows.reason >= REFUSED))
        )
        group = (rows.owner & 1) == 1
        mine = np.flatnonzero((takes | (frees & (rows.pid > 0))) & ~group)
        self.at = mine[np.lexsort((rows.pid[mine], rows.sid[mine]))]
        self.size = len(self.at)
        self.takes = takes[self.at]
        self.follows = ~changes(rows.sid[self.at], rows.pid[self.at])

    def doubled(self, rows: Rows) -> Flags:
        """Return which rows sent one of several messages that had an identifier at once."""
        again = np.zeros(self.size, np.bool_)
        again[1:] = self.follows[1:] & self.takes[1:] & self.takes[:-1]
        begin = np.flatnonzero(~again)
        run = np.cumsum(~again) - 1
        msg = rows.msg[self.at]
        several = np.maximum.reduceat(msg, begin) != np.minimum.reduceat(msg, begin)
        found = np.zeros(rows.size, np.bool_)
        found[self.at] = several[run]
        return found


def _identifiers(
    rows: Rows, pairs: Pairs, clock: Clock, suspicions: Suspicions, exchanges: _Exchanges
) -> None:
    """D3: an identifier is taken while another message still has it."""
    at = exchanges.at
    busy = np.flatnonzero(exchanges.takes[1:] & exchanges.takes[:-1] & exchanges.follows[1:]) + 1
    here, before = at[busy], at[busy - 1]
    # Messages from a session's mailbox are sent again without a message id in the row.
    nameless = (rows.kind[here] == RETAINED) | (rows.msg[here] < 0)
    other = np.where(nameless, ~rows.dup[here], rows.msg[here] != rows.msg[before])
    # Dropped, expired and passed-on messages free their identifier without an acknowledgement.
    gone = np.isin(pairs.kind, (DROPPED, EXPIRED, MOVED))
    first_gone = pairs.pick(rows.gseq, pairs.first(gone), OPEN_END)
    pair_of = np.full(rows.size, -1, np.int64)
    pair_of[pairs.at] = pairs.number
    pair = pair_of[before]
    released = np.zeros(len(here), np.bool_)
    if pairs.count:
        released = (pair >= 0) & (first_gone[pair] < rows.gseq[here])
    forgiven = rows.cut_off(clock, before, here) & (rows.qos[before] == 1)
    guilty = other & ~released & ~forgiven
    at, since = here[guilty], before[guilty]
    suspicions.add(("D3", "in_use_twice"), at, rows.gseq[since], rows.msg[since])


def _answers(rows: Rows, clock: Clock, suspicions: Suspicions, exchanges: _Exchanges) -> None:
    """D3: an acknowledgement is of the message that was last sent under its identifier.

    Not compared: what was sent without a message in its row, such as a retained copy; what was sent
    while another message had the identifier; and an answer after a crash that may have undone the
    sending, so that an older message has the identifier again.
    """
    sent = np.isin(rows.kind, (DELIVERED, RETAINED))
    told = (sent | np.isin(rows.kind, (ACKED, COMPLETED))) & (rows.pid > 0)
    mine = np.flatnonzero(told & ((rows.owner & 1) == 0))
    at = mine[np.lexsort((rows.pid[mine], rows.sid[mine]))]
    begin = segment_starts(changes(rows.sid[at], rows.pid[at]))
    index = np.arange(len(at), dtype=np.int64)
    last = np.maximum.accumulate(np.where(sent[at], index, -1))
    judged = np.flatnonzero(~sent[at] & (last >= begin))
    here, before = at[judged], at[last[judged]]
    other = (rows.msg[here] >= 0) & (rows.msg[before] >= 0) & (rows.msg[here] != rows.msg[before])
    other &= ~rows.cut_off(clock, before, here) & ~exchanges.doubled(rows)[before]
    here, before = here[other], before[other]
    suspicions.add(("D3", "acknowledged_another"), here, rows.gseq[before], rows.msg[before])


def _window(rows: Rows, suspicions: Suspicions, exchanges: _Exchanges) -> None:
    """F1: compare the number in flight on a connection, a running sum, with its Receive Maximum.

    A PUBCOMP for a message released on an earlier connection frees a place without having taken
    one, but never below none in flight (section 4.9). A message sent twice, or an identifier used
    twice, counts once here; other checks report it.
    """
    at, takes = exchanges.at, exchanges.takes
    conn = rows.a[at]
    same = exchanges.follows.copy()
    same[1:] &= (conn[1:] == conn[:-1]) & (rows.boot[at][1:] == rows.boot[at][:-1])
    taken = np.zeros(len(at), np.bool_)
    taken[1:] = same[1:] & takes[:-1]
    freed = np.zeros(len(at), np.bool_)
    freed[1:] = same[1:] & ~takes[:-1]
    change = np.zeros(rows.size, np.int64)
    change[at] = np.where(takes, (~taken).astype(np.int64), -(~freed).astype(np.int64))

    connected = rows.kind == CONNECTED
    used = np.zeros(rows.size, np.bool_)
    used[at] = True
    mine = np.flatnonzero(connected | used)
    mine = mine[np.lexsort((rows.a[mine], rows.boot[mine], rows.sid[mine]))]
    starts = changes(rows.sid[mine], rows.boot[mine], rows.a[mine])
    begin = segment_starts(starts)
    step = change[mine]
    total = np.cumsum(step)
    total = total - (total - step)[begin]
    # Running minimum per connection in one pass: each connection starts far below the one before.
    span = np.int64(2 * len(mine) + 2)
    depth = np.cumsum(starts) * span
    lowest = np.minimum.accumulate(total - depth) + depth
    in_flight = total - np.minimum(lowest, 0)
    limit = np.where(connected[mine[begin]], rows.extra[mine[begin]], 0)
    known = connected[mine[begin]]
    limit = np.where(limit > 0, limit, RMAX_DEFAULT)
    guilty = known & (step > 0) & (in_flight == limit + 1)
    over = mine[guilty]
    since = rows.gseq[mine[begin[guilty]]]
    suspicions.add(("F1", "receive_maximum_exceeded"), over, since, in_flight[guilty])


def _order(rows: Rows, pairs: Pairs, suspicions: Suspicions) -> None:
    """O1, first half: first deliveries after that of a newer message at the same QoS.

    And those before their message was stored for the session.
    """
    sent = pairs.first(pairs.kind == DELIVERED)
    owed = pairs.first(pairs.kind == OWED)
    early = np.flatnonzero((sent >= 0) & (owed > sent))
    sent_at, stored_at = pairs.at[sent[early]], pairs.at[owed[early]]
    own = (rows.owner[stored_at] & 1) == 0
    sent_at, stored_at = sent_at[own], stored_at[own]
    check = ("O1", "before_its_acceptance")
    suspicions.add(check, stored_at, rows.gseq[sent_at], stored_at * 0 - 1)
    at = np.sort(pairs.at[sent[sent >= 0]])
    group = (rows.owner[at] & 1) == 1
    at = at[~group & ~rows.shared[at]]
    if not len(at):
        return
    stored = (rows.msg[at] < UNSTORED).astype(np.int64)
    lane = rows.sid[at] * 8 + rows.qos[at] * 2 + stored
    at = at[np.argsort(lane, kind="stable")]
    stored = (rows.msg[at] < UNSTORED).astype(np.int64)
    lane = rows.sid[at] * 8 + rows.qos[at] * 2 + stored
    run, ordered = running_max(rows.msg[at], lane)
    highest = ordered[run - lane * np.int64(len(ordered) + 1)]
    late = np.flatnonzero(highest > rows.msg[at])
    if len(late):
        where = at[late]
        suspicions.add(("O1", "before_an_earlier_one"), where, rows.gseq[where], highest[late])
