"""PUBACK, PUBREC and PUBCOMP: the client acknowledges messages that the broker sent.

Each completes an exchange or its next step; messages that waited for room are sent then. Read next:
`session.delivery.delivery`.
"""

from typing import Final

from mqtt import reasons
from mqtt.encoder import encode, pubrel
from mqtt.errors import ProtocolError
from mqtt.packet_runs import PubackRun
from mqtt.packets import PUBREL, Puback, Pubcomp, Pubrec, Pubrel
from session.delivery.delivery import Delivery
from session.feed.recorder import FeedRecorder
from session.lifetime.context import ClientContext
from session.live.connection import Connection
from session.state.in_flight import (
    AWAITING_PUBACK,
    AWAITING_PUBCOMP,
    AWAITING_PUBREC,
    FREE,
    FROM_GROUP,
    PERHAPS_SENT,
    PHASE_MASK,
    QOS_MASK,
    RELEASED,
    SOURCE_MASK,
)
from session.state.qos2_phases import EXPECTED, PUBACK, PUBCOMP, PUBREC, SENDER
from session.state.session import Session


class AcknowledgeHandler:
    """Handles the acknowledgements of messages that the broker sent."""

    def __init__(
        self,
        context: ClientContext,
        delivery: Delivery,
        feed: FeedRecorder,
    ) -> None:
        self._tick: Final = context.tick
        self._gate: Final = context.gate
        self._window: Final = delivery.window
        self._shared: Final = delivery.shared
        self._mailbox: Final = delivery.mailbox
        self._inbox: Final = delivery.inbox
        self._counters: Final = context.counters
        self._deliveries: Final = context.history.deliveries
        self._feed: Final = feed

    def puback(self, connection: Connection, packet: Puback) -> None:
        """Complete a QoS 1 exchange: the client has the message or refused it [MQTT-4.4.0-2]."""
        session = connection.session
        assert session is not None
        entry = session.complete(packet.packet_id, AWAITING_PUBACK)
        if entry < 0:
            self._check_phase(session, packet.packet_id, PUBACK)
            return
        self._record_acked(connection, session, packet.packet_id, entry, packet.reason_code)
        self._finish(connection, session, packet.packet_id, entry)

    def puback_run(self, connection: Connection, run: PubackRun) -> None:
        """Complete several QoS 1 exchanges."""
        session = connection.session
        assert session is not None
        is_changed = False
        packet_ids: list[int] = []
        entries: list[int] = []
        is_recorded = self._deliveries.is_on
        try:
            for packet_id in run.packet_ids:
                entry = session.complete(packet_id, AWAITING_PUBACK)
                if entry < 0:
                    self._check_phase(session, packet_id, PUBACK)
                    continue
                is_changed = True
                if is_recorded:
                    packet_ids.append(packet_id)
                    entries.append(entry)
                if self._feed.has_acks:
                    self._feed.acked(session.client_id, connection.username, entry)
                if entry & SOURCE_MASK:
                    self._release_source(connection, session, packet_id, entry)
        finally:
            if packet_ids:
                now = self._tick.now
                self._deliveries.acked_run(connection, session, packet_ids, entries, now)
            if is_changed:
                self._send_waiting(connection, session)

    def pubrec(self, connection: Connection, packet: Pubrec) -> None:
        """Answer PUBREC with a PUBREL, which waits until the step is durable."""
        session = connection.session
        assert session is not None
        packet_id = packet.packet_id
        if packet.reason_code >= 0x80:
            entry = session.complete(packet_id, AWAITING_PUBREC)
            if entry >= 0:
                self._record_acked(connection, session, packet_id, entry, packet.reason_code)
                self._finish(connection, session, packet_id, entry)
            return
        entry = session.in_flight.get(packet_id, RELEASED)
        known = session.release(packet_id)
        if known and not entry & RELEASED:
            if entry & PERHAPS_SENT and self._deliveries.is_on:
                now = self._tick.now
                self._deliveries.sent_before(connection, session, packet_id, entry, now)
            self._record_acked(connection, session, packet_id, entry, packet.reason_code)
        if not known:
            self._check_phase(session, packet_id, PUBREC)
        self._counters.packets_sent[PUBREL] += 1
        if known:
            self._tick.mark(session)
            data = pubrel(packet_id)
        elif connection.version >= 5:
            data = encode(Pubrel(packet_id, reasons.PACKET_IDENTIFIER_NOT_FOUND), 5)
        else:
            data = pubrel(packet_id)
        self._gate.reply(connection, data, promises=session.is_stored)

    def pubcomp(self, connection: Connection, packet: Pubcomp) -> None:
        """Complete a QoS 2 exchange; its packet id is free."""
        session = connection.session
        assert session is not None
        entry = session.complete(packet.packet_id, AWAITING_PUBCOMP)
        if entry < 0:
            self._check_phase(session, packet.packet_id, PUBCOMP)
            return
        if self._deliveries.is_on:
            now = self._tick.now
            self._deliveries.completed(connection, session, packet.packet_id, entry, now)
        self._finish(connection, session, packet.packet_id, entry)

    def _record_acked(
        self,
        connection: Connection,
        session: Session,
        packet_id: int,
        entry: int,
        reason_code: int,
    ) -> None:
        if self._feed.has_acks:
            self._feed.acked(session.client_id, connection.username, entry)
        if self._deliveries.is_on:
            now = self._tick.now
            self._deliveries.acked(connection, session, packet_id, entry, reason_code, now)

    def _check_phase(self, session: Session, packet_id: int, answer: str) -> None:
        """Fail if `answer` is wrong for a message in flight. An unknown id is no error."""
        entry = session.in_flight.get(packet_id, FREE)
        phase = entry & PHASE_MASK
        if entry & PERHAPS_SENT and EXPECTED[phase] == answer:
            return  # it is not taken for an answer: the message is sent again
        if (phase, answer) not in SENDER:
            raise ProtocolError(
                f"{answer} for packet id {packet_id} in flight at QoS {entry & QOS_MASK},"
                f" expected {EXPECTED[phase]}"
            )

    def _finish(self, connection: Connection, session: Session, packet_id: int, entry: int) -> None:
        if entry & SOURCE_MASK:
            self._release_source(connection, session, packet_id, entry)
        self._send_waiting(connection, session)

    def _release_source(
        self, connection: Connection, session: Session, packet_id: int, entry: int
    ) -> None:
        """Free the group's message or the mailbox copy of an exchange that ended."""
        if entry & SOURCE_MASK == FROM_GROUP:
            self._shared.acknowledged(connection, packet_id, entry)
        else:
            if self._inbox.is_on:
                self._inbox.acknowledged(session, entry)
            self._mailbox.remove(session, entry)

    def _send_waiting(self, connection: Connection, session: Session) -> None:
        """Mark the session's progress, and send what has waited for room."""
        if session.is_stored:
            self._tick.mark_late(session)
        if connection.has_backlog():
            self._window.send_waiting(connection)
        if connection.group_keys:
            self._shared.send_waiting(connection)
