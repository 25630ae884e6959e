"""`holdfast group purge`: what waits for a shared subscription is dropped, and its group stays."""

from collections.abc import Callable
from subprocess import CompletedProcess

from mqtt.packets import Puback, Publish
from tests.broker.cli.commands import Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


def test_a_group_is_purged(run: Run, start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    where = ("--data-dir", str(broker.data_dir))

    def purge(*words: str) -> CompletedProcess[str]:
        return run("group", "purge", *words, *where)

    member = RawClient(broker.port, "member")
    member.durable()
    member.subscribe("$share/workers/jobs/+", qos=1)
    member.disconnect()
    here = RawClient(broker.port, "here")
    here.connect(clean_start=True)
    for number in range(1, 11):
        topic = "jobs/a" if number % 2 else "jobs/b"
        here.send(Publish(topic, b"%d" % number, 1, packet_id=number))
        here.expect(Puback)

    group = ("workers", "jobs/+")
    assert purge(*group, "--dry-run").stdout == (
        "'$share/workers/jobs/+': 10 wait, 0 came back, 0 in flight stay\n"
    )
    assert "no shared group '$share/workers/other' is stored" in complaint(
        purge("workers", "other", "--dry-run"), 1
    )
    assert "Drop what waits for '$share/workers/jobs/+'? Nothing was done: say --yes" in complaint(
        purge(*group), 2
    )
    assert "no shared group 'workers' of 'other'" in complaint(
        purge("workers", "other", "--yes"), 1
    )
    assert purge(*group, "--older", "1d", "--yes").stdout.endswith(": 0 messages dropped\n")
    assert purge(*group, "--topic", "jobs/a", "--yes").stdout == (
        "'$share/workers/jobs/+': 5 messages dropped\n"
    )
    broker.crash().restart()
    member.resume()
    assert [member.expect_publish().payload for _ in range(5)] == [b"2", b"4", b"6", b"8", b"10"]
    assert purge("wor/kers", "jobs/+").returncode == 2 and purge("workers").returncode == 2
