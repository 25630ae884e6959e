"""Judges what the engine sends to one client: packet ids, order, quotas, sizes, who may get what.

It sees the bytes of both directions, those of the client through a decoder of its own, so that it
knows what the engine was really told, however damaged. What it cannot know (a connection that
ended while an acknowledgement was read, an id acknowledged before it was seen, a crash) it does
not judge. Must never look inside the engine. Read next: `tests.fuzz.box`.
"""

from collections import Counter
from typing import Final

from mqtt.decoder import Decoder
from mqtt.encoder import encode
from mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from mqtt.topics import matches

SENT: Final = 0  # PUBLISH came
RECEIVED: Final = 1  # ... and was answered with PUBREC
RELEASED: Final = 2  # ... and then PUBREL came


class Fault(AssertionError):
    """The engine broke a rule."""


class Flow:
    """One message with a packet id, on its way to a client."""

    __slots__ = ("connection", "is_certain", "packet", "state")

    def __init__(self, packet: Publish, connection: int) -> None:
        self.packet = packet
        self.connection = connection  # number of the one it came on last
        self.state = SENT
        self.is_certain = True  # False: a crash may have undone what is known


class View:
    """What one client id's session must look like from outside, over its connections."""

    def __init__(self) -> None:
        self.flows: dict[int, Flow] = {}
        self.doubtful: set[int] = set()  # ids of which nothing is known any more
        self.has_crashed = False
        # The last of the connections that had a limit for packets, 0 = none. What it would not take
        # is gone [MQTT-3.1.2-25].
        self.limit_order = 0
        self.filters: set[str] = set()  # ever asked for
        self.order = 0  # of the connection that has the session; one before may still be flushed
        self.unanswered: list[int] = []  # connections whose CONNECT was not answered, in order

    def begin(self, order: int) -> None:
        """A new session: CONNACK without session present, on the connection of this order.

        The next connection's CONNECT may be here before the answer to this one's.
        """
        self.flows.clear()
        self.doubtful.clear()
        self.has_crashed = False
        if self.limit_order <= order:
            self.limit_order = 0

    def crashed(self) -> None:
        """What was not durable may be undone."""
        self.has_crashed = True
        for flow in self.flows.values():
            flow.is_certain = False


class Published:
    """What was published by whom, over a whole history."""

    def __init__(self) -> None:
        self.messages: set[tuple[str, bytes]] = set()
        self.is_lossy = False  # may limits drop what is owed?
        self.connects = 0
        self.views: dict[str, View] = {}

    def view(self, client_id: str) -> View:
        """Return the view of a client id."""
        return self.views.setdefault(client_id, View())


class Watcher:
    """One connection, from outside."""

    def __init__(self, published: Published, number: int, mirror: Decoder) -> None:
        self.number = number
        self.published = published
        self.client_id = ""
        self.order = 0  # of its CONNECT among all; 0 = none yet
        self.connect: Connect | None = None
        self.connack: Connack | None = None
        self.view: View | None = None
        self.has_said_goodbye = False  # the engine sent DISCONNECT
        self._mirror = mirror  # decodes what the client sends, as the engine's own does
        self._decoder: Decoder | None = None
        self._aliases_in: dict[int, str] = {}  # of the engine's publishes
        self.aliases: dict[int, str] = {}  # of the client's
        self._asked: Counter[tuple[type, int]] = Counter()  # answers owed: kind, packet id
        # How many filters the requests with an id had that are not answered, oldest first.
        self._sizes: dict[tuple[type, int], list[int]] = {}
        self.to_release: list[int] = []  # ids of the client's that PUBREC came for
        self._early_ids: set[int] = set()  # acknowledged before CONNACK came
        self._open: set[int] = set()  # ids that count against the client's Receive Maximum

    @property
    def version(self) -> int:
        """Return the protocol version, 0 before CONNECT."""
        return self._mirror.version

    def waiting(self) -> list[int]:
        """Return the packet ids that the client has not acknowledged on this connection."""
        if self.view is None:
            return []
        return [
            packet_id
            for packet_id, flow in self.view.flows.items()
            if flow.connection == self.number and flow.state != RECEIVED
        ]

    # From the client

    def sent(self, data: bytes) -> list[Packet]:
        """The client sends this; returns what the engine will read in it. `took` comes after."""
        return self._mirror.receive(data)

    def took(self, packets: list[Packet], *, is_over: bool) -> None:
        """The engine was given these; `is_over`: it gave up on the connection meanwhile."""
        for packet in packets:
            if isinstance(packet, Connect):
                self._note_connect(packet)
            elif isinstance(packet, Publish):
                self._note_publish(packet)
            elif isinstance(packet, (Puback, Pubrec, Pubcomp)):
                self._acknowledge(packet, is_over)
            elif isinstance(packet, Pubrel):
                self._asked[Pubcomp, packet.packet_id] += 1
            elif isinstance(packet, Subscribe):
                self._ask(Suback, packet.packet_id, len(packet.subscriptions))
                names = {item.topic_filter for item in packet.subscriptions}
                self._view().filters.update(names)
            elif isinstance(packet, Unsubscribe):
                self._ask(Unsuback, packet.packet_id, len(packet.topic_filters))
            elif isinstance(packet, Pingreq):
                self._asked[Pingresp, 0] += 1

    def _ask(self, kind: type, packet_id: int, size: int) -> None:
        self._asked[kind, packet_id] += 1
        self._sizes.setdefault((kind, packet_id), []).append(size)

    def _view(self) -> View:
        """Return the view of the client's session, or what may become it."""
        return self.view or self.published.view(self.client_id or f"unnamed {self.number}")

    def _note_connect(self, packet: Connect) -> None:
        if self.connect is not None:
            return
        self.connect = packet
        self.client_id = packet.client_id
        self.published.connects += 1
        self.order = self.published.connects
        view = self._view()
        view.unanswered.append(self.number)
        if packet.maximum_packet_size:
            view.limit_order = self.order
        if packet.will is not None:
            self.published.messages.add((packet.will.topic, packet.will.payload))

    def _note_publish(self, packet: Publish) -> None:
        topic = packet.topic
        if packet.topic_alias:
            topic = topic or self.aliases.get(packet.topic_alias, "")
            self.aliases[packet.topic_alias] = topic
        self.published.messages.add((topic, packet.payload))
        if packet.qos:
            self._asked[Puback if packet.qos == 1 else Pubrec, packet.packet_id] += 1

    def _acknowledge(self, packet: Puback | Pubrec | Pubcomp, is_over: bool) -> None:
        packet_id = packet.packet_id
        if self.view is None:
            self._early_ids.add(packet_id)
            self._view().doubtful.add(packet_id)
            return
        if self.view.order != self.order:
            return
        flow = self.view.flows.get(packet_id)
        fits = flow is not None and (
            (isinstance(packet, Puback) and flow.packet.qos == 1)
            or (isinstance(packet, Pubrec) and flow.packet.qos == 2 and flow.state == SENT)
            or (isinstance(packet, Pubcomp) and flow.state == RELEASED)
        )
        if flow is None or not fits or is_over or flow.connection != self.number:
            self.view.flows.pop(packet_id, None)
            self.view.doubtful.add(packet_id)
        elif isinstance(packet, Pubrec) and packet.reason_code < 0x80:
            flow.state = RECEIVED
            return
        else:
            del self.view.flows[packet_id]
        self._open.discard(packet_id)

    # From the engine

    def got(self, data: bytes) -> list[Packet]:
        """Judge what the engine sends; returns it."""
        if self.version == 0 or self.connect is None:
            self._judge_stranger(data)
            return []
        if self._decoder is None:
            self._decoder = Decoder("client", 0, self.version)
        self._judge_sizes(data)
        found = self._decoder.receive(data)
        if self._decoder.error is not None or self._decoder.pending_size:
            raise Fault(f"cannot read {data.hex()}: {self._decoder.error!r}")
        for packet in found:
            self._judge(packet)
        return found

    def _judge_stranger(self, data: bytes) -> None:
        """Who has not sent a whole CONNECT hears a refusal, and that is all."""
        if data and not (data[0] == 0x20 and data[1] == len(data) - 2 and data[3]):
            raise Fault(f"{data.hex()} to a client that has not connected")

    def _judge_sizes(self, data: bytes) -> None:
        """[MQTT-3.1.2-24] No packet is larger than the client takes."""
        assert self.connect is not None
        limit = self.connect.maximum_packet_size
        while limit and data:
            size, shift, position = 0, 0, 1
            while True:
                byte = data[position]
                size |= (byte & 0x7F) << shift
                shift += 7
                position += 1
                if byte < 0x80:
                    break
            if position + size > limit:
                raise Fault(f"a packet of {position + size} bytes, the client takes {limit}")
            data = data[position + size :]

    def _judge(self, packet: Packet) -> None:
        if self.has_said_goodbye:
            raise Fault(f"{packet!r} after DISCONNECT")
        if isinstance(packet, Connack):
            self._judge_connack(packet)
            return
        if self.connack is None or self.connack.reason_code:
            raise Fault(f"{packet!r} to a client that was not let in")
        if isinstance(packet, Publish):
            self._judge_publish(packet)
        elif isinstance(packet, Pubrel):
            self._judge_pubrel(packet)
        elif isinstance(packet, (Puback, Pubrec, Pubcomp)):
            self._answered(packet, packet.packet_id)
            if isinstance(packet, Pubrec) and packet.reason_code < 0x80:
                self.to_release.append(packet.packet_id)
        elif isinstance(packet, (Suback, Unsuback)):
            self._answered(packet, packet.packet_id)
            size = self._sizes[type(packet), packet.packet_id].pop(0)
            codes = len(packet.reason_codes)
            if codes != size and not (isinstance(packet, Unsuback) and self.version < 5):
                raise Fault(f"{packet!r} for {size} filters")
        elif isinstance(packet, Pingresp):
            self._answered(packet, 0)
        elif isinstance(packet, Disconnect):
            if self.version < 5:
                raise Fault("DISCONNECT to a client of version 3")
            self.has_said_goodbye = True
        elif isinstance(packet, Auth):
            raise Fault("AUTH without a method")

    def _answered(self, packet: Packet, packet_id: int) -> None:
        key = type(packet), packet_id
        self._asked[key] -= 1
        if self._asked[key] < 0:
            raise Fault(f"{packet!r} answers nothing")

    def _judge_connack(self, packet: Connack) -> None:
        if self.connack is not None:
            raise Fault("a second CONNACK")
        assert self.connect is not None
        self.connack = packet
        if packet.session_present and (packet.reason_code or self.connect.clean_start):
            raise Fault(f"{packet!r} after {self.connect!r}")
        if packet.reason_code:
            return
        assigned = packet.assigned_client_id
        if not self.connect.client_id and self.version == 5 and not assigned:
            raise Fault("no client id was assigned")
        self.view = self._view()
        self.client_id = assigned or self.client_id
        if self.number not in self.view.unanswered:
            return  # it was taken over before its CONNACK was flushed
        place = self.view.unanswered.index(self.number)
        others = self.view.unanswered[:place]
        del self.view.unanswered[: place + 1]
        self.view.order = self.order
        # MQTT 3.1 does not say whether there was a session.
        is_known = self.version > 3 or self.connect.clean_start
        if is_known and not packet.session_present:
            self.view.begin(self.order)
        elif others or not is_known:
            self.view.crashed()  # one of them, or this one, may have begun the session anew
        self.view.doubtful |= self._early_ids

    def _judge_publish(self, packet: Publish) -> None:
        assert self.connect is not None and self.view is not None
        topic = packet.topic
        if packet.topic_alias:
            if packet.topic_alias > self.connect.topic_alias_maximum:
                raise Fault(f"alias of {packet!r}, most are {self.connect.topic_alias_maximum}")
            topic = topic or self._aliases_in.get(packet.topic_alias, "")
            self._aliases_in[packet.topic_alias] = topic
        if not topic:
            raise Fault(f"{packet!r} has no topic")
        if (topic, packet.payload) not in self.published.messages:
            raise Fault(f"nobody published {packet!r} on {topic!r}")
        if not any(matches(_stream(name), topic) for name in self.view.filters):
            raise Fault(f"{packet!r} on {topic!r}, asked for was {sorted(self.view.filters)}")
        if packet.qos and self.view.order == self.order:
            self._judge_flow(packet)

    def _judge_flow(self, packet: Publish) -> None:
        assert self.connect is not None and self.view is not None
        view, packet_id = self.view, packet.packet_id
        if packet_id in view.doubtful:
            return
        flow = view.flows.get(packet_id)
        if flow is not None and flow.connection == self.number:
            raise Fault(f"{packet!r} has the id of {flow.packet!r}, which is not acknowledged")
        if flow is not None and flow.is_certain:
            same = flow.packet.payload == packet.payload and flow.packet.qos == packet.qos
            if flow.state != SENT or not same or not packet.dup:
                raise Fault(f"{packet!r} on a new connection, {flow.packet!r} on the one before")
        view.flows[packet_id] = Flow(packet, self.number)
        self._open.add(packet_id)
        if len(self._open) > self.connect.receive_maximum:  # [MQTT-3.3.4-9]
            raise Fault(f"{len(self._open)} messages in flight: {sorted(self._open)}")

    def _judge_pubrel(self, packet: Pubrel) -> None:
        assert self.view is not None
        flow = self.view.flows.get(packet.packet_id)
        if packet.packet_id in self.view.doubtful or self.view.order != self.order:
            return
        if flow is None:
            if not self.view.has_crashed:
                raise Fault(f"{packet!r} for nothing")
            flow = Flow(Publish("", b"", 2, packet_id=packet.packet_id), self.number)
            self.view.flows[packet.packet_id] = flow
        elif flow.is_certain and flow.state == SENT and not self._may_give_up(flow):
            raise Fault(f"{packet!r}, but PUBREC was not sent")
        elif flow.state == RELEASED and flow.connection == self.number:
            raise Fault(f"{packet!r} twice")
        flow.state = RELEASED
        flow.connection = self.number

    # At rest

    def _may_give_up(self, flow: Flow) -> bool:
        """May PUBREL come in place of the message of an earlier connection?"""
        assert self.connect is not None and self.view is not None
        if flow.connection == self.number:
            return False
        limit = self.connect.maximum_packet_size
        is_too_large = bool(limit) and len(encode(flow.packet, self.version)) > limit
        return is_too_large or self.published.is_lossy

    def judge_rest(self) -> None:
        """All is committed and written, the connection is open: what was asked for has come."""
        if self.connack is None or self.connack.reason_code:
            raise Fault(f"{self.client_id!r} got {self.connack!r} and is still connected")
        owed = [(kind.__name__, number) for (kind, number), n in self._asked.items() if n > 0]
        if owed:
            raise Fault(f"{self.client_id!r} never got {owed}")
        assert self.view is not None and self.connect is not None
        for packet_id, flow in self.view.flows.items():
            if flow.connection == self.number and flow.state == RECEIVED:
                raise Fault(f"{self.client_id!r} never got PUBREL {packet_id}")
        if len(self._open) >= self.connect.receive_maximum or self.view.doubtful:
            return  # more may wait for room
        if self.connect.maximum_packet_size or self.view.limit_order or self.published.is_lossy:
            return
        for packet_id, flow in self.view.flows.items():
            if flow.connection != self.number and flow.is_certain:
                raise Fault(f"{self.client_id!r} never got {flow.packet!r} ({packet_id}) again")


def _stream(topic_filter: str) -> str:
    """Return what a filter matches: of a shared one, what follows the share name."""
    if topic_filter.startswith("$share/"):
        return topic_filter.split("/", 2)[-1]
    return topic_filter
