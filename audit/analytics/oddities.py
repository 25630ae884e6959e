"""Unusual behaviour that no invariant forbids, each finding with its reason. Pure.

Uses merged numbers, so patterns across batches are found. "Unusual" is measured by the median and
the median absolute deviation (robust z-score), because a single extreme value would raise an
average and so hide itself. The thresholds are chosen to give few findings.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from audit.report.summary import Backlog, Churn, Finding, Talker
from audit.report.text import compact, count, duration, moment, plural

Z_MIN: Final = 6.0  # an hour with this robust z-score is unusual
HOURS_MIN: Final = 6  # hours of a tenant needed to call one unusual
UNUSUAL_MIN: Final = 100  # least difference of an unusual hour, in messages
MAD_TO_SIGMA: Final = 1.4826  # of a normal distribution

MASS_MIN: Final = 20  # connections lost within a minute
MASS_SHARE: Final = 0.1  # of all clients
TRAFFIC_SHARE: Final = 0.25
TRAFFIC_MIN: Final = 1000
FLAPPING_PER_HOUR: Final = 12.0
FLAPPING_MIN: Final = 20
FLAPPING_TIMES_MEDIAN: Final = 10.0
BACKLOG_MIN: Final = 100
PER_KIND_MAX: Final = 50


@dataclass(slots=True)
class Hour:
    """What one tenant published in one hour."""

    tenant: str
    hour_us: int
    accepted: int


@dataclass(slots=True)
class Moves:
    """The connections made and lost in one minute."""

    minute_us: int
    connects: int
    lost: int


@dataclass(slots=True)
class Difference:
    """A line of the books that differs from another that it must equal."""

    tenant: str
    minute_us: int
    stage: str
    other: str  # what it was compared with
    count: int
    other_count: int
    same_count: bool


def robust_z(values: Sequence[float]) -> list[float]:
    """Return how far each value is from the median, in robust standard deviations.

    If more than half of the values are equal, the deviation is 0. Then one unit or a twentieth of
    the median is used instead, so that the first event of a quiet series is not unusual.
    """
    if not values:
        return []
    middle = median(values)
    spread = MAD_TO_SIGMA * median(abs(value - middle) for value in values)
    spread = max(spread, abs(middle) / 20, 1.0)
    return [(value - middle) / spread for value in values]


def unusual_hours(hours: Iterable[Hour]) -> list[Finding]:
    """Return the hours in which a tenant published far more or less than usual."""
    by_tenant: dict[str, list[Hour]] = {}
    for hour in hours:
        by_tenant.setdefault(hour.tenant, []).append(hour)
    found = []
    for tenant, own in by_tenant.items():
        if len(own) < HOURS_MIN:
            continue
        middle = median(hour.accepted for hour in own)
        scores = robust_z([float(hour.accepted) for hour in own])
        for hour, score in zip(own, scores, strict=True):
            if abs(score) < Z_MIN or abs(hour.accepted - middle) < UNUSUAL_MIN:
                continue
            reason = (
                f"{count(hour.accepted)} messages in this hour; the median of the tenant's "
                f"{len(own)} hours is {compact(middle)} (robust z-score {score:.1f})."
            )
            found.append(
                Finding("unusual_hour", hour.hour_us, tenant, "", reason, min(abs(score), 50.0))
            )
    return _most(found)


def mass_disconnects(minutes: Iterable[Moves], clients: int) -> list[Finding]:
    """Return the minutes in which many clients lost their connections."""
    found = []
    own = list(minutes)
    scores = robust_z([float(minute.lost) for minute in own])
    for minute, score in zip(own, scores, strict=True):
        if minute.lost < max(MASS_MIN, MASS_SHARE * clients) or score < Z_MIN:
            if not (len(own) < HOURS_MIN and minute.lost >= max(MASS_MIN, clients / 2)):
                continue
        reason = (
            f"{plural(minute.lost, 'connection')} lost within one minute, "
            f"of {plural(clients, 'client')} in all; {count(minute.connects)} came, "
            "or came back, in the same minute."
        )
        found.append(
            Finding("mass_disconnect", minute.minute_us, "", "", reason, 20 + min(score, 30.0))
        )
    return _most(found)


def one_client(talkers: Iterable[Talker], total: int, clients: int) -> list[Finding]:
    """Return the clients that cause most of the traffic, if there are enough others."""
    if total < TRAFFIC_MIN or clients < 4:
        return []
    found = []
    for talker in talkers:
        share = talker.messages / total
        if share < max(TRAFFIC_SHARE, 4 / clients):
            continue
        reason = (
            f"{share:.0%} of all {count(total)} messages come from this one of "
            f"{plural(clients, 'publishing client')}."
        )
        found.append(
            Finding("one_client", None, talker.tenant, talker.client_id, reason, 10 * share)
        )
    return _most(found)


def flapping(churn: Iterable[Churn], median_connects: float, seconds: float) -> list[Finding]:
    """Return the clients that reconnect very often."""
    hours = max(seconds / 3600, 1 / 60)
    found = []
    for client in churn:
        rate = client.connects / hours
        often = client.connects >= max(FLAPPING_MIN, FLAPPING_TIMES_MEDIAN * median_connects)
        if not often or rate < FLAPPING_PER_HOUR:
            continue
        how = []
        if client.takeovers:
            how.append(f"{plural(client.takeovers, 'time')} taking over its own connection")
        if client.lost:
            how.append(f"{count(client.lost)} of them lost")
        reason = (
            f"{count(client.connects)} connects in {duration(seconds)}, {compact(rate)} an hour"
            f"{', ' + ', '.join(how) if how else ''}; "
            f"the median client has {compact(median_connects)}."
        )
        found.append(
            Finding("flapping", None, client.tenant, client.client_id, reason,
                    10 + min(rate / FLAPPING_PER_HOUR, 30.0))
        )  # fmt: skip
    return _most(found)


def growing_backlogs(backlogs: Iterable[Backlog]) -> list[Finding]:
    """Return the sessions whose backlog grew steadily and was largest at the end."""
    found = []
    for backlog in backlogs:
        if len(backlog.points) < 2:
            continue
        last_us, last = backlog.points[-1]
        middle_us = (backlog.points[0][0] + last_us) // 2
        at_middle = [owed for at, owed in backlog.points if at <= middle_us][-1]
        if last < BACKLOG_MIN or last < 0.9 * backlog.worst or at_middle > 0.8 * last:
            continue
        span = (last_us - backlog.points[0][0]) / 1e6
        reason = (
            f"{count(last)} messages owed at the end, {count(at_middle)} half-way: "
            f"it has been growing for {duration(span)}."
        )
        found.append(
            Finding("growing_backlog", last_us, backlog.tenant, backlog.client_id, reason,
                    15 + min(last / BACKLOG_MIN / 10, 15.0))
        )  # fmt: skip
    return _most(found)


def clock_steps(steps: Iterable[tuple[int, str, str]]) -> list[Finding]:
    """Return the times at which a broker saw the wall clock jump, from (time, node, text)."""
    return _most(
        [
            Finding("clock_step", at, "", node,
                    f"The wall clock jumped{': ' + words if words else ''}. Broker time did not.",
                    12.0)
            for at, node, words in steps
        ]
    )  # fmt: skip


def books(differences: Iterable[Difference]) -> list[Finding]:
    """Return one finding with all lines of the books that differ from another; none if none do.

    One cause makes many lines, so only the first is told in full.
    """
    lines = sorted(differences, key=lambda line: (line.minute_us, line.tenant, line.stage))
    if not lines:
        return []
    first = lines[0]
    if first.same_count:
        both = plural(first.count, "message")
        what = f"{both} in both, but not the same ones (the checksums differ)"
    else:
        what = f"{count(first.count)} here, {count(first.other_count)} there"
    reason = f"Stage {first.stage} against {first.other}: {what}."
    tenants = sorted({line.tenant for line in lines})
    if len(lines) > 1:
        pairs = Counter(f"{line.stage} against {line.other}" for line in lines)
        kinds = ", ".join(f"{pair} ({count(number)})" for pair, number in pairs.most_common())
        minutes = len({line.minute_us for line in lines})
        whose = "" if len(tenants) == 1 else f" of {plural(len(tenants), 'user')}"
        reason = (
            f"{plural(len(lines), 'line')}{whose} in {plural(minutes, 'minute')} until "
            f"{moment(lines[-1].minute_us):%Y-%m-%d %H:%M}: {kinds}. The first: {reason}"
        )
    tenant = tenants[0] if len(tenants) == 1 else ""
    return [Finding("books", first.minute_us, tenant, "", reason, 40.0)]


def _most(found: list[Finding]) -> list[Finding]:
    """Return the top findings of one kind, so that one kind cannot crowd out the others."""
    return sorted(found, key=lambda finding: -finding.score)[:PER_KIND_MAX]
