"""paho-mqtt under load, so that no bug of our own client hides one of the broker.

It publishes at QoS 1 only. At QoS 2 paho 2.2 re-sends PUBLISH after PUBREL when it needs more than
one attempt to reconnect: the second `_messages_reconnect_reset_out` treats the state "resend
PUBREL" as "not sent". The broker is not to blame for that duplicate. As a receiver paho is correct.
"""

import threading
import time
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.durability.load import UNORDERED

RECONNECT_SECONDS: Final = 0.05
OPEN_MAX: Final = 20  # publications not yet acknowledged
PUBLISH_PAUSE_SECONDS: Final = 0.01


def durable_client(client_id: str, protocol: int) -> paho.Client:
    """Return a paho client with a durable session; `connect` connects it."""
    fields: dict[str, Any] = {} if protocol == paho.MQTTv5 else {"clean_session": False}
    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id=client_id, protocol=protocol, **fields
    )
    client.reconnect_delay_set(RECONNECT_SECONDS, RECONNECT_SECONDS)  # type: ignore[arg-type]
    return client


def connect(client: paho.Client, port: int, *, host: str = "127.0.0.1") -> None:
    """Connect with Clean Start 0 and an hour of session expiry, and run the network loop."""
    fields: dict[str, Any] = {}
    if client.protocol == paho.MQTTv5:
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        fields = {"properties": properties, "clean_start": False}
    client.connect(host, port, keepalive=30, **fields)
    client.loop_start()


class PahoSubscriber:
    """A durable paho subscriber with the same books as `load.Subscriber`."""

    def __init__(self, port: int, name: str, *, qos: int, protocol: int) -> None:
        self.name: str = name
        self.qos: int = qos
        self.topic_filter: str = "load/#"
        self.received: list[tuple[str, int, int]] = []
        self.violations: list[str] = []
        self.ready = threading.Event()  # subscribed
        self._port = port
        self._client = durable_client(name, protocol)
        self._client.on_connect = self._on_connect
        self._client.on_message = self._on_message
        self._client.on_subscribe = lambda *_: self.ready.set()

    def start(self) -> None:
        """Connect and subscribe."""
        connect(self._client, self._port)

    def finish(self) -> None:
        """Disconnect."""
        self._client.disconnect()

    def join(self, timeout: float) -> None:
        """End the network loop."""
        self._client.loop_stop()

    def _on_connect(self, client: paho.Client, _: Any, flags: Any, reason: Any, __: Any) -> None:
        if reason == 0 and not self.ready.is_set():
            client.subscribe(self.topic_filter, self.qos)
        elif reason == 0 and not flags.session_present:
            self.violations.append(f"{self.name}: session lost")

    def _on_message(self, client: paho.Client, _: Any, message: paho.MQTTMessage) -> None:
        self.received.append((message.topic, int(message.payload), message.qos))


class PahoPublisher:
    """A durable paho publisher at QoS 1 with the same books as `load.Publisher`."""

    def __init__(self, port: int, name: str, *, protocol: int) -> None:
        self.name: str = name
        self.violations: list[str] = []
        self.pause_s: float = PUBLISH_PAUSE_SECONDS
        self._port = port
        self._topic = UNORDERED + name  # a publish during a disconnect may arrive late
        self._sent = 0
        self._open: dict[int, int] = {}  # packet id -> number; ids come again after 65,535 messages
        self._early: set[int] = set()  # packet ids answered before `publish` returned
        self._lock = threading.Lock()
        self.acknowledged: list[tuple[str, int]] = []
        self._finish = threading.Event()
        self._client = durable_client(name, protocol)
        self._client.on_publish = self._on_publish
        self._thread = threading.Thread(target=self._publish, name=name, daemon=True)

    def start(self) -> None:
        """Connect and begin to publish."""
        connect(self._client, self._port)
        self._thread.start()

    def finish(self) -> None:
        """Stop publishing; the thread ends when everything is acknowledged."""
        self._finish.set()

    def join(self, timeout: float) -> None:
        """Wait for the last PUBACK and disconnect."""
        self._thread.join(timeout)
        self._client.disconnect()
        self._client.loop_stop()

    def is_alive(self) -> bool:
        """Return whether something is not acknowledged yet."""
        return self._thread.is_alive()

    def _on_publish(self, client: paho.Client, _: Any, mid: int, reason: Any, __: Any) -> None:
        if reason.is_failure:
            self.violations.append(f"{self.name}: refused: {reason}")
        with self._lock:
            number = self._open.pop(mid, 0)
            if number:
                self.acknowledged.append((self._topic, number))
            else:
                self._early.add(mid)

    def _publish(self) -> None:
        while not self._finish.is_set() or len(self.acknowledged) < self._sent:
            # Only while connected and with few open: paho queues without limit otherwise.
            if self._client.is_connected() and not self._finish.is_set():
                if self._sent - len(self.acknowledged) < OPEN_MAX:
                    self._sent += 1
                    self._publish_one(self._sent)
            time.sleep(self.pause_s)

    def _publish_one(self, number: int) -> None:
        mid = self._client.publish(self._topic, b"%d" % number, 1).mid
        with self._lock:
            if mid in self._early:
                self._early.remove(mid)
                self.acknowledged.append((self._topic, number))
            else:
                self._open[mid] = number
