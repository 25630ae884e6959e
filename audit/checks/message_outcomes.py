"""The outcome of every message of a session, one row per (session, message), and which are lost.

A message is lost only if the history proves it:

- passed over: the session's position, or its newest first delivery at QoS 1 or 2, is beyond an owed
  message that was neither sent, nor dropped, nor expired;
- not sent again: sent at QoS 1 or 2 and never acknowledged, then the session was resumed and got
  newer messages, but not this one;
- stuck: the session is connected, has nothing in flight and is idle past the horizon, and an owed
  message waits.

Every other message without an end is open. This module does not know the gaps;
`audit.checks.delivery_checks` compares with them.
"""

from dataclasses import dataclass

import numpy as np

from audit.checks.packed_rows import (
    ACKED,
    COMPLETED,
    CONNECTED,
    DELIVERED,
    DROPPED,
    ENDED,
    EXPIRED,
    MOVED,
    OFFLINE,
    OPEN_END,
    OUTCOME,
    OWED,
    POSITION,
    REFUSED,
    RETAINED,
    UNSTORED,
    Clock,
    Flags,
    Longs,
    Rows,
    Suspicions,
    changes,
    running_max,
)

_OF_PAIRS = (OWED, DELIVERED, ACKED, COMPLETED, DROPPED, EXPIRED, MOVED)


class Pairs:
    """The rows about messages, in the order of (session, message, gseq), and their groups."""

    def __init__(self, rows: Rows) -> None:
        of_range = (rows.kind == DROPPED) & (rows.a > rows.msg)
        mine = np.flatnonzero(np.isin(rows.kind, _OF_PAIRS) & (rows.msg >= 0) & ~of_range)
        self.at = mine[np.lexsort((rows.msg[mine], rows.sid[mine]))]  # stable: by gseq within
        self.size = len(self.at)
        starts = changes(rows.sid[self.at], rows.msg[self.at])
        self.begin = np.flatnonzero(starts)
        self.number = np.cumsum(starts) - 1  # of the pair, per row
        self.count = len(self.begin)
        self.kind = rows.kind[self.at]
        self.sid = rows.sid[self.at[self.begin]]
        self.msg = rows.msg[self.at[self.begin]]
        self._index = np.arange(self.size, dtype=np.int64)

    def first(self, mask: Flags) -> Longs:
        """Return, per pair, the first of its rows in `mask`, as an index into `at`, or -1."""
        if not self.count:
            return self.begin
        found = np.minimum.reduceat(np.where(mask, self._index, self.size), self.begin)
        return np.where(found < self.size, found, -1)

    def last(self, mask: Flags) -> Longs:
        """Return, per pair, the last of its rows in `mask`, as an index into `at`, or -1."""
        if not self.count:
            return self.begin
        return np.maximum.reduceat(np.where(mask, self._index, -1), self.begin)

    def total(self, mask: Flags) -> Longs:
        """Return, per pair, how many of its rows are in `mask`."""
        return np.add.reduceat(mask.astype(np.int64), self.begin)

    def pick(self, column: Longs, place: Longs, missing: int = -1) -> Longs:
        """Return a column of the rows at `place` (of `first` or `last`)."""
        return np.where(place >= 0, column[self.at[place]], missing)


@dataclass(frozen=True)
class Course:
    """The first (or last) row of each kind per pair, as indexes into `Pairs.at`."""

    owed: Longs
    sent: Longs
    sent_last: Longs
    acked: Longs
    completed: Longs
    dropped: Longs
    expired: Longs
    moved_last: Longs
    qos: Longs
    hold_to: Longs  # gseq: when the last subscription that wanted the message ended
    shared: Flags
    # Owed unless a subscription ended in a hole, so the evidence reaches back to that hole.
    doubtful: Flags

    @property
    def in_flight(self) -> Flags:
        """Return which messages were sent at QoS 1 or 2."""
        return (self.sent >= 0) & (self.qos > 0)

    @property
    def known(self) -> Flags:
        """Return which messages have an end in the history."""
        answered = np.maximum(self.acked, self.completed)
        return np.maximum(answered, np.maximum(self.dropped, self.expired)) >= 0


def outcomes(rows: Rows, pairs: Pairs, clock: Clock, suspicions: Suspicions) -> dict[str, Longs]:
    """Return the deliveries as columns, -1 = none; add the lost ones to `suspicions`."""
    course = _course(rows, pairs)
    outcome = _named(rows, pairs, course)
    why, gone_at = _ranges(rows, pairs, outcome, course.owed)
    silent = (course.owed >= 0) & ~course.known & (gone_at < 0)
    silent &= (course.sent < 0) & (course.moved_last < 0)
    lost = _passed_over(rows, pairs, course, clock, suspicions, silent)
    waiting = course.in_flight & ~course.known & (course.moved_last < 0) & ~course.shared
    lost |= _not_sent_again(rows, pairs, course, suspicions, waiting)
    waits = silent & ~lost & (outcome == OUTCOME["open"])
    lost |= _stuck(rows, pairs, course, clock, suspicions, waits)
    outcome[lost] = OUTCOME["lost"]

    gone = np.where(course.expired >= 0, course.expired, course.dropped)
    stream = np.where(pairs.kind == OWED, rows.stream[pairs.at], -1)
    fresh = (pairs.kind == DELIVERED) & ~rows.carried[pairs.at]
    first_is_new = (course.sent >= 0) & ~rows.carried[pairs.at[course.sent]]
    first = pairs.at[pairs.begin]
    columns = {
        "owner": rows.owner[first],
        "session": rows.session[first],
        "msg": pairs.msg,
        "stream": np.maximum.reduceat(stream, pairs.begin),
        "owed": (course.owed >= 0).astype(np.int64),
        "shared": course.shared.astype(np.int64),
        "qos": course.qos,
        "pid": pairs.pick(rows.pid, course.sent_last),
        "conn": pairs.pick(rows.a, course.sent_last),
        "sent_last_gseq": pairs.pick(rows.gseq, course.sent_last),
        "reason": np.where(course.dropped >= 0, pairs.pick(rows.reason, course.dropped), why),
        "attempts": pairs.total(pairs.kind == DELIVERED),
        "outcome": outcome,
        "first_is_new": first_is_new.astype(np.int64),
        "sent_new": pairs.total(fresh),
        "duplicates_new": _duplicates(rows, pairs, fresh),
        "carried": rows.carried[first].astype(np.int64),
    }
    for name, place in (
        ("enqueued", course.owed),
        ("delivered", course.sent),
        ("acked", course.acked),
        ("completed", course.completed),
        ("gone", gone),
    ):
        columns[f"{name}_gseq"] = pairs.pick(rows.gseq, place)
        columns[f"{name}_ts"] = pairs.pick(rows.ts, place)
    columns["gone_gseq"] = np.where(gone >= 0, columns["gone_gseq"], gone_at)
    return columns


def _course(rows: Rows, pairs: Pairs) -> Course:
    kind = pairs.kind
    sent_last, acked = pairs.last(kind == DELIVERED), pairs.first(kind == ACKED)
    group = (rows.owner[pairs.at[pairs.begin]] & 1) == 1
    return Course(
        owed=pairs.first(kind == OWED),
        sent=pairs.first(kind == DELIVERED),
        sent_last=sent_last,
        acked=acked,
        completed=pairs.first(kind == COMPLETED),
        dropped=pairs.first(kind == DROPPED),
        expired=pairs.first(kind == EXPIRED),
        moved_last=pairs.last(kind == MOVED),
        qos=pairs.pick(rows.qos, np.where(sent_last >= 0, sent_last, acked)),
        hold_to=np.maximum.reduceat(np.where(kind == OWED, rows.a[pairs.at], -1), pairs.begin),
        doubtful=pairs.first((kind == OWED) & ~rows.dup[pairs.at]) < 0,
        shared=group | ((sent_last >= 0) & rows.shared[pairs.at[sent_last]]),
    )


def _named(rows: Rows, pairs: Pairs, course: Course) -> Longs:
    """Return the outcome of each pair in the history; later assignments here take precedence."""
    ended_at = _ended(rows)[pairs.sid]
    refused = pairs.first((pairs.kind == ACKED) & (rows.reason[pairs.at] >= REFUSED)) >= 0
    outcome = np.full(pairs.count, OUTCOME["open"], np.int64)
    unwanted = (course.owed >= 0) & (course.hold_to < OPEN_END) & ~course.in_flight
    outcome[unwanted] = OUTCOME["unsubscribed"]
    ended = (ended_at < OPEN_END) & (course.in_flight | (ended_at <= course.hold_to))
    outcome[ended] = OUTCOME["session_ended"]
    outcome[course.moved_last > course.sent_last] = OUTCOME["moved"]
    outcome[course.dropped >= 0] = OUTCOME["dropped"]
    outcome[course.expired >= 0] = OUTCOME["expired"]
    outcome[(course.sent >= 0) & (course.qos == 0)] = OUTCOME["delivered_qos0"]
    outcome[(course.acked >= 0) & ((course.qos != 2) | refused)] = OUTCOME["acked"]
    outcome[course.completed >= 0] = OUTCOME["completed"]
    return outcome


def _ended(rows: Rows) -> Longs:
    """Return the gseq of the end of each session, or OPEN_END."""
    ends: Longs = np.where(rows.kind == ENDED, rows.gseq, OPEN_END)
    first: Longs = np.minimum.reduceat(ends, rows.first)
    return first


def _duplicates(rows: Rows, pairs: Pairs, fresh: Flags) -> Longs:
    """Count, per pair, the sendings that may be duplicates for the client.

    Sent as new a second time (legal at QoS 1 after a crash), or sent after PUBACK, PUBREC or
    PUBCOMP.
    """
    relevant = np.isin(pairs.kind, (DELIVERED, ACKED, COMPLETED))
    before: Longs = np.cumsum(relevant) - relevant  # rows of exchanges before this one, over all
    # False in the first row of a pair, so the row before a started one is of the same pair.
    started = before - before[pairs.begin][pairs.number] > 0
    answered = np.zeros(pairs.size, np.bool_)
    answered[1:] = np.isin(pairs.kind[:-1], (ACKED, COMPLETED))
    again = (rows.attempt[pairs.at] <= 1) & (rows.qos[pairs.at] > 0)
    return pairs.total(fresh & started & (answered | again))


def _ranges(rows: Rows, pairs: Pairs, outcome: Longs, owed: Longs) -> tuple[Longs, Longs]:
    """Apply rows that drop a range of messages: open messages in it become dropped.

    There are few such rows (max_age drops a whole backlog with one), so a loop is fast enough.
    """
    why = np.full(pairs.count, -1, np.int64)
    gone_at = np.full(pairs.count, -1, np.int64)
    ranges = np.flatnonzero((rows.kind == DROPPED) & (rows.msg >= 0) & (rows.a > rows.msg))
    if not len(ranges):
        return why, gone_at
    session_begin = np.searchsorted(pairs.sid, rows.sid[ranges], "left")
    session_end = np.searchsorted(pairs.sid, rows.sid[ranges], "right")
    open_codes = (OUTCOME["open"], OUTCOME["session_ended"], OUTCOME["unsubscribed"])
    for at, begin, end in zip(ranges, session_begin, session_end, strict=True):
        messages = pairs.msg[begin:end]
        low = begin + np.searchsorted(messages, rows.msg[at], "left")
        high = begin + np.searchsorted(messages, rows.a[at], "right")
        piece = np.arange(low, high)
        piece = piece[np.isin(outcome[piece], open_codes) & (owed[piece] >= 0)]
        outcome[piece] = OUTCOME["dropped"]
        why[piece] = rows.reason[at]
        gone_at[piece] = rows.gseq[at]
    return why, gone_at


def _passed_over(
    rows: Rows,
    pairs: Pairs,
    course: Course,
    clock: Clock,
    suspicions: Suspicions,
    silent: Flags,
) -> Flags:
    owed, hold_to = course.owed, course.hold_to
    lost = np.zeros(pairs.count, np.bool_)
    which = np.flatnonzero(silent)
    if not len(which):
        return lost
    group = (rows.owner & 1) == 1
    # Messages at QoS 0, or of a group, follow another cursor than the session's.
    in_order = (rows.kind == DELIVERED) & (rows.qos > 0) & (rows.msg < UNSTORED)
    # A row of a group may be about another group of the same name; then nothing was owed here.
    owed_here = np.zeros(rows.size, np.bool_)
    owed_here[pairs.at] = (owed >= 0)[pairs.number]
    in_order &= np.where(group, owed_here, ~rows.shared)
    reached = np.where(in_order, rows.msg, np.where(rows.kind == POSITION, rows.a, -1))
    run, ordered = running_max(reached, rows.sid)
    sid = pairs.sid[which]
    wanted = sid * np.int64(len(ordered) + 1) + np.searchsorted(ordered, pairs.msg[which])
    at = np.searchsorted(run, wanted)
    inside = at <= rows.last[sid]
    passed = rows.gseq[np.minimum(at, rows.size - 1)]
    enqueued = pairs.pick(rows.gseq, owed[which])
    guilty = inside & (passed > enqueued) & (passed < hold_to[which])
    # A member of a group may be overtaken by another member, but not for longer than the horizon.
    waited = _end_us(rows, clock, rows.first[sid]) - pairs.pick(rows.ts, owed[which])
    guilty &= ~group[rows.first[sid]] | (waited > clock.horizon_us)
    which, at = which[guilty], at[guilty]
    lost[which] = True
    place = pairs.at[owed[which]]
    since = np.where(course.doubtful[which], 0, rows.gseq[place])
    suspicions.add_pairs(("L2", "passed_over"), place, since, rows.gseq[at], at * 0 - 1)
    return lost


def _not_sent_again(
    rows: Rows, pairs: Pairs, course: Course, suspicions: Suspicions, waiting: Flags
) -> Flags:
    lost = np.zeros(pairs.count, np.bool_)
    which = np.flatnonzero(waiting)
    resumed = np.flatnonzero((rows.kind == CONNECTED) & rows.dup)
    firsts = (rows.kind == DELIVERED) & (rows.attempt <= 1) & (rows.qos > 0)
    fresh = np.flatnonzero(firsts & (rows.msg < UNSTORED) & ~rows.shared)
    if not len(which) or not len(resumed) or not len(fresh):
        return lost
    sent = pairs.at[course.sent_last[which]]
    resume = _next_of(resumed, sent)
    newer = _next_of(fresh, resume)
    here = np.minimum(newer, rows.size - 1)
    guilty = newer < rows.size
    guilty &= (rows.sid[here] == rows.sid[sent]) & (rows.msg[here] > rows.msg[sent])
    which, sent, here = which[guilty], sent[guilty], here[guilty]
    lost[which] = True
    check = ("L2", "not_sent_again")
    suspicions.add_pairs(check, sent, rows.gseq[sent], rows.gseq[here], rows.msg[here])
    return lost


def _stuck(
    rows: Rows,
    pairs: Pairs,
    course: Course,
    clock: Clock,
    suspicions: Suspicions,
    waits: Flags,
) -> Flags:
    owed = course.owed
    lost = np.zeros(pairs.count, np.bool_)
    which = np.flatnonzero(waits)
    if not len(which):
        return lost
    index = np.arange(rows.size, dtype=np.int64)
    connected = np.where(rows.kind == CONNECTED, index, -1)
    gone = np.where(np.isin(rows.kind, (OFFLINE, ENDED)), index, -1)
    last_in = np.maximum.reduceat(connected, rows.first)
    last_out = np.maximum.reduceat(gone, rows.first)
    boot = np.zeros(rows.size, np.int64)
    for node, newest in clock.boot.items():
        boot[(rows.owner >> 1) == node] = newest
    alive = (last_in > last_out) & (rows.boot[last_in] == boot[last_in])
    active = np.maximum.reduceat(np.where(rows.kind == OWED, 0, rows.ts), rows.first)
    # In flight: sent on this connection at QoS 1 or 2, not acknowledged. Its window may be full.
    in_flight = _busy(rows, pairs, last_in)
    sid = pairs.sid[which]
    since = np.maximum(active[sid], pairs.pick(rows.ts, owed[which]))
    waited = _end_us(rows, clock, rows.first[sid]) - since
    which = which[alive[sid] & ~in_flight[sid] & (waited > clock.horizon_us)]
    lost[which] = True
    place = pairs.at[owed[which]]
    end = rows.gseq[rows.last[pairs.sid[which]]]
    since = np.where(course.doubtful[which], 0, rows.gseq[place])
    suspicions.add_pairs(("L2", "stuck"), place, since, end, end * 0 - 1)
    return lost


def _busy(rows: Rows, pairs: Pairs, last_in: Longs) -> Flags:
    """Return which sessions have something in flight on their connection."""
    sent = pairs.last(pairs.kind == DELIVERED)
    final = (rows.kind == COMPLETED) | (
        (rows.kind == ACKED) & ((rows.qos != 2) | (rows.reason >= REFUSED))
    )
    waiting = (pairs.pick(rows.qos, sent) > 0) & (pairs.last(final[pairs.at]) < sent)
    waiting &= pairs.at[sent] > last_in[pairs.sid]
    # Retained copies have no message id, only a packet id. So has the PUBCOMP for a message that
    # was given up, which answers no copy.
    copies = (rows.kind == RETAINED) & (rows.qos > 0)
    at = np.flatnonzero(copies | (final & (rows.msg < 0)))
    at = at[np.lexsort((rows.pid[at], rows.sid[at]))]
    is_last = np.append(changes(rows.sid[at], rows.pid[at])[1:], True)[: len(at)]
    unanswered = at[is_last & copies[at]]
    unanswered = unanswered[unanswered > last_in[rows.sid[unanswered]]]
    busy: Flags = np.zeros(len(rows.first), np.bool_)
    busy[rows.sid[unanswered]] = True
    busy[pairs.sid[waiting]] = True
    return busy


def _next_of(places: Longs, after: Longs) -> Longs:
    """Return the first of the sorted `places` after each index, a large number if there is none."""
    found = np.searchsorted(places, after, "right")
    big = np.iinfo(np.int64).max
    return np.where(found < len(places), places[np.minimum(found, len(places) - 1)], big)


def _end_us(rows: Rows, clock: Clock, at: Longs) -> Longs:
    """Return, for the rows `at`, the time of the newest row of their node."""
    end = np.zeros(len(at), np.int64)
    for node, newest in clock.end_us.items():
        end[(rows.owner[at] >> 1) == node] = newest
    return end
