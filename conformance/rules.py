"""Rules for every connection that depend on more than one packet.

One `Rules` watches both directions of one connection. From what the client sends it learns the
announced limits, filters and method and the open packet ids, and it judges every packet that
arrives. It must not give false alarms: once it cannot parse the client's own bytes, the rules that
depend on them are off for this connection.
"""

import dataclasses
from collections import Counter
from typing import Final

from conformance import tables
from conformance.failure import Violation
from conformance.packets import (
    Auth,
    Connack,
    Disconnect,
    Packet,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Unsuback,
)
from conformance.sent import Sent, Splitter

# A packet above the client's Maximum Packet Size also breaks these, if it has the property.
_TOO_LARGE: Final = {
    Connack: ("MQTT-3.2.2-19", "MQTT-3.2.2-20"),
    Puback: ("MQTT-3.4.2-2", "MQTT-3.4.2-3"),
    Pubrec: ("MQTT-3.5.2-2", "MQTT-3.5.2-3"),
    Pubrel: ("MQTT-3.6.2-2", "MQTT-3.6.2-3"),
    Pubcomp: ("MQTT-3.7.2-2", "MQTT-3.7.2-3"),
    Suback: ("MQTT-3.9.2-1", "MQTT-3.9.2-2"),
    Unsuback: ("MQTT-3.11.2-1", "MQTT-3.11.2-2"),
    Disconnect: ("MQTT-3.14.2-3", "MQTT-3.14.2-4"),
    Auth: ("MQTT-3.15.2-2", "MQTT-3.15.2-3"),
}
_SHARE: Final = "$share/"


class Rules:
    """Watches one connection; `version` is the one of its CONNECT."""

    def __init__(self, version: int) -> None:
        self.version: int = version
        self.connack: Connack | None = None
        self.disconnected: bool = False  # has the broker sent DISCONNECT?
        self.asked_for: int | None = None  # the protocol level of CONNECT, once it was sent
        self._splitter = Splitter(version)
        self._connects = 0
        self._filters: set[str] = set()
        self._aliases: dict[int, str] = {}
        self._open: dict[int, Publish] = {}  # deliveries not settled on this connection
        self._asked: dict[tuple[int, int], int] = {}  # (type, id) -> number of filters
        # Answers the broker owes: (type of the answer, packet id) -> how often.
        self._owed: Counter[tuple[int, int]] = Counter()
        # What the client announced.
        self._packet_size_max: int | None = None
        self._alias_max = 0
        self._receive_max = 65_535
        self._wants_response_info = False
        self._wants_problem_info = True
        self._method: str | None = None

    def sent(self, data: bytes) -> list[Sent]:
        """Note bytes that the client has sent; return the packets they completed."""
        packets = self._splitter.feed(data)
        for packet in packets:
            self._note(packet)
        return packets

    def _note(self, packet: Sent) -> None:
        if packet.kind == tables.CONNECT:
            self._connects += 1
            if self._connects == 1:
                self.asked_for = packet.level
                self._note_connect(packet)
        elif packet.kind in (tables.SUBSCRIBE, tables.UNSUBSCRIBE) and packet.packet_id is not None:
            if packet.kind == tables.SUBSCRIBE:
                self._filters.update(packet.filters)
            self._asked[packet.kind, packet.packet_id] = len(packet.filters)
        elif packet.kind in (tables.PUBLISH, tables.PUBREL) and packet.packet_id:
            answer = tables.PUBCOMP
            if packet.kind == tables.PUBLISH:
                answer = tables.PUBACK if (packet.raw[0] >> 1) & 3 == 1 else tables.PUBREC
            self._owed[answer, packet.packet_id] += 1
        elif packet.kind == tables.PINGREQ:
            self._owed[tables.PINGRESP, 0] += 1
        elif packet.packet_id is not None and (
            packet.kind in (tables.PUBACK, tables.PUBCOMP)
            or (packet.kind == tables.PUBREC and packet.reason >= 0x80)
        ):
            self._open.pop(packet.packet_id, None)

    def _note_connect(self, packet: Sent) -> None:
        properties = packet.properties
        self._packet_size_max = properties.number(tables.MAXIMUM_PACKET_SIZE)
        self._alias_max = properties.number(tables.TOPIC_ALIAS_MAXIMUM) or 0
        self._receive_max = properties.number(tables.RECEIVE_MAXIMUM) or 65_535
        self._wants_response_info = properties.number(tables.REQUEST_RESPONSE_INFO) == 1
        self._wants_problem_info = properties.number(tables.REQUEST_PROBLEM_INFO) != 0
        self._method = properties.text(tables.AUTH_METHOD)

    @property
    def _understood(self) -> bool:
        """Return whether everything the client sent was parsed; else skip rules that need it."""
        return not self._splitter.is_lost

    def received(self, packet: Packet) -> Packet:
        """Judge a packet; return it with its topic alias resolved. Raises `Violation`."""
        self._check_order(packet)
        if self.version >= 5 and self._understood:
            self._check_announced(packet)
        if isinstance(packet, Connack):
            self.connack = packet
        elif isinstance(packet, Publish):
            packet = self._resolve(packet)
            self._check_publish(packet)
        elif isinstance(packet, Suback | Unsuback):
            self._check_granted(packet)
        elif isinstance(packet, Puback | Pubrec | Pubcomp | Pingresp):
            self._check_owed(packet)
        elif isinstance(packet, Disconnect):
            self.disconnected = True
        return packet

    def _check_owed(self, packet: Puback | Pubrec | Pubcomp | Pingresp) -> None:
        """Raise `Violation` unless the client sent a request that this packet answers."""
        packet_id = 0 if isinstance(packet, Pingresp) else packet.packet_id
        key = (packet.raw[0] >> 4, packet_id)
        self._owed[key] -= 1
        if self._owed[key] >= 0 or not self._understood:
            return
        if isinstance(packet, Pingresp):
            raise Violation(("MQTT-3.12.4-1",), "PINGRESP without PINGREQ", packet=packet.raw)
        ids = "MQTT-2.2.1-5" if self.version >= 5 else "MQTT-2.3.1-6"
        raise Violation(
            (ids,),
            f"acknowledges packet identifier {packet_id}",
            packet=packet.raw,
            expected="the id of a packet that waits for this kind of acknowledgement",
        )

    def _check_order(self, packet: Packet) -> None:
        if self.disconnected:
            raise Violation(
                ("MQTT-3.14.4-1",), "a packet after the server's DISCONNECT", packet=packet.raw
            )
        accepted = self.connack is not None and self.connack.code == 0
        if isinstance(packet, Disconnect) and not accepted:
            raise Violation(
                ("MQTT-3.14.0-1",),
                "DISCONNECT from a server that has not accepted the connection",
                packet=packet.raw,
                expected="CONNACK with a reason code, or only a close",
            )
        if isinstance(packet, Connack):
            if self.connack is not None:
                statement = "MQTT-3.2.0-2" if self.version >= 5 else "MQTT-3.1.0-2"
                raise Violation((statement,), "a second CONNACK", packet=packet.raw)
        elif not accepted and not (self.connack is None and isinstance(packet, Auth)):
            raise Violation(
                ("MQTT-3.2.0-1",), "a packet before a successful CONNACK", packet=packet.raw
            )

    def _check_announced(self, packet: Packet) -> None:
        """Judge what depends on the properties of CONNECT."""
        properties = getattr(packet, "properties", ())
        limit = self._packet_size_max
        if limit and len(packet.raw) > limit and not _is_unread(packet):
            reason, user = _TOO_LARGE.get(type(packet), ("", ""))
            broken = ["MQTT-3.1.2-24"]
            broken += [reason] * (tables.REASON_STRING in properties)
            broken += [user] * (bool(user) and tables.USER_PROPERTY in properties)
            raise Violation(
                tuple(broken), f"a packet of {len(packet.raw)} bytes", packet=packet.raw,
                expected=f"at most {limit} bytes, the client's Maximum Packet Size",
            )  # fmt: skip
        if not self._wants_problem_info and not isinstance(packet, Connack | Disconnect | Publish):
            if tables.REASON_STRING in properties or tables.USER_PROPERTY in properties:
                raise Violation(
                    ("MQTT-3.1.2-29",),
                    "Reason String or User Property, but Request Problem Information was 0",
                    packet=packet.raw,
                )
        if isinstance(packet, Connack):
            if tables.RESPONSE_INFO in properties and not self._wants_response_info:
                raise Violation(
                    ("MQTT-3.1.2-28",), "Response Information nobody asked for", packet=packet.raw
                )
        if isinstance(packet, Auth) or (isinstance(packet, Connack) and packet.code == 0):
            self._check_method(packet)

    def _check_method(self, packet: Auth | Connack) -> None:
        method = packet.properties.text(tables.AUTH_METHOD)
        if self._method is None and (method is not None or isinstance(packet, Auth)):
            raise Violation(
                ("MQTT-4.12.0-6",),
                "AUTH or Authentication Method, but CONNECT had no method",
                packet=packet.raw,
            )
        if method != self._method:
            raise Violation(
                ("MQTT-4.12.0-5",),
                f"Authentication Method {method!r}",
                packet=packet.raw,
                expected=f"{self._method!r}, as in CONNECT",
            )

    def _resolve(self, packet: Publish) -> Publish:
        alias = packet.properties.number(tables.TOPIC_ALIAS)
        if alias is None:
            return packet
        if self._understood and alias > self._alias_max:
            broken = ("MQTT-3.1.2-26", "MQTT-3.3.2-11") if self._alias_max else ("MQTT-3.1.2-27",)
            raise Violation(
                broken, f"topic alias {alias}", packet=packet.raw,
                expected=f"at most {self._alias_max}, the client's Topic Alias Maximum",
            )  # fmt: skip
        if packet.wire_topic:
            self._aliases[alias] = packet.wire_topic
        elif alias not in self._aliases:
            raise Violation(
                ("MQTT-3.3.2-7",),
                f"topic alias {alias} was never set on this connection",
                packet=packet.raw,
            )
        return dataclasses.replace(packet, topic=self._aliases[alias])

    def _check_publish(self, packet: Publish) -> None:
        assert self.connack is not None
        fresh = not self.connack.session_present
        if fresh and self._understood and not self._wanted(packet.topic):
            raise Violation(
                ("MQTT-3.3.2-3",),
                f"topic {packet.topic!r} matches none of the client's filters",
                packet=packet.raw,
                expected="a match with one of " + ", ".join(sorted(map(repr, self._filters))),
            )
        if packet.packet_id is None:
            return
        known = self._open.get(packet.packet_id)
        if known is not None and not packet.dup:
            statement = "MQTT-2.2.1-4" if self.version >= 5 else "MQTT-2.3.1-4"
            raise Violation(
                (statement,),
                f"packet identifier {packet.packet_id} is still in use by another delivery",
                packet=packet.raw,
            )
        if known is not None and self.version >= 5:
            raise Violation(
                ("MQTT-4.4.0-1",), "a re-send while the connection is up", packet=packet.raw
            )
        if packet.dup and known is None and fresh:
            raise Violation(
                ("MQTT-3.3.1-3",), "DUP 1 on a first transmission", packet=packet.raw,
                expected="DUP 0",
            )  # fmt: skip
        self._open[packet.packet_id] = packet
        if self._understood and len(self._open) > self._receive_max:
            raise Violation(
                ("MQTT-3.3.4-9", "MQTT-4.9.0-2"),
                f"{len(self._open)} deliveries are not acknowledged",
                packet=packet.raw,
                expected=f"at most {self._receive_max}, the client's Receive Maximum",
            )

    def _wanted(self, topic: str) -> bool:
        return any(matches(f, topic) or matches(_plain(f), topic) for f in self._filters)

    def _check_granted(self, packet: Suback | Unsuback) -> None:
        if not self._understood:
            return
        subscribing = isinstance(packet, Suback)
        kind = tables.SUBSCRIBE if subscribing else tables.UNSUBSCRIBE
        count = self._asked.pop((kind, packet.packet_id), None)
        if count is None:
            if subscribing:
                broken = ["MQTT-3.8.4-2"]
            else:
                broken = ["MQTT-3.10.4-5" if self.version >= 5 else "MQTT-3.10.4-4"]
            broken.append("MQTT-2.2.1-6" if self.version >= 5 else "MQTT-2.3.1-7")
            raise Violation(
                tuple(broken),
                f"acknowledges packet identifier {packet.packet_id}",
                packet=packet.raw,
                expected="the id of a request that is still open",
            )
        if (subscribing or self.version >= 5) and len(packet.codes) != count:
            statement = "MQTT-3.11.3-2"
            if subscribing:
                statement = "MQTT-3.8.4-6" if self.version >= 5 else "MQTT-3.8.4-5"
            raise Violation(
                (statement,), f"{len(packet.codes)} codes", packet=packet.raw,
                expected=f"{count} codes, one per filter",
            )  # fmt: skip


def _is_unread(packet: Packet) -> bool:
    """Return whether it refuses a CONNECT whose limits the broker need not have read."""
    return isinstance(packet, Connack) and packet.code in (0x81, 0x82, 0x84)


def _plain(topic_filter: str) -> str:
    """Return the filter without `$share/NAME/`, an extension that 3.1.1 brokers may have."""
    if topic_filter.startswith(_SHARE):
        parts = topic_filter.split("/", 2)
        if len(parts) == 3:
            return parts[2]
    return topic_filter


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether `topic` matches `topic_filter`."""
    if topic.startswith("$") and topic_filter[:1] in ("#", "+"):
        return False
    levels = topic.split("/")
    wanted = topic_filter.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or level not in ("+", levels[index]):
            return False
    return len(levels) == len(wanted)
