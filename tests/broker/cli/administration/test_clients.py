"""`holdfast client`: what an operator sees of those who are connected, and an end with a reason."""

import json
from collections.abc import Callable
from subprocess import CompletedProcess

from mqtt import reasons
from tests.broker.cli.commands import Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


def test_clients_are_listed_shown_and_kicked(run: Run, start: Callable[..., BrokerProcess]) -> None:
    broker = start()

    def ask(*words: str) -> CompletedProcess[str]:
        return run("client", *words, "--data-dir", str(broker.data_dir))

    boat = RawClient(broker.port, "boat-17")
    boat.durable(username="anna")
    hostile = RawClient(broker.port, 'x\x1b[2J,"\n')
    hostile.connect(clean_start=True)

    table = ask("list")
    assert table.returncode == 0
    title, first, second = table.stdout.splitlines()
    assert title.split()[:3] == ["CLIENT_ID", "USER", "LISTENER"]
    assert first.split()[:3] == ["boat-17", "anna", "tcp"]
    assert second.startswith('x\\x1b[2J,"\\n ')
    (row,) = json.loads(ask("list", "-o", "json", "--match", "boat-*").stdout)
    assert (row["client_id"], row["protocol_version"], row["durable"]) == ("boat-17", 5, True)
    header, one, _ = ask("list", "-o", "csv").stdout.splitlines()
    assert header.startswith("client_id,user,") and one.startswith("boat-17,anna,tcp,")
    assert len(json.loads(ask("list", "-o", "json", "--limit", "1").stdout)) == 1
    _, last, more = ask("list", "--sort", "user", "--limit", "1").stdout.splitlines()
    assert last.startswith("boat-17 ") and more.startswith("there are more")
    assert ask("list", "--limit", "0").returncode == 2
    shown = ask("show", "boat-17").stdout
    assert "user                     anna\n" in shown

    assert "say --yes" in complaint(ask("kick", "boat-17"), 2)
    boat.ping()
    assert ask("kick", "boat-17", "--yes", "--reason", "too loud").stdout == (
        "'boat-17': its connection has ended\n"
    )
    left = boat.expect_closed()
    assert left is not None
    assert (left.reason_code, left.reason_string) == (reasons.ADMINISTRATIVE_ACTION, "too loud")
    assert "'boat-17' is connected" in complaint(ask("kick", "boat-17", "--yes"), 1)
    assert "no broker runs on data directory" in complaint(
        run("client", "list", "--data-dir", str(broker.data_dir / "absent")), 1
    )
