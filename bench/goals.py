"""The works of the benchmark, their goals, and how they are judged.

Pure functions. If the broker that a goal compares with was not measured, a published figure is used
and named, or the goal is not judged.
Read next: `bench.table` (how results are shown), `bench.scenarios` (how they are measured).
"""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bench.brokers import COMPILED, FLASHMQ, MOSQUITTO, OURS, SQLITE

BUSY: Final = 0.9  # of a core: this side is the limit
OTHERS_NOTED: Final = 0.2  # of a core taken by other processes: the rate is unreliable
FULL: Final = 0.95  # of all cores together: the machine is the limit

Cell = dict[str, Any]  # one work, broker and round, as `bench.run` writes it
MET: Final = "met"
MISSED: Final = "missed"
UNKNOWN: Final = "not judged"


class Goal:
    """A limit for one metric, or for its ratio to another broker's."""

    __slots__ = ("bound", "is_floor", "kinds", "metric", "or_generator", "over", "unit")

    def __init__(
        self,
        metric: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        over: str | None = None,
        unit: str = "",
        or_generator: bool = False,
        kinds: tuple[str, ...] = OURS,
    ) -> None:
        """Keep the arguments; `or_generator`: also met when the generator was the limit."""
        assert (at_least is None) != (at_most is None)
        self.metric = metric
        self.is_floor = at_least is not None
        self.bound: float = at_least if at_least is not None else at_most or 0.0
        self.over = over
        self.unit = unit
        self.or_generator = or_generator
        self.kinds = kinds  # the brokers it applies to

    def text(self) -> str:
        """Return the goal in words."""
        sign = "≥" if self.is_floor else "≤"
        name = NAMES[self.metric]
        if self.over is None:
            return f"{name} {sign} {self.bound:,g} {self.unit}".rstrip()
        words = f"{name} {sign} {_ratio(self.bound)} {self.over}"
        return words + (", or the generator is the limit" if self.or_generator else "")


class Work:
    """One row of the comparison."""

    __slots__ = ("extras", "goals", "key", "main", "title")

    def __init__(
        self,
        key: str,
        title: str,
        *goals: Goal,
        main: str = "rate",
        extras: tuple[str, ...] = (),
    ) -> None:
        self.key = key
        self.title = title
        self.goals = goals
        self.main = main  # the metric of the row
        self.extras = extras  # further metrics, written into the last column


class Entry:
    """One work on one broker: the medians of its rounds."""

    __slots__ = ("high", "is_ok", "low", "metrics", "rates", "rounds", "trouble")

    def __init__(self, cells: list[Cell], main: str) -> None:
        names = {name for cell in cells for name in cell["metrics"]}
        self.metrics: dict[str, float] = {
            name: statistics.median(
                cell["metrics"][name] for cell in cells if name in cell["metrics"]
            )
            for name in sorted(names)
        }
        values = [cell["metrics"][main] for cell in cells if main in cell["metrics"]]
        self.low = min(values, default=0.0)
        self.high = max(values, default=0.0)
        # The lowest and the highest rate, whatever the main metric is.
        rates = [cell["metrics"]["rate"] for cell in cells if "rate" in cell["metrics"]]
        self.rates = (min(rates, default=0.0), max(rates, default=0.0))
        self.rounds = len(cells)
        self.is_ok = all(cell["ok"] for cell in cells)
        self.trouble = "; ".join(sorted({cell["trouble"] for cell in cells if cell["trouble"]}))


class Judgement:
    """Whether a goal was met, the value that decided it, and a remark."""

    __slots__ = ("note", "text", "verdict")

    def __init__(self, verdict: str, text: str, note: str = "") -> None:
        self.verdict = verdict
        self.text = text
        self.note = note


# The name and format of each metric.
NAMES: Final = {
    "rate": "throughput",
    "us": "CPU per message",
    "peers_us": "CPU of other nodes",
    "log_us": "CPU of Kafka",
    "growth_mib": "RSS growth",
    "kib_per_connection": "RSS per connection",
    "ready_s": "restart to ready",
    "rss_mib": "RSS",
    "connect_ms": "connect p99",
    "cost_ratio": "match cost, 100,000 over 100",
    "copies": "bodies on disk",
    "over_sync_ms": "delivery p99 beyond one fsync",
    "p50_ms": "delivery p50",
    "p99_ms": "delivery p99",
    "ack_ms": "ack p99",
    "ack50_ms": "ack p50",
    "ack_over_sync_ms": "ack p50 beyond one fsync",
    "sync_ms": "fsync p50",
    "written": "bytes written per byte published",
    "queued_mib": "queued",
    "drain": "drained",
    "lost": "**lost**, as QoS 0 may",
    "fill_per_s": "sessions made per second",
    "books_kept": "throughput with books over that without history",
    "full_kept": "throughput at full detail over that without history",
    "books_cpu": "CPU per message with books",
    "full_cpu": "CPU per message at full detail",
    "spread": "without history, again",
}
UNITS: Final = {
    "rate": ("{:,.0f}", "/s"),
    "us": ("{:.2f}", " µs"),
    "peers_us": ("{:.2f}", " µs"),
    "log_us": ("{:.2f}", " µs"),
    "growth_mib": ("{:,.0f}", " MiB"),
    "kib_per_connection": ("{:.1f}", " KiB"),
    "ready_s": ("{:.2f}", " s"),
    "rss_mib": ("{:,.0f}", " MiB"),
    "connect_ms": ("{:.2f}", " ms"),
    "cost_ratio": ("{:.2f}", ""),
    "copies": ("{:.2f}", ""),
    "over_sync_ms": ("{:.2f}", " ms"),
    "p50_ms": ("{:.2f}", " ms"),
    "p99_ms": ("{:.2f}", " ms"),
    "ack_ms": ("{:.1f}", " ms"),
    "ack50_ms": ("{:.2f}", " ms"),
    "ack_over_sync_ms": ("{:.2f}", " ms"),
    "sync_ms": ("{:.2f}", " ms"),
    "written": ("{:.1f}", ""),
    "queued_mib": ("{:,.0f}", " MiB"),
    "drain": ("{:,.0f}", "/s"),
    "lost": ("{:.2%}", ""),
    "fill_per_s": ("{:,.0f}", "/s"),
    "books_kept": ("{:.2f}", "x"),
    "full_kept": ("{:.2f}", "x"),
    "books_cpu": ("{:.2f}", "x"),
    "full_cpu": ("{:.2f}", "x"),
    "spread": ("{:.2f}", "x"),
}

MB: Final = 1e6 / (1 << 20)  # goals are in MB, metrics in MiB

# Users' traffic first, then batches.
WORKS: Final = (
    Work(
        "devices5000x1",
        "5,000 devices, a message a second each, QoS 1, durable",
        Goal("us", at_most=50, unit="µs"),
        Goal("us", at_most=1, over=SQLITE),
        Goal("p50_ms", at_most=2, unit="ms"),
        Goal("p99_ms", at_most=6, unit="ms"),
        main="us",
        extras=("p50_ms", "p99_ms", "ack_ms"),
    ),
    Work(
        "devices5000x4",
        "5,000 devices, four messages a second each, QoS 1, durable",
        main="us",
        extras=("p50_ms", "p99_ms", "ack_ms"),
    ),
    Work(
        "devices1000x1",
        "1,000 devices, a message a second each, QoS 1, durable",
        Goal("us", at_most=100, unit="µs"),
        main="us",
        extras=("p50_ms", "p99_ms", "ack_ms"),
    ),
    Work(
        "turn1",
        "QoS 1, 1:1, 100 pairs, one in flight each, durable",
        Goal("rate", at_least=1, over=MOSQUITTO),
        extras=("p50_ms", "ack_ms"),
    ),
    Work(
        "turn2",
        "QoS 2, 1:1, 100 pairs, one in flight each, durable",
        Goal("rate", at_least=1, over=MOSQUITTO),
        extras=("p50_ms", "ack_ms"),
    ),
    Work(
        "fanin_turn",
        "fan-in 1,000:1, QoS 1, one in flight each, durable",
        Goal("rate", at_least=1.5, over=MOSQUITTO),
        extras=("ack_ms",),
    ),
    Work(
        "lone",
        "one publisher, one in flight, to an offline durable session",
        Goal("ack_over_sync_ms", at_most=0.1, unit="ms"),
        main="ack50_ms",
        extras=("ack_over_sync_ms", "sync_ms", "rate"),
    ),
    Work(
        "drain_window1",
        "drain of one backlog at Receive Maximum 1",
        Goal("rate", at_least=3_000, unit="/s"),
    ),
    Work(
        "live_window1",
        "QoS 1, 1:1, one pair, Receive Maximum 1",
        Goal("rate", at_least=3_000, unit="/s"),
    ),
    Work(
        "drain_window10",
        "drain of one backlog at Receive Maximum 10",
        Goal("rate", at_least=20_000, unit="/s"),
    ),
    Work(
        "live_window10",
        "QoS 1, 1:1, one pair, Receive Maximum 10",
        Goal("rate", at_least=20_000, unit="/s"),
    ),
    Work(
        "qos0",
        "QoS 0, 1:1, 100 pairs",
        Goal("rate", at_least=10, over=MOSQUITTO, or_generator=True),
        Goal("us", at_most=1 / 5, over=MOSQUITTO),
    ),
    Work(
        "deep1",
        "QoS 1, 1:1, 100 pairs, 100 in flight each, durable",
        Goal("rate", at_least=0.75, over=FLASHMQ, kinds=(COMPILED,)),
        extras=("ack_ms",),
    ),
    Work(
        "deep2",
        "QoS 2, 1:1, 100 pairs, 100 in flight each, durable",
        Goal("rate", at_least=0.4, over=FLASHMQ, kinds=(COMPILED,)),
        extras=("ack_ms",),
    ),
    Work(
        "qos1",
        "QoS 1, 1:1, 100 pairs, 20 in flight each, durable",
        Goal("rate", at_least=5, over=MOSQUITTO),
        Goal("us", at_most=1 / 3, over=MOSQUITTO),
        Goal("rate", at_least=0.5, over=FLASHMQ, kinds=(COMPILED,)),
        extras=("ack_ms",),
    ),
    Work(
        "history",
        "QoS 1, 1:1, 100 pairs, 20 in flight each, with the session history",
        Goal("books_kept", at_least=0.9),
        Goal("full_kept", at_least=0.65),
        main="books_kept",
        extras=("full_kept", "books_cpu", "full_cpu", "spread"),
    ),
    Work(
        "offline",
        "QoS 1 to one offline durable session, 1,000 in flight",
        Goal("rate", at_least=10, over=SQLITE),
        extras=("ack_ms",),
    ),
    Work(
        "qos2",
        "QoS 2, 1:1, 100 pairs, 20 in flight each, durable",
        Goal("rate", at_least=3, over=MOSQUITTO),
        extras=("ack_ms",),
    ),
    Work("fanout0", "fan-out 1:1,000, QoS 0", Goal("rate", at_least=5, over=MOSQUITTO)),
    Work(
        "fanout1",
        "fan-out 1:1,000, QoS 1, durable",
        Goal("rate", at_least=3, over=MOSQUITTO),
    ),
    Work(
        "bodies",
        "bodies on disk, 64 KiB to 1,000 durable sessions",
        Goal("copies", at_most=1),
        main="copies",
        extras=("written",),
    ),
    Work(
        "fanin",
        "fan-in 1,000:1, QoS 1, 20 in flight each, durable, `max_inflight = 65535`",
        Goal("rate", at_least=5, over=MOSQUITTO),
    ),
    Work(
        "fanin_default",
        "fan-in 1,000:1, QoS 1, 20 in flight each, durable",
        Goal("rate", at_least=0.75, over=FLASHMQ, kinds=(COMPILED,)),
    ),
    Work(
        "publish",
        "publish to 10,000 offline sessions",
        Goal("rate", at_least=50_000, unit="acks/s"),
        extras=("ack_ms",),
    ),
    Work(
        "drain",
        "drain of 10,000 queues on reconnect",
        Goal("rate", at_least=100_000, unit="msg/s"),
    ),
    Work(
        "queued",
        "1 GB queued for 10,000 offline sessions",
        Goal("growth_mib", at_most=round(50 * MB, 1), unit="MiB"),
        main="growth_mib",
        extras=("queued_mib", "rate", "drain"),
    ),
    Work(
        "storm",
        "connection storm, persistent sessions",
        Goal("rate", at_least=5_000, unit="CONNACK/s"),
        Goal("kib_per_connection", at_most=10, unit="KiB"),
        extras=("kib_per_connection", "connect_ms"),
    ),
    Work(
        "sessions",
        "1,000,000 offline sessions, a subscription each",
        Goal("ready_s", at_most=10, unit="s"),
        Goal("rss_mib", at_most=round(400 * MB, 1), unit="MiB"),
        Goal("connect_ms", at_most=20, unit="ms"),
        main="ready_s",
        extras=("rss_mib", "connect_ms", "fill_per_s"),
    ),
    Work(
        "wildcards",
        "100,000 live wildcard subscriptions",
        Goal("cost_ratio", at_most=2),
        extras=("cost_ratio",),
    ),
    Work(
        "latency",
        "latency at 20 % of peak, QoS 1, durable",
        Goal("over_sync_ms", at_most=3, unit="ms"),
        main="p99_ms",
        extras=("p50_ms", "over_sync_ms", "sync_ms", "ack_ms", "rate"),
    ),
)
BY_KEY: Final = {work.key: work for work in WORKS}

Entries = dict[str, dict[str, Entry]]  # work -> broker -> medians


def entries(cells: Iterable[Cell]) -> Entries:
    """Return the medians of every work on every broker."""
    sorted_out: dict[str, dict[str, list[Cell]]] = {}
    for cell in cells:
        sorted_out.setdefault(cell["work"], {}).setdefault(cell["broker"], []).append(cell)
    return {
        key: {kind: Entry(found, BY_KEY[key].main) for kind, found in kinds.items()}
        for key, kinds in sorted_out.items()
        if key in BY_KEY
    }


def written(metric: str, value: float) -> str:
    """Return a value with its unit."""
    form, unit = UNITS[metric]
    return form.format(value) + unit


def limit(metrics: Mapping[str, float], cores: int) -> str:
    """Return what limited a rate: the side that had no CPU left, or neither.

    `broker` is its busiest thread's share of a core, `broker_total` that of all its threads.
    """
    if "generator" not in metrics or "broker" not in metrics:
        return "-"
    sides = [side for side in ("broker", "generator") if metrics[side] >= BUSY]
    if sides:
        return " and ".join(sides)
    used = metrics["broker_total"] + metrics["generator"]
    others = metrics.get("others", 0.0)
    if used + others >= cores * FULL:
        return "other processes" if others >= OTHERS_NOTED else "all cores"
    return "waiting"


def ratio(entry: Entry, other: Entry, metric: str) -> float | None:
    """Return the ratio of `entry` to `other`, None if either lacks the metric or has 0."""
    mine, theirs = entry.metrics.get(metric), other.metrics.get(metric)
    if mine is None or not theirs:
        return None
    return mine / theirs


def judge(goal: Goal, work: str, found: Mapping[str, Entry], kind: str, cores: int) -> Judgement:
    """Judge whether a broker has met a goal of a work."""
    entry = found.get(kind)
    if kind not in goal.kinds:
        return Judgement(UNKNOWN, "-", "not asked of it")
    if entry is None or goal.metric not in entry.metrics:
        return Judgement(UNKNOWN, "-", "not measured")
    value, note = entry.metrics[goal.metric], ""
    text = written(goal.metric, value)
    if goal.over is not None:
        other = found.get(goal.over)
        against = other.metrics.get(goal.metric) if other else None
        if not against:
            return Judgement(UNKNOWN, text, f"{goal.over} was not measured")
        value /= against
        text = _ratio(value)
    is_met = value >= goal.bound if goal.is_floor else value <= goal.bound
    if not is_met and goal.or_generator and limit(entry.metrics, cores) == "generator":
        is_met, note = True, "the generator is the limit"
    if not entry.is_ok:
        is_met, note = False, f"NOT OK: {entry.trouble}"
    return Judgement(MET if is_met else MISSED, text, note)


def _ratio(value: float) -> str:
    if value < 1:
        return f"{value:.2f}x"
    return f"{value:,.1f}x" if value < 10 else f"{value:,.0f}x"
