"""The scenarios of the benchmark: each function returns the metrics of one or more works.

Every scenario starts a fresh broker and runs the generator, which counts every message.
`Outcome.ok` is false if one was lost, repeated (QoS 2) or out of order. `bench.goals` judges the
metrics. Read next: `bench.generator`, mqttload.md.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from bench.brokers import (
    CLUSTERS,
    COMPILED,
    EMQX,
    FLASHMQ,
    HOLDFAST,
    MOSQUITTO,
    NANOMQ,
    OURS,
    ROOT,
    SINK,
    SQLITE,
    BenchError,
    Broker,
    Running,
    is_compiled,
    python,
    tree_of,
)
from bench.clusters import FOLLOWERS, PEERS, SERVERS, Cluster, KafkaServers
from bench.generator import (
    Generator,
    Line,
    payload_mark,
    sync_times_ms,
    trouble,
    write_state,
)

Metrics = dict[str, float]

LIVE: Final = (MOSQUITTO, FLASHMQ, NANOMQ, EMQX, *OURS, *CLUSTERS)
STORED: Final = (MOSQUITTO, SQLITE, FLASHMQ, NANOMQ, EMQX, *OURS, *CLUSTERS)
PAIRS: Final = 100
FAN: Final = 1000
CONSUMERS: Final = 5
AWAY: Final = 10_000
MIB: Final = 1 << 20
DETAILS: Final = ("off", "books", "full")  # levels of the history
FILL_PREFIX: Final = "fill"
FILL_RUN: Final = 1
BODIES_RUN: Final = 777_000_777
CHECKED: Final = 1000  # restarted sessions that are published to and drained


class Context:
    """What the scenarios of one run share: generator, duration, disk, and peak rates."""

    def __init__(
        self,
        generator: Generator,
        *,
        seconds: float,
        is_quick: bool,
        sessions: int,
        durability: str = "fsync",
        disk: Path | None = None,
    ) -> None:
        """Keep the arguments; `disk` is a directory on the disk to measure (default: temporary)."""
        self.generator = generator
        self.seconds = seconds
        self.warmup = 0.5 if is_quick else 1.0
        self.is_quick = is_quick
        self.sessions = sessions
        self.durability = durability
        self.disk = disk
        self.peaks: dict[str, float] = {}  # QoS 1 pairs, messages/s, by broker
        self.filled: Path | None = None
        self.fill_per_s = 0.0
        self.kafka = KafkaServers(disk)

    def broker(
        self,
        kind: str,
        *,
        data: Path | None = None,
        configuration: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Running:
        """Start a broker on an empty directory, or on `data`.

        `configuration` is for mosquitto, `environment` for Holdfast.
        """
        if kind in CLUSTERS:
            return Cluster(kind, self.kafka, directory=self.disk, environment=environment)
        return Broker(
            kind,
            sink=self.generator.sink,
            durability=self.durability,
            directory=self.disk,
            data=data,
            configuration=configuration,
            environment=environment,
        )

    def scaled(self, full: int, quick: int) -> int:
        """Return `full` or `quick`, depending on the size of the run."""
        return quick if self.is_quick else full

    def close(self) -> None:
        """Remove the filled directory, and end the Kafka servers."""
        self.kafka.close()
        if self.filled is not None:
            shutil.rmtree(self.filled, ignore_errors=True)
            self.filled = None


class Outcome:
    """The metrics of one broker in a scenario, and what went wrong."""

    def __init__(self, works: dict[str, Metrics], lines: Iterable[Line]) -> None:
        self.works = works
        self.trouble = "; ".join(filter(None, (trouble(line) for line in lines)))

    @property
    def ok(self) -> bool:
        """Return whether nothing was lost, repeated, out of order or refused."""
        return not self.trouble


class Scenario:
    """A function that measures one broker, and the brokers it applies to."""

    def __init__(
        self,
        key: str,
        measure: Callable[[Context, str], Outcome],
        *,
        works: tuple[str, ...],
        kinds: tuple[str, ...] = LIVE,
        rounds_max: int = 5,
    ) -> None:
        self.key = key
        self.measure = measure
        self.works = works
        self.kinds = kinds
        self.rounds_max = rounds_max  # of a full run; long scenarios have fewer


def shares(line: Line, seconds: float) -> Metrics:
    """Return the share of a core that each side used over `seconds`."""
    part = line.get("broker", line)
    used_s = part["cpu_s"] + sum(part.get("beside_s", {}).values())
    return {
        "broker": part["busiest_s"] / max(seconds, 1e-9),
        "broker_total": used_s / max(seconds, 1e-9),
        "generator": line["gen_cpu_s"] / max(seconds, 1e-9),
        "others": part["others_s"] / max(seconds, 1e-9),
    }


# What the CPU time of the other processes of a cluster is called, for each message.
BESIDE: Final = {FOLLOWERS: "peers_us", PEERS: "peers_us", SERVERS: "log_us"}


def _beside(part: Line, messages: int) -> Metrics:
    found = part.get("beside_s", {})
    return {BESIDE[name]: used * 1e6 / max(messages, 1) for name, used in found.items()}


def _live(line: Line) -> Metrics:
    """Return the metrics of a `pubsub` run."""
    metrics = {
        "rate": line["delivered_per_s"],
        "us": line["broker"].get("us_per_delivered", 0.0),
        "rss_mib": line["broker"]["hwm_kb"] / 1024,
        "p50_ms": line["lat_us"]["p50"] / 1000,
        "p99_ms": line["lat_us"]["p99"] / 1000,
        **shares(line, line["secs"]),
        **_beside(line["broker"], line["delivered"]),
    }
    if "ack_us" in line:
        metrics["ack50_ms"] = line["ack_us"]["p50"] / 1000
        metrics["ack_ms"] = line["ack_us"]["p99"] / 1000
    if line["lost"]:  # allowed at QoS 0, and reported
        metrics["lost"] = line["lost"] / line["expected"]
    return metrics


def _pubsub(context: Context, broker: Running, **options: object) -> Line:
    settings: dict[str, object] = {
        "seconds": context.seconds,
        "warmup": context.warmup,
        "persistent": int(broker.is_durable),
        "idle": 10,
        **options,
    }
    return context.generator.run("pubsub", broker, **settings)


def pairs(qos: int) -> Callable[[Context, str], Outcome]:
    """Return the scenario of 100 publishers with one subscriber each, durable on Holdfast."""

    def measure(context: Context, kind: str) -> Outcome:
        with context.broker(kind) as broker:
            line = _pubsub(context, broker, pattern="pair", pubs=PAIRS, subs=PAIRS, qos=qos)
        metrics = _live(line)
        if qos == 1:
            context.peaks[kind] = max(metrics["rate"], context.peaks.get(kind, 0.0))
        return Outcome({f"qos{qos}": metrics}, [line])

    return measure


def deep(qos: int) -> Callable[[Context, str], Outcome]:
    """Return the scenario of 100 pairs with 100 messages in flight each."""

    def measure(context: Context, kind: str) -> Outcome:
        with context.broker(kind) as broker:
            line = _pubsub(context, broker, pubs=PAIRS, subs=PAIRS, qos=qos, window=100)
        return Outcome({f"deep{qos}": _live(line)}, [line])

    return measure


def lone(context: Context, kind: str) -> Outcome:
    """Let one publisher with one message in flight write to an offline session."""
    with context.broker(kind) as broker:
        syncs = sync_times_ms(broker.directory)
        line = context.generator.run(
            "offline",
            broker,
            sessions=1,
            messages=context.scaled(6_000, 2_000),
            window=1,
            coalesce=0,
            idle=20,
        )
    sync_ms = syncs[len(syncs) // 2]
    metrics = _phase(line, "publish", "acked_per_s")
    ack_ms = line["publish"]["ack_us"]["p50"] / 1000
    metrics |= {"ack50_ms": ack_ms, "sync_ms": sync_ms, "ack_over_sync_ms": ack_ms - sync_ms}
    return Outcome({"lone": metrics}, [line])


def devices(count: int, rate: int) -> Callable[[Context, str], Outcome]:
    """Return the scenario of many devices that publish now and then to five durable consumers."""

    def measure(context: Context, kind: str) -> Outcome:
        with context.broker(kind) as broker:
            line = _pubsub(
                context,
                broker,
                pattern="split",
                pubs=count,
                subs=CONSUMERS,
                qos=1,
                window=1,
                rate=rate,
                phase="random",
                src_addrs=5,
            )
        return Outcome({f"devices{count}x{rate}": _live(line)}, [line])

    return measure


def in_turn(qos: int) -> Callable[[Context, str], Outcome]:
    """Return the scenario of 100 pairs with one message in flight each."""

    def measure(context: Context, kind: str) -> Outcome:
        with context.broker(kind) as broker:
            line = _pubsub(context, broker, pubs=PAIRS, subs=PAIRS, qos=qos, window=1, coalesce=0)
        return Outcome({f"turn{qos}": _live(line)}, [line])

    return measure


def fanin_in_turn(context: Context, kind: str) -> Outcome:
    """Let 1,000 publishers with one message in flight each write to one subscriber."""
    with context.broker(kind) as broker:
        line = _pubsub(
            context,
            broker,
            pattern="fanin",
            pubs=FAN,
            subs=1,
            qos=1,
            window=1,
            e2e=1,
            coalesce=0,
        )
    return Outcome({"fanin_turn": _live(line)}, [line])


def small_window(size: int) -> Callable[[Context, str], Outcome]:
    """Return the scenario of one subscriber with a small Receive Maximum: its backlog, then live.

    Live it gets the messages of one publisher with 20 in flight.
    """

    def measure(context: Context, kind: str) -> Outcome:
        with context.broker(kind) as broker:
            queue = context.generator.run(
                "offline",
                broker,
                v=5,
                recv_max=size,
                sessions=1,
                messages=context.scaled(20_000 * min(size, 5), 4000),
                window=1000,
                payload=256,
                idle=20,
            )
        with context.broker(kind) as broker:
            live = _pubsub(
                context,
                broker,
                v=5,
                recv_max=size,
                pattern="pair",
                pubs=1,
                subs=1,
                qos=1,
                window=20,
                e2e=20,
            )
        works = {
            f"drain_window{size}": _phase(queue, "drain", "drain_per_s"),
            f"live_window{size}": _live(live),
        }
        return Outcome(works, [queue, live])

    return measure


def history(context: Context, kind: str) -> Outcome:
    """Run the pairs at QoS 1 with each level of the history, one after the other.

    The first level runs again at the end; the two runs show how much the machine varies.
    """
    lines = []
    for detail in (*DETAILS, DETAILS[0]):
        with context.broker(kind, environment={"HOLDFAST__HISTORY__DETAIL": detail}) as broker:
            lines.append(_pubsub(context, broker, pattern="pair", pubs=PAIRS, subs=PAIRS, qos=1))
    runs = [_live(line) for line in lines]
    without = {name: (runs[0][name] + runs[-1][name]) / 2 for name in ("rate", "us")}
    metrics = {**runs[0], "spread": runs[-1]["rate"] / runs[0]["rate"]}
    for detail, run in zip(DETAILS[1:], runs[1:-1], strict=True):
        metrics[f"{detail}_kept"] = run["rate"] / without["rate"]
        metrics[f"{detail}_cpu"] = run["us"] / without["us"]
    return Outcome({"history": metrics}, lines)


def fanout(qos: int) -> Callable[[Context, str], Outcome]:
    """Return the scenario of one publisher and 1,000 subscribers, 100 messages ahead at most."""

    def measure(context: Context, kind: str) -> Outcome:
        with context.broker(kind) as broker:
            line = _pubsub(
                context, broker, pattern="fanout", subs=FAN, qos=qos, window=100, e2e=100
            )
        return Outcome({f"fanout{qos}": _live(line)}, [line])

    return measure


def bodies(context: Context, kind: str) -> Outcome:
    """Publish large messages to 1,000 durable subscribers and count the copies on disk.

    They are few enough to stay in the memtable: a flushed message is also in a table until the log
    is deleted, and would count twice.
    """
    messages, payload = 30, 65_536
    with context.broker(kind) as broker:
        line = context.generator.run(
            "pubsub",
            broker,
            pattern="fanout",
            subs=FAN,
            qos=1,
            persistent=1,
            payload=payload,
            messages=messages,
            e2e=5,
            run=BODIES_RUN,
            idle=10,
        )
        copies = sum(
            path.read_bytes().count(payload_mark(BODIES_RUN))
            for path in broker.data.rglob("*")
            if path.is_file()
        )
    metrics = {
        "copies": copies / line["sent"],
        "written": line["broker"]["write_mb"] * 1e6 / (line["sent"] * payload),
        "rate": line["delivered_per_s"],
        **shares(line, line["secs"]),
    }
    return Outcome({"bodies": metrics}, [line])


def fanin(work: str, **environment: str) -> Callable[[Context, str], Outcome]:
    """Return the scenario of 1,000 publishers and one subscriber, each 50 messages ahead at most.

    Holdfast's `environment` may have the receive window that suits such a subscriber; mosquitto is
    fastest with its default.
    """

    def measure(context: Context, kind: str) -> Outcome:
        with context.broker(kind, environment=environment) as broker:
            line = _pubsub(context, broker, pattern="fanin", pubs=FAN, subs=1, qos=1, e2e=50)
        return Outcome({work: _live(line)}, [line])

    return measure


def offline(context: Context, kind: str) -> Outcome:
    """Publish to one offline session with 1,000 messages in flight, then drain it."""
    messages = context.scaled(300_000, 40_000)
    if kind == FLASHMQ:
        messages = min(messages, 60_000)  # it keeps 65,535 for a session and drops the rest
    if kind == SQLITE:
        messages //= 5
    with context.broker(kind) as broker:
        line = context.generator.run(
            "offline", broker, sessions=1, messages=messages, window=1000, payload=256, idle=20
        )
    return Outcome({"offline": _phase(line, "publish", "acked_per_s")}, [line])


def _phase(line: Line, name: str, rate: str) -> Metrics:
    """Return the metrics of one phase of an `offline` run."""
    phase = line[name]
    metrics = {"rate": phase[rate], "us": phase["us_per_msg"], **shares(phase, phase["secs"])}
    metrics |= _beside(phase, phase["acked"] if "acked" in phase else phase["delivered"])
    if "ack_us" in phase:
        metrics["ack50_ms"] = phase["ack_us"]["p50"] / 1000
        metrics["ack_ms"] = phase["ack_us"]["p99"] / 1000
    return metrics


def away(context: Context, kind: str) -> Outcome:
    """Publish to 10,000 offline sessions with a topic each, then let them resume."""
    with context.broker(kind) as broker:
        line = context.generator.run(
            "offline",
            broker,
            sessions=context.scaled(AWAY, AWAY // 10),
            messages=50,
            pubs=50,
            payload=256,
            phase="create,publish,drain",
            concurrency=500,
            src_addrs=10,
            idle=20,
        )
    works = {
        "publish": _phase(line, "publish", "acked_per_s"),
        "drain": _phase(line, "drain", "drain_per_s"),
    }
    return Outcome(works, [line])


def queued(context: Context, kind: str) -> Outcome:
    """Queue 1 GB for 10,000 offline sessions, measure the memory, then drain the queues."""
    sessions, messages, payload = context.scaled(AWAY, AWAY // 10), 100, 1024
    with context.broker(kind) as broker:
        line = context.generator.run(
            "offline",
            broker,
            sessions=sessions,
            messages=messages,
            pubs=50,
            payload=payload,
            phase="create,publish,drain",
            concurrency=500,
            src_addrs=10,
            idle=30,
        )
    publish = line["publish"]
    metrics = {
        "growth_mib": (publish["rss_kb"] - publish["rss_before_kb"]) / 1024,
        "queued_mib": publish["acked"] * payload / MIB,
        "drain": line["drain"]["drain_per_s"],
        **_phase(line, "publish", "acked_per_s"),
    }
    return Outcome({"queued": metrics}, [line])


def storm(context: Context, kind: str) -> Outcome:
    """Connect 10,000 clients with persistent sessions at once and keep them idle."""
    with context.broker(kind) as broker:
        line = context.generator.run(
            "connect",
            broker,
            count=context.scaled(AWAY, AWAY // 4),
            clean=0,
            concurrency=1000,
            src_addrs=10,
            hold=1,
        )
    metrics = {
        "rate": line["connack_per_s"],
        "us": line["us_per_connect"],
        "kib_per_connection": line["rss_bytes_per_conn"] / 1024,
        "connect_ms": line["connack_us"]["p99"] / 1000,
        **shares(line, line["secs"]),
    }
    return Outcome({"storm": metrics}, [line])


def fill(context: Context, sessions: int) -> tuple[Path, float]:
    """Return a new database with this many offline sessions, and the sessions made per second."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=context.disk))
    kind = COMPILED if is_compiled() else HOLDFAST
    command = [python(), str(ROOT / "bench" / "fill.py"), str(directory / "data")]
    command += [f"--sessions={sessions}", f"--prefix={FILL_PREFIX}", f"--run={FILL_RUN}"]
    environment = {"PYTHONPATH": str(tree_of(kind))}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, env=environment)
        if ran.returncode:
            raise BenchError(f"fill.py failed: {ran.stderr.strip()}")
    except (BenchError, KeyboardInterrupt):
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return directory, float(ran.stdout)


def sessions(context: Context, kind: str) -> Outcome:
    """Restart on a million offline sessions, resume some, and check that they get everything."""
    if context.filled is None:
        context.filled, context.fill_per_s = fill(context, context.sessions)
    metrics, lines = restarted(context, kind, context.filled, context.sessions)
    metrics["fill_per_s"] = context.fill_per_s
    return Outcome({"sessions": metrics}, lines)


def restarted(
    context: Context, kind: str, directory: Path, count: int
) -> tuple[Metrics, list[Line]]:
    """Start a broker on a filled database; return its metrics and the generator's lines."""
    checked = min(CHECKED, count)
    state = directory / "state"
    write_state(state, run=FILL_RUN, prefix=FILL_PREFIX, sessions=checked, messages=1)
    with context.broker(kind, data=directory / "data") as broker:
        metrics: Metrics = {"ready_s": broker.ready_s, "rss_mib": broker.memory_mib()}
        connect = context.generator.run(
            "connect",
            broker,
            count=checked // 5,
            stride=count // (checked // 5),
            clean=0,
            concurrency=1,
            hold=0,
            coalesce=0,
            prefix=FILL_PREFIX,
        )
        drain = context.generator.run(
            "offline", broker, phase="publish,drain", state=state, pubs=10
        )
    if connect["session_present"] != connect["count"]:
        connect.update(ok=False, lost=connect["count"] - connect["session_present"])
    metrics["connect_ms"] = connect["connack_us"]["p99"] / 1000
    return metrics, [connect, drain]


def wildcards(context: Context, kind: str) -> Outcome:
    """Grow from 100 to 100,000 live `+` or `#` subscriptions; each publish matches one of them."""
    with context.broker(kind) as broker:
        line = wildcard_steps(context, broker, f"100,{context.scaled(100_000, 20_000)}")
    few, many = line["steps"]
    metrics = {
        "rate": many["delivered_per_s"],
        "us": many["us_per_msg"],
        "cost_ratio": many["us_per_msg"] / max(few["us_per_msg"], 1e-9),
        **shares(many | {"cpu_s": many["us_per_msg"] * many["sent"] / 1e6}, many["secs"]),
    }
    return Outcome({"wildcards": metrics}, [line])


def wildcard_steps(context: Context, broker: Running, steps: str) -> Line:
    """Run the generator's `subs` over the steps, on 100 clients."""
    return context.generator.run(
        "subs",
        broker,
        clients=PAIRS,
        steps=steps,
        wild="both",
        qos=0,
        e2e=1000,
        messages=context.scaled(400_000, 60_000),
        timeout=120,
    )


def latency(context: Context, kind: str) -> Outcome:
    """Measure the delivery time at a fifth of the peak rate, and the time of a sync."""
    if kind not in context.peaks:
        pairs(1)(context, kind)
    # Otherwise mosquitto leaves Nagle's algorithm on, whose delay would be measured.
    with context.broker(kind, configuration=("set_tcp_nodelay true",)) as broker:
        syncs = sync_times_ms(broker.directory)
        line = _pubsub(
            context,
            broker,
            pattern="pair",
            pubs=PAIRS,
            subs=PAIRS,
            qos=1,
            rate=round(context.peaks[kind] * 0.2 / PAIRS, 1),
        )
    sync_ms = syncs[len(syncs) // 2]
    metrics = _live(line)
    metrics |= {"sync_ms": sync_ms, "over_sync_ms": metrics["p99_ms"] - sync_ms}
    return Outcome({"latency": metrics}, [line])


ALL: Final = (
    Scenario("devices5000x1", devices(5000, 1), works=("devices5000x1",), kinds=(*STORED, SINK)),
    Scenario("devices5000x4", devices(5000, 4), works=("devices5000x4",), kinds=(*STORED, SINK)),
    Scenario("devices1000x1", devices(1000, 1), works=("devices1000x1",), kinds=(*STORED, SINK)),
    Scenario("turn1", in_turn(1), works=("turn1",), kinds=(*STORED, SINK)),
    Scenario("turn2", in_turn(2), works=("turn2",), kinds=(*STORED, SINK)),
    Scenario("fanin_turn", fanin_in_turn, works=("fanin_turn",), kinds=(*STORED, SINK)),
    Scenario("lone", lone, works=("lone",), kinds=STORED),
    *(
        Scenario(
            f"window{size}",
            small_window(size),
            works=(f"drain_window{size}", f"live_window{size}"),
            # FlashMQ drops what finds no room in a Receive Maximum.
            kinds=tuple(kind for kind in STORED if kind != FLASHMQ),
        )
        for size in (1, 10)
    ),
    Scenario("qos0", pairs(0), works=("qos0",), kinds=(*LIVE, SINK)),
    Scenario("qos1", pairs(1), works=("qos1",), kinds=(*LIVE, SINK)),
    Scenario("deep1", deep(1), works=("deep1",), kinds=(*LIVE, SINK)),
    Scenario("deep2", deep(2), works=("deep2",), kinds=(*LIVE, SINK)),
    Scenario("history", history, works=("history",), kinds=OURS),
    Scenario("offline", offline, works=("offline",), kinds=STORED),
    Scenario("qos2", pairs(2), works=("qos2",), kinds=(*LIVE, SINK)),
    Scenario("fanout0", fanout(0), works=("fanout0",), kinds=(*LIVE, SINK)),
    Scenario("fanout1", fanout(1), works=("fanout1",), kinds=(*LIVE, SINK)),
    Scenario("bodies", bodies, works=("bodies",), kinds=OURS, rounds_max=1),
    Scenario(
        "fanin",
        fanin("fanin", HOLDFAST__SESSION__MAX_INFLIGHT="65535"),
        works=("fanin",),
        kinds=(*LIVE, SINK),
    ),
    Scenario("fanin_default", fanin("fanin_default"), works=("fanin_default",), kinds=LIVE),
    Scenario("away", away, works=("publish", "drain"), kinds=STORED, rounds_max=3),
    Scenario("queued", queued, works=("queued",), kinds=(MOSQUITTO, *OURS), rounds_max=1),
    Scenario("storm", storm, works=("storm",), kinds=(*STORED, SINK)),
    Scenario("sessions", sessions, works=("sessions",), kinds=OURS, rounds_max=1),
    Scenario("wildcards", wildcards, works=("wildcards",), rounds_max=3),
    Scenario("latency", latency, works=("latency",), kinds=LIVE),
)
