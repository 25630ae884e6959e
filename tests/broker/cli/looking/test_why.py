"""`holdfast why`: a newcomer's question, answered from the database and the history."""

import re
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


def test_a_clean_session_is_known_to_the_running_broker_only(
    run: Run, start: Callable[..., BrokerProcess]
) -> None:
    broker = start()
    where = ("--data-dir", str(broker.data_dir))
    clean = RawClient(broker.port, "panel 3")
    clean.connect(clean_start=True, username="anna")
    clean.subscribe("fleet/#", "$share/all/jobs/+", qos=0)
    said = run("why", "panel 3", "--topic", "jobs/1", *where).stdout
    assert re.search(r"it is connected since \d+ s from 127\.0\.0\.1:.*user 'anna'", said), said
    assert "its session is clean" in said
    assert "its subscription '$share/all/jobs/+' matches, QoS 0" in said
    assert "holdfast trace client 'panel 3' --for 10m" in said
    assert (
        "no subscription of it matches 'other'"
        in run("why", "panel 3", "--topic", "other", *where).stdout
    )
    clean.disconnect()
    assert "no client 'panel 3' is connected" in run("why", "panel 3", *where).stdout
    broker.stop()
    assert "none runs on this data directory" in run("why", "panel 3", *where).stdout
