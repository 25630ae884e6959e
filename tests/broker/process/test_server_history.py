"""The history of a real broker: exported, asked, copied, and never in its way."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cluster.lead import Lead
from broker.configuration.config import Config
from broker.process.server import history_drain_s
from storage.history import segments
from storage.history.segment_names import segment_names
from storage.history.witness import read
from tests.broker.process.starts import hide_pyarrow
from tests.durability.process import ROOT, BrokerProcess, holdfast
from tests.durability.rawclient import RawClient
from tests.durability.test_history_export import in_the_database, publish, wait_for

pytestmark = pytest.mark.full  # starts processes


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that records everything and exports it every second."""
    process = holdfast(
        tmp_path,
        env={
            "HOLDFAST__HISTORY__DETAIL": "full",
            "HOLDFAST__HISTORY__SEAL_SECONDS": "1",
            "HOLDFAST__HISTORY__DRAIN_TIMEOUT": "30s",
            "HOLDFAST__HISTORY__NODE": "edge",
        },
    )
    yield process
    process.close()


def holdfast_command(broker: BrokerProcess, *words: str) -> tuple[int, str, str]:
    """Run a command on the broker's data; return status, stdout and stderr."""
    command = [sys.executable, "-m", "broker", *words, "--data-dir", str(broker.data_dir)]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=broker.directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOLDFAST__HISTORY__NODE": "edge"},
    )
    return result.returncode, result.stdout, result.stderr


def test_a_running_broker_is_asked_and_copied(broker: BrokerProcess, tmp_path: Path) -> None:
    broker.start()
    publish(broker, 3)
    directory = broker.data_dir / "history"
    wait_for(lambda: any(segment_names(directory, "edge")), broker)
    publish(broker, 1)
    status, out, err = holdfast_command(broker, "history", "tail", "-n", "1000", "--json")
    assert (status, err) == (0, "")
    told = [json.loads(line) for line in out.splitlines()]
    assert [each["seq"] for each in told] == list(range(1, len(told) + 1))
    assert sum(each["ev"] == "msg_accepted" for each in told) == 4
    status, out, err = holdfast_command(broker, "history", "timeline", "s", "--message", "2")
    assert (status, err) == (0, "")
    assert "p: published message 2 to 't' at QoS 1" in out
    assert "s: was sent message 2 at QoS 1" in out
    status, out, err = holdfast_command(broker, "history", "timeline", "nobody")
    assert (status, out, err) == (
        1,
        "",
        "holdfast: the history knows nothing of client 'nobody'\n",
    )
    status, out, err = holdfast_command(broker, "db", "checkpoint", str(tmp_path / "copy"))
    assert (status, err) == (0, "")
    assert "made by the running broker, in " in out
    status, out, err = holdfast_command(broker, "db", "checkpoint", str(tmp_path / "copy"))
    assert (status, out) == (1, "")
    assert err == f"holdfast: {tmp_path / 'copy'}: not empty; expected a new directory\n"
    tail = ("history", "tail", "-n", "9")  # within the 200 ms that an event may wait for a batch
    wait_for(lambda: "copy of the database made" in holdfast_command(broker, *tail)[1], broker)
    copied = holdfast(tmp_path / "other", env=dict(broker.env))
    copied.data_dir = tmp_path / "copy"
    copied.env["HOLDFAST__METRICS__PORT"] = str(copied.metrics_port)
    copied.start()
    subscriber = RawClient(copied.port, "s")
    assert subscriber.resume().session_present
    copied.kill()
    copied.close()


def test_an_export_of_a_running_broker_deletes_nothing(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    broker.start()
    publish(broker, 3)
    status, out, err = holdfast_command(broker, "history", "export", "--to", str(tmp_path / "out"))
    assert (status, err) == (0, "")
    assert segments.verify(tmp_path / "out", thorough=True) == []
    assert "events" in out
    assert broker.stop() == 0
    assert in_the_database(broker) == {}
    assert segments.verify(broker.data_dir / "history", thorough=True) == []


def test_the_broker_itself_never_loads_pyarrow(broker: BrokerProcess) -> None:
    broker.start()
    publish(broker, 3)
    wait_for(lambda: any(segment_names(broker.data_dir / "history")), broker)
    maps = Path(f"/proc/{broker.pid}/maps").read_text()
    assert "rocksdict" in maps
    assert "arrow" not in maps and "numpy" not in maps


def test_what_is_counted_can_be_scraped(broker: BrokerProcess) -> None:
    broker.start()
    publish(broker, 3)
    wait_for(lambda: broker.metrics()["holdfast_history_segments_total"] > 0, broker)
    wait_for(lambda: broker.metrics()["holdfast_history_outbox_bytes"] == 0, broker)
    samples = broker.metrics()
    assert samples["holdfast_history_exporting"] == 1
    assert samples["holdfast_history_lag_seconds"] >= 0
    assert samples["holdfast_history_events_total"] > 3
    assert samples["holdfast_history_gap_events_total"] == 0
    assert samples['holdfast_history_level{level="full"}'] == 1
    assert samples['holdfast_history_level{level="books"}'] == 0


def test_a_stop_that_may_not_wait_leaves_the_rest_to_the_next_start(broker: BrokerProcess) -> None:
    broker.env["HOLDFAST__HISTORY__DRAIN_TIMEOUT"] = "0"
    broker.env["HOLDFAST__HISTORY__SEAL_SECONDS"] = "3600"
    broker.start()
    publish(broker, 3)
    assert broker.stop() == 0
    assert not list(segment_names(broker.data_dir / "history"))
    left = in_the_database(broker)
    broker.start()  # rows of an earlier boot do not wait
    wait_for(lambda: any(segment_names(broker.data_dir / "history")), broker)
    broker.kill()
    exported = list(segment_names(broker.data_dir / "history"))
    assert exported[0].boot == 1
    assert exported[-1].last_seq >= max(left[1]) or exported[-1].boot > 1


def test_what_was_recorded_is_exported_though_recording_is_off_by_now(
    broker: BrokerProcess,
) -> None:
    broker.env["HOLDFAST__HISTORY__DRAIN_TIMEOUT"] = "0"
    broker.env["HOLDFAST__HISTORY__SEAL_SECONDS"] = "3600"
    broker.start()
    publish(broker, 3)
    assert broker.stop() == 0
    assert in_the_database(broker)
    broker.env["HOLDFAST__HISTORY__DETAIL"] = "off"
    del broker.env["HOLDFAST__HISTORY__DRAIN_TIMEOUT"]
    broker.start()
    wait_for(lambda: any(segment_names(broker.data_dir / "history", "edge")), broker)
    assert broker.stop() == 0
    assert in_the_database(broker) == {}


def test_a_broker_that_never_recorded_anything_exports_nothing(broker: BrokerProcess) -> None:
    broker.env["HOLDFAST__HISTORY__DETAIL"] = "off"
    broker.start()
    publish(broker, 3)
    assert "holdfast_history_exporting" not in broker.metrics()
    assert broker.stop() == 0
    assert not (broker.data_dir / "history").exists()


def test_an_export_that_fails_is_tried_again_and_nobody_waits_for_it(
    broker: BrokerProcess,
) -> None:
    broker.start()
    directory = broker.data_dir / "history"
    directory.rmdir()
    directory.touch()
    publish(broker, 3)
    wait_for(lambda: "history_export_failed" in broker.log(), broker)
    publish(broker, 3)
    assert '"message": "history segment ' in broker.log()
    directory.unlink()
    wait_for(lambda: any(segment_names(directory)), broker)
    wait_for(lambda: "history_export_resumed" in broker.log(), broker)
    assert broker.stop() == 0
    assert segments.verify(directory, thorough=True) == []


def test_without_pyarrow_it_is_said_and_all_else_works(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    hide_pyarrow(broker, tmp_path)
    broker.start()
    publish(broker, 3)
    line = next(line for line in broker.log().splitlines() if "history_not_exported" in line)
    assert "pyarrow is not installed" in line
    assert "pip install '.[history]' in a checkout of Holdfast" in line
    samples = broker.metrics()
    assert samples["holdfast_history_exporting"] == 0
    assert "holdfast_history_lag_seconds" not in samples
    assert broker.stop() == 0
    assert in_the_database(broker)[1]


def test_a_directory_that_cannot_be_used_is_one_line_with_its_key(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    environment = {
        **os.environ,
        **broker.env,
        "HOLDFAST__HISTORY__DIR": str(tmp_path / "file"),
        "HOLDFAST__STORAGE__DATA_DIR": str(broker.data_dir),
    }
    for words, status in ((("serve", "-p", "0"), 1), (("serve", "--test-config"), 2)):
        result = subprocess.run(
            [sys.executable, "-m", "broker", *words],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.returncode == status
        assert result.stderr == (
            f"holdfast: history.dir = '{tmp_path}/file': {tmp_path}/file is not a directory\n"
        )


def test_a_disk_that_lies_is_found_by_the_next_start_and_by_the_history(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """The data directory goes back to an earlier state, all of it; the witness lies elsewhere."""
    place = tmp_path / "other" / "witness"
    place.parent.mkdir()
    broker.env["HOLDFAST__HISTORY__WITNESS"] = str(place)
    broker.start()
    publish(broker, 3)
    assert broker.stop() == 0
    (first,) = read(place).marks
    assert first.seq == first.exported > 3 and first.head
    aside = tmp_path / "aside"
    shutil.copytree(broker.data_dir, aside)
    broker.start()  # nothing is lost: nothing is said
    publish(broker, 3)
    broker.kill()
    broker.start()
    assert "history_witness" not in broker.log()
    assert broker.metrics()["holdfast_history_witness_lost_events"] == 0
    assert broker.metrics()["holdfast_history_witness_failures_total"] == 0
    assert broker.stop() == 0
    verify = ("history", "verify", "--witness", str(place))
    status, out, err = holdfast_command(broker, *verify)
    assert (status, err) == (0, ""), out
    known = read(place).marks
    assert [mark.boot for mark in known][-1] == 3
    shutil.rmtree(broker.data_dir)
    shutil.copytree(aside, broker.data_dir)
    broker.start()
    assert broker.log().count('"history_witness_lost"') == 1
    assert broker.metrics()["holdfast_history_witness_lost_events"] == sum(
        mark.seq for mark in known[1:]
    )
    assert broker.stop() == 0
    assert read(place).marks[:-1] == known
    newest = read(place).newest
    assert newest is not None and newest.boot == 4
    status, out, err = holdfast_command(broker, *verify)
    assert (status, err) == (2, "")
    assert f"edge boot 3, events 1 to {known[-1].exported}: they were exported, and" in out


def test_clients_of_a_cluster_do_not_wait_for_the_export_of_the_history() -> None:
    config = Config()
    config.shell.history_drain_ms = 5000
    lead = Lead(None, None, None, 0, 0, None)  # type: ignore[arg-type]
    assert history_drain_s(config, None) == 5.0
    assert history_drain_s(config, lead) < 0.5
    config.shell.history_drain_ms = 0
    assert history_drain_s(config, lead) == 0.0
