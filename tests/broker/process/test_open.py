"""What keeps a broker from starting is one line that names it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.local.watermark import Watermark
from tests.broker.process.starts import events, refused
from tests.durability.process import BrokerProcess

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
