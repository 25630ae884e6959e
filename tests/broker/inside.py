"""A whole broker inside the test's own event loop: engine, driver, sockets, RocksDB, committer.

For what a test cannot reach from outside: a sync that hangs, an exception where none may come.
Use as `run(scenario)` with `async def scenario(broker: InsideBroker)`.
"""

import asyncio
import contextlib
import io
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import uvloop

from broker.configuration.listener_options import Endpoint
from broker.loop.client_stream import ClientStream
from broker.loop.driver import Driver
from broker.network.listeners import Listener
from broker.observe.structured_log import Log
from broker.security.authenticators import AllowAll, AllowAllPolicy
from mqtt.decoder import Decoder
from mqtt.encoder import encode
from mqtt.packets import Connack, Connect, Packet, Puback, Publish, Subscribe, Subscription
from session.counters import Counters
from session.engine import Engine
from session.settings import Settings
from storage.local.committer import Committer
from storage.local.direct_sync import DirectSync
from storage.local.rocks import RocksStore
from storage.tables.tables import FAMILIES

PATIENCE_S: Final = 15.0
QUIET_S: Final = 0.15

P = TypeVar("P")


class Peer:
    """A client of the broker in the same loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = Decoder("client", 0, 5)
        self._packets: list[Packet] = []

    def send(self, *packets: Packet) -> None:
        self.writer.write(b"".join(encode(packet, 5) for packet in packets))

    async def receive(self, kind: type[P]) -> P:
        """Return the next packet, which must be of `kind`."""
        while not self._packets:
            data = await self._read()
            assert data, f"closed while waiting for {kind.__name__}"
            self._packets = self._decoder.receive(data)
            assert self._decoder.error is None
        packet = self._packets.pop(0)
        assert isinstance(packet, kind), packet
        return packet

    async def _read(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(65_536), PATIENCE_S)

    async def silence(self) -> None:
        """Expect no packet for a moment."""
        assert not self._packets
        with contextlib.suppress(TimeoutError):
            data = await asyncio.wait_for(self.reader.read(65_536), QUIET_S)
            raise AssertionError(f"not silent: {data!r}")

    async def closed(self) -> None:
        """Expect the connection to end."""
        with contextlib.suppress(ConnectionResetError):
            while await asyncio.wait_for(self.reader.read(65_536), PATIENCE_S):
                pass


class InsideBroker:
    """The broker and what the test needs of it."""

    def __init__(self, store: RocksStore, settings: Settings) -> None:
        self.loop = asyncio.get_running_loop()
        self.store = store
        self.counters = Counters()
        self.output = io.StringIO()
        self.log = Log(self.output, format="json", level="debug")
        self.failures: list[BaseException] = []
        numbers = itertools.count(1)
        self.engine = Engine(
            store,
            settings,
            authenticator=AllowAll(),
            policy=AllowAllPolicy(),
            new_client_id=lambda: f"auto-{next(numbers)}",
            counters=self.counters,
        )
        began = time.monotonic()
        self.clock_ms: Callable[[], int] = lambda: 1000 + int((time.monotonic() - began) * 1000)
        self.engine.start(self.clock_ms())
        self.driver = Driver(
            self.engine,
            store,
            loop=self.loop,
            clock=self.clock_ms,
            log=self.log,
            fail=self.failures.append,
        )
        self.listeners: list[Listener] = []
        self.peers: list[Peer] = []
        self.port = 0

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log lines of one event."""
        lines = [json.loads(line) for line in self.output.getvalue().splitlines()]
        return [line for line in lines if line["event"] == name]

    async def peer(self) -> Peer:
        """Open a connection and say nothing."""
        self.peers.append(Peer(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.peers[-1]

    async def connect(self, client_id: str, *, expiry: int = 0) -> Peer:
        """Open a connection and CONNECT."""
        peer = await self.peer()
        peer.send(Connect(client_id, clean_start=not expiry, session_expiry_interval=expiry))
        assert (await peer.receive(Connack)).reason_code == 0
        return peer

    async def listen(self, endpoint: Endpoint) -> Listener:
        """Open a listener; it is closed with the broker."""
        listener = Listener(endpoint, self.log)
        self.listeners.append(listener)
        listener.bind()
        await listener.start(self.driver)
        return listener

    async def greet(self, peer: Peer, client_id: str = "c", **fields: Any) -> Connack:
        """CONNECT on an open connection and return the answer."""
        peer.send(Connect(client_id, **fields))
        return await peer.receive(Connack)

    def peer_of(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Peer:
        """Return a client on a connection made elsewhere; it is closed with the broker."""
        self.peers.append(Peer(reader, writer))
        return self.peers[-1]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the loop to make `condition` true."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "it never became true"
            await asyncio.sleep(0.005)


def subscribe(topic_filter: str, qos: int) -> Subscribe:
    """Return a SUBSCRIBE of one filter."""
    return Subscribe(1, [Subscription(topic_filter, qos)])


def publish(topic: str, payload: bytes = b"x", qos: int = 1, packet_id: int = 1) -> Publish:
    """Return a PUBLISH."""
    return Publish(topic, payload, qos, packet_id=packet_id if qos else 0)


def small_out_buffer() -> Settings:
    """Return settings with which a client that does not read is soon too slow."""
    settings = Settings()
    settings.out_buffer_bytes_max = 16 * 1024
    return settings


async def expect_drops_while_not_reading(broker: InsideBroker, slow: Peer, fast: Peer) -> None:
    """Expect QoS 0 for `slow`, subscribed to "a", to be dropped while it does not read, only then.

    The broker has the settings of `small_out_buffer`.
    """
    transport = slow.reader._transport  # type: ignore[attr-defined]
    transport.pause_reading()
    for _ in range(400):  # what the sockets between the two hold is up to the kernel
        fast.send(*[publish("a", b"x" * 60_000, 0)] * 4, publish("b"))
        await fast.receive(Puback)
        if broker.counters.dropped["slow_consumer"]:
            break
    assert broker.counters.dropped["slow_consumer"]
    sent = broker.counters.messages_sent[0]
    transport.resume_reading()
    for _ in range(sent):
        await slow.receive(Publish)
    fast.send(publish("a", b"y", 0))
    assert (await slow.receive(Publish)).payload == b"y"


Scenario = Callable[[InsideBroker], Coroutine[Any, Any, None]]


def plain() -> Endpoint:
    """Return a TCP listener on any port."""
    made = Endpoint("other")
    made.port = 0
    return made


LoopFactory = Callable[[], asyncio.AbstractEventLoop]
LOOPS: Final[dict[str, LoopFactory]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(
    scenario: Scenario,
    *,
    settings: Settings | None = None,
    durability: str = "fsync",
    loop: str = "asyncio",
    direct: Callable[[RocksStore], DirectSync | None] = lambda store: None,
) -> None:
    """Run `scenario` with a broker of its own in a new loop and a new directory.

    RocksDB makes all syncs, unless `direct` opens the direct sync of its store.
    """

    async def main(directory: str) -> None:
        store = RocksStore(f"{directory}/db", families=FAMILIES)
        broker = InsideBroker(store, settings or Settings())
        driver = broker.driver
        committer = Committer(
            store, driver.durable, driver.failed, durability=durability, direct=direct(store)
        )
        driver.start(committer)
        server = await broker.loop.create_server(
            lambda: ClientStream(driver, "tcp"), "127.0.0.1", 0
        )
        broker.port = server.sockets[0].getsockname()[1]
        try:
            await scenario(broker)
        finally:
            server.close()
            for listener in broker.listeners:
                listener.stop()
                listener.close()
            driver.stop()
            for peer in broker.peers:
                peer.writer.transport.abort()
            await broker.until(lambda: not driver.streams)
            await asyncio.to_thread(committer.close)
            store.close()

    with tempfile.TemporaryDirectory() as directory:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(main(directory))
