"""`holdfast why`: a newcomer's question, answered from the database and the history."""

from collections.abc import Callable

from mqtt.packets import Puback, Publish
from tests.broker.cli.commands import Run, complaint
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


def test_a_client_that_misses_messages_is_explained(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start(HOLDFAST__HISTORY__DETAIL="full")
    where = ("--data-dir", str(broker.data_dir))
    away = RawClient(broker.port, "boat-17")
    away.durable()
    away.subscribe("fleet/#", qos=1)
    away.disconnect()
    publisher = RawClient(broker.port, "p")
    publisher.connect(clean_start=True)
    for number in (1, 2):
        publisher.send(Publish("fleet/x", b"m", 1, packet_id=number))
        publisher.expect(Puback)
    said = run("why", "boat-17", "--topic", "fleet/x", "--since", "1h", *where)
    assert said.returncode == 0, said.stderr
    assert "its subscription 'fleet/#' matches: at QoS 1" in said.stdout
    assert "2 messages behind its position" in said.stdout
    assert "connected once: its session was resumed 0 times, and a new one once" in said.stdout
    run("session", "purge", "boat-17", "--yes", *where)
    broker.stop()
    said = run("why", "boat-17", *where)
    assert "nothing waits for it" in said.stdout
    assert "2 messages that waited were dropped: by " in said.stdout
    assert "no stored session" in run("why", "nobody", *where).stdout
    assert run("why", "boat-17", "--topic", "a/#", *where).returncode == 2
    assert run("why", "boat-17", "--since", "yesterday", *where).returncode == 2
    nowhere = str(broker.data_dir / "absent")
    assert "no database" in complaint(run("why", "boat-17", "--data-dir", nowhere), 1)
