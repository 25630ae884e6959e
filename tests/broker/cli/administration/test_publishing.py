"""`holdfast pub`: a message from the command line reaches its subscribers, whatever follows."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.broker.cli.commands import ROOT, Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


def test_messages_are_published_from_a_text_a_file_and_a_pipe(
    run: Run, start: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = start()
    where = ("--data-dir", str(broker.data_dir))

    def pub(*words: str) -> CompletedProcess[str]:
        return run("pub", *words, *where)

    assert pub("t", "-m", "x").stdout == "'t': nobody is subscribed\n"
    here, away = RawClient(broker.port, "here"), RawClient(broker.port, "away")
    for client in (here, away):
        client.durable()
        client.subscribe("t", qos=1)
    away.disconnect()

    text = pub(
        "t", "-m", "é", "--content-type", "text/plain", "--property", "a=b=c", "--expiry", "60"
    )
    assert text.stdout == (
        "'t': 1 client connected with a subscription, stored for 1 topic filter\n"
    )
    message = here.expect_publish()
    assert (message.payload, message.qos) == ("é".encode(), 1)
    assert b"text/plain" in message.properties and b"b=c" in message.properties
    file = tmp_path / "payload"
    file.write_bytes(bytes(range(256)))
    assert pub("t", "--file", str(file), "--qos", "0").returncode == 0
    assert here.expect_publish().payload == bytes(range(256))
    piped = subprocess.run(
        [sys.executable, "-m", "broker", "pub", "t", "--retain", *where],
        input=b"piped",
        capture_output=True,
        cwd=ROOT,
        check=True,
    )
    assert piped.stdout.endswith(b", retained\n")

    broker.crash().restart()
    away.resume()
    assert [away.expect_publish().payload for _ in range(2)] == ["é".encode(), b"piped"]

    file.write_bytes(bytes((256 << 10) + 1))
    assert "larger than 262144 bytes" in complaint(pub("t", "--file", str(file)), 2)
    assert "No such file" in complaint(pub("t", "--file", str(tmp_path / "absent")), 2)
    assert "begins with $ is the broker's own" in complaint(pub("$SYS/x", "-m", "x"), 1)
    assert "expected at most 4294967295" in complaint(
        pub("t", "-m", "x", "--expiry", "4294967296"), 1
    )


@pytest.mark.parametrize(
    "words",
    [
        ("t/#", "-m", "x"),
        ("t", "-m", "x", "--file", "f"),
        ("t", "-m", "x", "--qos", "3"),
        ("t", "-m", "x", "--property", "novalue"),
        ("t", "-m", "\udcff"),
        (),
    ],
)
def test_what_is_asked_in_a_wrong_way_has_status_2(run: Run, words: tuple[str, ...]) -> None:
    result = run("pub", *words)
    assert result.returncode == 2 and "Traceback" not in result.stderr
