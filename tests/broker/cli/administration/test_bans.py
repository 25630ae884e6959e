"""`holdfast client ban`: clients are kept out, also after a broker was killed and starts again."""

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from mqtt import reasons
from tests.broker.cli.commands import Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


def test_a_client_is_banned_listed_and_pardoned(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()

    def ask(*words: str) -> CompletedProcess[str]:
        return run("client", "ban", *words, "--data-dir", str(broker.data_dir))

    boat = RawClient(broker.port, "boat-17")
    boat.durable(username="anna")
    hour = ("--for", "1h")
    assert "Ban client-id 'boat-17'?" in complaint(ask("add", "--client-id", "boat-17", *hour), 2)
    boat.ping()
    done = ask("add", "--client-id", "boat-17", *hour, "--reason", "it\x1b[2J floods", "--yes")
    assert done.stdout.startswith("client-id 'boat-17' is banned until 2")
    left = boat.expect_closed()
    assert left is not None and left.reason_code == reasons.ADMINISTRATIVE_ACTION
    assert left.reason_string is None
    assert ask("add", "--address", "192.0.2.0/24", *hour, "--yes").returncode == 0

    broker.crash().restart()
    again = RawClient(broker.port, "boat-17")
    again.connect(reason=reasons.BANNED)

    title, first, second = ask("list").stdout.splitlines()
    assert title.split() == ["KIND", "VALUE", "SINCE", "UNTIL", "BY", "REASON"]
    assert first.split()[:2] == ["address", "192.0.2.0/24"]
    assert second.split()[:2] == ["client-id", "boat-17"] and "it\\x1b[2J floods" in second
    (row,) = json.loads(ask("list", "-o", "json", "--match", "boat-*").stdout)
    assert (row["kind"], row["value"], row["reason"]) == (
        "client-id",
        "boat-17",
        "it\x1b[2J floods",
    )
    header, one = ask("list", "-o", "csv", "--limit", "1").stdout.splitlines()
    assert header == "kind,value,since,until,left_seconds,by,reason"
    assert one.startswith("address,192.0.2.0/24,")

    assert ask("remove", "--client-id", "boat-17").stdout == (
        "client-id 'boat-17' may connect again\n"
    )
    back = RawClient(broker.port, "boat-17")
    assert back.resume(username="anna").session_present
    assert "no ban of client-id 'boat-17'" in complaint(ask("remove", "--client-id", "boat-17"), 1)
    assert "its network is 192.0.0.0/16" in complaint(
        ask("add", "--address", "192.0.2.0/16", *hour, "--yes"), 1
    )


@pytest.mark.parametrize(
    "words",
    [
        ("add", "--client-id", "c"),
        ("add", "--for", "1h"),
        ("add", "--client-id", "c", "--user", "u", "--for", "1h"),
        ("add", "--client-id", "c", "--for", "1 hour"),
        ("remove",),
        (),
    ],
)
def test_what_is_asked_in_a_wrong_way_has_status_2(run: Run, words: tuple[str, ...]) -> None:
    result = run("client", "ban", *words)
    assert result.returncode == 2 and "Traceback" not in result.stderr
