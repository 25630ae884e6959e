"""A paho-mqtt client that logs what it saw, for `holdfast audit run --clients`.

Use `LoggedClient` where a program uses `paho.mqtt.client.Client`; docs/audit-clients.md shows it.
What paho does not show is not in the log: PUBREC, and DUP of what it sends again.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from holdfast_mqtt.client_log import ClientLog, payload_hash

_FAILED: Final = 0x80


class LoggedClient(paho.Client):
    """A `Client` of paho with callbacks of version 2, and a log.

    `log.close()` belongs behind the end of the network loop.
    """

    def __init__(self, log: ClientLog, **options: Any) -> None:
        version = options.setdefault("callback_api_version", CallbackAPIVersion.VERSION2)
        client_id = options.setdefault("client_id", log.client_id)
        self.log: Final = log
        self._server: str | None = None
        self._told_will: dict[str, object] = {}
        self._answers = _Answers()
        self._filters = _Answers()
        self._shown: object = None  # the last message: several callbacks may get the same one
        super().__init__(**options)
        if version != CallbackAPIVersion.VERSION2:
            raise ValueError("callback_api_version: expected VERSION2")
        if client_id != log.client_id:
            raise ValueError(f"client_id: expected that of the log, {log.client_id!r}")

    # What the program asks for.

    def connect(self, host: str, port: int = 1883, *args: Any, **options: Any) -> Any:
        """Connect, as paho does."""
        self._server = f"{host}:{port}"
        return super().connect(host, port, *args, **options)

    def connect_async(self, host: str, port: int = 1883, *args: Any, **options: Any) -> None:
        """Connect later, as paho does."""
        self._server = f"{host}:{port}"
        super().connect_async(host, port, *args, **options)

    def will_set(
        self, topic: str, payload: Any = None, qos: int = 0, retain: bool = False,
        properties: Any = None,
    ) -> None:  # fmt: skip
        """Set the will, as paho does."""
        super().will_set(topic, payload, qos, retain, properties)
        data = _bytes(payload)
        self._told_will = {
            "will_topic": topic,
            "will_hash": payload_hash(data),
            "will_bytes": len(data),
            "will_qos": qos,
            "will_retain": retain,
        }

    def will_clear(self) -> None:
        """Have no will any more, as paho does."""
        super().will_clear()
        self._told_will = {}

    def publish(
        self, topic: str, payload: Any = None, qos: int = 0, retain: bool = False,
        properties: Any = None,
    ) -> paho.MQTTMessageInfo:  # fmt: skip
        """Publish, as paho does."""
        data = _bytes(payload)
        with self._answers.asking() as ask:
            info = super().publish(topic, payload, qos, retain, properties)
            if info.rc not in (paho.MQTT_ERR_SUCCESS, paho.MQTT_ERR_NO_CONN):
                return info
            self.log.record(
                "published",
                pid=info.mid if qos else 0,
                qos=qos,
                topic=topic,
                hash=payload_hash(data),
                bytes=len(data),
                retain=retain,
            )
            if qos:
                for reason in ask(info.mid, "puback" if qos == 1 else "pubcomp"):
                    self._acknowledged(info.mid, reason)
        return info

    def subscribe(self, topic: Any, qos: int = 0, *args: Any, **options: Any) -> Any:
        """Subscribe, as paho does."""
        with self._filters.asking() as ask:
            result, mid = super().subscribe(topic, qos, *args, **options)
            if mid is not None:
                for reasons in ask(mid, ("subscribed", _filters(topic))):
                    self._granted(mid, reasons)
        return result, mid

    def unsubscribe(self, topic: Any, *args: Any, **options: Any) -> Any:
        """Unsubscribe, as paho does."""
        with self._filters.asking() as ask:
            result, mid = super().unsubscribe(topic, *args, **options)
            if mid is not None:
                topics = [topic] if isinstance(topic, str) else list(topic)
                for reasons in ask(mid, ("unsubscribed", topics)):
                    self._granted(mid, reasons)
        return result, mid

    def message_callback_add(self, sub: str, callback: Any) -> None:
        """Have a callback for some topics, as paho does."""

        def logged(client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
            self._received(message)
            callback(client, userdata, message)

        super().message_callback_add(sub, logged)

    # What paho calls.

    @property
    def on_connect(self) -> Any:
        """What paho calls: the log, then the callback of the program."""
        theirs: Any = self._on_connect

        def logged(client: Any, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
            if not reason.is_failure:
                present = bool(flags.session_present)
                self.log.record(
                    "connected", session_present=present, server=self._server, **self._told_will
                )
            if theirs is not None:
                theirs(client, userdata, flags, reason, properties)

        return logged

    @on_connect.setter
    def on_connect(self, callback: Any) -> None:
        self._on_connect = callback

    @property
    def on_disconnect(self) -> Any:
        """What paho calls: the log, then the callback of the program."""
        theirs: Any = self._on_disconnect

        def logged(client: Any, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
            said = reason.value if flags.is_disconnect_packet_from_server else None
            self.log.record("disconnected", reason=said)
            if theirs is not None:
                theirs(client, userdata, flags, reason, properties)

        return logged

    @on_disconnect.setter
    def on_disconnect(self, callback: Any) -> None:
        self._on_disconnect = callback

    @property
    def on_message(self) -> Any:
        """What paho calls: the log, then the callback of the program."""
        theirs: Any = self._on_message

        def logged(client: Any, userdata: Any, message: paho.MQTTMessage) -> None:
            self._received(message)
            if theirs is not None:
                theirs(client, userdata, message)

        return logged

    @on_message.setter
    def on_message(self, callback: Any) -> None:
        self._on_message = callback

    @property
    def on_publish(self) -> Any:
        """What paho calls: the log, then the callback of the program."""
        theirs: Any = self._on_publish

        def logged(client: Any, userdata: Any, mid: int, reason: Any, properties: Any) -> None:
            self._acknowledged(mid, reason.value)
            if theirs is not None:
                theirs(client, userdata, mid, reason, properties)

        return logged

    @on_publish.setter
    def on_publish(self, callback: Any) -> None:
        self._on_publish = callback

    @property
    def on_subscribe(self) -> Any:
        """What paho calls: the log, then the callback of the program."""
        return self._of_filters(self._on_subscribe)

    @on_subscribe.setter
    def on_subscribe(self, callback: Any) -> None:
        self._on_subscribe = callback

    @property
    def on_unsubscribe(self) -> Any:
        """What paho calls: the log, then the callback of the program."""
        return self._of_filters(self._on_unsubscribe)

    @on_unsubscribe.setter
    def on_unsubscribe(self, callback: Any) -> None:
        self._on_unsubscribe = callback

    def _of_filters(self, theirs: Any) -> Any:
        def logged(client: Any, userdata: Any, mid: int, reasons: Any, properties: Any) -> None:
            self._granted(mid, [reason.value for reason in reasons])
            if theirs is not None:
                theirs(client, userdata, mid, reasons, properties)

        return logged

    def _received(self, message: paho.MQTTMessage) -> None:
        if message is self._shown:
            return
        self._shown = message
        self.log.record(
            "received",
            pid=message.mid if message.qos else 0,
            qos=message.qos,
            topic=message.topic,
            hash=payload_hash(bytes(message.payload)),
            bytes=len(message.payload),
            dup=bool(message.dup),
            retain=bool(message.retain),
        )

    def _acknowledged(self, mid: int, reason: int) -> None:
        event = self._answers.take(mid, reason)
        if event is not None:
            self.log.record(event, pid=mid, reason=reason)

    def _granted(self, mid: int, reasons: list[int]) -> None:
        asked = self._filters.take(mid, reasons)
        if asked is None:
            return
        event, filters = asked
        # MQTT 3.1.1 has no reason codes in UNSUBACK.
        for topic_filter, reason in zip(filters, reasons or [0] * len(filters), strict=False):
            self.log.record(event, filter=topic_filter, reason=reason)


class _Answers:
    """What waits for an answer, by packet identifier.

    paho calls back from a thread of its own, maybe before the call that sends has returned. Such an
    answer is kept until the call knows its identifier. No lock is held while paho works.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[int, Any] = {}
        self._early: dict[int, list[Any]] = {}
        self._asking = 0

    @contextlib.contextmanager
    def asking(self) -> Iterator[Any]:
        """Enter before sending; call what it gives with the identifier and what was asked."""
        with self._lock:
            self._asking += 1
        try:
            yield self._ask
        finally:
            with self._lock:
                self._asking -= 1
                if not self._asking:
                    self._early.clear()

    def _ask(self, mid: int, what: Any) -> list[Any]:
        """Note what was asked; return the answers that came before."""
        with self._lock:
            self._asked[mid] = what
            return self._early.pop(mid, [])

    def take(self, mid: int, answer: Any) -> Any:
        """Return what was asked under an identifier, or None; then the answer may be early."""
        with self._lock:
            asked = self._asked.pop(mid, None)
            if asked is None and self._asking:
                self._early.setdefault(mid, []).append(answer)
            return asked


def _bytes(payload: Any) -> bytes:
    """Return the bytes that paho sends for a payload."""
    if payload is None:
        return b""
    if isinstance(payload, (bytes, bytearray)):
        return bytes(payload)
    return str(payload).encode()


def _filters(topic: Any) -> list[str]:
    """Return the topic filters of a call of `subscribe`, in its three forms."""
    if isinstance(topic, str):
        return [topic]
    if isinstance(topic, tuple):
        return [topic[0]]
    return [name for name, _ in topic]
