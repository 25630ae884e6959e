"""The publishing half of a simulated client: packet ids, exchanges, re-sending, topic aliases.

It keeps what MQTT requires a sender to keep across connections. It does not judge deliveries. Read
next: `tests.simulation.client`.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from mqtt.packets import Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.simulation.rare import sometimes
from tests.simulation.verdict import Violation

if TYPE_CHECKING:
    from tests.simulation.client import Client
    from tests.simulation.oracle import Sent

PACKET_ID_MAX: Final = 65_535
V4_WINDOW: Final = 10  # un-acknowledged messages of a v3.1.1 client: its own choice


class Flight:
    """One outbound QoS 1 or 2 exchange."""

    __slots__ = ("packet_id", "released", "sent", "transmitted")

    def __init__(self, packet_id: int, sent: "Sent") -> None:
        self.packet_id = packet_id
        self.sent = sent
        self.released = False  # PUBREC came, PUBREL is sent
        self.transmitted = False  # on the present connection


class Sender:
    """What a client has to send, and what of it is under way."""

    def __init__(self, client: "Client") -> None:
        self.client = client
        self.flights: dict[int, Flight] = {}  # in the order of first sending
        self.queue: deque[Sent] = deque()  # to be sent as new
        self.next_id = client.plan.first_id
        self.window = V4_WINDOW
        self.aliases_max = 0
        self.aliases: dict[str, int] = {}
        self.answers: dict[int, deque[int]] = {1: deque(), 2: deque()}  # ids in sending order

    def is_idle(self) -> bool:
        """Is everything acknowledged?"""
        return not self.flights and not self.queue

    def free_id(self) -> int:
        """Return a packet id that is not in use."""
        taken, requests = self.flights, self.client.requests
        if self.client.plan.lowest_id:
            packet_id = 1
            while packet_id in taken or packet_id in requests:
                packet_id += 1
            return packet_id
        packet_id = self.next_id
        while packet_id in taken or packet_id in requests:
            packet_id = packet_id % PACKET_ID_MAX + 1
        if packet_id == PACKET_ID_MAX:
            sometimes("publisher_packet_id_wrap")
        self.next_id = packet_id % PACKET_ID_MAX + 1
        return packet_id

    # Publishing

    def publish_some(self) -> None:
        """Publish a burst of new messages."""
        client = self.client
        world, plan = client.world, client.plan
        random, profile = world.random, world.profile
        topics, count = plan.topics, random.choice((1, 1, 1, 2, 3, 6))
        qos_fixed = -1
        if world.chance(profile.burst):
            topics, count = (random.choice(topics),), random.choice((2, 4, 8, 20))
            qos_fixed = random.choices((0, 1, 2), profile.qos)[0]
        for _ in range(count):
            if world.messages_made >= profile.messages_max:
                break
            world.messages_made += 1
            if plan.retained_topic is not None and world.chance(profile.retained):
                sent = client.oracle.new_message(
                    client.name, plan.retained_topic, plan.retained_qos, retain=True
                )
                sent.clears = world.chance(0.25)
                if client.version == 5 and world.chance(profile.retained_expiry):
                    sent.expiry_s = random.choice((1, 2, 3))
            elif plan.will and client.version == 5 and world.chance(profile.expiring):
                sent = client.oracle.new_message(
                    client.name,
                    f"will/{client.name}",
                    random.choice((1, 2)),
                    retain=True,
                    expiry_s=random.choice((1, 2, 3, 4)),
                )
            else:
                qos = random.choices((0, 1, 2), profile.qos)[0] if qos_fixed < 0 else qos_fixed
                expiry = random.choice((1, 3, 10)) if self._may_expire() else -1
                topic = random.choice(topics)
                sent = client.oracle.new_message(client.name, topic, qos, expiry_s=expiry)
            if world.chance(profile.large):
                sent.padding = self._large(sent)
            self.queue.append(sent)
        self.pump()

    def _large(self, sent: "Sent") -> int:
        """Draw a size: two fill a block of the log, one is a bit more, or three fill a window."""
        random = self.client.world.random
        least, most = random.choice(((1_960, 2_020), (1_960, 2_020), (4_000, 4_200)))
        if sent.retain or random.random() < 0.6:
            least, most = 300_000, 500_000
        return random.randint(least, most)

    def _may_expire(self) -> bool:
        client = self.client
        return client.version == 5 and client.world.chance(client.world.profile.message_expiry)

    def pump(self) -> None:
        """Send what the window allows, in order."""
        if not self.client.is_online():
            return
        queue, flights = self.queue, self.flights
        while queue and not any(not f.transmitted for f in flights.values()):
            if queue[0].qos and len(flights) >= self.window:
                return
            sent = queue.popleft()
            if sent.qos == 0:
                self._transmit(sent, 0, dup=False)
                continue
            flight = Flight(self.free_id(), sent)
            flights[flight.packet_id] = flight
            flight.transmitted = True
            self._transmit(sent, flight.packet_id, dup=False)

    def _transmit(self, sent: "Sent", packet_id: int, *, dup: bool) -> None:
        client = self.client
        world = client.world
        if sent.transmissions and sent.from_version5 is not (client.version == 5):
            sent.from_both_versions = True
            client.oracle.resized(sent)
        sent.from_version5 = client.version == 5
        packet = Publish(
            sent.topic,
            sent.payload(),
            sent.qos,
            sent.retain,
            dup,
            packet_id,
            sent.properties(),
            message_expiry_interval=sent.expiry_s,
        )
        if self.aliases_max and world.chance(0.4):
            self._use_alias(packet)
        if sent.qos:
            self.answers[sent.qos].append(packet_id)
        sent.connect = client.connects
        client.oracle.sending(sent, world.step, client.broker_now(), new_flow=not dup)
        world.note(client.name, "publishes", sent.index, sent.qos, dup)
        client.send(packet)

    def _use_alias(self, packet: Publish) -> None:
        alias = self.aliases.get(packet.topic)
        if alias is not None:
            packet.topic_alias = alias
            if self.client.world.chance(0.7):
                packet.topic = ""
                sometimes("topic_alias_from_client")
        elif len(self.aliases) < self.aliases_max:
            alias = self.aliases[packet.topic] = len(self.aliases) + 1
            packet.topic_alias = alias

    # Resuming

    def connected(self, packet: Connack) -> None:
        """CONNACK came: send again what is not acknowledged, or start over without a session."""
        client = self.client
        self.window = packet.receive_maximum if client.version == 5 else V4_WINDOW
        self.aliases_max = packet.topic_alias_maximum if client.version == 5 else 0
        self.aliases.clear()
        self.answers = {1: deque(), 2: deque()}
        if not packet.session_present:
            self._start_over()
        for flight in self.flights.values():
            flight.transmitted = False
        self._resend()
        self.pump()

    def _start_over(self) -> None:
        unfinished = [f.sent for f in self.flights.values() if not f.released]
        self.flights.clear()
        if not unfinished:
            return
        if self.client.world.chance(0.3):
            return  # the program gives up on them
        self.queue.extendleft(reversed(unfinished))

    def _resend(self) -> None:
        """Send again in order: PUBLISH with DUP, or PUBREL; as far as the window allows."""
        if not self.client.is_online():
            return
        transmitted = sum(f.transmitted for f in self.flights.values())
        for flight in list(self.flights.values()):
            if flight.transmitted:
                continue
            if transmitted >= self.window:
                return
            transmitted += 1
            flight.transmitted = True
            if flight.released:
                sometimes("released_again")
                self.client.send(Pubrel(flight.packet_id))
            else:
                if flight.sent.qos == 2:
                    sometimes("duplicate_qos2_publish")
                flight.sent.doubtful = self._may_be_refused(flight.sent)
                self._transmit(flight.sent, flight.packet_id, dup=True)

    # Acknowledgements

    def _answered(self, qos: int, packet_id: int, what: str) -> Flight:
        """Return the flight an acknowledgement is for; judge that it is its turn."""
        order = self.answers[qos]
        flight = self.flights.get(packet_id)
        if flight is None or flight.sent.qos != qos or not order or order[0] != packet_id:
            raise Violation(
                "protocol",
                f"{self.client.name} got {what} for packet id {packet_id},"
                f" waiting for {list(order)}",
            )
        order.popleft()
        return flight

    def on_puback(self, packet: Puback) -> None:
        """PUBACK came."""
        flight = self._answered(1, packet.packet_id, "PUBACK")
        del self.flights[packet.packet_id]
        self._settle(flight, packet.reason_code)
        self._resend()
        self.pump()

    def on_pubrec(self, packet: Pubrec) -> None:
        """PUBREC came."""
        flight = self._answered(2, packet.packet_id, "PUBREC")
        self._settle(flight, packet.reason_code)
        if packet.reason_code >= 0x80:
            del self.flights[packet.packet_id]
            self._resend()
            self.pump()
            return
        flight.released = True
        self.client.send(Pubrel(packet.packet_id))

    def on_pubcomp(self, packet: Pubcomp) -> None:
        """PUBCOMP came."""
        flight = self.flights.get(packet.packet_id)
        if flight is None or not flight.released or not flight.transmitted:
            raise Violation("protocol", f"{self.client.name} got an unexpected {packet!r}")
        del self.flights[packet.packet_id]
        self._resend()
        self.pump()

    def _settle(self, flight: Flight, reason_code: int) -> None:
        client, sent = self.client, flight.sent
        world = client.world
        if reason_code < 0x80:
            if sent.clears:
                sometimes("retained_cleared")
            client.oracle.acknowledged(sent, world.step, client.broker_now())
            return
        if reason_code != 0x97 or not self._may_be_refused(sent):
            raise Violation("refusals_are_honest", f"{client.name}: {sent} got {reason_code:#x}")
        sometimes("publish_refused")
        client.oracle.rejected(sent)

    def _may_be_refused(self, sent: "Sent") -> bool:
        """May a message have been refused so far: for want of room, or because of a store?"""
        world = self.client.world
        return world.refusing_seen or world.mirror.may_refuse(sent.topic)
