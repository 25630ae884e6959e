"""`holdfast session delete`: one session, or those of clients that are away for long."""

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from broker.cli.command import age
from tests.broker.cli.commands import Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


@pytest.mark.parametrize(
    ("text", "ms"), [("1s", 1000), ("30m", 1_800_000), ("12h", 43_200_000), ("90d", 7_776_000_000)]
)
def test_a_time_has_a_unit(text: str, ms: int) -> None:
    assert age(text) == ms


@pytest.mark.parametrize("text", ["", "0s", "5", "d", "-1d", "1.5h", "1 d", "9" * 12 + "d", "1y"])
def test_no_other_time_is_taken(text: str) -> None:
    with pytest.raises(Exception, match="expected a time such as 90d"):
        age(text)


def test_sessions_are_deleted_when_an_operator_says_yes(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()

    def delete(*words: str) -> CompletedProcess[str]:
        return run("session", "delete", *words, "--data-dir", str(broker.data_dir))

    for name in ("away", "sold"):
        client = RawClient(broker.port, name)
        client.durable()
        client.disconnect()
    here = RawClient(broker.port, "here")
    here.durable()

    assert delete("away", "--dry-run").stdout == (
        "'away': away, 0 messages wait, 0 in flight, 0 subscriptions\n"
    )
    assert "no session 'nobody'" in complaint(delete("nobody", "--dry-run"), 1)
    assert "0 messages wait for it. Nothing was done: say --yes" in complaint(delete("away"), 2)
    assert delete("away", "--yes").stdout == "'away': its session is deleted\n"
    assert "no client 'away' has a session" in complaint(delete("away", "--yes"), 1)
    assert delete("--offline-for", "1h", "--yes").stdout == "0 of 0 sessions are deleted\n"
    assert delete().returncode == 2

    assert delete("here", "--yes", "--reason", "no longer ours").returncode == 0
    left = here.expect_closed()
    assert left is not None and left.reason_string == "no longer ours"
    broker.crash().restart()
    gone = RawClient(broker.port, "away")
    assert not gone.durable().session_present
    kept = RawClient(broker.port, "sold")
    assert kept.resume().session_present


def test_those_away_for_long_are_deleted_and_the_others_kept(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()
    for name in ("one", "two"):
        client = RawClient(broker.port, name)
        client.durable()
        client.disconnect()
    here = RawClient(broker.port, "here")
    here.durable()
    words = ("session", "delete", "--offline-for", "1s", "--data-dir", str(broker.data_dir))

    def candidates() -> list[str]:
        return run(*words, "--dry-run").stdout.splitlines()

    while len(candidates()) < 3:  # two and the sum: until a second has passed
        assert broker.is_running
    assert candidates()[-1] == "2 sessions would be deleted"
    assert run(*words, "--yes").stdout == "2 of 2 sessions are deleted\n"
    here.ping()
