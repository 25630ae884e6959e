"""Measure how cost grows with sessions, subscriptions, backlog, payload size and fan-out.

    python bench/run.py --curves

writes bench/results/NAME-curves.json; `--document` makes the plots of docs/performance.md from it.
One run per point, as only the shape of a curve matters. Points whose runs lost, repeated or
reordered messages are not plotted. Read next: `bench.scenarios`, `bench.plot`.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from bench.brokers import COMPILED, HOLDFAST, MOSQUITTO, Running
from bench.generator import Line, trouble
from bench.scenarios import Context, Metrics, fill, restarted, shares, wildcard_steps

Point = dict[str, Any]  # curve, broker, x, metrics, ok, trouble: as `bench.run` writes it
Found = Iterator[tuple[float, Metrics, list[Line]]]

MIB: Final = 1 << 20


class Curve:
    """One curve: the parameter that varies, and the plots of its results."""

    def __init__(
        self,
        key: str,
        across: str,
        measure: Callable[[Context, str], Found],
        plots: tuple[tuple[str, str, str], ...],
        *,
        kinds: tuple[str, ...] = (MOSQUITTO, COMPILED),
    ) -> None:
        """Keep the arguments; `plots` are (metric, title, name of the vertical axis)."""
        self.key = key
        self.across = across
        self.measure = measure
        self.plots = plots
        self.kinds = kinds


def sessions(context: Context, kind: str) -> Found:
    """Restart on a growing number of offline sessions with one subscription each."""
    for count in (1000, 10_000, 100_000, 1_000_000):
        if count > context.sessions:
            break
        directory, _ = fill(context, count)
        try:
            metrics, lines = restarted(context, kind, directory, count)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        yield count, metrics, lines


def subscriptions(context: Context, kind: str) -> Found:
    """Publish to one of a growing number of live wildcard subscriptions."""
    with context.broker(kind) as broker:
        line = wildcard_steps(context, broker, "100,1000,10000,100000")
    for step in line["steps"]:
        yield step["subs"], {"us": step["us_per_msg"]}, [line]


def backlog(context: Context, kind: str) -> Found:
    """Queue a growing number of messages for 100 offline sessions, and drain them."""
    for depth in (10, 100, 1000, 5000):
        with context.broker(kind) as broker:
            line = context.generator.run(
                "offline",
                broker,
                sessions=100,
                messages=depth,
                pubs=20,
                payload=256,
                phase="create,publish,drain",
                idle=20,
            )
        yield (
            depth,
            {
                "rate": line["publish"]["acked_per_s"],
                "drain": line["drain"]["drain_per_s"],
                "us": line["drain"]["us_per_msg"],
            },
            [line],
        )


def payload(context: Context, kind: str) -> Found:
    """Exchange messages of growing size at QoS 1 between 20 pairs."""
    for size in (64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576):
        with context.broker(kind) as broker:
            window = 20 if size <= 65_536 else 4
            line = _pubsub(
                context, broker, pubs=20, subs=20, payload=size, window=window, e2e=window * 2
            )
        metrics = _of(line)
        metrics["mib_per_s"] = metrics["rate"] * size / MIB
        yield size, metrics, [line]


def fanout(context: Context, kind: str) -> Found:
    """Deliver one publisher's QoS 1 messages to a growing number of subscribers."""
    for count in (1, 10, 100, 1000):
        with context.broker(kind) as broker:
            line = _pubsub(context, broker, pattern="fanout", subs=count, window=100, e2e=100)
        yield count, _of(line), [line]


def _pubsub(context: Context, broker: Running, **options: object) -> Line:
    return context.generator.run(
        "pubsub",
        broker,
        qos=1,
        seconds=context.seconds,
        warmup=context.warmup,
        persistent=int(broker.is_durable),
        idle=10,
        **options,
    )


def _of(line: Line) -> Metrics:
    return {
        "rate": line["delivered_per_s"],
        "us": line["broker"].get("us_per_delivered", 0.0),
        **shares(line, line["secs"]),
    }


CURVES: Final = (
    Curve(
        "sessions",
        "offline sessions with a subscription each",
        sessions,
        (
            ("ready_s", "Restart to the first CONNACK", "seconds"),
            ("rss_mib", "Memory after a restart", "RSS, MiB"),
            ("connect_ms", "Connecting one of the sessions, p99", "milliseconds"),
        ),
        kinds=(HOLDFAST, COMPILED),
    ),
    Curve(
        "subscriptions",
        "live subscriptions with + or #",
        subscriptions,
        (("us", "Routing one message to one subscription", "broker CPU, µs a message"),),
    ),
    Curve(
        "backlog",
        "messages queued for each of 100 offline sessions",
        backlog,
        (
            ("rate", "Publishing to offline sessions, QoS 1", "acknowledged a second"),
            ("drain", "Draining them on reconnect", "messages a second"),
        ),
    ),
    Curve(
        "payload",
        "bytes of payload",
        payload,
        (
            ("rate", "QoS 1, 20 pairs, by size", "messages a second"),
            ("mib_per_s", "QoS 1, 20 pairs, by size", "MiB a second"),
        ),
    ),
    Curve(
        "fanout",
        "subscribers, QoS 1",
        fanout,
        (
            ("rate", "One publisher to many", "deliveries a second"),
            ("us", "What a delivery costs", "broker CPU, µs a delivery"),
        ),
    ),
)
BY_KEY: Final = {curve.key: curve for curve in CURVES}


def measure(
    context: Context, kinds: list[str], keys: list[str], say: Callable[[str], None]
) -> list[Point]:
    """Measure the curves on these brokers and return a point per run."""
    points: list[Point] = []
    for key in keys:
        curve = BY_KEY[key]
        for kind in (name for name in curve.kinds if name in kinds):
            for x, metrics, lines in curve.measure(context, kind):
                problem = "; ".join(filter(None, map(trouble, lines)))
                points.append(
                    {
                        "curve": key,
                        "broker": kind,
                        "x": x,
                        "metrics": metrics,
                        "ok": not problem,
                        "trouble": problem,
                    }
                )
                shown = ", ".join(f"{name} {value:,.4g}" for name, value in metrics.items())
                say(f"{key} {x:>9,} {kind:<17} {shown}" + (f"  NOT OK: {problem}" * bool(problem)))
    return points


def series(points: list[Point], key: str, metric: str) -> Mapping[str, list[tuple[float, float]]]:
    """Return the points of one plot by broker, without failed runs."""
    found: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        if point["curve"] == key and point["ok"] and point["metrics"].get(metric, 0) > 0:
            found.setdefault(point["broker"], []).append((point["x"], point["metrics"][metric]))
    return found
