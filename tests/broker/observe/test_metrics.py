"""What a scrape and a health check see, over a real socket."""

import dataclasses
import http.client
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.observe.backend_figures import BackendFigures
from broker.observe.cluster_figures import ClusterFigures
from broker.observe.metrics import STALLED_S, MetricsServer, Snapshot, Status
from session.counters import REFUSALS, Counters
from storage.local.disk_space import Measured

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Broker:
    """The other side of the metrics server: what the engine's thread would answer."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.status = Status()
        self.gauges: dict[str, int] = {}
        self.backends: list[BackendFigures] = []
        self.snapshots_taken = 0
        self.is_answering = True
        self.server = MetricsServer(
            "127.0.0.1",
            0,
            counters=self.counters,
            status=self.status,
            take_snapshot=self.take_snapshot,
        )

    def take_snapshot(self, timeout_s: float) -> Snapshot | None:
        if not self.is_answering:
            return None
        self.snapshots_taken += 1
        return Snapshot(
            dict(self.gauges),
            connections={"tcp": 2, "web": 1},
            storage_bytes={"sst": 5, "wal": 7},
            write_stall=0,
            loop_lag_s=0.25,
            backends=self.backends,
        )

    def get(self, path: str, method: str = "GET") -> tuple[int, str, str]:
        """Return status, content type and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read().decode()
            return response.status, response.headers["Content-Type"], body
        finally:
            connection.close()

    def scrape(self) -> Samples:
        status, content_type, body = self.get("/metrics")
        assert status == 200
        assert content_type.startswith("text/plain; version=0.0.4")
        samples: Samples = {}
        for family in text_string_to_metric_families(body):
            assert family.documentation, family.name
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                assert key not in samples
                samples[key] = sample.value
        return samples


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.server.close()


def test_counters_appear_under_their_names_and_labels(broker: Broker) -> None:
    broker.counters.packets_received[3] = 5
    broker.counters.packets_sent[4] = 4
    broker.counters.messages_received[1] = 3
    broker.counters.bytes_sent = 99
    broker.counters.drop("queue_full", 2)
    broker.counters.connects["accepted"] = 1
    broker.counters.disconnects["taken_over"] = 1
    broker.counters.wills["fired"] = 1
    broker.counters.sessions_resumed = 6
    broker.counters.redeliveries = 8
    samples = broker.scrape()
    for name, labels, value in [
        ("packets_total", {"direction": "received", "packet": "publish"}, 5),
        ("packets_total", {"direction": "sent", "packet": "puback"}, 4),
        ("messages_total", {"direction": "received", "qos": "1"}, 3),
        ("bytes_total", {"direction": "sent"}, 99),
        ("messages_dropped_total", {"reason": "queue_full"}, 2),
        ("connects_total", {"result": "accepted"}, 1),
        ("disconnects_total", {"reason": "taken_over"}, 1),
        ("wills_total", {"outcome": "fired"}, 1),
        ("sessions_resumed_total", {}, 6),
        ("redeliveries_total", {}, 8),
    ]:
        assert samples["holdfast_" + name, tuple(sorted(labels.items()))] == value


def test_every_reason_is_there_before_it_happens_so_that_rates_work(broker: Broker) -> None:
    samples = broker.scrape()
    for reason in broker.counters.dropped:
        assert samples["holdfast_messages_dropped_total", (("reason", reason),)] == 0


def test_every_refusal_of_every_listener_is_there_before_it_happens(broker: Broker) -> None:
    broker.counters.add_listener("tcp")
    broker.counters.refuse("web", "bad_credentials")
    samples = broker.scrape()
    name = "holdfast_connections_refused_total"
    for reason in REFUSALS:
        of_web = int(reason == "bad_credentials")
        assert samples[name, (("listener", "tcp"), ("reason", reason))] == 0
        assert samples[name, (("listener", "web"), ("reason", reason))] == of_web


def test_the_disk_and_certificates_are_told_where_they_are_known(broker: Broker) -> None:
    """Of a disk that cannot be asked there is no number, rather than an old one."""
    names = {f"holdfast_storage_{each}_bytes" for each in ("free", "disk", "low_water")}
    expiry = "holdfast_certificate_expiry_timestamp_seconds"
    assert not (names | {expiry}) & {name for name, _ in broker.scrape()}
    broker.status.disk = Measured(20, 100, 5)
    broker.status.certificates = {"tls": 4_733_510_400, "web": 1_609_459_200}
    samples = broker.scrape()
    assert samples["holdfast_storage_free_bytes", ()] == 20
    assert samples["holdfast_storage_disk_bytes", ()] == 100
    assert samples["holdfast_storage_low_water_bytes", ()] == 5
    assert samples[expiry, (("listener", "tls"),)] == 4_733_510_400
    assert samples[expiry, (("listener", "web"),)] == 1_609_459_200
    broker.status.disk, broker.status.certificates = None, {}
    assert not (names | {expiry}) & {name for name, _ in broker.scrape()}


def test_histograms_are_cumulative_and_agree_with_their_count(broker: Broker) -> None:
    for seconds in (0.001, 0.002, 0.5):
        broker.counters.commit_seconds.add(seconds)
    samples = broker.scrape()
    name = "holdfast_storage_commit_seconds"
    buckets = {dict(key[1])["le"]: v for key, v in samples.items() if key[0] == name + "_bucket"}
    assert buckets["+Inf"] == samples[name + "_count", ()] == 3
    assert samples[name + "_sum", ()] == pytest.approx(0.503)
    values = [value for _, value in sorted(buckets.items(), key=lambda item: float(item[0]))]
    assert values == sorted(values)


def test_the_history_is_told_of_where_there_is_an_exporter(broker: Broker) -> None:
    assert not any(name.startswith("holdfast_history") for name, _ in broker.scrape())
    other = Broker()
    try:
        other.gauges = {
            "history_exporting": 1,
            "history_lag_ms": 2500,
            "history_outbox_bytes": 7,
            "history_events": 11,
            "history_gap_events": 3,
            "history_export_failures": 2,
            "history_segments": 2,
            "history_level": 2,
            "history_witness_lost_events": 5,
            "history_witness_failures": 4,
        }
        samples = other.scrape()
    finally:
        other.server.close()
    assert samples["holdfast_history_exporting", ()] == 1
    assert samples["holdfast_history_lag_seconds", ()] == 2.5
    assert samples["holdfast_history_outbox_bytes", ()] == 7
    assert samples["holdfast_history_events_total", ()] == 11
    assert samples["holdfast_history_gap_events_total", ()] == 3
    assert samples["holdfast_history_export_failures_total", ()] == 2
    assert samples["holdfast_history_segments_total", ()] == 2
    assert samples["holdfast_history_witness_lost_events", ()] == 5
    assert samples["holdfast_history_witness_failures_total", ()] == 4
    levels = {
        dict(labels)["level"]: value
        for (name, labels), value in samples.items()
        if name == "holdfast_history_level"
    }
    assert levels == {"off": 0, "sessions": 0, "books": 1, "sampled": 0, "full": 0}


def test_gauges_come_from_the_engines_snapshot(broker: Broker) -> None:
    broker.gauges = {"sessions_online": 3, "sessions_offline": 4, "inflight_messages": 5}
    broker.status.recovery_seconds = 1.5
    broker.status.durability = "fsync"
    samples = broker.scrape()
    assert samples["holdfast_sessions", (("state", "online"),)] == 3
    assert samples["holdfast_sessions", (("state", "offline"),)] == 4
    assert samples["holdfast_inflight_messages", ()] == 5
    assert samples["holdfast_storage_bytes", (("part", "wal"),)] == 7
    assert samples["holdfast_connections", (("listener", "web"),)] == 1
    assert samples["holdfast_event_loop_lag_seconds", ()] == 0.25
    assert samples["holdfast_recovery_seconds", ()] == 1.5
    assert samples["holdfast_durability_info", (("mode", "fsync"),)] == 1
    assert ("process_resident_memory_bytes", ()) in samples


def test_two_scrapes_in_a_row_ask_the_engine_once(broker: Broker) -> None:
    broker.scrape()
    broker.scrape()
    assert broker.snapshots_taken == 1


def test_a_silent_engine_leaves_the_counters_readable(broker: Broker) -> None:
    broker.is_answering = False
    broker.counters.bytes_received = 1
    samples = broker.scrape()
    assert samples["holdfast_bytes_total", (("direction", "received"),)] == 1
    assert ("holdfast_sessions", (("state", "online"),)) not in samples


@pytest.mark.parametrize(
    ("phase", "healthy", "ready"),
    [
        ("starting", 200, 503),
        ("recovering", 200, 503),
        ("ready", 200, 200),
        ("draining", 200, 503),
        ("failed", 503, 503),
    ],
)
def test_health_and_readiness_follow_the_phase(
    broker: Broker, phase: str, healthy: int, ready: int
) -> None:
    broker.status.phase = phase
    assert broker.get("/healthz")[::2] == (healthy, f"{phase}\n")
    assert broker.get("/readyz")[::2] == (ready, f"{phase}\n")


def test_a_loop_that_stopped_turning_is_neither_healthy_nor_ready(broker: Broker) -> None:
    broker.status.phase = "ready"
    broker.status.beat -= STALLED_S + 1
    assert broker.get("/healthz")[::2] == (503, "stalled\n")
    assert broker.get("/readyz")[::2] == (503, "stalled\n")


def test_other_paths_and_head_requests_are_answered(broker: Broker) -> None:
    assert broker.get("/")[0] == 404
    assert broker.get("/metrics?x=1")[0] == 200
    status, _, body = broker.get("/healthz", "HEAD")
    assert (status, body) == (200, "")


def test_a_port_in_use_is_an_error_of_the_start(broker: Broker) -> None:
    with pytest.raises(OSError, match="in use"):
        MetricsServer(
            "127.0.0.1",
            broker.server.port,
            counters=Counters(),
            status=Status(),
            take_snapshot=lambda timeout_s: None,
        )


def test_a_host_that_cannot_be_a_name_is_an_error_of_the_start() -> None:
    with pytest.raises(OSError, match="not a host name"):
        MetricsServer(
            "é" * 80,
            0,
            counters=Counters(),
            status=Status(),
            take_snapshot=lambda timeout_s: None,
        )


def test_close_ends_the_thread_and_frees_the_port() -> None:
    broker = Broker()
    port = broker.server.port
    broker.server.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "metrics"]
    MetricsServer(
        "127.0.0.1",
        port,
        counters=Counters(),
        status=Status(),
        take_snapshot=lambda timeout_s: None,
    ).close()


def test_labels_are_bounded_words(broker: Broker) -> None:
    broker.gauges = {"generations": 1}
    bounded: Callable[[str], bool] = lambda word: len(word) < 40  # noqa: E731
    for (name, labels), _ in broker.scrape().items():
        assert bounded(name.removeprefix("holdfast_"))
        assert {label for label, _ in labels} <= {
            "direction", "packet", "qos", "reason", "result", "outcome", "state", "kind", "part",
            "listener", "mode", "le", "version", "python", "rocksdict", "build",
            "generation", "what",
        }  # fmt: skip


def test_external_stores_are_told_apart_and_absent_where_there_are_none(broker: Broker) -> None:
    assert not any(name.startswith("holdfast_backend") for name, _ in broker.scrape())
    up, down = BackendFigures("up", is_required=False), BackendFigures("down", is_required=True)
    up.is_up, up.rows, up.lag_s, up.rows_behind = True, 7, 1.5, 3
    up.backlog_bytes, up.is_refusing = 1 << 24, True
    up.batch_seconds.add(0.004)
    up.fetch_seconds.add(0.25)
    down.retries, down.rewinds, down.gaps, down.dead_letters = 1, 2, 3, 4
    second = Broker()  # a snapshot is used again for a second
    second.backends = [up, down]
    samples = second.scrape()
    second.server.close()
    of_up, of_down = (("backend", "up"),), (("backend", "down"),)
    assert samples["holdfast_backend_up", of_up] == 1
    assert samples["holdfast_backend_up", of_down] == 0
    assert samples["holdfast_backend_rows_total", of_up] == 7
    assert samples["holdfast_backend_lag_seconds", of_up] == 1.5
    assert samples["holdfast_backend_backlog_rows", of_up] == 3
    assert samples["holdfast_backend_backlog_bytes", of_up] == 1 << 24
    assert samples["holdfast_backend_refusing", of_up] == 1
    assert samples["holdfast_backend_refusing", of_down] == 0
    assert samples["holdfast_backend_batch_seconds_count", of_up] == 1
    assert samples["holdfast_backend_batch_seconds_sum", of_up] == 0.004
    assert samples["holdfast_backend_fetch_seconds_count", of_up] == 1
    assert samples["holdfast_backend_fetch_seconds_sum", of_up] == 0.25
    assert samples["holdfast_backend_retries_total", of_down] == 1
    assert samples["holdfast_backend_rewinds_total", of_down] == 2
    assert samples["holdfast_backend_gaps_total", of_down] == 3
    assert samples["holdfast_backend_dead_letters", of_down] == 4


def test_a_leader_that_does_not_hear_its_cluster_is_not_ready_and_stays_alive(
    broker: Broker,
) -> None:
    broker.status.phase = "ready"
    broker.status.beat = time.monotonic()
    now = time.monotonic()
    figures = ClusterFigures("leader", True, 1, 9, 9, 9, 1, 100, 0.2, 1, True, seen=now + 60)
    broker.status.cluster = figures
    assert broker.get("/readyz")[0] == 200
    broker.status.cluster = dataclasses.replace(figures, silent_s=4.0, seen=now)
    told = (503, "ready\nthe log of the cluster is not heard\n")
    assert broker.get("/readyz")[::2] == told
    assert broker.get("/healthz")[0] == 200


def test_a_leader_that_was_stopped_is_not_ready_before_it_has_looked_again(broker: Broker) -> None:
    broker.status.phase = "ready"
    broker.status.beat = now = time.monotonic()
    figures = ClusterFigures("leader", True, 1, 9, 9, 9, 1, 100, 0.2, 1, True, seen=now - 4.0)
    broker.status.cluster = figures
    told = (503, "ready\nthe log of the cluster is not heard\n")
    assert broker.get("/readyz")[::2] == told


def test_stores_that_are_down_are_named_by_readyz_alone_and_fail_it_if_required(
    broker: Broker,
) -> None:
    broker.status.phase = "ready"
    broker.status.beat = time.monotonic()
    broker.status.backends_down = {"cache": False}
    assert broker.get("/readyz")[::2] == (200, "ready\nbackend cache is down\n")
    assert broker.get("/healthz")[::2] == (200, "ready\n")
    broker.status.backends_down = {"cache": False, "main": True}
    status, _, body = broker.get("/readyz")
    assert (status, body.splitlines()[2]) == (503, "backend main is down, and it is required")
    assert broker.get("/healthz")[0] == 200
    assert broker.scrape()["holdfast_ready", ()] == 0
