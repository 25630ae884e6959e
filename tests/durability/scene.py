"""What one test works with: a broker, and clients and topics of its own.

Names have a prefix per test, so that tests can share a broker and the state left in it.
"""

import signal
import time
from typing import Any, Final

from tests.durability.process import READY_SECONDS, BrokerProcess
from tests.durability.rawclient import RawClient

PROGRESS_SECONDS: Final = 0.3  # QoS 1 progress may reach the disk 200 ms late


class Scene:
    """The broker of one test, and its own clients and topics."""

    def __init__(self, broker: BrokerProcess, prefix: str) -> None:
        self.broker: BrokerProcess = broker
        self.prefix: str = prefix
        self._clients: list[RawClient] = []

    def client(self, name: str, *, version: int = 5) -> RawClient:
        """Return a client that is not connected yet."""
        client = RawClient(self.broker.port, f"{self.prefix}-{name}", version=version)
        self._clients.append(client)
        return client

    def topic(self, name: str = "t") -> str:
        """Return a topic (or filter) below this test's own prefix."""
        return f"{self.prefix}/{name}"

    def online(self, name: str, *, version: int = 5, **fields: Any) -> RawClient:
        """Return a client connected with a clean session."""
        client = self.client(name, version=version)
        client.connect(**fields)
        return client

    def durable(
        self, name: str, *filters: str, qos: int = 1, version: int = 5, **fields: Any
    ) -> RawClient:
        """Return a client with a new durable session that subscribes to topics of this test."""
        client = self.client(name, version=version)
        connack = client.durable(**fields)
        assert not connack.session_present
        if filters:
            client.subscribe(*(self.topic(name) for name in filters), qos=qos)
        return client

    def offline(
        self, name: str, *filters: str, qos: int = 1, version: int = 5, **fields: Any
    ) -> RawClient:
        """Return a client as `durable` does, but offline."""
        client = self.durable(name, *filters, qos=qos, version=version, **fields)
        client.disconnect()
        return client

    def commit(self) -> None:
        """Return once everything the broker has done so far is durable.

        A session's QoS 1 progress may stay in memory for up to 200 ms; a test that needs it on disk
        calls `settle` instead.
        """
        witness = self.client("witness")
        witness.connect()
        witness.publish(f"{self.prefix}-witness", b"x", retain=True)
        witness.disconnect()

    def settle(self) -> None:
        """Return once everything is durable, QoS 1 progress included."""
        time.sleep(PROGRESS_SECONDS)
        self.commit()

    def restart(self) -> None:
        """Stop the broker by SIGTERM (it must exit with 0) and start it again.

        The clients close when the broker closes; the broker waits a while for that.
        """
        self.broker.signal(signal.SIGTERM)
        for client in self._clients:
            if client.is_open:
                client.expect_closed()
                client.drop()
        code = self.broker.wait_exit(READY_SECONDS)
        assert code == 0, f"exit code {code} on SIGTERM\n{self.broker.tail()}"
        self.broker.start()

    def close(self) -> None:
        """Close every connection that the test left open."""
        for client in self._clients:
            client.drop()
