"""Histories that real clients make against a real broker process, for the audit.

`recording` is a broker that records its history, `whole_history` all of it after the broker has
ended, `rows` its events. The clients are paho-mqtt, mosquitto_pub and mosquitto_sub, so neither the
generator of histories nor our own client decides what the audit meets.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
import pyarrow.compute as pc
import pyarrow.dataset as ds
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.durability.foreign import durable_client
from tests.durability.process import POLL_SECONDS, BrokerProcess, holdfast

PATIENCE_SECONDS: Final = 30.0


def recording(
    directory: Path, *, detail: str = "full", node: str = "n1", **settings: str
) -> BrokerProcess:
    """Return a broker, not started yet, that records its history in `directory/history`.

    `settings` are further keys of [history]: `SEAL_SECONDS="1"`.
    """
    given = {"DETAIL": detail, "DIR": str(directory / "history"), "NODE": node, **settings}
    env = {f"HOLDFAST__HISTORY__{name}": value for name, value in given.items()}
    return holdfast(directory, env=env)


def whole_history(broker: BrokerProcess, directory: Path, *, status: int = 0) -> Path:
    """Write all of an ended broker's history to `directory`, also what it had no time to export.

    Several brokers may share `directory` if their nodes differ. `status` is the exit status that
    the command must have.
    """
    assert not broker.is_running()
    command = [sys.executable, "-m", "broker", "history", "export", "--to", str(directory)]
    done = subprocess.run(
        [*command, "--data-dir", str(broker.data_dir)],
        env={**os.environ, **broker.env},
        cwd=broker.directory,
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == status, done.stderr
    return directory


def rows(history: Path, names: Iterable[str], columns: Iterable[str]) -> list[dict[str, Any]]:
    """Return these columns of the events called `names`, in the order of their numbers."""
    if not any(history.rglob("*.parquet")):
        return []
    table = ds.dataset(history, format="parquet").to_table(
        columns=["node", "boot", "seq", "ev", *columns],
        filter=pc.field("ev").isin(list(names)),
    )
    found: list[dict[str, Any]] = table.to_pylist()
    return sorted(found, key=lambda row: (row["node"], row["boot"], row["seq"]))


class Paho:
    """A durable paho client whose steps a test can wait for."""

    def __init__(self, port: int, client_id: str, *, version: int = 5) -> None:
        protocol = paho.MQTTv5 if version == 5 else paho.MQTTv311
        self.name: Final = client_id
        self.received: list[bytes] = []
        self._port: Final = port
        self._change: Final = threading.Condition()
        self._answered: set[int] = set()
        self._subscribed: int = 0
        self._is_connected: bool = False
        self.client: Final = durable_client(client_id, protocol)
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_subscribe = self._on_subscribe
        self.client.on_message = self._on_message
        self.client.on_publish = self._on_publish

    def connect(self, *, expiry_s: int = 3600) -> "Paho":
        """Connect with Clean Start 0, wait for CONNACK; reconnect after losses from then on."""
        fields: dict[str, Any] = {}
        if self.client.protocol == paho.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = expiry_s
            fields = {"properties": properties, "clean_start": False}
        self.client.connect("127.0.0.1", self._port, keepalive=30, **fields)
        self.client.loop_start()
        return self.wait(lambda: self._is_connected)

    def will(self, topic: str, *, delay_s: int) -> "Paho":
        """Set a will with a delay for the next CONNECT."""
        properties = Properties(PacketTypes.WILLMESSAGE)
        properties.WillDelayInterval = delay_s
        self.client.will_set(topic, b"gone", qos=1, properties=properties)
        return self

    def subscribe(self, topic_filter: str, qos: int) -> "Paho":
        """Subscribe and wait for SUBACK."""
        before = self._subscribed
        self.client.subscribe(topic_filter, qos)
        return self.wait(lambda: self._subscribed > before)

    def publish(self, topic: str, payload: bytes, qos: int) -> None:
        """Publish and wait until the message is acknowledged (QoS 2: completed)."""
        self.answered([self.client.publish(topic, payload, qos).mid])

    def answered(self, numbers: Iterable[int]) -> None:
        """Wait until these messages are acknowledged (QoS 2: completed)."""
        wanted = set(numbers)
        self.wait(lambda: wanted <= self._answered)

    def receive(self, count: int) -> "Paho":
        """Wait until `count` messages have been received (QoS 2: their PUBREL)."""
        return self.wait(lambda: len(self.received) >= count)

    def leave(self) -> None:
        """Disconnect with reason 0x00 and end the network loop."""
        self.client.disconnect()
        self.client.loop_stop()

    def wait(self, what: Callable[[], bool]) -> "Paho":
        """Wait until a callback of paho has made `what` true."""
        with self._change:
            assert self._change.wait_for(what, PATIENCE_SECONDS), "the client waited in vain"
        return self

    def reconnected(self) -> "Paho":
        """Wait until the connection is up."""
        return self.wait(lambda: self._is_connected)

    def lost(self) -> "Paho":
        """Wait until the loss of the connection was noticed."""
        return self.wait(lambda: not self._is_connected)

    def _on_connect(self, client: paho.Client, _: Any, flags: Any, reason: Any, __: Any) -> None:
        with self._change:
            self._is_connected = not reason.is_failure
            self._change.notify_all()

    def _on_disconnect(self, *_: Any) -> None:
        with self._change:
            self._is_connected = False
            self._change.notify_all()

    def _on_subscribe(self, *_: Any) -> None:
        with self._change:
            self._subscribed += 1
            self._change.notify_all()

    def _on_message(self, client: paho.Client, _: Any, message: paho.MQTTMessage) -> None:
        with self._change:
            self.received.append(message.payload)
            self._change.notify_all()

    def _on_publish(self, client: paho.Client, _: Any, mid: int, *__: Any) -> None:
        with self._change:
            self._answered.add(mid)
            self._change.notify_all()


class MosquittoStream:
    """An endless stream at QoS 2 from mosquitto_pub to a durable mosquitto_sub."""

    def __init__(self, broker: BrokerProcess, client_id: str, topic: str) -> None:
        self._output: Final = broker.directory / f"{client_id}.out"
        place = ("-h", "127.0.0.1", "-p", str(broker.port), "-V", "mqttv5", "-q", "2", "-t", topic)
        self._publish: Final = ("mosquitto_pub", *place, "-m", "x", "--repeat", "1000000")
        # A line of output per message at once; room for messages that are sent again.
        roomy = ("-D", "CONNECT", "receive-maximum", "100")
        self._subscribe: Final = (
            *("stdbuf", "-oL", "mosquitto_sub", *place, *roomy, "-c", "-x", "3600"),
            *("-i", client_id),
        )
        subprocess.run([*self._subscribe, "-E"], check=True, timeout=PATIENCE_SECONDS)

    @contextmanager
    def flowing(self, count: int) -> Iterator[None]:
        """Publish and receive within the block, which begins when `count` messages have arrived."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        programs = []
        try:
            with open(self._output, "wb") as lines:
                programs.append(subprocess.Popen(self._subscribe, stdout=lines, stderr=lines))
            programs.append(subprocess.Popen(self._publish, stderr=subprocess.DEVNULL))
            while self._output.stat().st_size < count * len(b"x\n"):
                assert time.monotonic() < deadline, self._output.read_bytes()[-200:]
                time.sleep(POLL_SECONDS)
            yield
        finally:
            for program in programs:
                program.kill()
                program.wait()
