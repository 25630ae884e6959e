"""Says in words and numbers what a packet of a traced connection is.

Reads packets a second time, beside the engine, and must never change or judge anything. Passwords
and the data of an authentication are never in what it says. Read next:
`broker.operations.tracing.traces`.
"""

from typing import Any, Final, TypeAlias

from broker.operations.tracing.cutting import Cut, Cutter
from mqtt.decoder import Decoder
from mqtt.errors import MqttError
from mqtt.packets import (
    CONNACK,
    CONNECT,
    NAMES,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Acknowledgement,
    Auth,
    Connack,
    Connect,
    Disconnect,
    FilterAcknowledgement,
    Packet,
    Subscribe,
    Unsubscribe,
)
from mqtt.properties import read_publish
from mqtt.wire import Reader

Fields: TypeAlias = dict[str, Any]

USER_PROPERTIES_MAX: Final = 1 << 16  # the engine has a limit of its own
FILTERS_SHOWN_MAX: Final = 20
# What answers what: of an answer the trace says how long it took.
ASKED_BY: Final = {
    CONNACK: CONNECT,
    PINGRESP: PINGREQ,
    PUBACK: PUBLISH,
    PUBREC: PUBLISH,
    PUBCOMP: PUBREL,
    SUBACK: SUBSCRIBE,
    UNSUBACK: UNSUBSCRIBE,
}
ASKING: Final = frozenset(ASKED_BY.values()) - {PUBLISH}  # a PUBLISH with QoS 0 asks nothing


class Direction:
    """The packets of one direction: what the client sends, or what it is sent."""

    __slots__ = ("_aliases", "_cutter", "_decoder", "is_in", "version")

    def __init__(self, version: int, aliases: dict[int, str], *, is_in: bool) -> None:
        """`version` is 0 before CONNECT; `aliases` are the topics by topic alias up to now."""
        self.version: int = version
        self.is_in: Final = is_in
        self._aliases: Final = aliases
        self._cutter: Final = Cutter()
        self._decoder: Decoder | None = None

    def feed(self, data: bytes) -> list[Cut]:
        """Take the next bytes; return the packets that they complete."""
        return self._cutter.feed(data)

    def skip(self, data: bytes) -> None:
        """Take bytes that came before the trace: what they complete is not told."""
        self._cutter.feed(data)

    def publish(self, cut: Cut) -> "Publication | None":
        """Return what a PUBLISH says; None if it cannot be read."""
        data, at = cut.data, cut.body
        first = data[0]
        try:
            reader = Reader(data, at, len(data))
            size = reader.two_bytes("topic")
            at += 2 + size
            topic = data[at - size : at].decode(errors="replace")
            reader.position = at
            qos = first >> 1 & 3
            packet_id = reader.two_bytes("packet id") if qos else 0
            if self.version >= 5:
                topic = self._resolve(reader, topic)
        except (MqttError, AssertionError):
            return None
        return Publication(topic, packet_id, first, cut.size, data[reader.position :])

    def _resolve(self, reader: Reader, topic: str) -> str:
        """Pass over the properties of a PUBLISH; return its topic, perhaps by an alias."""
        block = reader.properties()
        if block.position == block.end:
            return topic
        raw = bytes(block.data[block.position : block.end])
        alias = read_publish(raw, USER_PROPERTIES_MAX).topic_alias
        if alias and topic:
            self._aliases[alias] = topic
        return topic or self._aliases.get(alias, "")

    def packet(self, cut: Cut) -> Packet | None:
        """Return any other packet; None if it cannot be read."""
        if not cut.is_whole:
            return None
        if kind(cut) == CONNECT:
            return self._connect(cut)
        decoder = self._decoder
        if decoder is None or decoder.error is not None or decoder.version != self.version:
            role = "server" if self.is_in else "client"
            decoder = self._decoder = Decoder(role, 0, self.version or 4)  # type: ignore[arg-type]
        found = decoder.receive(cut.data)
        return found[0] if found else None

    def _connect(self, cut: Cut) -> Packet | None:
        """Return a CONNECT; it says which version the packets behind it have."""
        decoder = Decoder("server", 0)
        found = decoder.receive(cut.data)
        self.version = self.version or decoder.version
        return found[0] if found else None


class Publication:
    """A PUBLISH as a trace tells it."""

    __slots__ = ("packet_id", "payload", "qos", "size", "topic", "words")

    def __init__(self, topic: str, packet_id: int, first: int, size: int, payload: bytes) -> None:
        self.topic: Final = topic
        self.packet_id: Final = packet_id
        self.qos: Final = first >> 1 & 3
        self.size: Final = size  # of the packet
        self.payload: Final = payload  # or its beginning
        flags = ((8, "DUP"), (1, "RETAIN"))
        self.words: Final = " ".join(word for bit, word in flags if first & bit)

    def fields(self, payload_bytes: int) -> Fields:
        """Return what is told of it, with so many bytes of the payload."""
        told: Fields = {"packet": "PUBLISH", "qos": self.qos, "topic": self.topic}
        if self.packet_id:
            told["packet_id"] = self.packet_id
        told["size"] = self.size
        if self.words:
            told["text"] = self.words
        if payload_bytes:
            told["payload"] = self.payload[:payload_bytes].hex()
        return told


def kind(cut: Cut) -> int:
    """Return the type of a packet."""
    return cut.data[0] >> 4


def name(cut: Cut) -> str:
    """Return the name of a packet's type."""
    return NAMES[kind(cut)]


def fields(cut: Cut, packet: Packet | None) -> Fields:
    """Return what is told of a packet that is no PUBLISH."""
    told: Fields = {"packet": name(cut), "size": cut.size}
    if packet is None:
        told["text"] = "cannot be read here"
    elif isinstance(packet, Connect):
        told["text"] = _connect(packet)
    elif isinstance(packet, Connack):
        told["reason_code"] = packet.reason_code
        told["text"] = "session present" if packet.session_present else "no session"
    elif isinstance(packet, Acknowledgement):
        told["packet_id"], told["reason_code"] = packet.packet_id, packet.reason_code
    elif isinstance(packet, FilterAcknowledgement):
        told["packet_id"] = packet.packet_id
        told["text"] = _some([f"{code:#04x}" for code in packet.reason_codes])
    elif isinstance(packet, Subscribe):
        told["packet_id"] = packet.packet_id
        told["text"] = _some(
            [f"{each.topic_filter!r} qos {each.qos}" for each in packet.subscriptions]
        )
    elif isinstance(packet, Unsubscribe):
        told["packet_id"] = packet.packet_id
        told["text"] = _some([repr(each) for each in packet.topic_filters])
    elif isinstance(packet, Disconnect | Auth):
        told["reason_code"] = packet.reason_code
        if packet.reason_string:
            told["text"] = packet.reason_string
    return told


def _connect(packet: Connect) -> str:
    said = [
        f"client id {packet.client_id!r}",
        f"MQTT {({3: '3.1', 4: '3.1.1'}).get(packet.protocol_version, '5.0')}",
        f"clean start {int(packet.clean_start)}",
        f"keep alive {packet.keep_alive} s",
    ]
    if packet.username is not None:
        said.append(f"user {packet.username!r}")
    if packet.session_expiry_interval:
        said.append(f"session expiry {packet.session_expiry_interval} s")
    if packet.will is not None:
        said.append(f"will {packet.will.topic!r}")
    return ", ".join(said)


def _some(words: list[str]) -> str:
    more = len(words) - FILTERS_SHOWN_MAX
    return ", ".join(words[:FILTERS_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
