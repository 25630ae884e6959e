"""The receiving half of a simulated client: packet ids, the QoS 2 receiver, and its checks.

It keeps what MQTT requires a client to keep across connections (inbound QoS 2 ids) and, only for
judging, everything in flight. Must never send: `tests.simulation.client` does. Read next:
`tests.simulation.oracle`.
"""

from typing import Final

from mqtt.packets import Publish
from tests.simulation.rare import sometimes
from tests.simulation.verdict import Violation

# Packet ids above the one and below the other lie before and after a wrap.
WRAP_HIGH: Final = 65_400
WRAP_LOW: Final = 100


class Arrival:
    """One inbound QoS 1 or 2 exchange."""

    __slots__ = (
        "acked",
        "index",
        "loose",
        "number",
        "packet_id",
        "qos",
        "received_ms",
        "refused",
        "released",
        "shared",
    )

    def __init__(
        self, number: float, packet_id: int, index: int, qos: int, received_ms: int, shared: bool
    ) -> None:
        self.number = number  # order of first arrival
        self.packet_id = packet_id
        self.index = index
        self.qos = qos
        self.received_ms = received_ms
        self.shared = shared
        self.acked = False  # PUBACK or PUBREC (after PUBREL: PUBCOMP) was sent
        self.released = False  # PUBREL came
        self.refused = False  # with an error code: settled for good
        # A crash may have undone the binding (QoS 1 only), or it was too large to come again.
        self.loose = False

    def is_done(self) -> bool:
        """Is the exchange over as far as the client knows?"""
        return self.acked and (self.qos == 1 or self.released or self.refused)


class Receiver:
    """What a client has in flight towards it, over the connections of one session."""

    __slots__ = (
        "_last_id",
        "_number",
        "_order",
        "_outstanding",
        "_seen",
        "arrivals",
        "client",
        "connections",
        "ids",
        "lost",
        "must",
        "receive_maximum",
        "resending",
    )

    def __init__(self, client: str) -> None:
        self.client = client
        self.lost: set[int] = set()  # messages that may not come again: their rows are damaged
        self.arrivals: dict[int, Arrival] = {}  # in the order of first arrival
        self.ids: dict[int, int] = {}  # QoS 2 packet id -> message index, until PUBREL
        self.connections = 0  # of this session
        self.receive_maximum = 65_535
        self.must: dict[int, Arrival] = {}  # what a resume has to re-send before anything new
        self.resending = False
        self._number = 0
        self._last_id = 0
        self._order = 0.0  # number of the last re-sent PUBLISH
        self._outstanding: set[int] = set()  # not acknowledged on this connection
        self._seen: dict[tuple[int, bool], int] = {}  # copies on this connection

    def begin(self, *, session_present: bool, receive_maximum: int) -> None:
        """CONNACK came."""
        self.receive_maximum = receive_maximum
        self._outstanding.clear()
        self._seen.clear()
        self._order = 0.0
        self.must = {}
        self.resending = session_present
        if not session_present:
            self.arrivals.clear()
            self.ids.clear()
            self.connections = 1
            return
        self.connections += 1
        for packet_id, arrival in self.arrivals.items():
            if arrival.index in self.lost and not arrival.released:
                arrival.loose = True
            if arrival.loose or (arrival.shared and arrival.qos == 1):
                continue
            if not arrival.is_done():
                self.must[packet_id] = arrival

    def crashed(self, durable_ms: int) -> None:
        """The broker died: QoS 1 bindings after `durable_ms` may be forgotten."""
        for arrival in self.arrivals.values():
            if arrival.qos == 1 and arrival.received_ms >= durable_ms:
                arrival.loose = True

    def lose(self, index: int) -> None:
        """A row with this message is damaged; what is released needs it no more."""
        self.lost.add(index)
        for packet_id, arrival in self.arrivals.items():
            if arrival.index == index and not arrival.released:
                arrival.loose = True
                self.must.pop(packet_id, None)

    def forgive(self, packet_id: int) -> None:
        """This message need not come again; at QoS 2 PUBREL may come in its place."""
        self.must.pop(packet_id).loose = True

    def forgive_all(self) -> None:
        """No message need come again: limits may have dropped it."""
        for packet_id in list(self.must):
            self.forgive(packet_id)

    def expects_pubrel(self) -> bool:
        """Is there a QoS 2 exchange that has to be completed?"""
        return bool(self.ids)

    def publish(self, packet: Publish, index: int, now: int, shared: bool) -> bool:
        """Judge a QoS 1 or 2 PUBLISH; True if it has to be applied (not a known QoS 2 id)."""
        packet_id = packet.packet_id
        arrival = self.arrivals.get(packet_id)
        self._check_window(packet)
        if packet.dup:
            self._check_resend(packet, index, arrival)
        else:
            self._check_new(packet, index, arrival)
        if arrival is None or arrival.index != index or not packet.dup or arrival.released:
            if arrival is not None:
                del self.arrivals[packet_id]  # to the end of the order
            if packet_id < WRAP_LOW and self._last_id > WRAP_HIGH:
                sometimes("packet_id_wrap")
            self._last_id = packet_id
            number = self._place(packet.dup)
            self.arrivals[packet_id] = Arrival(number, packet_id, index, packet.qos, now, shared)
        else:
            if arrival.loose:
                arrival.number = self._place(packet.dup)
            arrival.acked = False
            arrival.refused = False
            arrival.loose = False
            arrival.qos = packet.qos  # bound anew after a crash, the grant may have changed
        if packet.qos == 1:
            return True
        if packet_id in self.ids:
            return False
        self.ids[packet_id] = index
        return True

    def _place(self, dup: bool) -> float:
        """Return where a PUBLISH stands: at the end, or among those sent again where it came."""
        if dup:
            self._order += 2.0**-20
            return self._order
        self._number += 1
        return self._number

    def _check_window(self, packet: Publish) -> None:
        outstanding = self._outstanding
        if packet.packet_id in outstanding:
            raise Violation(
                "packet_ids_are_unique_in_flight",
                f"{self.client} got packet id {packet.packet_id} again before acknowledging it",
            )
        outstanding.add(packet.packet_id)
        if len(outstanding) > self.receive_maximum:
            raise Violation(
                "receive_maximum_is_respected",
                f"{self.client} has {len(outstanding)} in flight,"
                f" Receive Maximum is {self.receive_maximum}",
            )

    def _check_resend(self, packet: Publish, index: int, arrival: Arrival | None) -> None:
        packet_id = packet.packet_id
        if not self.resending:
            raise Violation(
                "nothing_is_resent_on_a_live_connection",
                f"{self.client} got packet id {packet_id} with DUP out of place",
            )
        self.must.pop(packet_id, None)
        if arrival is None or arrival.loose:
            return
        if arrival.index != index:
            if arrival.is_done():
                return  # completed and used again, but that PUBLISH got lost on the way here
            raise Violation(
                "a_packet_id_keeps_its_message_across_a_crash",
                f"{self.client} got message {index} with DUP as packet id {packet_id},"
                f" which was message {arrival.index}",
            )
        if arrival.released:
            raise Violation(
                "qos2_is_delivered_once",
                f"{self.client} got message {index} as packet id {packet_id} again after PUBREL",
            )
        if arrival.number < self._order:
            raise Violation(
                "resume_resends_in_order_with_dup",
                f"{self.client} got packet id {packet_id} re-sent out of order",
            )
        self._order = arrival.number

    def _check_new(self, packet: Publish, index: int, arrival: Arrival | None) -> None:
        packet_id = packet.packet_id
        if self.must:
            owed = next(iter(self.must.values()))
            raise Violation(
                "resume_resends_in_order_with_dup",
                f"{self.client} got message {index} as new packet id {packet_id} before"
                f" packet id {owed.packet_id} (message {owed.index}) was re-sent",
            )
        self.resending = False
        if arrival is None or arrival.loose:
            return
        if not arrival.is_done():
            name = (
                "resume_resends_in_order_with_dup"
                if arrival.index == index
                else "a_packet_id_keeps_its_message_across_a_crash"
            )
            raise Violation(
                name,
                f"{self.client} got message {index} without DUP as packet id {packet_id},"
                f" which is in flight with message {arrival.index}",
            )

    def count(self, index: int, retain: bool) -> int:
        """Count a copy of a message on this connection; returns how many there are now."""
        key = (index, retain)
        copies = self._seen[key] = self._seen.get(key, 0) + 1
        return copies

    def pubrel(self, packet_id: int) -> None:
        """PUBREL came."""
        self.ids.pop(packet_id, None)
        arrival = self.arrivals.get(packet_id)
        self.must.pop(packet_id, None)
        if arrival is None:
            return
        if arrival.qos != 2:
            raise Violation("protocol", f"{self.client} got PUBREL for QoS 1 packet id {packet_id}")
        if not arrival.released and not arrival.acked:
            if not arrival.loose:
                raise Violation(
                    "protocol", f"{self.client} got PUBREL for {packet_id} before it sent PUBREC"
                )
            sometimes("message_given_up")
        arrival.loose = False
        arrival.released = True
        arrival.acked = False

    def refusing(self, packet_id: int) -> None:
        """PUBACK or PUBREC with an error code is sent: the message is settled, not applied."""
        self.acknowledging(packet_id, ends=True)
        self.ids.pop(packet_id, None)
        arrival = self.arrivals.get(packet_id)
        if arrival is not None:
            arrival.refused = True

    def acknowledging(self, packet_id: int, *, ends: bool) -> None:
        """PUBACK, PUBREC (`ends` False) or PUBCOMP is sent."""
        arrival = self.arrivals.get(packet_id)
        if arrival is not None:
            arrival.acked = True
        if ends:
            self._outstanding.discard(packet_id)
