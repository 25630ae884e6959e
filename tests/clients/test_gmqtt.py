"""gmqtt keeps its session over a cut connection and a kill -9 of the broker."""

import asyncio
from typing import Any

import gmqtt
import pytest

from tests.clients.conversation import MISSED, PATIENCE_SECONDS, expect_own, publish_missed
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient
from tests.durability.scene import PROGRESS_SECONDS


class _Conversation:
    """One gmqtt client with its events in a queue."""

    def __init__(self, name: str, version: int) -> None:
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        fields = {"session_expiry_interval": 3600} if version == 5 else {}
        self.client = gmqtt.Client(name, clean_session=False, **fields)
        self.client.on_connect = lambda c, flags, reason, p: self.events.put_nowait(
            ("connected", bool(flags))
        )
        self.client.on_subscribe = lambda *_: self.events.put_nowait("subscribed")
        self.client.on_message = self._on_message
        self.client.on_disconnect = lambda *_: self.events.put_nowait("disconnected")

    async def _on_message(
        self, client: Any, topic: str, payload: bytes, qos: int, properties: Any
    ) -> int:
        self.events.put_nowait(payload.decode())
        return 0

    async def expect(self, *wanted: Any) -> None:
        for one in wanted:
            assert await asyncio.wait_for(self.events.get(), PATIENCE_SECONDS) == one


@pytest.mark.parametrize("version", [4, 5])
def test_gmqtt_resumes(broker: BrokerProcess, other: RawClient, name: str, version: int) -> None:
    async def conversation() -> None:
        session = _Conversation(name, version)
        client = session.client
        client.set_config({"reconnect_retries": 0})
        await client.connect("127.0.0.1", broker.port, version=version)
        await session.expect(("connected", False))
        client.subscribe(f"{name}/in", qos=2)
        await session.expect("subscribed")
        # At QoS 1: gmqtt does not tell when a QoS 2 handshake is over, and a new client object
        # would use the packet id of an open one again.
        client.publish(f"{name}/out", b"first", qos=1)
        client.publish(f"{name}/in", b"live", qos=1)
        await session.expect("live")
        await asyncio.sleep(PROGRESS_SECONDS)  # a crash before that would bring "live" again
        await asyncio.to_thread(broker.kill)
        await session.expect("disconnected")
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(publish_missed, broker, other, name)

        await client.disconnect()

        session = _Conversation(name, version)
        client = session.client
        await client.connect("127.0.0.1", broker.port, version=version)
        await session.expect(("connected", True), *MISSED)
        client.publish(f"{name}/out", b"second", qos=1)
        client.publish(f"{name}/in", b"the end", qos=1)
        await session.expect("the end")
        await client.disconnect()

    asyncio.run(conversation())
    expect_own(other, "first", "second")
