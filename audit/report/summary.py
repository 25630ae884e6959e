"""The content of the report: a verdict and its merged numbers, without Spark.

`audit.analytics.merge` fills it from the tables of all batches, `audit.report.page` renders it.
Times are microseconds since 1970, UTC; durations are seconds; names of clients, tenants and topics
are unescaped.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Literal

Outcome = Literal["ok", "violated", "unknown"]
# How a result is shown. `idle` means not tested, `suppressed` ok but for what was suppressed.
Look = Literal["ok", "violated", "unknown", "suppressed", "idle"]
Recorded = Literal["all", "some", "none"]
# Levels of detail that record rows of single messages, and those that record books.
MESSAGE_LEVELS: Final = ("full", "sampled")
BOOK_LEVELS: Final = ("books", *MESSAGE_LEVELS)

# A histogram of durations counts in half octaves: bucket b holds [2 ** (b / 2), 2 ** (b / 2 + .5))
# milliseconds, so histograms of different runs and tenants add up. The outermost buckets also hold
# all shorter and longer durations.
BUCKET_MIN: Final = -14  # 7.8 us
BUCKET_MAX: Final = 76  # 8.7 years


def bucket_start_ms(bucket: int) -> float:
    """Return the shortest duration of `bucket`, in milliseconds."""
    return float(2.0 ** (bucket / 2))


@dataclass(slots=True)
class Check:
    """One invariant: its result and witnesses."""

    id: str
    name: str
    sentence: str
    outcome: Outcome
    checked: int = 0
    violated: int = 0
    unknown: int = 0
    reasons: list[str] = field(default_factory=list)  # why unknown, as text
    witnesses: list[dict[str, object]] = field(default_factory=list)
    earlier: tuple[int, int, int] = (0, 0, 0)  # checked, violated, unknown: in all runs before
    untested: int = 0  # of `unknown`: stretches of time without the rows that it needs
    tested_by: frozenset[str] = frozenset()  # what must have been recorded, see `Covered`
    suppressed: int = 0  # violations that count no more, with a reason

    @property
    def look(self) -> Look:
        """Return how it is shown; an invariant with nothing to check gets no tick."""
        if self.outcome == "ok" and self.suppressed:
            return "suppressed"
        return "idle" if self.outcome == "ok" and not self.checked else self.outcome


@dataclass(slots=True)
class Boot:
    """One boot of a broker; how it ended decides what may be missing after it."""

    node: str
    boot: int
    began_us: int
    ended_us: int
    end: Literal["clean", "crash", "open"]
    sessions_before: int | None = None  # at the end of this boot, rebuilt from the history
    sessions_after: int | None = None  # of those, what the next boot found
    lost: int = 0  # witnesses of losses at its end


@dataclass(slots=True)
class Gap:
    """An interval in which rows of the history are missing, and which kind."""

    node: str
    boot: int
    from_us: int
    to_us: int | None  # None: still open at the end
    reason: str
    count: int | None  # events that were suppressed or are missing, if known
    detail: str = ""


@dataclass(slots=True)
class Covered:
    """A stretch of one broker's history in which the same was recorded."""

    node: str
    from_us: int
    to_us: int
    recorded: str  # full, sample, lowered, sessions, nothing: see audit.input.coverage
    reason: str
    sample: int = 1


@dataclass(slots=True)
class Traced:
    """A stretch in which one client was recorded in full, and how many of its sessions count."""

    node: str
    client_id: str
    judged: int
    not_judged: int


@dataclass(slots=True)
class Told:
    """One row of the history, in words."""

    at_us: int
    node: str
    boot: int
    seq: int
    client_id: str
    text: str
    is_witness: bool = False  # the row that the finding names


@dataclass(slots=True)
class Story:
    """The rows around a witness, in their order; `left_out` more were there."""

    invariant: str
    number: int  # of the witness, in the list of its invariant
    node: str
    rows: list[Told]
    left_out: int = 0


@dataclass(slots=True)
class Run:
    """The verdict of one run, for the strip of all of them."""

    batch: int
    status: Outcome
    to_us: int
    rows: int
    violated: int
    unknown: int
    statuses: dict[str, str] = field(default_factory=dict)  # of each invariant


@dataclass(slots=True)
class Suppression:
    """A rule that says which violations count no more, and what it did in this run."""

    invariant: str
    whom: str  # node, session, message, as text
    reason: str
    expires: str  # a date
    state: str  # used, unused, expired
    violations: int = 0


@dataclass(slots=True)
class Minute:
    """The books of one bin of time, all tenants together."""

    at_us: int
    stages: dict[str, int]


@dataclass(slots=True)
class Histogram:
    """Durations in half octaves of a millisecond (`bucket_start_ms`)."""

    buckets: dict[int, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Return how many durations were counted."""
        return sum(self.buckets.values())

    def quantile_ms(self, share: float) -> float | None:
        """Return the `share` (0..1) quantile of the durations, accurate to half an octave.

        Within its bucket the value is interpolated on the logarithmic scale.
        """
        total = self.total
        if not total:
            return None
        wanted = share * total
        passed = 0
        for bucket in sorted(self.buckets):
            count = self.buckets[bucket]
            if count and passed + count >= wanted:
                inside = min(1.0, max(0.0, (wanted - passed) / count))
                return bucket_start_ms(bucket) * float(2.0 ** (inside / 2))
            passed += count
        return bucket_start_ms(max(self.buckets) + 1)


@dataclass(slots=True)
class Backlog:
    """The number of messages one session was owed, bin by bin."""

    tenant: str
    client_id: str
    points: list[tuple[int, int]]  # (time, messages owed and not done)
    growth: int  # last minus first

    @property
    def worst(self) -> int:
        """Return the most it was owed at any time."""
        return max((owed for _, owed in self.points), default=0)


@dataclass(slots=True)
class Talker:
    """The traffic of one publisher."""

    tenant: str
    client_id: str
    messages: int
    total_bytes: int
    deliveries: int | None  # first sendings to sessions; None: the history does not say

    @property
    def fan_out(self) -> float | None:
        """Return the deliveries per message."""
        if self.deliveries is None or not self.messages:
            return None
        return self.deliveries / self.messages


@dataclass(slots=True)
class Slow:
    """A session that is slow to acknowledge."""

    tenant: str
    client_id: str
    latency: Histogram


@dataclass(slots=True)
class Churn:
    """How often one client connected, lost its connection or took over its own."""

    tenant: str
    client_id: str
    connects: int
    takeovers: int
    lost: int  # connections that ended without DISCONNECT


@dataclass(slots=True)
class Drop:
    """Dropped deliveries with the same reason."""

    reason: str
    count: int


@dataclass(slots=True)
class Bill:
    """The usage of one tenant."""

    tenant: str
    accepted: int
    total_bytes: int
    delivered: int
    dropped: int
    byte_hours: float
    hours: list[tuple[int, float]] = field(default_factory=list)  # (hour, byte-hours)


@dataclass(slots=True)
class Finding:
    """Unusual behaviour that no invariant forbids."""

    kind: str
    at_us: int | None
    tenant: str
    subject: str  # a client, a topic or ""
    reason: str  # one sentence with the numbers
    score: float  # larger = more unusual; orders the list


@dataclass(slots=True)
class Picture:
    """Everything the report shows."""

    title: str  # the history's folder, or a title given by the operator
    outcome: Outcome
    checks: list[Check]
    made_us: int
    from_us: int | None = None
    to_us: int | None = None
    events: int = 0
    segments: int = 0
    seconds: float | None = None
    details: list[str] = field(default_factory=list)  # levels of detail found
    batches: int = 1
    boots: list[Boot] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    coverage: list[Covered] = field(default_factory=list)
    traces: list[Traced] = field(default_factory=list)
    bin_s: int = 60
    minutes: list[Minute] = field(default_factory=list)
    owed: list[Minute] = field(default_factory=list)  # stages: owed, delivered, dropped, expired
    latency: Histogram = field(default_factory=Histogram)
    offline: Histogram = field(default_factory=Histogram)
    ages: Histogram = field(default_factory=Histogram)
    slow: list[Slow] = field(default_factory=list)
    backlogs: list[Backlog] = field(default_factory=list)
    talkers: list[Talker] = field(default_factory=list)
    churn: list[Churn] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    expired: int = 0
    expired_bytes: int = 0
    retained: list[tuple[int, int, int]] = field(default_factory=list)  # (time, topics, bytes)
    bills: list[Bill] = field(default_factory=list)
    clients: int = 0  # distinct clients that connected
    findings: list[Finding] = field(default_factory=list)
    stories: list[Story] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)  # the newest is the last
    suppressions: list[Suppression] = field(default_factory=list)

    def records(self, levels: Collection[str] = MESSAGE_LEVELS) -> Recorded:
        """Return for how much of the history the level of detail was one of `levels`."""
        found = [detail.partition(":")[0] in levels for detail in self.details]
        return "all" if all(found) else "some" if any(found) else "none"

    def restarts(self) -> list[Boot]:
        """Return the boots followed by another boot of the same broker."""
        last = {boot.node: boot.boot for boot in sorted(self.boots, key=lambda boot: boot.boot)}
        return [boot for boot in self.boots if boot.boot != last[boot.node]]

    def check(self, name: str) -> Check | None:
        """Return the invariant with this id, if it was checked."""
        return next((check for check in self.checks if check.id == name), None)
