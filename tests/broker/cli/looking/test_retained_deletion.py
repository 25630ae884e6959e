"""`holdfast retained delete`: retained messages are gone for good, and only those asked for."""

from collections.abc import Callable
from subprocess import CompletedProcess

from mqtt.packets import Puback, Publish
from tests.broker.cli.commands import Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


def test_retained_messages_are_deleted(run: Run, start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    where = ("--data-dir", str(broker.data_dir))

    def delete(*words: str) -> CompletedProcess[str]:
        return run("retained", "delete", *words, *where)

    keeper = RawClient(broker.port, "keeper")
    keeper.connect(clean_start=True)
    for number, topic in enumerate(("a", "b/c", "b/d", "e"), 1):
        keeper.send(Publish(topic, b"kept", 1, packet_id=number, retain=True))
        keeper.expect(Puback)

    dry = delete("--topic", "b/#", "--dry-run")
    assert dry.stdout == "b/c  4 bytes\nb/d  4 bytes\n2 retained messages would be deleted\n"
    assert delete("x", "--dry-run").returncode == 1
    assert "Delete the retained message on 'a'? Nothing was done: say --yes" in complaint(
        delete("a"), 2
    )
    assert "all topics that match 'b/#'?" in complaint(delete("--topic", "b/#"), 2)
    assert delete("a", "--yes", "--reason", "wrong").stdout == (
        "'a': its retained message is deleted\n"
    )
    assert delete("--topic", "b/#", "--yes").stdout == "'b/#': 2 retained messages are deleted\n"
    assert delete("--topic", "b/#", "--yes").stdout == "'b/#': 0 retained messages are deleted\n"
    assert "no retained message on 'a'" in complaint(delete("a", "--yes"), 1)

    broker.crash().restart()
    listed = run("retained", "list", *where).stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["TOPIC", "e"]
    assert delete().returncode == 2 and delete("a", "--topic", "b").returncode == 2
    assert delete("a/+").returncode == 2 and delete("--topic", "$share/g/a").returncode == 2
