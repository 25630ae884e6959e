"""A paho-mqtt publisher and subscriber under load, so no mistake of our own client hides a fault.

Only loss, QoS 2 duplicates and lost sessions are judged here; order is judged by `load`, whose
publishers are known to re-send in order.
"""

import threading
import time
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

SUBSCRIBE_SECONDS: Final = 15.0
RECONNECT_SECONDS: Final = 0.05
OPEN_MAX: Final = 20  # publications not yet acknowledged
PUBLISH_PAUSE_SECONDS: Final = 0.01


def durable_client(client_id: str, protocol: int) -> paho.Client:
    """Return a paho client that asks for a durable session, to be connected by `connect`."""
    fields: dict[str, Any] = {} if protocol == paho.MQTTv5 else {"clean_session": False}
    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id=client_id, protocol=protocol, **fields
    )
    client.reconnect_delay_set(RECONNECT_SECONDS, RECONNECT_SECONDS)  # type: ignore[arg-type]
    return client


def connect(client: paho.Client, port: int) -> None:
    """Connect with Clean Start 0 and an hour of session expiry, and run the network loop."""
    fields: dict[str, Any] = {}
    if client.protocol == paho.MQTTv5:
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        fields = {"properties": properties, "clean_start": False}
    client.connect("127.0.0.1", port, keepalive=30, **fields)
    client.loop_start()


class PahoPair:
    """A publisher and a subscriber on durable sessions that reconnect by themselves."""

    def __init__(self, port: int, name: str, *, qos: int, protocol: int) -> None:
        self.name: str = name
        self.qos: int = qos
        self.received: list[int] = []
        self.sessions_lost: int = 0
        self._sent: list[paho.MQTTMessageInfo] = []  # number n is at n - 1
        self._connects: dict[paho.Client, int] = {}
        self._topic = f"paho/{name}"
        self._subscribed = threading.Event()
        self._finish = threading.Event()
        self._publisher = durable_client(f"{name}-publisher", protocol)
        self._subscriber = durable_client(f"{name}-subscriber", protocol)
        self._subscriber.on_message = self._on_message
        self._subscriber.on_subscribe = lambda *_: self._subscribed.set()
        for client in (self._publisher, self._subscriber):
            client.on_connect = self._on_connect
            connect(client, port)
        assert self._subscribed.wait(SUBSCRIBE_SECONDS)
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def acknowledged(self) -> set[int]:
        """Return the numbers of the messages whose handshake is complete."""
        return {n for n, info in enumerate(self._sent, 1) if info.rc == 0 and info.is_published()}

    def finish(self, *, seconds: float) -> None:
        """Publish nothing new, wait until all has arrived or time is over, and disconnect."""
        self._finish.set()
        self._thread.join(seconds)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if len(self.acknowledged()) == len(self._sent) and not self._missing():
                break
            time.sleep(0.1)
        for client in (self._publisher, self._subscriber):
            client.disconnect()
            client.loop_stop()

    def verdict(self) -> list[str]:
        """Return every way in which the books say that the broker broke its word."""
        faults = []
        if missing := self._missing():
            faults.append(f"{self.name}: {len(missing)} acknowledged and lost: {missing[:5]}")
        twice = len(self.received) - len(set(self.received))
        if self.qos == 2 and twice:
            faults.append(f"{self.name}: {twice} twice at QoS 2")
        if self.sessions_lost:
            faults.append(f"{self.name}: session lost {self.sessions_lost} times")
        return faults

    def _missing(self) -> list[int]:
        return sorted(self.acknowledged() - set(self.received))

    def _on_connect(self, client: paho.Client, _: Any, flags: Any, reason: Any, __: Any) -> None:
        if reason != 0:
            return
        self._connects[client] = self._connects.get(client, 0) + 1
        if self._connects[client] > 1:
            self.sessions_lost += not flags.session_present
        elif client is self._subscriber:
            client.subscribe(self._topic, self.qos)

    def _on_message(self, client: paho.Client, _: Any, message: paho.MQTTMessage) -> None:
        self.received.append(int(message.payload))

    def _publish(self) -> None:
        while not self._finish.is_set():
            # Only while connected and with few open: paho queues without limit otherwise.
            if self._publisher.is_connected():
                if len(self._sent) - len(self.acknowledged()) < OPEN_MAX:
                    payload = b"%d" % (len(self._sent) + 1)
                    self._sent.append(self._publisher.publish(self._topic, payload, self.qos))
            time.sleep(PUBLISH_PAUSE_SECONDS)
