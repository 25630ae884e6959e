"""Prometheus metrics and health over HTTP, on a port and in threads of their own.

Must never cost the hot path anything: the broker counts in plain integers, and one collector turns
them into metrics at each scrape. Must never touch the engine from these threads: a `Snapshot` is
taken on the engine's thread. Label values come from small fixed sets, never from clients.
Read next: `session.counters`.
"""

import errno
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, version
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from broker import build
from broker.observe import cluster_figures
from broker.observe.backend_figures import BackendFigures
from broker.observe.backlog_figures import BacklogFigures
from broker.observe.cluster_figures import ClusterFigures
from broker.version import VERSION
from session.counters import Counters, LogBuckets
from storage.history.events import LEVELS
from storage.local.disk_space import Measured

PREFIX: Final = "holdfast_"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# A snapshot younger than this is used again, so that two scrapers cost the loop as much as one.
SNAPSHOT_AGE_MAX_S: Final = 1.0
# How long a scrape waits for the engine's thread before it answers with the last snapshot.
SNAPSHOT_TIMEOUT_S: Final = 2.0
# Housekeeping runs on the loop once a second. Ten missed turns are a hang, not load.
STALLED_S: Final = 10.0
# A leader that has not heard the log for so long commits nothing, and another node takes over.
CUT_OFF_S: Final = 3.0
# A scraper that sends nothing must not keep a thread for ever.
REQUEST_TIMEOUT_S: Final = 10.0
CLOSE_POLL_S: Final = 0.25  # how often the accepting thread checks whether it should end

# Index = control packet type. 0 is not a packet.
PACKET_NAMES: Final = (
    "", "connect", "connack", "publish", "puback", "pubrec", "pubrel", "pubcomp", "subscribe",
    "suback", "unsubscribe", "unsuback", "pingreq", "pingresp", "disconnect", "auth",
)  # fmt: skip

# Gauges straight out of a snapshot: key, metric name, label (name, value) or None, help.
GAUGES: Final[tuple[tuple[str, str, tuple[str, str] | None, str], ...]] = (
    ("sessions_online", "sessions", ("state", "online"), "Sessions by state"),
    ("sessions_offline", "sessions", ("state", "offline"), "Sessions by state"),
    ("sessions_stored", "sessions_durable", None, "Sessions that outlive their connection"),
    ("sessions_lagging", "sessions_lagging", None, "Online sessions that read from disk"),
    ("pending_messages", "session_queue_messages", None, "Messages waiting in RAM for a session"),
    ("inflight_messages", "inflight_messages", None, "QoS 1/2 messages sent and not acknowledged"),
    ("subscriptions_stored", "subscriptions", ("kind", "stored"), "Subscriptions by kind"),
    ("shared_groups", "shared_groups", None, "Shared subscription groups"),
    ("filters", "topic_filters", None, "Distinct topic filters with a subscription"),
    ("retained_messages", "retained_messages", None, "Retained messages"),
    ("log_end", "log_end_offset", None, "Offset of the newest stored message"),
    ("log_bytes", "stored_bytes", None, "Bytes of messages in the log"),
    ("generations", "generations", None, "Generations of the message log"),
    ("waiting_replies", "waiting_replies", None, "Batches of replies waiting for a commit"),
    ("batches_unsynced", "batches_unsynced", None, "Batches written and not yet durable"),
    ("writes_refused", "writes_refused", None, "1 while new durable state is refused"),
)

HISTORY_COUNTERS: Final = (
    ("history_events", "Events recorded"),
    ("history_gap_events", "Events left out while less was recorded (at most), or thrown away"),
    ("history_segments", "Segments exported"),
    ("history_export_failures", "Exports that failed and are tried again; the log says why"),
)

# Of external stores, by backend.
OfBackend: TypeAlias = Callable[[BackendFigures], float]
BACKEND_GAUGES: Final[tuple[tuple[str, str, OfBackend], ...]] = (
    ("backend_up", "1 while the store can be reached", lambda figures: figures.is_up),
    (
        "backend_lag_seconds",
        "Age of the oldest row that the store has not confirmed",
        lambda figures: figures.lag_s,
    ),
    (
        "backend_backlog_rows",
        "Messages and events that the store has not confirmed, at most",
        lambda figures: figures.rows_behind,
    ),
    (
        "backend_backlog_bytes",
        "Bytes of the log and of events that the store has not confirmed",
        lambda figures: figures.backlog_bytes,
    ),
    (
        "backend_refusing",
        "1 while messages for the store are refused, because too much waits",
        lambda figures: figures.is_refusing,
    ),
    ("backend_dead_letters", "Rows that the store refuses", lambda each: each.dead_letters),
    (
        "backend_fetches_owed",
        "Questions of connected sessions that wait for the store",
        lambda figures: figures.fetches_owed,
    ),
)
BACKEND_COUNTERS: Final[tuple[tuple[str, str, OfBackend], ...]] = (
    ("backend_rows", "Rows that the store has confirmed", lambda figures: figures.rows),
    ("backend_retries", "Times that the store was tried again", lambda figures: figures.retries),
    (
        "backend_rewinds",
        "Times that the store had lost what it had confirmed",
        lambda figures: figures.rewinds,
    ),
    (
        "backend_gaps",
        "Times that rows could not be sent, because they are gone or damaged",
        lambda figures: figures.gaps,
    ),
)
BACKEND_HISTOGRAMS: Final[tuple[tuple[str, str, Callable[[BackendFigures], LogBuckets]], ...]] = (
    (
        "backend_batch_seconds",
        "From the start of a batch in the store's process to its confirmation",
        lambda figures: figures.batch_seconds,
    ),
    (
        "backend_fetch_seconds",
        "From a question of a session to the store to its answer",
        lambda figures: figures.fetch_seconds,
    ),
)


class Snapshot:
    """What is read on the engine's thread for one scrape."""

    __slots__ = (
        "backends",
        "connections",
        "gauges",
        "loop_lag_s",
        "storage_bytes",
        "write_stall",
    )

    def __init__(
        self,
        gauges: Mapping[str, int],
        *,
        connections: Mapping[str, int],
        storage_bytes: Mapping[str, int],
        write_stall: int,
        loop_lag_s: float,
        backends: Sequence[BackendFigures] = (),
    ) -> None:
        self.gauges: Mapping[str, int] = gauges
        self.connections: Mapping[str, int] = connections  # by listener
        self.storage_bytes: Mapping[str, int] = storage_bytes  # by part: sst, wal, memtables, ...
        self.write_stall: int = write_stall
        self.loop_lag_s: float = loop_lag_s
        self.backends: Sequence[BackendFigures] = backends


class Status:
    """The state of the process; written by its main thread, read by the HTTP threads."""

    def __init__(self) -> None:
        self.phase: str = "starting"  # starting, recovering, ready, draining, failed
        self.recovered_sessions: int = 0
        self.recovery_seconds: float = 0.0
        self.durability: str = ""
        self.beat: float = time.monotonic()  # when the event loop last did its housekeeping
        # Names of external stores that cannot be reached, and whether they are required.
        self.backends_down: Mapping[str, bool] = {}
        # What the last look at the disk found; None = there was none, or it failed.
        self.disk: Measured | None = None
        # When the certificates that are served expire, in seconds since 1970, by listener.
        self.certificates: Mapping[str, int] = {}
        # Of a node of a cluster; None = this broker is in none.
        self.cluster: ClusterFigures | None = None
        # What is owed, as it was counted last; None = it was not counted yet.
        self.backlog: BacklogFigures | None = None

    def is_ready(self) -> bool:
        """Return whether clients are served, and every required store can be reached."""
        is_serving = self.phase == "ready" and not self.is_stalled() and not self.is_cut_off()
        return is_serving and not any(self.backends_down.values())

    def is_cut_off(self) -> bool:
        """Return whether this node of a cluster does not hear the log: another one may lead.

        A process that was stopped, and goes on, says so before its loop has looked again.
        """
        if self.cluster is None:
            return False
        return self.cluster.silent_s + time.monotonic() - self.cluster.seen > CUT_OFF_S

    def is_disk_low(self) -> bool:
        """Return whether new durable state is refused, because too little of the disk is free."""
        disk = self.disk
        return disk is not None and disk.free_bytes < disk.low_water_bytes

    def lines(self) -> list[str]:
        """Return the state in words, and each store that cannot be reached."""
        lines = ["stalled" if self.is_stalled() else self.phase]
        if self.is_cut_off():
            lines.append("the log of the cluster is not heard")
        for name, is_required in self.backends_down.items():
            lines.append(f"backend {name} is down" + (", and it is required" * is_required))
        return lines

    def is_alive(self) -> bool:
        """Return whether the process should be left running; a long recovery is no failure."""
        return self.phase != "failed" and not self.is_stalled()

    def is_stalled(self) -> bool:
        """Return whether the event loop hangs."""
        return self.phase in ("ready", "draining") and time.monotonic() - self.beat > STALLED_S


class BrokerCollector(Collector):
    """Turns counters and a snapshot into metrics, only when scraped."""

    def __init__(
        self,
        counters: Counters,
        status: Status,
        take_snapshot: Callable[[float], Snapshot | None],
    ) -> None:
        """`take_snapshot(timeout_s)` reads the engine on its own thread; None = no answer."""
        self._counters = counters
        self._status = status
        self._take_snapshot = take_snapshot
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._snapshot_at: float = 0.0
        self._rocksdict: str = package_version("rocksdict")
        self._build: str = build.find().kind

    def describe(self) -> Iterable[Metric]:
        """Describe nothing, so that registering does not scrape."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return every metric of the broker."""
        yield from self._life()
        yield from self._traffic()
        yield from self._sessions()
        yield from self._storage()
        yield from self._surroundings()
        if self._status.cluster is not None:
            yield from cluster_figures.families(self._status.cluster)
        snapshot = self._fresh_snapshot()
        if snapshot is not None:
            yield from _gauges(snapshot)

    def _fresh_snapshot(self) -> Snapshot | None:
        with self._lock:
            now = time.monotonic()
            if self._snapshot is None or now - self._snapshot_at > SNAPSHOT_AGE_MAX_S:
                taken = self._take_snapshot(SNAPSHOT_TIMEOUT_S)
                if taken is not None:
                    self._snapshot, self._snapshot_at = taken, now
            return self._snapshot

    def _life(self) -> Iterable[Metric]:
        info = GaugeMetricFamily(
            PREFIX + "build_info",
            "Version of the broker, of Python and of the RocksDB binding; compiled or pure Python",
            labels=["version", "python", "rocksdict", "build"],
        )
        info.add_metric([VERSION, platform.python_version(), self._rocksdict, self._build], 1)
        yield info
        mode = GaugeMetricFamily(
            PREFIX + "durability_info", "What an acknowledgement waits for", labels=["mode"]
        )
        mode.add_metric([self._status.durability], 1)
        yield mode
        status = self._status
        yield _gauge("ready", "1 once recovery is done and clients are served", status.is_ready())
        yield _gauge("recovery_seconds", "Duration of the last recovery", status.recovery_seconds)
        yield _gauge(
            "recovered_sessions", "Sessions found at the last start", status.recovered_sessions
        )

    def _traffic(self) -> Iterable[Metric]:
        counters = self._counters
        packets = CounterMetricFamily(
            PREFIX + "packets", "Control packets", labels=["direction", "packet"]
        )
        for direction, numbers in (
            ("received", counters.packets_received),
            ("sent", counters.sent_by_type()),
        ):
            for kind, name in enumerate(PACKET_NAMES):
                if name:
                    packets.add_metric([direction, name], numbers[kind])
        yield packets
        yield _labelled(
            "bytes",
            "Bytes on the wire",
            "direction",
            {"received": counters.bytes_received, "sent": counters.bytes_sent},
        )
        messages = CounterMetricFamily(
            PREFIX + "messages", "PUBLISH packets by QoS", labels=["direction", "qos"]
        )
        for qos in range(3):
            messages.add_metric(["received", str(qos)], counters.messages_received[qos])
            messages.add_metric(["sent", str(qos)], counters.messages_sent[qos])
        yield messages
        yield _labelled(
            "payload_bytes",
            "Payload bytes of PUBLISH packets",
            "direction",
            {"received": counters.payload_bytes_received, "sent": counters.payload_bytes_sent},
        )
        yield _labelled("messages_dropped", "Deliveries given up", "reason", counters.dropped)
        yield _counter("messages_expired", "Messages past their expiry", counters.expired_messages)
        yield _counter("messages_stored", "Messages taken into the log", counters.messages_stored)
        yield _counter(
            "messages_unmatched", "Messages nobody subscribed to", counters.unmatched_messages
        )
        yield _counter("redeliveries", "PUBLISH and PUBREL sent again", counters.redeliveries)
        yield _histogram(
            "publish_ack_seconds",
            "From a tick that received PUBLISHes to their acknowledgement, per commit",
            counters.publish_ack_seconds,
        )

    def _sessions(self) -> Iterable[Metric]:
        counters = self._counters
        yield _labelled("connects", "CONNECT packets answered", "result", counters.connects)
        yield _labelled("disconnects", "Connections ended", "reason", counters.disconnects)
        yield _counter("connections_accepted", "Sockets accepted", counters.connections_accepted)
        yield self._refused()
        yield _counter("sessions_created", "Sessions created", counters.sessions_created)
        yield _counter("sessions_resumed", "Sessions resumed", counters.sessions_resumed)
        yield _counter(
            "sessions_taken_over", "Sessions taken over live", counters.sessions_taken_over
        )
        yield _counter("sessions_expired", "Sessions expired", counters.sessions_expired)
        yield _counter(
            "sessions_terminated", "Sessions ended by request", counters.sessions_terminated
        )
        yield _labelled(
            "proxy_subscriptions",
            "Subscriptions that external stores have begun or ended, or that were refused",
            "outcome",
            counters.proxy_subscriptions,
        )
        yield _labelled("wills", "Will messages by what became of them", "outcome", counters.wills)
        yield _counter(
            "internal_errors", "Exceptions that are bugs of the broker", counters.internal_errors
        )

    def _refused(self) -> Metric:
        family = CounterMetricFamily(
            PREFIX + "connections_refused",
            "Connections refused, with a CONNACK or without",
            labels=["listener", "reason"],
        )
        for listener, reasons in list(self._counters.refused.items()):  # one may be added meanwhile
            for reason, count in reasons.items():
                family.add_metric([listener, reason], count)
        return family

    def _storage(self) -> Iterable[Metric]:
        counters = self._counters
        yield _histogram(
            "storage_commit_seconds",
            "From the request of a commit to its durability",
            counters.commit_seconds,
        )
        yield _histogram("commit_batch_records", "Rows of one batch", counters.batch_records)
        yield _counter("commits", "Batches that became durable", counters.commits)
        yield _labelled(
            "damaged_rows",
            "Damaged places found in the database, by what their rows hold",
            "what",
            counters.damaged_rows,
        )
        yield _counter("commit_failures", "Writes or syncs that failed", counters.commit_failures)
        yield _counter("generations_added", "Generations begun", counters.generations_added)
        yield _counter("generations_dropped", "Generations dropped", counters.generations_dropped)

    def _surroundings(self) -> Iterable[Metric]:
        """Return what runs out, the disk and certificates, and what is owed."""
        disk = self._status.disk
        if disk is not None:
            yield _gauge(
                "storage_free_bytes", "Free space that the broker may use", disk.free_bytes
            )
            yield _gauge("storage_disk_bytes", "Size of the file system", disk.total_bytes)
            yield _gauge(
                "storage_low_water_bytes",
                "Free space below which new durable state is refused",
                disk.low_water_bytes,
            )
        if self._status.certificates:
            family = GaugeMetricFamily(
                PREFIX + "certificate_expiry_timestamp_seconds",
                "When the certificate that is served expires, in seconds since 1970",
                labels=["listener"],
            )
            for listener, moment in self._status.certificates.items():
                family.add_metric([listener], moment)
            yield family
        backlog = self._status.backlog
        if backlog is not None:
            yield from backlog.metrics(PREFIX, time.monotonic())


def _gauges(snapshot: Snapshot) -> Iterable[Metric]:
    """Return the gauges of `snapshot`, the labelled ones of a name as one family."""
    listeners = GaugeMetricFamily(
        PREFIX + "connections", "Open client connections", labels=["listener"]
    )
    for listener, count in snapshot.connections.items():
        listeners.add_metric([listener], count)
    yield listeners
    families: dict[str, GaugeMetricFamily] = {}
    for key, name, label, help in GAUGES:
        if key not in snapshot.gauges:
            continue
        if name not in families:
            labels = [] if label is None else [label[0]]
            families[name] = GaugeMetricFamily(PREFIX + name, help, labels=labels)
        values = [] if label is None else [label[1]]
        families[name].add_metric(values, snapshot.gauges[key])
    yield from families.values()
    if "history_level" in snapshot.gauges:
        yield from _history(snapshot.gauges)
    if snapshot.backends:
        yield from _backends(snapshot.backends)
    parts = GaugeMetricFamily(PREFIX + "storage_bytes", "Size of the database", labels=["part"])
    for part, size in snapshot.storage_bytes.items():
        parts.add_metric([part], size)
    yield parts
    yield _gauge("storage_write_stall", "1 while RocksDB delays writes", snapshot.write_stall)
    yield _gauge(
        "event_loop_lag_seconds", "Lateness of the last housekeeping turn", snapshot.loop_lag_s
    )


def _history(gauges: Mapping[str, int]) -> Iterable[Metric]:
    """Return the metrics of the history and its export."""
    exporting = gauges["history_exporting"]
    yield _gauge("history_exporting", "1 if the history is exported, 0 = no pyarrow", exporting)
    if "history_lag_ms" in gauges:
        lag_s = gauges["history_lag_ms"] / 1000
        yield _gauge("history_lag_seconds", "Age of the oldest event that is not exported", lag_s)
    if "history_witness_failures" in gauges:
        lost, failures = gauges["history_witness_lost_events"], gauges["history_witness_failures"]
        told = "Events that the witness knew and the database lacked at this start"
        yield _gauge("history_witness_lost_events", told, lost)
        told = "Times that the witness could not be written; the log says why"
        yield _counter("history_witness_failures", told, failures)
    size = gauges["history_outbox_bytes"]
    yield _gauge("history_outbox_bytes", "Bytes of the history in the database", size)
    for key, help in HISTORY_COUNTERS:
        yield _counter(key, help, gauges[key])
    level = GaugeMetricFamily(
        PREFIX + "history_level", "1 for the level of detail in force", labels=["level"]
    )
    for number, word in enumerate(LEVELS):
        level.add_metric([word], number == gauges["history_level"])
    yield level


def _backends(backends: Sequence[BackendFigures]) -> Iterable[Metric]:
    """Return the metrics of external stores."""
    for name, help, value in BACKEND_GAUGES:
        gauge = GaugeMetricFamily(PREFIX + name, help, labels=["backend"])
        for figures in backends:
            gauge.add_metric([figures.name], value(figures))
        yield gauge
    for name, help, value in BACKEND_COUNTERS:
        counter = CounterMetricFamily(PREFIX + name, help, labels=["backend"])
        for figures in backends:
            counter.add_metric([figures.name], value(figures))
        yield counter
    for name, help, samples_of in BACKEND_HISTOGRAMS:
        seconds = HistogramMetricFamily(PREFIX + name, help, labels=["backend"])
        for figures in backends:
            samples = samples_of(figures)
            buckets = [(_bound(bound), float(count)) for bound, count in samples.cumulative()]
            seconds.add_metric([figures.name], buckets=buckets, sum_value=samples.total)
        yield seconds


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, help, value=value)


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, help, value=value)


def _labelled(name: str, help: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, help, labels=[label])
    for word, value in values.items():
        family.add_metric([word], value)
    return family


def _histogram(name: str, help: str, samples: LogBuckets) -> Metric:
    buckets = [(_bound(bound), float(count)) for bound, count in samples.cumulative()]
    return HistogramMetricFamily(PREFIX + name, help, buckets=buckets, sum_value=samples.total)


def _bound(bound: float) -> str:
    """Return a bucket's upper bound as the `le` label writes it."""
    return "+Inf" if bound == float("inf") else f"{bound:.9g}"


def package_version(name: str) -> str:
    """Return the version of an installed distribution, "unknown" where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


class MetricsServer:
    """Serves /metrics, /healthz and /readyz from its own threads until closed."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        counters: Counters,
        status: Status,
        take_snapshot: Callable[[float], Snapshot | None],
    ) -> None:
        """Bind and start serving; raise OSError when the address cannot be used."""
        registry = CollectorRegistry()
        registry.register(BrokerCollector(counters, status, take_snapshot))
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        handler = _handler(registry, status)
        try:
            self._server = _Server((host, port), handler)
        except (UnicodeError, TypeError):  # `bind` raises TypeError for some of these names
            raise OSError(errno.EINVAL, "not a host name") from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(CLOSE_POLL_S,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving and release the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # a scraper that hangs must not delay the exit
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore it: the scraper has closed the connection."""


def _handler(registry: CollectorRegistry, status: Status) -> type[BaseHTTPRequestHandler]:
    """Return a request handler class over `registry` and `status`."""

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S
        server_version = "holdfast"
        sys_version = ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, generate_latest(registry), CONTENT_TYPE)
            elif path == "/healthz":
                self._answer_state(status.is_alive(), status.lines()[:1])
            elif path == "/readyz":
                self._answer_state(status.is_ready(), status.lines())
            else:
                self._answer(404, b"not here; try /metrics, /healthz, /readyz\n")

        do_HEAD = do_GET

        def _answer_state(self, is_good: bool, lines: list[str]) -> None:
            text = "".join(f"{line}\n" for line in lines)
            self._answer(200 if is_good else 503, text.encode())

        def _answer(
            self, code: int, body: bytes, content_type: str = "text/plain; charset=utf-8"
        ) -> None:
            self.send_response(code)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            """Log nothing: a scrape every few seconds is not an event."""

    return Handler
