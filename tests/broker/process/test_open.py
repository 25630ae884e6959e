"""What keeps a broker from starting is one line that names it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtt import reasons
from mqtt.packets import Suback, Subscribe, Subscription, Will
from storage.limits import MIB
from storage.local.watermark import Watermark
from tests.broker.process.starts import events, refused
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

Start = Callable[..., BrokerProcess]


def test_a_port_in_use_is_one_line(start: Start, tmp_path: Path) -> None:
    broker = start()
    other = str(tmp_path / "other")
    line = refused(broker, HOLDFAST__STORAGE__DATA_DIR=other, HOLDFAST__METRICS__PORT="0")
    assert f"port {broker.port} on 127.0.0.1 is in use by another process" in line
    line = refused(
        broker, HOLDFAST__STORAGE__DATA_DIR=other, HOLDFAST__LISTENER__PORT="0"
    )  # the flag wins over the variable, so this is the same port still
    assert f"port {broker.port}" in line


def test_a_metrics_port_in_use_is_one_line(start: Start, prepare: Start) -> None:
    broker, second = start(), prepare()
    line = refused(second, HOLDFAST__METRICS__PORT=str(broker.metrics_port))
    assert f"metrics: port {broker.metrics_port} on 127.0.0.1 is in use" in line


def test_a_locked_data_directory_is_one_line_naming_its_holder(
    start: Start, prepare: Start
) -> None:
    broker, second = start(), prepare()
    line = refused(second, HOLDFAST__STORAGE__DATA_DIR=str(broker.data_dir))
    assert str(broker.data_dir) in line
    assert f"in use by process {broker.pid}" in line


def test_a_data_directory_that_cannot_be_one_is_one_line(prepare: Start) -> None:
    broker = prepare()
    broker.data_dir.write_text("a file")
    assert f"data directory {broker.data_dir}: not a directory" in refused(broker)


def test_a_member_of_a_cluster_does_not_begin_alone_unless_a_loss_is_accepted(
    prepare: Start,
) -> None:
    broker = prepare()
    (broker.data_dir / "tail").mkdir(parents=True)
    assert f"{broker.data_dir} is that of a member of a cluster" in refused(broker)
    broker.arguments = ("--accept-data-loss",)
    broker.launch()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_data_directory_is_one_line(prepare: Start) -> None:
    broker = prepare()
    broker.data_dir.mkdir(mode=0o000)
    assert "permission denied" in refused(broker)


def test_a_damaged_password_file_is_one_line(prepare: Start, tmp_path: Path) -> None:
    broker = prepare()
    users = tmp_path / "users"
    users.write_text("nonsense\n")
    line = refused(broker, HOLDFAST__AUTH__PASSWORD_FILE=str(users))
    assert f"password file {users} line 1" in line


def test_an_address_of_another_machine_is_one_line(prepare: Start) -> None:
    line = refused(
        prepare(),
        HOLDFAST__LISTENER__HOST="192.0.2.1",
        HOLDFAST__AUTH__ALLOW_ANONYMOUS="true",
    )
    assert "cannot listen on 192.0.2.1" in line


def test_a_database_below_its_watermark_is_refused_unless_told_otherwise(start: Start) -> None:
    broker = start()
    assert broker.stop() == 0
    watermark = Watermark(broker.data_dir / "watermark")
    watermark.begin(watermark.synced._replace(sequence=watermark.sequence + 1000))
    watermark.close()
    line = refused(broker)
    assert "at least 1000 are lost" in line
    assert "--accept-data-loss" in line
    broker.arguments = ("--accept-data-loss",)
    broker.start()
    assert events(broker)["data_loss_accepted"]["batches"] == 1000
    broker.arguments = ()
    broker.restart()


def test_a_database_of_mosquitto_is_named_and_left_alone(prepare: Start) -> None:
    broker = prepare()
    broker.data_dir.mkdir()
    theirs = broker.data_dir / "mosquitto.db"
    theirs.write_bytes(b"\x00\xb5\x00mosquitto db")
    broker.start()
    line = events(broker)["mosquitto_database"]
    assert line["level"] == "warning"
    assert f"{theirs} is mosquitto's database" in str(line["message"])
    assert "docs/mosquitto.md" in str(line["message"])
    assert broker.stop() == 0
    assert theirs.read_bytes() == b"\x00\xb5\x00mosquitto db"


def test_without_one_nothing_is_said_of_mosquitto(start: Start) -> None:
    assert "mosquitto" not in start().log()


def test_the_lines_of_clients_say_who_came_by_what_and_how(start: Start) -> None:
    longer = 24 * "x"
    broker = start(HOLDFAST__LIMITS__CLIENT_ID_BYTES="23")
    anna = RawClient(broker.port, "a", version=4)
    anna.connect(username="anna", keep_alive=60, clean_start=False)
    RawClient(broker.port, longer).connect(
        username="eve",
        keep_alive=7,
        expiry=90,
        reason=reasons.CLIENT_IDENTIFIER_NOT_VALID,
    )
    said = {"listener": "tcp"}
    connected, refused = (events(broker)[f"client_{event}"] for event in ("connected", "refused"))
    assert (
        connected.items()
        >= {
            **said,
            "client_id": "a",
            "user": "anna",
            "version": "3.1.1",
            "keep_alive": 60,
            "clean_start": False,
            "session_expiry": 0xFFFFFFFF,
        }.items()
    )
    assert (
        refused.items()
        >= {
            **said,
            "client_id": longer,
            "user": "eve",
            "version": "5.0",
            "keep_alive": 7,
            "clean_start": True,
            "session_expiry": 90,
            "message": "Client Identifier not valid",
        }.items()
    )


def test_the_line_of_a_broken_connect_claims_nothing_that_it_did_not_say(start: Start) -> None:
    broker = start()
    client = RawClient(broker.port, "c")
    client.open()
    client.send_bytes(b"\x10\x02\x00\x00")
    client.expect_closed()
    line = events(broker)["client_refused"]
    assert (line["client_id"], line["user"], line["listener"]) == ("", "", "tcp")
    assert not {"keep_alive", "clean_start", "session_expiry"} & set(line)


def test_the_lines_of_clients_that_go_say_who_went_and_by_what_they_came(start: Start) -> None:
    broker = start()
    said = {"client_id": "a", "user": "anna", "listener": "tcp"}
    client = RawClient(broker.port, "a")

    def connect() -> None:
        client.connect(username="anna", password=b"never to be seen")

    connect()
    client.disconnect()
    connect()
    client.drop(reset=True)
    broker.wait_for_event("client_lost")
    connect()
    client.send_bytes(b"\x00\x00")
    client.expect_closed()
    for event in ("client_disconnected", "client_lost", "client_closed"):
        broker.wait_for_event(event)
        line = events(broker)[event]
        assert line.items() >= said.items()
        assert not {"version", "keep_alive", "clean_start", "session_expiry"} & set(line)
    assert "never to be seen" not in broker.log()


def test_the_free_space_of_the_data_directory_is_in_the_metrics(start: Start) -> None:
    broker = start(HOLDFAST__STORAGE__LOW_WATER="200MiB")
    samples = broker.metrics()
    disk = os.statvfs(broker.data_dir)
    assert samples["holdfast_storage_disk_bytes"] == disk.f_blocks * disk.f_frsize
    assert samples["holdfast_storage_low_water_bytes"] == 200 * MIB
    assert 0 < samples["holdfast_storage_free_bytes"] <= samples["holdfast_storage_disk_bytes"]


def test_what_the_rules_deny_is_logged(start: Start, tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic write open\n")
    broker = start(HOLDFAST__AUTH__ACL_FILE=str(acl))
    told = []
    for action in ("publish", "subscribe", "will"):
        client = RawClient(broker.port, action)
        will = Will("last", b"", 0, retain=False, properties=b"", delay_interval=0)
        client.connect(will=will if action == "will" else None)
        if action == "publish":
            client.publish("closed", b"", reason=reasons.NOT_AUTHORIZED)
        elif action == "subscribe":
            client.send(Subscribe(1, [Subscription("closed/#", 1)]))
            assert client.expect(Suback).reason_codes == [reasons.NOT_AUTHORIZED]
        client.drop()
        while (line := events(broker).get("client_denied", {})).get("client_id") != action:
            RawClient(broker.port, "look").connect()
        told.append((line["action"], line["topic"], line["count"]))
    assert told == [("publish", "closed", 1), ("subscribe", "closed/#", 1), ("will", "last", 1)]


@pytest.mark.parametrize(
    ("pattern", "way_on"),
    [
        ("watermark", "or start with --accept-data-loss"),
        ("db/CURRENT", "or start with --accept-data-loss"),
        ("db/MANIFEST-*", "--accept-data-loss does not help"),
        ("db/*.sst", "--accept-data-loss does not help"),
    ],
)
def test_a_file_that_is_gone_is_named_in_one_line(start: Start, pattern: str, way_on: str) -> None:
    """Exit status 1, the file, and whether --accept-data-loss is a way on."""
    broker = start()
    assert broker.stop() == 0
    file = max(broker.data_dir.glob(pattern))
    file.unlink()
    line = refused(broker)
    assert str(file) in line
    assert way_on in line
    broker.arguments = ("--accept-data-loss",)
    if way_on.startswith("or"):
        broker.start()
        assert events(broker)["data_loss_accepted"]["file"] == str(file)
        broker.arguments = ()
        broker.restart()
    else:
        assert way_on in refused(broker)
