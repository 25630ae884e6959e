"""aiomqtt keeps its session over a cut connection and a kill -9 of the broker."""

import asyncio
from typing import Any

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.clients.conversation import MISSED, PATIENCE_SECONDS, expect_own, publish_missed
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient


def _client(port: int, name: str, version: int) -> aiomqtt.Client:
    fields: dict[str, Any] = {"protocol": aiomqtt.ProtocolVersion.V311, "clean_session": False}
    if version == 5:
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        fields = {
            "protocol": aiomqtt.ProtocolVersion.V5,
            "clean_start": False,
            "properties": properties,
        }
    return aiomqtt.Client("127.0.0.1", port, identifier=name, **fields)


@pytest.mark.parametrize("version", [4, 5])
def test_aiomqtt_resumes(broker: BrokerProcess, other: RawClient, name: str, version: int) -> None:
    async def first() -> None:
        async with _client(broker.port, name, version) as client:
            await client.subscribe(f"{name}/in", qos=2)
            await client.publish(f"{name}/in", "live", qos=2)
            await client.publish(f"{name}/out", "first", qos=2)
            message = await asyncio.wait_for(anext(client.messages), PATIENCE_SECONDS)
            assert message.payload == b"live"
            await asyncio.to_thread(broker.kill)
            await asyncio.wait_for(anext(client.messages), PATIENCE_SECONDS)

    async def again() -> None:
        async with _client(broker.port, name, version) as client:
            for payload in MISSED:
                message = await asyncio.wait_for(anext(client.messages), PATIENCE_SECONDS)
                assert message.payload == payload.encode()
            await client.publish(f"{name}/out", "second", qos=1)

    with pytest.raises(aiomqtt.MqttError):
        asyncio.run(first())
    broker.start()
    publish_missed(broker, other, name)
    asyncio.run(again())
    expect_own(other, "first", "second")
