"""Measure what mirroring messages to an external store costs: broker, backend process, store.

Four questions, each answered within one run:

- throughput: messages of QoS 1 as fast as the broker takes them, all mirrored. How many rows a
  second reach the store, and how much CPU time a row takes in each of the three processes?
- instructions: how many does the engine need for a message, without backends, with a rule that
  matches nothing, with one that matches everything? Counted by valgrind, so they are the same on a
  busy machine.
- price: the same for whole brokers: rates and CPU time of clients that do what they can.
- outage: pairs at a steady rate while the store runs, hangs (SIGSTOP) and is gone (SIGKILL), and
  while the process that feeds it is killed. What latency do clients see, over that of the same
  broker without a backend, which stores the same messages for a session?

`--baseline TREE` compares with another version, such as a compiled one from before external stores.
`bench.store_goals` judges: the exit status is 1 if a goal was missed. On a machine where the same
run twice differs by as much as a goal allows, it says "not judged".
A command of its own. The stores are those of the tests: `scripts/setup --test` installs them.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import (
    COMPILED,
    HOLDFAST,
    ROOT,
    START_SECONDS_MAX,
    BenchError,
    Broker,
    compile_holdfast,
    python,
    tree_of,
)
from bench.generator import Generator, Line, trouble
from bench.goals import MISSED
from bench.store_goals import (
    ABSENT,
    AGAIN,
    BASELINE,
    GONE,
    HANGS,
    NO_BACKEND,
    NO_MATCH,
    PROCESS_DIES,
    STATES,
    Judged,
    instruction_rows,
    judge_instructions,
    judge_outage,
    outage_rows,
    price_rows,
    throughput_rows,
)
from tests.durability.process import free_port, http_get, suspend
from tests.durability.rawclient import RawClient
from tests.real_servers import REDIS, VALKEY

DRAIN_S_MAX: Final = 600.0
POLL_S: Final = 0.1
PUBLISHERS: Final = 20
PAYLOAD: Final = 128
PAIRS: Final = 100
RATE: Final = 20  # messages a second of each pair, where latencies are measured
PROCESS: Final = "broker.backends.process"
WITHOUT: Final = frozenset((ABSENT, AGAIN))
KILL_EVERY_S: Final = 3.0  # the process that feeds a store
COUNTED: Final = 2000  # messages whose instructions are counted, and three times as many
Options = dict[str, int]
PRICED_WORKS: Final[dict[str, Options]] = {
    "QoS 1, 100 pairs": {"pubs": PAIRS, "subs": PAIRS, "qos": 1, "window": 100},
    "QoS 1, one pair, window 1": {"pubs": 1, "subs": 1, "qos": 1, "window": 1},
    "QoS 0, 100 pairs": {"pubs": PAIRS, "subs": PAIRS, "qos": 0},
}
COUNTED_WORKS: Final = {
    "QoS 1, window 100": ("--qos=1", "--window=100"),
    "QoS 1, window 1": ("--qos=1", "--window=1"),
    "QoS 0, 100 in a read": ("--qos=0", "--window=100"),
    "QoS 1, window 100, stored": ("--qos=1", "--window=100", "--durable"),
    "QoS 1, window 1, stored": ("--qos=1", "--window=1", "--durable"),
}


class Store:
    """A running store, and how a broker is told of it."""

    def __init__(self, server: Any, options: str, action: str, pids: Callable[[], list[int]]):
        self.server: Any = server
        self.options: str = options  # of the backend, TOML
        self.action: str = action  # of the rule, TOML
        self.pids: Callable[[], list[int]] = pids

    def configuration(self, topic: str) -> str:
        """Return the configuration with a rule for this topic filter."""
        return (
            f'[backends.store]\nnode = "bench"\n{self.options}\n'
            f'[[rules]]\non = "message.publish"\ntopic = "{topic}"\nbackend = "store"\n'
            f"{self.action}\n"
        )


@contextlib.contextmanager
def redis_server(directory: Path) -> Iterator[Store]:
    """Redis, with an append-only file."""
    from tests.broker.backends.redis_server import RedisServer

    if REDIS is None:
        raise BenchError("redis-server is missing: scripts/setup --test")
    with contextlib.closing(_Killed(RedisServer(directory).start())) as running:
        options = f'servers = "127.0.0.1:{running.server.port}"'
        yield Store(running.server, options, 'action = "on_message_publish"', running.pids)


@contextlib.contextmanager
def valkey_server(directory: Path) -> Iterator[Store]:
    """Valkey, with an append-only file."""
    from tests.broker.backends.redis_server import RedisServer

    if VALKEY is None:
        raise BenchError("Valkey is missing: scripts/setup --test")
    with contextlib.closing(_Killed(RedisServer(directory, VALKEY).start())) as running:
        options = f'servers = "127.0.0.1:{running.server.port}"'
        yield Store(running.server, options, 'action = "on_message_publish"', running.pids)


@contextlib.contextmanager
def dynamodb_server(directory: Path) -> Iterator[Store]:
    """DynamoDB Local, in memory, layout v2."""
    from tests.broker.backends.dynamodb_server import DynamodbServer

    with contextlib.closing(_Killed(DynamodbServer(directory).start())) as running:
        values = running.server.options()
        del values["timeout_ms"]
        options = 'type = "dynamodb"\nlayout = "v2"\n' + "".join(
            f'{key} = "{value}"\n' for key, value in values.items()
        )
        yield Store(running.server, options, 'action = "on_message_publish"', running.pids)


@contextlib.contextmanager
def cassandra_server(directory: Path) -> Iterator[Store]:
    """Apache Cassandra, one server with the small heap of the tests."""
    from tests.broker.backends.cassandra_server import CassandraServer

    with contextlib.closing(_Killed(CassandraServer(directory).start())) as running:
        server = running.server
        options = (
            f'type = "cassandra"\nservers = "127.0.0.1:{server.port}"\n'
            f'keyspace = "{server.keyspace}"'
        )
        yield Store(server, options, 'action = "on_message_publish"', running.pids)


@contextlib.contextmanager
def webhook_server(directory: Path) -> Iterator[Store]:
    """A receiver of webhooks that reads requests, and keeps nothing."""
    with contextlib.closing(_Killed(_Receiver().start())) as running:
        options = f'type = "webhook"\nurl = "http://127.0.0.1:{running.server.port}/rows"'
        yield Store(running.server, options, "", running.pids)


@contextlib.contextmanager
def kafka_server(directory: Path) -> Iterator[Store]:
    """Apache Kafka, one node."""
    from tests.broker.backends.kafka_server import KafkaServer

    with contextlib.closing(_Killed(KafkaServer(directory).start())) as running:
        running.server.create("mqtt")
        options = f'type = "kafka"\ntopic = "mqtt"\nservers = "{running.server.address}"'
        yield Store(running.server, options, "", running.pids)


class _Killed:
    """A server of the tests that is killed at the end."""

    def __init__(self, server: Any) -> None:
        self.server: Any = server

    def pids(self) -> list[int]:
        return [self.server._process.pid]

    def close(self) -> None:
        self.server.kill()


class _Receiver:
    """The process of `bench.receiver`, over any number of starts."""

    def __init__(self) -> None:
        self.port: int = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it and return once it takes connections."""
        self._process = subprocess.Popen(
            [python(), "-m", "bench.receiver", str(self.port)], cwd=ROOT
        )
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return self
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise BenchError("the receiver of webhooks does not start")
            time.sleep(POLL_S)

    def freeze(self) -> None:
        """Suspend it: connections stay open, and nothing is answered."""
        assert self._process is not None
        suspend(self._process)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


STORES: Final[dict[str, Callable[[Path], contextlib.AbstractContextManager[Store]]]] = {
    "redis": redis_server,
    "valkey": valkey_server,
    "cassandra": cassandra_server,
    "dynamodb": dynamodb_server,
    "webhook": webhook_server,
    "kafka": kafka_server,
}


def cpu_s(pids: list[int]) -> float:
    """Return the CPU time of processes, seconds."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def feeding(broker: Broker) -> list[int]:
    """Return the process that feeds the store."""
    return [
        pid
        for pid in broker.pids()
        if PROCESS in Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    ]


def _create_tables(kind: str, configuration: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(configuration)
        file.flush()
        ran = subprocess.run(
            [python(), "-m", "broker", "backend", "create", "-c", file.name],
            cwd=tree_of(kind),
            env={**os.environ, "PYTHONPATH": str(tree_of(kind))},
            capture_output=True,
            text=True,
        )
    if ran.returncode:
        raise BenchError(f"the store's tables: {ran.stdout.strip()} {ran.stderr.strip()}")


class Mirror:
    """A broker with or without a backend, and its metrics."""

    def __init__(self, kind: str, configuration: str, tree: Path | None = None) -> None:
        """`configuration` "" = without; `tree` has the packages of another version."""
        self.metrics_port: int = free_port()
        self.has_backend: bool = bool(configuration)
        metrics = f"[metrics]\nenabled = true\nport = {self.metrics_port}\n"
        if configuration:
            _create_tables(kind, configuration)
        self.broker: Broker = Broker(
            kind,
            options=metrics + configuration,
            environment={"HOLDFAST__METRICS__ENABLED": "true"},
            tree=tree,
        )

    def figure(self, name: str) -> float:
        """Return a metric of the backend."""
        status, text = http_get(self.metrics_port, "/metrics")
        for line in text.splitlines():
            if line.startswith(f'holdfast_backend_{name}{{backend="store"}}'):
                return float(line.rsplit(" ", 1)[1])
        raise BenchError(f"the broker's metrics do not tell {name} (status {status})")

    def wait(self, name: str, least: float) -> float:
        """Wait until a metric is at least so; return when, seconds of `time.monotonic`."""
        deadline = time.monotonic() + DRAIN_S_MAX
        while self.figure(name) < least:
            if time.monotonic() > deadline:
                raise BenchError(f"{name} is not {least:.0f} after {DRAIN_S_MAX:.0f} s")
            time.sleep(POLL_S)
        return time.monotonic()


def throughput(generator: Generator, kind: str, store: Store, rows: int) -> Line:
    """Publish as fast as the broker takes it; return rows a second and CPU µs a row."""
    mirror = Mirror(kind, store.configuration("#"))
    with mirror.broker as broker:
        mirror.wait("up", 1)
        parts = {"broker": [broker.pid], "process": feeding(broker), "store": store.pids()}
        before = {name: cpu_s(pids) for name, pids in parts.items()}
        began = time.monotonic()
        line = generator.run(
            "pubsub",
            broker,
            **{"pubs": PUBLISHERS, "subs": 0, "qos": 1, "payload": PAYLOAD},
            messages=rows,
            pattern="fanin",
            window=100,
            warmup=0,
        )
        ended = mirror.wait("rows_total", rows)
        result: Line = {
            "accepted_per_s": line["acked_per_s"],
            "mirrored_per_s": rows / (ended - began),
            "trouble": trouble(line),
        }
        for name, pids in parts.items():
            result[f"{name}_us"] = (cpu_s(pids) - before[name]) / rows * 1e6
        return result


def price(generator: Generator, mirror: Mirror, work: Options, seconds: float) -> Line:
    """Run clients at full speed; return rate, and CPU µs of the broker for each message."""
    with mirror.broker as broker:
        if mirror.has_backend:
            mirror.wait("up", 1)
        before = cpu_s([broker.pid])
        line = generator.run("pubsub", broker, payload=PAYLOAD, seconds=seconds, **work)
        used = cpu_s([broker.pid]) - before
    return {
        "per_s": line["delivered_per_s"],
        "us": used / line["delivered"] * 1e6,
        "trouble": trouble(line),
    }


def instructions(tree: Path, *arguments: str) -> float:
    """Return the instructions that a message costs the engine of a tree.

    Those of many messages less those of few, over their number: a start does not count.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise BenchError("valgrind is missing, which counts instructions: apt-get install valgrind")
    counts = []
    for messages in (COUNTED, 3 * COUNTED):
        ran = subprocess.run(
            [
                *(valgrind, "--tool=cachegrind", "--cache-sim=no"),
                *("--cachegrind-out-file=/dev/null", python(), "-P"),
                *(str(ROOT / "bench" / "engine_work.py"), f"--messages={messages}", *arguments),
            ],
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
        )
        found = re.search(r"I\s+refs:\s+([\d,]+)", ran.stderr)
        if ran.returncode or found is None:
            raise BenchError(f"no count of instructions: {ran.stderr.strip()[-500:]}")
        counts.append(int(found[1].replace(",", "")))
    return (counts[1] - counts[0]) / (2 * COUNTED)


def outage(generator: Generator, kind: str, store: Store, state: str, seconds: float) -> Line:
    """Run pairs at a steady rate beside a store in some state; return latencies in ms."""
    mirror = Mirror(kind, "" if state in WITHOUT else store.configuration("#"))
    with mirror.broker as broker, contextlib.ExitStack() as ended:
        if state in WITHOUT:
            _keep_for_a_session(broker)
        else:
            mirror.wait("up", 1)
        if state == HANGS:
            store.server.freeze()
            ended.callback(store.server.thaw)
        elif state == GONE:
            store.server.kill()
            ended.callback(store.server.start)
        elif state == PROCESS_DIES:
            ended.enter_context(_dying(broker))
        line = generator.run(
            "pubsub",
            broker,
            **{"pubs": PAIRS, "subs": PAIRS, "qos": 1, "payload": PAYLOAD, "rate": RATE},
            seconds=seconds,
            warmup=2,
        )
    return {
        "ack_ms": {name: line["ack_us"][name] / 1000 for name in ("p50", "p99", "max")},
        "delivery_ms": {name: line["lat_us"][name] / 1000 for name in ("p50", "p99", "max")},
        "trouble": trouble(line),
    }


def _keep_for_a_session(broker: Broker) -> None:
    """Let every message be stored for somebody who is away: what a backend's rule does, too."""
    client = RawClient(broker.port, "away")
    client.durable()
    client.subscribe("#", qos=1)
    client.disconnect()


@contextlib.contextmanager
def _dying(broker: Broker) -> Iterator[None]:
    """Kill the process that feeds the store now and then (SIGKILL), until the block ends."""
    is_over = threading.Event()

    def kill() -> None:
        while not is_over.wait(KILL_EVERY_S):
            for pid in feeding(broker):
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        is_over.set()
        killer.join()


class Report:
    """The rows to print, what went wrong, and what was judged."""

    def __init__(self, arguments: argparse.Namespace, generator: Generator, scratch: Path) -> None:
        self.wrong: list[str] = []
        self.judged: list[Judged] = []
        self._given: Final = arguments
        self._generator: Final = generator
        self._scratch: Final = scratch

    def rows(self) -> Iterator[str]:
        """Yield the tables that were asked for, what was judged, and what went wrong."""
        wanted = self._given.only
        if "throughput" in wanted:
            yield from ("", *self._throughput())
        if "instructions" in wanted:
            yield from ("", *self._instructions())
        if "price" in wanted:
            yield from self._price()
        if "outage" in wanted:
            yield from self._outage()
        yield ""
        yield from (each.text() for each in self.judged)
        yield from (f"WORTHLESS: {each}" for each in self.wrong)

    def _noted(self, what: str, line: Line) -> Line:
        if line["trouble"]:
            self.wrong.append(f"{what}: {line['trouble']}")
        return line

    def _throughput(self) -> Iterator[str]:
        given = self._given
        found: dict[str, list[Line]] = {}
        for name in given.stores:
            for number in range(given.rounds):
                with STORES[name](self._scratch / f"{name}-{number}") as store:
                    line = throughput(self._generator, given.broker, store, given.rows)
                found.setdefault(name, []).append(self._noted(name, line))
        yield from throughput_rows(found)

    def _instructions(self) -> Iterator[str]:
        own = tree_of(self._given.broker)
        cases: dict[str, tuple[Path, tuple[str, ...]]] = {
            NO_BACKEND: (own, ()),
            NO_MATCH: (own, ("--rule=nothing",)),
            "a rule that matches everything": (own, ("--rule=all",)),
        }
        if self._given.baseline:
            cases = {BASELINE: (self._given.baseline, ()), **cases}
        counted = {
            work: {
                name: instructions(tree, *options, *more) for name, (tree, more) in cases.items()
            }
            for work, options in COUNTED_WORKS.items()
        }
        self.judged += judge_instructions(counted)
        yield from instruction_rows(counted)

    def _price(self) -> Iterator[str]:
        given = self._given
        first = given.stores[0]
        with STORES[first](self._scratch / "price") as store:
            cases = {
                NO_BACKEND: ("", None),
                NO_MATCH: (store.configuration("nobody/#"), None),
                f"everything goes to {first}": (store.configuration("#"), None),
            }
            if given.baseline:
                cases = {BASELINE: ("", given.baseline), **cases}
            for work, options in PRICED_WORKS.items():
                found: dict[str, list[Line]] = {name: [] for name in cases}
                for number in range(given.rounds):
                    for name in turned(list(cases), number):
                        configuration, tree = cases[name]
                        mirror = Mirror(given.broker, configuration, tree)
                        line = price(self._generator, mirror, options, given.seconds)
                        found[name].append(self._noted(f"{name}, {work}", line))
                yield from ("", *price_rows(work, found))

    def _outage(self) -> Iterator[str]:
        given = self._given
        for name in given.stores:
            found: dict[str, list[Line]] = {state: [] for state in STATES}
            with STORES[name](self._scratch / f"{name}-outage") as store:
                for number in range(given.rounds):
                    for state in turned(STATES, number):
                        line = outage(self._generator, given.broker, store, state, given.seconds)
                        found[state].append(self._noted(f"{name} {state}", line))
            self.judged += judge_outage(name, found)
            yield from ("", *outage_rows(name, found))


def turned(cases: Sequence[str], number: int) -> list[str]:
    """Return the cases in the order of a round: each is the first one in turn."""
    first = number % len(cases)
    return [*cases[first:], *cases[:first]]


def main() -> int:
    """Measure what was asked for; print Markdown. Return 1 if a goal was missed or a run failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--stores", nargs="+", choices=sorted(STORES), default=list(STORES))
    questions = ("throughput", "instructions", "price", "outage")
    parser.add_argument("--only", nargs="+", choices=questions, default=list(questions))
    parser.add_argument("--broker", choices=(HOLDFAST, COMPILED), default=COMPILED)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=100_000, help="that each store gets")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="TREE",
        help="packages of another version, to compare price and instructions with",
    )
    arguments = parser.parse_args()
    try:
        if arguments.broker == COMPILED:
            compile_holdfast()
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
            report = Report(arguments, Generator(Path(scratch)), Path(scratch))
            for row in report.rows():
                print(row, flush=True)
    except BenchError as error:
        print(f"stores: {error}", file=sys.stderr)
        return 1
    return int(bool(report.wrong) or any(each.verdict == MISSED for each in report.judged))


if __name__ == "__main__":
    raise SystemExit(main())
