"""Measure what mirroring messages to an external store costs: broker, backend process, store.

Three questions, each answered within one run:

- throughput: messages of QoS 1 as fast as the broker takes them, all mirrored. How many rows a
  second reach the store, and how much CPU time a row takes in each of the three processes?
- price: pairs of clients at QoS 1, without backends, with rules that match nothing, with a rule
  that matches everything. What does a message cost the broker?
- outage: pairs at a steady rate while the store runs, hangs (SIGSTOP) and is gone (SIGKILL). What
  latency do clients see?

A command of its own. The stores are those of the tests: `scripts/setup --test` installs them.
"""

import argparse
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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
from tests.durability.process import free_port, http_get, suspend

DRAIN_S_MAX: Final = 600.0
POLL_S: Final = 0.1
PUBLISHERS: Final = 20
PAYLOAD: Final = 128
PAIRS: Final = 100
RATE: Final = 20  # messages a second of each pair, where latencies are measured
NO_MATCH: Final = "nobody/#"
ABSENT: Final = "is not configured"
PROCESS: Final = "broker.backends.process"


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
    from tests.broker.backends.redis_server import SERVER, RedisServer

    if SERVER is None:
        raise BenchError("redis-server is missing: scripts/setup --test")
    with contextlib.closing(_Killed(RedisServer(directory).start())) as running:
        options = f'servers = "127.0.0.1:{running.server.port}"'
        yield Store(running.server, options, 'action = "on_message_publish"', running.pids)


@contextlib.contextmanager
def valkey_server(directory: Path) -> Iterator[Store]:
    """Valkey, with an append-only file."""
    from tests.broker.backends.redis_server import VALKEY, RedisServer

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
    """A broker with a backend, and its metrics."""

    def __init__(self, kind: str, configuration: str) -> None:
        self.metrics_port: int = free_port()
        metrics = f"[metrics]\nenabled = true\nport = {self.metrics_port}\n"
        _create_tables(kind, configuration)
        self.broker: Broker = Broker(
            kind,
            options=metrics + configuration,
            environment={"HOLDFAST__METRICS__ENABLED": "true"},
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


def price(generator: Generator, kind: str, store: Store | None, topic: str, seconds: float) -> Line:
    """Run pairs at full speed; return rate, and CPU µs of the broker for each message."""
    if store is None:
        running = Broker(kind)
        mirror = None
    else:
        mirror = Mirror(kind, store.configuration(topic))
        running = mirror.broker
    with running as broker:
        if mirror is not None:
            mirror.wait("up", 1)
        before = cpu_s([broker.pid])
        line = generator.run(
            "pubsub", broker, pubs=PAIRS, subs=PAIRS, qos=1, payload=PAYLOAD, seconds=seconds
        )
        used = cpu_s([broker.pid]) - before
    return {
        "per_s": line["delivered_per_s"],
        "us": used / line["delivered"] * 1e6,
        "trouble": trouble(line),
    }


def outage(generator: Generator, kind: str, store: Store, state: str, seconds: float) -> Line:
    """Run pairs at a steady rate beside a store in some state; return latencies in ms."""
    if state == ABSENT:
        mirror, running = None, Broker(kind)
    else:
        mirror = Mirror(kind, store.configuration("#"))
        running = mirror.broker
    with running as broker:
        if mirror is not None:
            mirror.wait("up", 1)
        if state == "hangs":
            store.server.freeze()
        elif state == "is gone":
            store.server.kill()
        try:
            line = generator.run(
                "pubsub",
                broker,
                **{"pubs": PAIRS, "subs": PAIRS, "qos": 1, "payload": PAYLOAD, "rate": RATE},
                seconds=seconds,
                warmup=2,
            )
        finally:
            if state == "hangs":
                store.server.thaw()
            elif state == "is gone":
                store.server.start()
    return {
        "ack_ms": {name: line["ack_us"][name] / 1000 for name in ("p50", "p99", "max")},
        "delivery_ms": {name: line["lat_us"][name] / 1000 for name in ("p50", "p99", "max")},
        "trouble": trouble(line),
    }


def throughput_rows(results: dict[str, list[Line]]) -> Iterator[str]:
    """Yield the table of the stores as Markdown lines, medians."""
    yield "| store | accepted/s | mirrored/s | µs of a row: broker | backend process | store |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, lines in results.items():
        middle = {
            key: statistics.median(line[key] for line in lines)
            for key in ("accepted_per_s", "mirrored_per_s", "broker_us", "process_us", "store_us")
        }
        yield (
            f"| {name} | {middle['accepted_per_s']:,.0f} | {middle['mirrored_per_s']:,.0f} "
            f"| {middle['broker_us']:.0f} | {middle['process_us']:.0f} | {middle['store_us']:.0f} |"
        )


def price_rows(results: dict[str, list[Line]]) -> Iterator[str]:
    """Yield the table of prices: medians, and ratios to the broker without backends."""
    yield "| rules | messages/s | ratio | broker, µs a message | ratio |"
    yield "| --- | --- | --- | --- | --- |"
    base: Line = {}
    for name, lines in results.items():
        per_s, us = (statistics.median(line[key] for line in lines) for key in ("per_s", "us"))
        base = base or {"per_s": per_s, "us": us}
        yield (
            f"| {name} | {per_s:,.0f} | {per_s / base['per_s']:.2f} "
            f"| {us:.1f} | {us / base['us']:.2f} |"
        )


def outage_rows(results: dict[str, list[Line]]) -> Iterator[str]:
    """Yield the table of latencies, medians of the runs."""
    yield "| the store | PUBACK p50, p99, max ms | delivery p50, p99, max ms |"
    yield "| --- | --- | --- |"
    for name, lines in results.items():
        cells = [
            ", ".join(
                f"{statistics.median(line[part][each] for line in lines):.1f}"
                for each in ("p50", "p99", "max")
            )
            for part in ("ack_ms", "delivery_ms")
        ]
        yield f"| {name} | {cells[0]} | {cells[1]} |"


def measure(arguments: argparse.Namespace, generator: Generator, scratch: Path) -> Iterator[str]:
    """Yield the tables that were asked for, and what went wrong."""
    kind, seconds = arguments.broker, arguments.seconds
    wrong: list[str] = []

    def noted(what: str, line: Line) -> Line:
        if line["trouble"]:
            wrong.append(f"{what}: {line['trouble']}")
        return line

    if "throughput" in arguments.only:
        found: dict[str, list[Line]] = {}
        for name in arguments.stores:
            for number in range(arguments.rounds):
                with STORES[name](scratch / f"{name}-{number}") as store:
                    line = noted(name, throughput(generator, kind, store, arguments.rows))
                found.setdefault(name, []).append(line)
        yield from ("", *throughput_rows(found))
    first = arguments.stores[0]
    if "price" in arguments.only:
        found = {}
        with STORES[first](scratch / "price") as store:
            cases = {
                "no backend": (None, ""),
                "a rule that matches nothing": (store, NO_MATCH),
                f"everything goes to {first}": (store, "#"),
            }
            for _ in range(arguments.rounds):
                for name, (of, topic) in cases.items():
                    line = noted(name, price(generator, kind, of, topic, seconds))
                    found.setdefault(name, []).append(line)
        yield from ("", *price_rows(found))
    if "outage" in arguments.only:
        found = {}
        with STORES[first](scratch / "outage") as store:
            for _ in range(arguments.rounds):
                for state in (ABSENT, "runs", "hangs", "is gone"):
                    line = noted(state, outage(generator, kind, store, state, seconds))
                    found.setdefault(state, []).append(line)
        yield from ("", *outage_rows(found))
    for each in wrong:
        yield f"WORTHLESS: {each}"


def main() -> int:
    """Measure what was asked for; print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--stores", nargs="+", choices=sorted(STORES), default=list(STORES))
    questions = ("throughput", "price", "outage")
    parser.add_argument("--only", nargs="+", choices=questions, default=list(questions))
    parser.add_argument("--broker", choices=(HOLDFAST, COMPILED), default=COMPILED)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=100_000, help="that each store gets")
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    try:
        if arguments.broker == COMPILED:
            compile_holdfast()
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
            generator = Generator(Path(scratch))
            for row in measure(arguments, generator, Path(scratch)):
                print(row, flush=True)
    except BenchError as error:
        print(f"stores: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
