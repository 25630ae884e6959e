"""The process from start to end: what it says, what it refuses, and how it leaves."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broker import build
from broker.operations.control_socket import ControlError, ask
from broker.process.server import tell_end
from broker.security import password_file, password_hashes
from mqtt import reasons
from mqtt.packets import Connack, Connect, Disconnect
from tests.broker.network.certificates import Authority
from tests.broker.process.starts import events
from tests.durability.process import ROOT, BrokerProcess, free_port, http_get
from tests.durability.rawclient import Closed, RawClient

Start = Callable[..., BrokerProcess]


# Starting.


def test_ready_is_said_with_port_and_what_was_recovered(start: Start) -> None:
    broker = start()
    for number in range(3):
        client = RawClient(broker.port, f"device-{number}")
        client.durable()
        client.disconnect()
    broker.restart()
    ready = events(broker)["ready"]
    assert re.search(
        rf"ready port={broker.port} recovered 3 sessions in [0-9.]+ s$", str(ready["message"])
    )
    assert ready["sessions"] == 3
    assert ready["build"] == str(build.find())
    assert "not_compiled" not in events(broker)
    samples = broker.metrics()
    assert samples["holdfast_recovered_sessions"] == 3
    assert samples["holdfast_recovery_seconds"] > 0
    assert samples['holdfast_sessions{state="offline"}'] == 3


def test_port_0_takes_a_free_one_and_names_it(prepare: Start) -> None:
    broker = prepare(HOLDFAST__METRICS__PORT="0")
    process = subprocess.Popen(
        [sys.executable, "-m", "broker", "serve", "-p", "0", "--data-dir", str(broker.data_dir)],
        env={**os.environ, **broker.env},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        found = re.search(r"ready port=([0-9]+) ", process.stderr.readline())
        assert found is not None
        client = RawClient(int(found[1]), "c")
        client.connect()
        client.disconnect()
    finally:
        process.terminate()
        assert process.wait(30) == 0
        process.stderr.close()


def test_systemd_hears_ready_only_after_recovery_and_stopping_at_the_end(
    prepare: Start, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        broker = prepare(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="2000000").start()
        assert manager.recv(1000) == b"STATUS=recovering"
        ready = manager.recv(1000)
        while ready == b"WATCHDOG=1":
            ready = manager.recv(1000)
        assert re.fullmatch(rb"READY=1\nSTATUS=recovered 0 sessions in [0-9.]+ s", ready)
        assert manager.recv(1000) == b"WATCHDOG=1"
        assert broker.stop() == 0
        last = manager.recv(1000)
        while last == b"WATCHDOG=1":
            last = manager.recv(1000)
        assert last.startswith(b"STOPPING=1")


def test_systemd_does_not_hear_that_a_node_stops_which_hands_over_and_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
        tell_end("n2")
        tell_end(None)
        assert manager.recv(1000) == b"STATUS=handing over to n2"
        assert manager.recv(1000) == b"STOPPING=1\nSTATUS=draining"


@pytest.mark.parametrize("mode", ["os", "interval:20"])
def test_other_durability_modes_serve_and_keep_sessions_over_a_restart(
    start: Start, mode: str
) -> None:
    broker = start(HOLDFAST__STORAGE__DURABILITY=mode)
    client = RawClient(broker.port, "c")
    client.durable()
    client.subscribe("a", qos=1)
    client.publish("a", b"x", qos=1)
    client.drop()
    assert broker.metrics()[f'holdfast_durability_info{{mode="{mode}"}}'] == 1
    broker.restart()
    client.resume()


def test_it_runs_on_asyncio_where_uvloop_is_missing(prepare: Start, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "uvloop.py").write_text("raise ImportError('not here')\n")
    broker = prepare(PYTHONPATH=f"{hidden}{os.pathsep}{ROOT}").start()
    client = RawClient(broker.port, "c")
    client.durable()
    client.subscribe("a", qos=2)
    client.disconnect()
    assert broker.stop() == 0


# Ending.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sends_v5_clients_away_with_0x8b_and_exits_0(
    start: Start, number: signal.Signals
) -> None:
    broker = start()
    modern, old = RawClient(broker.port, "modern"), RawClient(broker.port, "old", version=4)
    modern.durable()
    old.connect(clean_start=False)
    broker.signal(number)
    farewell = modern.expect_closed()
    assert isinstance(farewell, Disconnect)
    assert farewell.reason_code == reasons.SERVER_SHUTTING_DOWN
    assert old.expect_closed() is None
    assert broker.wait_exit(20) == 0
    assert "exit" in events(broker)
    broker.start()
    assert modern.durable().session_present
    assert old.connect(clean_start=False).session_present


def test_a_drain_does_not_wait_for_clients_that_do_not_listen(start: Start) -> None:
    broker = start()
    deaf = RawClient(broker.port, "deaf")
    deaf.durable()
    assert broker.stop() == 0


def test_readiness_ends_with_the_process(start: Start) -> None:
    broker = start()
    assert http_get(broker.metrics_port, "/readyz") == (200, "ready\n")
    assert http_get(broker.metrics_port, "/healthz") == (200, "ready\n")
    assert broker.stop() == 0
    assert http_get(broker.metrics_port, "/readyz")[0] == 0


# Serving.


def test_a_scrape_shows_what_clients_did(start: Start) -> None:
    broker = start()
    client = RawClient(broker.port, "c")
    client.durable()
    client.subscribe("a", qos=1)
    publisher = RawClient(broker.port, "p", version=4)
    publisher.connect()
    publisher.publish("a", b"xyz", qos=1)
    assert client.take(1)[0].payload == b"xyz"
    samples = broker.metrics()
    for name, value in {
        'holdfast_connects_total{result="accepted"}': 2,
        'holdfast_packets_total{direction="received",packet="connect"}': 2,
        'holdfast_packets_total{direction="sent",packet="publish"}': 1,
        'holdfast_messages_total{direction="received",qos="1"}': 1,
        'holdfast_sessions{state="online"}': 2,
        'holdfast_connections{listener="tcp"}': 2,
        "holdfast_messages_stored_total": 1,
        "holdfast_ready": 1,
        "holdfast_internal_errors_total": 0,
        "holdfast_writes_refused": 0,
    }.items():
        assert samples[name] == value, name
    assert samples["holdfast_commits_total"] >= 3
    assert samples["holdfast_storage_commit_seconds_count"] == samples["holdfast_commits_total"]
    assert samples["holdfast_publish_ack_seconds_count"] == samples["holdfast_commits_total"]
    assert samples["holdfast_commit_batch_records_sum"] > 0
    assert samples['holdfast_storage_bytes{part="wal"}'] > 0


def test_the_health_command_finds_a_running_broker(start: Start) -> None:
    broker = start()
    result = subprocess.run(
        [sys.executable, "-m", "broker", "health"],
        env={**os.environ, **broker.env},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "ready\n", "")


def test_passwords_are_asked_for_and_sighup_reads_new_ones(start: Start, tmp_path: Path) -> None:
    users = tmp_path / "users"
    first = {"anna": password_hashes.hasher().hash("right")}
    password_file.save(str(users), first)
    broker = start(HOLDFAST__AUTH__PASSWORD_FILE=str(users))
    client = RawClient(broker.port, "c")
    client.connect(username="anna", password=b"right")
    client.connect(username="anna", password=b"wrong", reason=reasons.BAD_USER_NAME_OR_PASSWORD)
    client.connect(username="ben", password=b"his", reason=reasons.BAD_USER_NAME_OR_PASSWORD)
    client.connect(reason=reasons.NOT_AUTHORIZED)
    password_file.save(str(users), {**first, "ben": password_hashes.hasher().hash("his")})
    broker.signal(signal.SIGHUP)
    broker.wait_for_event("reload")
    client.connect(username="ben", password=b"his")
    users.write_text("nonsense\n")
    broker.signal(signal.SIGHUP)
    broker.wait_for_event("reload_failed")
    client.connect(username="ben", password=b"his")


def test_sighup_before_the_broker_is_ready_is_heeded_when_it_is(
    prepare: Start, tmp_path: Path
) -> None:
    """It neither ends the process nor is forgotten. A pipe holds the start up where we want it."""
    users, line = tmp_path / "users", f"anna:{password_hashes.hasher().hash('right')}\n"
    os.mkfifo(users)
    broker = prepare(HOLDFAST__AUTH__PASSWORD_FILE=str(users))
    broker.launch()
    with users.open("w") as pipe:  # returns when the broker has begun to read
        broker.signal(signal.SIGHUP)
        (tmp_path / "new").write_text(line)
        (tmp_path / "new").replace(users)
        pipe.write(line)
    broker.wait_until_ready()
    client = RawClient(broker.port, "c")
    client.connect(username="anna", password=b"right")
    broker.wait_for_event("reload")


def test_sighup_says_what_it_has_read_again(start: Start, tmp_path: Path) -> None:
    """Certificates are something; only without them and without files there is nothing."""
    certificate, key = Authority(tmp_path / "authority").server()
    tls = {
        "HOLDFAST__LISTENER__TLS__PORT": str(free_port()),
        "HOLDFAST__LISTENER__TLS__TLS_CERTIFICATE": str(certificate),
        "HOLDFAST__LISTENER__TLS__TLS_KEY": str(key),
    }
    (tmp_path / "acl").write_text("topic readwrite #\n")
    rules = {"HOLDFAST__AUTH__ACL_FILE": str(tmp_path / "acl")}
    nothing = "nothing to reload: no configuration file, password file, ACL file or certificate"
    both = ["files of users and rules read again", "certificate read again"]
    for environment, expected in (({}, [nothing]), (tls, both[1:]), ({**tls, **rules}, both)):
        broker = start(**environment)
        client = RawClient(broker.port, "c")
        client.connect()
        broker.signal(signal.SIGHUP)
        said: list[object] = []
        for _ in range(500):
            client.ping()
            lines = [json.loads(line) for line in broker.log().splitlines()]
            said = [line["message"] for line in lines if line["event"] == "reload"]
            if len(said) >= len(expected):
                break
        client.ping()
        client.drop()
        assert said == expected
        broker.kill()
        assert broker.log().count('"reload"') == len(expected)


def test_the_last_packet_reaches_a_client_that_goes_on_sending(start: Start) -> None:
    """Closing with bytes unread resets the connection and can destroy the DISCONNECT on its way."""
    broker = start()
    client = RawClient(broker.port, "c")
    client.connect()
    client.send_bytes(b"\xf0\x7f" + b"\0" * 1_000_000)  # a malformed AUTH and a flood behind it
    farewell = client.expect_closed()
    assert isinstance(farewell, Disconnect)
    assert farewell.reason_code in (reasons.MALFORMED_PACKET, reasons.PROTOCOL_ERROR)


def test_silent_connections_are_closed_after_the_connect_timeout(start: Start) -> None:
    broker = start(HOLDFAST__LIMITS__CONNECT_TIMEOUT="200ms")
    with socket.create_connection(("127.0.0.1", broker.port), 10) as silent:
        assert silent.recv(1) == b""
    assert broker.metrics()['holdfast_connects_total{result="timeout"}'] == 1


def test_more_connections_than_allowed_are_refused(start: Start) -> None:
    broker = start(HOLDFAST__LIMITS__MAX_CONNECTIONS="1")
    first, second = RawClient(broker.port, "first"), RawClient(broker.port, "second")
    first.connect()
    second.open()
    second.send(Connect("second"))
    try:
        answer = second.receive()
        assert isinstance(answer, Connack)
        assert answer.reason_code in (reasons.SERVER_BUSY, reasons.QUOTA_EXCEEDED)
    except Closed:
        pytest.fail("closed without a reason")


def test_what_is_owed_is_counted_while_it_runs(start: Start) -> None:
    broker = start(HOLDFAST__METRICS__BACKLOG_INTERVAL="1s")
    boat = RawClient(broker.port, "boat")
    boat.durable()
    boat.subscribe("orders/#", qos=1)
    boat.disconnect()
    shore = RawClient(broker.port, "shore")
    shore.connect()
    for _ in range(3):
        shore.publish("orders/1", "12345")
    owed = 'holdfast_backlog_messages{kind="offline"}'
    while broker.metrics().get(owed) != 3:  # some counts may be older than the messages
        shore.ping()
    samples = broker.metrics()
    assert samples['holdfast_backlog_bytes{kind="offline"}'] == 3 * (8 + 5)
    assert samples["holdfast_backlog_census_age_seconds"] >= 0
    totals = ask(broker.data_dir, {"do": "backlog_totals"})
    assert (totals["messages"], totals["sessions"], totals["problem"]) == ("3", "1", "")
    (row,) = json.loads(ask(broker.data_dir, {"do": "storage_pins"})["pins"])
    assert row["largest_sessions"] == [{"name": "boat", "messages": 3}]
    assert "backlog_not_counted" not in events(broker)


def test_nothing_is_counted_where_nobody_wants_it(start: Start) -> None:
    broker = start(HOLDFAST__METRICS__BACKLOG_INTERVAL="0s")
    with pytest.raises(ControlError, match="backlog_interval is 0"):
        ask(broker.data_dir, {"do": "backlog_totals"})
    assert not [name for name in broker.metrics() if name.startswith("holdfast_backlog_")]
