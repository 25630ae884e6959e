"""Which alerts fire, by Prometheus' own rules engine: none on a healthy broker, each in need.

What a real broker reports is read twice. What it counted in between, and ages, go on at the same
pace for hours, because alerts are about hours; other gauges stay as they are.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.broker.observe import alert_rules
from tests.broker.observe.alert_rules import ALERTS, PROMTOOL
from tests.broker.process.starts import hide_pyarrow
from tests.durability.process import POLL_SECONDS, BrokerProcess
from tests.durability.rawclient import RawClient

MINUTES: Final = 600
# A scrape is answered from a snapshot that is at most a second old.
BETWEEN_SCRAPES_S: Final = 1.5
COUNTED: Final = re.compile(r"_(total|bucket|count|sum)({|$)")
AGES: Final = ("holdfast_history_lag_seconds",)
# How busy the machine is that runs the tests, and how full its disk.
OF_THIS_MACHINE: Final = (
    "holdfast_event_loop_lag",
    "holdfast_storage_commit_seconds",
    "holdfast_storage_free_bytes",
    "holdfast_storage_disk_bytes",
)

pytestmark = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is missing: scripts/setup --test unpacks it"
)

Play = Callable[[BrokerProcess], None]


def judge(directory: Path, series: dict[str, str], expected: dict[int, list[str]]) -> None:
    """Check which alerts fire at each minute of `expected`, for these series, a value a minute."""
    alert_rules.judge(directory, series, {60 * minute: names for minute, names in expected.items()})


def healthy(directory: Path, series: dict[str, str]) -> None:
    """Check that no alert ever fires."""
    judge(directory, series, {minute: [] for minute in range(0, MINUTES + 1, 5)})


def continued(broker: BrokerProcess, play: Play) -> dict[str, str]:
    """Scrape, play until some time has passed, scrape; return both as the pace of hours."""
    play(broker)  # what happens for the first time is no pace
    first, begun = broker.metrics(), time.monotonic()
    while (elapsed_s := time.monotonic() - begun) < BETWEEN_SCRAPES_S:
        play(broker)
    second = broker.metrics()
    series = {"up": f"1x{MINUTES}"}
    for sample, value in second.items():
        if sample.startswith(OF_THIS_MACHINE):
            continue
        goes_on = COUNTED.search(sample) or sample.startswith(AGES)
        step = (value - first[sample]) * 60 / elapsed_s if goes_on else 0.0
        series[sample] = f"{value:f}{step:+f}x{MINUTES}"
    return series


def clients_come_and_go(broker: BrokerProcess) -> None:
    """Publish to a session that is away, fetch it, take it over, vanish without a DISCONNECT."""
    boat, shore = RawClient(broker.port, "boat"), RawClient(broker.port, "shore")
    boat.durable()
    boat.subscribe("orders/#", qos=1)
    boat.drop(reset=True)
    shore.connect()
    for qos in (0, 1, 2):
        shore.publish("orders/1", b"set sail", qos=qos)
    shore.disconnect()
    boat.resume()
    boat.take(2)
    successor = RawClient(broker.port, "boat")
    successor.resume()
    boat.expect_closed()
    successor.drop()


def rules_deny(broker: BrokerProcess) -> None:
    """Publish what may not be published, and subscribe to what may not be read."""
    nosy, loud = RawClient(broker.port, "nosy"), RawClient(broker.port, "loud")
    nosy.connect()
    nosy.subscribe("#", qos=0)
    loud.connect()
    loud.publish("secret/loud", b"for nobody", qos=0)
    loud.publish("open/1", b"for all", qos=0)
    loud.publish("other", b"denied", qos=0)
    assert nosy.expect_publish().topic == "open/1"
    nosy.drop()
    loud.drop()


def is_beating(broker: BrokerProcess) -> None:
    """Only ask whether it is there, as a health check does."""
    RawClient(broker.port, "check").connect()
    time.sleep(POLL_SECONDS)


@pytest.mark.parametrize("play", [is_beating, clients_come_and_go, rules_deny])
def test_no_alert_fires_on_a_healthy_default_installation(
    prepare: Callable[..., BrokerProcess], tmp_path: Path, play: Play
) -> None:
    broker = prepare()
    hide_pyarrow(broker, tmp_path)  # a plain `pip install .` has none
    if play is rules_deny:
        acl = tmp_path / "acl"
        acl.write_text("topic readwrite open/#\npattern write secret/%c\n")
        broker.env["HOLDFAST__AUTH__ACL_FILE"] = str(acl)
    broker.start()
    series = continued(broker, play)
    assert series["holdfast_ready"].startswith("1.0")
    assert series["holdfast_history_exporting"].startswith("0.0")
    denied = 'holdfast_messages_dropped_total{reason="not_authorized"}'
    assert ("+0.0" in series[denied]) != (play is rules_deny)
    healthy(tmp_path, series)


def test_what_clients_ask_for_or_cause_is_no_alert(tmp_path: Path) -> None:
    reasons = ("expired", "too_large", "not_authorized", "slow_consumer", "qos0_offline")
    name = "holdfast_messages_dropped_total"
    healthy(tmp_path, {f'{name}{{reason="{each}"}}': f"0+9x{MINUTES}" for each in reasons})


@pytest.mark.parametrize("rest", [0, 10_000_000_000])
def test_generations_that_fill_and_go_are_no_growing_backlog(tmp_path: Path, rest: int) -> None:
    hour = f"{rest}+4000000x59 "  # 240 MB, then the generation is dropped
    healthy(tmp_path, {"holdfast_stored_bytes": hour * (MINUTES // 60)})


OWED: Final = "holdfast_backlog_bytes"
CENSUS: Final = "holdfast_backlog_census_age_seconds"


def test_what_is_owed_may_grow_though_little_is_stored(tmp_path: Path) -> None:
    """A message that a thousand sessions are owed is stored once."""
    series = {
        "holdfast_stored_bytes": f"0+10000x{MINUTES}",
        f'{OWED}{{kind="offline"}}': f"0+9000000x{MINUTES}",
        f'{OWED}{{kind="group"}}': f"0+1000000x{MINUTES}",
    }
    judge(tmp_path, series, {0: [], 60: [], 360: ["HoldfastBacklogGrows"]})


def test_a_backlog_that_is_fetched_each_hour_or_is_small_is_no_alert(tmp_path: Path) -> None:
    healthy(tmp_path, {f'{OWED}{{kind="offline"}}': "0+40000000x59 " * (MINUTES // 60)})
    healthy(tmp_path, {f'{OWED}{{kind="offline"}}': f"0+1000000x{MINUTES}"})
    healthy(tmp_path, {f'{OWED}{{kind="online"}}': f"9000000000x{MINUTES}"})


def test_counts_that_rest_for_hours_are_no_alert(tmp_path: Path) -> None:
    """A million sessions are counted every two hours or so."""
    healthy(tmp_path, {CENSUS: "200+60x150 " * (MINUTES // 150)})
    # One that failed has another one behind it.
    judge(tmp_path, {CENSUS: f"0+60x370 100+60x{MINUTES}"}, {300: [], 371: [], 380: [], 600: []})


def test_a_history_that_nobody_exports_is_no_alert_though_its_oldest_events_go(
    tmp_path: Path,
) -> None:
    series = {"holdfast_history_exporting": "0x600", "holdfast_history_gap_events_total": "0+9x600"}
    healthy(tmp_path, series)


def test_sessions_that_are_answered_at_a_steady_pace_are_no_alert(tmp_path: Path) -> None:
    series = {
        'holdfast_backend_up{backend="b"}': f"1x{MINUTES}",
        'holdfast_backend_fetches_owed{backend="b"}': f"30x{MINUTES}",
        'holdfast_backend_fetch_seconds_count{backend="b"}': f"0+60x{MINUTES}",
    }
    healthy(tmp_path, series)


def test_questions_that_wait_for_a_store_that_is_down_are_told_once(tmp_path: Path) -> None:
    series = {
        'holdfast_backend_up{backend="b"}': "0x60",
        'holdfast_backend_fetches_owed{backend="b"}': "9x60",
        'holdfast_backend_fetch_seconds_count{backend="b"}': "0x60",
    }
    judge(tmp_path, series, {0: [], 50: ["HoldfastBackendDown"]})


FREE: Final = "holdfast_storage_free_bytes"
DISK: Final = "holdfast_storage_disk_bytes"
MARK: Final = "holdfast_storage_low_water_bytes"
EXPIRY: Final = 'holdfast_certificate_expiry_timestamp_seconds{listener="tls"}'
DAY_S: Final = 86_400


def disk(size: float, free: str) -> dict[str, str]:
    """Return the series of a disk, with the default mark."""
    mark = max(134_217_728, size / 20)
    return {DISK: f"{size:f}x{2 * MINUTES}", MARK: f"{mark:f}x{2 * MINUTES}", FREE: free}


@pytest.mark.parametrize(
    ("size", "free"),
    [
        (4e12, f"3e12-9e8x{MINUTES}"),  # 1.3 TB a day, but more than 40 % are free
        (1e11, f"2e10x{MINUTES}"),  # nearly full, and stays so
        (1e11, "2e10-4e6x59 " * (MINUTES // 60)),  # generations come and go
        (1e10, f"2e9 1.9e9 1.8e9 1.75e9x{MINUTES}"),  # what a start takes: ballast, first logs
    ],
)
def test_a_disk_that_has_room_and_keeps_it_is_no_alert(
    tmp_path: Path, size: float, free: str
) -> None:
    healthy(tmp_path, disk(size, free))


@pytest.mark.parametrize("mark", [0, 10_000_000])
def test_a_disk_without_room_for_the_database_is_low_whatever_the_mark(
    tmp_path: Path, mark: int
) -> None:
    series = {DISK: "1e11x60", MARK: f"{mark}x60", FREE: "2e8x60"}
    judge(tmp_path, series, {0: [], 5: ["HoldfastDiskLow"]})


def test_a_disk_that_is_filled_is_told_before_it_is_low(tmp_path: Path) -> None:
    series = disk(1e11, f"2.5e10-2e7x{2 * MINUTES}")
    expected = ["HoldfastDiskFillsIn24h"]
    judge(tmp_path, series, {480: [], 545: expected, 870: expected})
    judge(tmp_path, series, {900: ["HoldfastDiskFillsIn24h", "HoldfastDiskLow"]})


def test_a_certificate_is_told_of_once_at_a_time(tmp_path: Path) -> None:
    days = {15: [], 13: ["Expires"], 3: ["Expires"], 1: ["ExpiresSoon"], -1: ["ExpiresSoon"]}
    for left, names in days.items():
        series = {EXPIRY: f"{left * DAY_S}x10"}
        judge(tmp_path, series, {5: [f"HoldfastCertificate{name}" for name in names]})


BUCKET: Final = "holdfast_storage_commit_seconds_bucket"
DROPPED: Final = "holdfast_messages_dropped_total"
# Alert -> series, and how many minutes it may take to fire.
FIRES: Final[dict[str, tuple[dict[str, str], int]]] = {
    "HoldfastDown": ({"up": "0x60"}, 1),
    "HoldfastNotReady": ({"holdfast_ready": "0x60"}, 5),
    "HoldfastRestarting": ({"process_start_time_seconds": "1+60x60"}, 5),
    "HoldfastCommitFailures": ({"holdfast_commit_failures_total": "0x5 1x60"}, 7),
    "HoldfastWritesRefused": ({"holdfast_writes_refused": "1x60"}, 1),
    "HoldfastDiskLow": (disk(1e11, "7e9x60"), 5),
    "HoldfastDiskFillsIn24h": (disk(1e11, f"2.5e10-2e7x{MINUTES}"), 545),
    "HoldfastCertificateExpires": ({EXPIRY: f"{14 * DAY_S + 300}x60"}, 6),
    "HoldfastCertificateExpiresSoon": ({EXPIRY: f"_x5 {DAY_S}x60"}, 7),
    "HoldfastCommitSlow": (
        {
            f'{BUCKET}{{le="1.048576"}}': "0x60",
            f'{BUCKET}{{le="2.097152"}}': "0+9x60",
            f'{BUCKET}{{le="+Inf"}}': "0+9x60",
        },
        7,
    ),
    "HoldfastWriteStall": ({"holdfast_storage_write_stall": "1x60"}, 1),
    "HoldfastDamagedRows": ({'holdfast_damaged_rows_total{what="message"}': "0x5 1x60"}, 7),
    "HoldfastDrops": ({f'{DROPPED}{{reason="session_limit"}}': "0x5 1x60"}, 7),
    "HoldfastBacklogGrows": ({"holdfast_stored_bytes": f"0+10000000x{MINUTES}"}, 360),
    "HoldfastBacklogNotCounted": ({CENSUS: f"0+60x{MINUTES}"}, 380),
    "HoldfastHistoryLags": (
        {
            "holdfast_history_exporting": "1x60",
            "holdfast_history_lag_seconds": "0+60x60",
        },
        17,
    ),
    "HoldfastHistoryGap": (
        {
            "holdfast_history_exporting": "1x60",
            "holdfast_history_gap_events_total": "0x5 9x60",
        },
        7,
    ),
    "HoldfastBackendDown": ({'holdfast_backend_up{backend="b"}': "0x60"}, 5),
    "HoldfastBackendRefuses": ({'holdfast_backend_refusing{backend="b"}': "1x60"}, 5),
    "HoldfastBackendLags": ({'holdfast_backend_lag_seconds{backend="b"}': "0+60x60"}, 17),
    "HoldfastBackendFetchesOwed": (
        {
            'holdfast_backend_up{backend="b"}': "1x60",
            'holdfast_backend_fetches_owed{backend="b"}': "0x5 9x60",
            'holdfast_backend_fetch_seconds_count{backend="b"}': "0+60x5 300x60",
        },
        26,
    ),
    "HoldfastBackendDeadLetters": ({'holdfast_backend_dead_letters{backend="b"}': "0x5 1x60"}, 7),
    "HoldfastBackendRewound": ({'holdfast_backend_rewinds_total{backend="b"}': "0x5 1x60"}, 7),
    "HoldfastBackendGap": ({'holdfast_backend_gaps_total{backend="b"}': "0x5 1x60"}, 7),
    "HoldfastClusterHasNoLeader": ({"holdfast_cluster_has_leader": "1x5 0x60"}, 7),
    "HoldfastClusterLogNotHeard": ({"holdfast_cluster_silent_seconds": "0x5 0+60x60"}, 8),
    "HoldfastClusterChangesLeader": ({"holdfast_cluster_epoch": "1x5 3x5 6x60"}, 12),
    "HoldfastLoopLag": ({"holdfast_event_loop_lag_seconds": "0.6x60"}, 5),
    "HoldfastInternalErrors": ({"holdfast_internal_errors_total": "0x5 1x60"}, 7),
}


def test_a_follower_is_not_ready_and_no_alert(tmp_path: Path) -> None:
    role = 'holdfast_cluster_role{role="follower"}'
    judge(tmp_path, {"holdfast_ready": "0x60", role: "1x60"}, {30: []})
    judge(tmp_path, {"holdfast_ready": "0x60", role: "0x60"}, {30: ["HoldfastNotReady"]})


def test_every_alert_of_the_file_is_tried() -> None:
    assert re.findall(r"- alert: (\w+)", ALERTS.read_text()) == list(FIRES)


@pytest.mark.parametrize("alert", FIRES)
def test_each_alert_fires_when_it_should_and_no_other_does(tmp_path: Path, alert: str) -> None:
    series, minute = FIRES[alert]
    judge(tmp_path, series, {0: [], minute: [alert]})


@pytest.mark.parametrize(
    "reason", ["queue_full", "session_limit", "total_limit", "max_age", "storage_refused"]
)
def test_messages_that_a_limit_cut_are_an_alert(tmp_path: Path, reason: str) -> None:
    series: dict[str, Any] = {f'{DROPPED}{{reason="{reason}"}}': "0x5 1x60"}
    judge(tmp_path, series, {5: [], 7: ["HoldfastDrops"]})
