"""paho-mqtt 2 keeps its session over a cut connection and a kill -9 of the broker."""

import queue
from typing import Any

import paho.mqtt.client as paho
import pytest

from tests.clients.conversation import MISSED, PATIENCE_SECONDS, expect_own, publish_missed
from tests.durability.foreign import connect, durable_client
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


# paho leaves the sockets it wakes itself with open when its loop is started again.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("protocol", [paho.MQTTv311, paho.MQTTv5], ids=["v4", "v5"])
def test_paho_resumes(broker: BrokerProcess, other: RawClient, name: str, protocol: int) -> None:
    events: queue.Queue[Any] = queue.Queue()
    client = durable_client(name, protocol)
    client.on_connect = lambda c, u, flags, reason, p: events.put(
        ("connected", flags.session_present)
    )
    client.on_subscribe = lambda *_: events.put("subscribed")
    client.on_message = lambda c, u, message: events.put(message.payload.decode())

    def expect(*wanted: Any) -> None:
        assert [events.get(timeout=PATIENCE_SECONDS) for _ in wanted] == list(wanted)

    connect(client, broker.port)
    expect(("connected", False))
    client.subscribe(f"{name}/in", 2)
    expect("subscribed")
    client.publish(f"{name}/in", b"live", 2).wait_for_publish(PATIENCE_SECONDS)
    client.publish(f"{name}/out", b"first", 2).wait_for_publish(PATIENCE_SECONDS)
    expect("live")

    client.loop_stop()
    broker.crash()
    publish_missed(broker, other, name)

    client.reconnect()
    client.loop_start()
    expect(("connected", True), *MISSED)
    client.publish(f"{name}/out", b"second", 1).wait_for_publish(PATIENCE_SECONDS)
    client.disconnect()
    client.loop_stop()
    assert events.empty()
    expect_own(other, "first", "second")
