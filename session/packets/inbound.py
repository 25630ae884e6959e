"""What clients send on an accepted connection, packet by packet.

Each handler checks first and changes then, so a packet that breaks the protocol has changed
nothing. Which reply waits for the commit is decided here, row by row as docs/design.md lists them.
Faults of the peer are raised as `MqttError`; the engine alone turns them into a close. Read next:
`session.publish.accept`, `session.delivery.delivery`, `session.lifetime.lifecycle`.
"""

from typing import Final

from mqtt import reasons
from mqtt.encoder import PINGRESP_BYTES, encode, puback, pubacks, pubcomp, pubrec, pubrel
from mqtt.errors import ProtocolError
from mqtt.message import NEVER, Message
from mqtt.packet_runs import PubackRun, PublishRun
from mqtt.packets import PINGRESP as PINGRESP_KIND
from mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    V4,
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
from mqtt.packets import Subscription as Request
from mqtt.topics import filter_problem, levels_count, split_shared
from session.counters import Counters
from session.delivery.delivery import Delivery
from session.history.delivery_events import Dispatches
from session.history.publish_events import Receipts
from session.lifetime.repository import Sessions
from session.live.commit_gate import CommitGate
from session.live.connection import Connection
from session.live.tick import FILTER_WORK, UNIT_SHIFT, Tick
from session.ports import Policy
from session.publish.accept import Publishing
from session.routing.retained import Retained
from session.routing.router import Route, Routes
from session.settings import Settings
from session.state.in_flight import FROM_GROUP, QOS_MASK, RELEASED, SOURCE_MASK
from session.state.session import Replay, Session
from session.state.subscription import Subscription

# v3.1.1 knows one failure code in SUBACK.
_V4_FAILURE: Final = 0x80
# Topic filters of one packet that are worked off in one tick; 15 microseconds each.
FILTERS_SLICE: Final = 256


def _refused(version: int, reason_code: int, qos: int) -> int:
    """Return the code of a refused filter. MQTT 3.1 has none: such a client is told what it wants.

    (MQTT 3.1, SUBSCRIBE: a server that does not authorise has no way to inform the client.)
    """
    if version >= 5:
        return reason_code
    return _V4_FAILURE if version == V4 else qos


class Inbound:
    """Handles the packets of accepted connections."""

    def __init__(
        self,
        tick: Tick,
        gate: CommitGate,
        routes: Routes,
        sessions: Sessions,
        delivery: Delivery,
        publishing: Publishing,
        retained: Retained,
        settings: Settings,
        policy: Policy,
        counters: Counters,
        receipts: Receipts,
        dispatches: Dispatches,
    ) -> None:
        self._tick: Final = tick
        self._gate: Final = gate
        self._routes: Final = routes
        self._sessions: Final = sessions
        self._window: Final = delivery.window
        self._shared: Final = delivery.shared
        self._mailbox: Final = delivery.mailbox
        self._retained_replay: Final = delivery.retained_replay
        self._publishing: Final = publishing
        self._retained: Final = retained
        self._settings: Final = settings
        self._policy: Final = policy
        self._is_open: Final = policy.is_open
        self._counters: Final = counters
        self._receipts: Final = receipts
        self._dispatches: Final = dispatches
        # The reason codes so far of a long SUBSCRIBE or UNSUBSCRIBE that is not answered yet.
        self.under_way: Final[dict[Connection, list[int]]] = {}

    # PUBLISH

    def publish(self, connection: Connection, packet: Publish) -> None:
        """Accept a message; it is ours once the append is durable, and acknowledged then."""
        session = connection.session
        assert session is not None
        qos = packet.qos
        counters = self._counters
        counters.messages_received[qos] += 1
        counters.payload_bytes_received += len(packet.payload)
        topic = packet.topic
        if packet.topic_alias or not topic:
            topic = self._resolve_alias(connection, packet)
        receipts = self._receipts
        if receipts.is_on:
            receipts.publisher(session, connection, packet.packet_id, None, packet.dup)
        if qos:
            if qos > self._settings.maximum_qos:
                raise ProtocolError(
                    f"QoS {qos}, expected at most {self._settings.maximum_qos}",
                    reasons.QOS_NOT_SUPPORTED,
                )
            if qos == 2 and packet.packet_id in session.incoming:
                # The same message again: acknowledge, deliver nothing [MQTT-4.3.3-10].
                if receipts.is_on:
                    receipts.received_again(self._tick.now)
                self._acknowledge(connection, session, packet, reasons.SUCCESS, True)
                return
            connection.inbound_open += 1
            if connection.inbound_open > self._settings.receive_maximum and connection.version >= 5:
                raise ProtocolError(
                    f"{connection.inbound_open} unacknowledged messages,"
                    f" expected at most {self._settings.receive_maximum}",
                    reasons.RECEIVE_MAXIMUM_EXCEEDED,
                )
        if packet.retain and not self._settings.retain_available:
            raise ProtocolError("RETAIN 1, expected 0", reasons.RETAIN_NOT_SUPPORTED)
        route = self._routes.match(topic)
        refusal = self._refusal(session, topic, route)
        if refusal:
            if receipts.is_on and refusal == reasons.NOT_AUTHORIZED:
                size = len(packet.payload)
                receipts.refused(topic, size, "not_authorized", self._tick.now)
            self._refuse(connection, session, packet, refusal)
            return
        retain = packet.retain
        if retain and connection.version < 5 and packet.payload:
            if self._retained.is_full_for(topic):
                # It cannot be told, and to close would make it come back with the same message.
                self._counters.drop("storage_refused")
                retain = False
        now = self._tick.now
        expiry = packet.message_expiry_interval
        message = Message(
            topic,
            packet.payload,
            qos,
            retain,
            packet.properties,
            session.client_id,
            now,
            NEVER if expiry < 0 else now + expiry * 1000,
        )
        accepted = self._publishing.accept(message, route)
        reason_code = accepted.reason_code
        if reason_code >= 0x80:
            self._refuse(connection, session, packet, reason_code)
        elif qos:
            if qos == 2:
                self._sessions.receive_begun(session, packet.packet_id)
            self._acknowledge(connection, session, packet, reason_code, accepted.is_changed)

    def publish_run(self, connection: Connection, run: PublishRun) -> bool:
        """Accept messages of one topic together; False if they must come one by one.

        Nothing has changed then, and what is wrong with them is found where it always is.
        """
        session = connection.session
        assert session is not None
        qos = run.qos
        payloads = run.payloads
        count = len(payloads)
        settings = self._settings
        topic = run.topic
        if qos:
            if settings.maximum_qos == 0:
                return False
            if connection.version >= 5 and (
                connection.inbound_open + count > settings.receive_maximum
            ):
                return False
        route = self._routes.match(topic)
        if self._refusal(session, topic, route):
            return False
        message = Message(topic, b"", qos, False, b"", session.client_id, self._tick.now, NEVER)
        receipts = self._receipts
        is_told = receipts.is_on
        if is_told:
            packet_ids = run.packet_ids
            others = None if run.is_sequential or not qos else packet_ids
            receipts.publisher(session, connection, packet_ids[0], others)
        accepted = self._publishing.accept_run(message, payloads, route)
        if accepted is None:
            return False
        counters = self._counters
        counters.messages_received[qos] += count
        counters.payload_bytes_received += sum([len(payload) for payload in payloads])
        if qos:
            counters.packets_sent[PUBACK] += count
            data = pubacks(run.packet_ids, run.is_sequential)
            connection.inbound_open += count
            waits = self._gate.acknowledge(connection, data, count, promises=accepted.is_changed)
            if is_told:
                receipts.acknowledge(
                    connection, session, qos, reasons.SUCCESS, waits, self._tick.now
                )
        return True

    def _resolve_alias(self, connection: Connection, packet: Publish) -> str:
        """Return the topic of a PUBLISH with an alias, and remember the mapping."""
        alias = packet.topic_alias
        if not alias:
            raise ProtocolError("PUBLISH without a topic or a topic alias, expected one of them")
        if alias > self._settings.topic_alias_maximum:
            raise ProtocolError(
                f"topic alias {alias}, expected 1 to {self._settings.topic_alias_maximum}",
                reasons.TOPIC_ALIAS_INVALID,
            )
        if packet.topic:
            connection.aliases_in[alias] = packet.topic
            return packet.topic
        topic = connection.aliases_in.get(alias)
        if topic is None:
            raise ProtocolError(f"topic alias {alias} was never set, expected a topic with it")
        self._tick.work += len(topic) >> UNIT_SHIFT  # three bytes stand for up to 65,535
        return topic

    def _refusal(self, session: Session, topic: str, route: Route) -> int:
        """Return the reason why this client may not publish to the topic, or 0."""
        if route.levels > self._settings.topic_levels_max:
            return reasons.TOPIC_NAME_INVALID
        if route.is_reserved:
            return reasons.NOT_AUTHORIZED
        if self._is_open:
            return 0
        if not self._policy.may_publish(session.identity, session.client_id, topic):
            return reasons.NOT_AUTHORIZED
        return 0

    def _refuse(
        self, connection: Connection, session: Session, packet: Publish, reason_code: int
    ) -> None:
        """The message was not taken. v5 is told so; v3.1.1 has no way to say it.

        There an unauthorised message is acknowledged and dropped [MQTT-3.3.5-2], and one that could
        not be stored gets no answer but a close: the client still has it and sends it again.
        """
        if reason_code == reasons.NOT_AUTHORIZED:
            self._counters.drop("not_authorized")
        if connection.version >= 5:
            if packet.qos:
                self._acknowledge(connection, session, packet, reason_code, False)
                if packet.qos == 2:
                    connection.inbound_open -= 1  # PUBREC >= 0x80 ends the exchange
            elif reason_code == reasons.TOPIC_NAME_INVALID:
                raise ProtocolError("too many topic levels", reason_code)
            return
        if reason_code != reasons.NOT_AUTHORIZED:
            if packet.qos:
                raise ProtocolError("the message could not be stored", reason_code)
            return
        if packet.qos == 2:
            self._sessions.receive_begun(session, packet.packet_id)
        if packet.qos:
            self._acknowledge(connection, session, packet, reasons.SUCCESS, True)

    def _acknowledge(
        self,
        connection: Connection,
        session: Session,
        packet: Publish,
        reason_code: int,
        is_changed: bool,
    ) -> None:
        """Answer PUBACK or PUBREC: after the commit if there is one, never before older acks."""
        packet_id = packet.packet_id
        if packet.qos == 1:
            self._counters.packets_sent[PUBACK] += 1
            if reason_code and connection.version >= 5:
                data = encode(Puback(packet_id, reason_code), 5)
            else:
                data = puback(packet_id)
            waits = self._gate.acknowledge(connection, data, 1, promises=is_changed)
            if self._receipts.is_on:
                self._receipts.acknowledge(
                    connection, session, 1, reason_code, waits, self._tick.now
                )
            return
        self._counters.packets_sent[PUBREC] += 1
        if reason_code and connection.version >= 5:
            data = encode(Pubrec(packet_id, reason_code), 5)
        else:
            data = pubrec(packet_id)
        promises = is_changed or session.is_stored
        waits = self._gate.reply(connection, data, promises=promises)
        if self._receipts.is_on:
            self._receipts.acknowledge(connection, session, 2, reason_code, waits, self._tick.now)

    def pubrel(self, connection: Connection, packet: Pubrel) -> None:
        """The sender let go of its message: forget the id, answer when that is durable."""
        session = connection.session
        assert session is not None
        packet_id = packet.packet_id
        self._counters.packets_sent[PUBCOMP] += 1
        if self._sessions.receive_ended(session, packet_id):
            if connection.inbound_open:
                connection.inbound_open -= 1
            data = pubcomp(packet_id)
        elif connection.version >= 5:
            data = encode(Pubcomp(packet_id, reasons.PACKET_IDENTIFIER_NOT_FOUND), 5)
        else:
            data = pubcomp(packet_id)
        waits = self._gate.reply(connection, data, promises=session.is_stored)
        if self._receipts.is_on:
            self._receipts.complete(connection, session, packet_id, waits, self._tick.now)

    # Acknowledgements of what we sent

    def puback(self, connection: Connection, packet: Puback) -> None:
        """The client has the QoS 1 message, or refused it for good [MQTT-4.4.0-2]."""
        session = connection.session
        assert session is not None
        entry = session.complete(packet.packet_id, 1, False)
        if entry < 0:
            self._check_wrong_ack(session, packet.packet_id, "PUBACK", "PUBREC")
            return
        self._tell_acked(connection, session, packet.packet_id, entry, packet.reason_code)
        self._finish(connection, session, packet.packet_id, entry)

    def puback_run(self, connection: Connection, run: PubackRun) -> None:
        """The client has several QoS 1 messages."""
        session = connection.session
        assert session is not None
        done = False
        packet_ids: list[int] = []
        entries: list[int] = []
        is_told = self._dispatches.is_on
        try:
            for packet_id in run.packet_ids:
                entry = session.complete(packet_id, 1, False)
                if entry < 0:
                    self._check_wrong_ack(session, packet_id, "PUBACK", "PUBREC")
                    continue
                done = True
                if is_told:
                    packet_ids.append(packet_id)
                    entries.append(entry)
                if entry & SOURCE_MASK:
                    self._settle(connection, session, packet_id, entry)
        finally:
            if packet_ids:
                now = self._tick.now
                self._dispatches.acked_run(connection, session, packet_ids, entries, now)
            if done:
                self._go_on(connection, session)

    def pubrec(self, connection: Connection, packet: Pubrec) -> None:
        """The client has the QoS 2 message: PUBREL follows when that is durable."""
        session = connection.session
        assert session is not None
        packet_id = packet.packet_id
        if packet.reason_code >= 0x80:
            entry = session.complete(packet_id, 2, False)
            if entry >= 0:
                self._tell_acked(connection, session, packet_id, entry, packet.reason_code)
                self._finish(connection, session, packet_id, entry)
            return
        entry = session.in_flight.get(packet_id, RELEASED)
        known = session.release(packet_id)
        if known and not entry & RELEASED:
            self._tell_acked(connection, session, packet_id, entry, packet.reason_code)
        if not known and packet_id in session.in_flight:
            self._check_wrong_ack(session, packet_id, "PUBREC", "PUBACK")
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
        """The QoS 2 exchange is over; the packet id is free."""
        session = connection.session
        assert session is not None
        entry = session.complete(packet.packet_id, 2, True)
        if entry < 0:
            self._check_wrong_ack(session, packet.packet_id, "PUBCOMP", "another answer")
            return
        if self._dispatches.is_on:
            now = self._tick.now
            self._dispatches.completed(connection, session, packet.packet_id, entry, now)
        self._finish(connection, session, packet.packet_id, entry)

    def _tell_acked(
        self,
        connection: Connection,
        session: Session,
        packet_id: int,
        entry: int,
        reason_code: int,
    ) -> None:
        if self._dispatches.is_on:
            now = self._tick.now
            self._dispatches.acked(connection, session, packet_id, entry, reason_code, now)

    def _check_wrong_ack(self, session: Session, packet_id: int, got: str, expected: str) -> None:
        """An unknown id is nobody's fault; the wrong answer to a known one is."""
        entry = session.in_flight.get(packet_id)
        if entry is not None:
            phase = "PUBCOMP" if entry & RELEASED else expected
            raise ProtocolError(
                f"{got} for packet id {packet_id} in flight at QoS {entry & QOS_MASK},"
                f" expected {phase}"
            )

    def _finish(self, connection: Connection, session: Session, packet_id: int, entry: int) -> None:
        if entry & SOURCE_MASK:
            self._settle(connection, session, packet_id, entry)
        self._go_on(connection, session)

    def _settle(self, connection: Connection, session: Session, packet_id: int, entry: int) -> None:
        """The exchange of a message from elsewhere than the session's streams is over."""
        if entry & SOURCE_MASK == FROM_GROUP:
            self._shared.acknowledged(connection, packet_id, entry)
        else:
            self._mailbox.finished(session, entry)

    def _go_on(self, connection: Connection, session: Session) -> None:
        """The session made progress: remember it, and send what has waited for the room."""
        if session.is_stored:
            self._tick.mark_late(session)
        if connection.pending or connection.is_lagging or connection.resend or session.replays:
            self._window.send_waiting(connection)
        if connection.group_keys:
            self._shared.send_waiting(connection)

    # SUBSCRIBE, UNSUBSCRIBE, PINGREQ

    def subscribe(self, connection: Connection, packet: Subscribe) -> bool:
        """Add subscriptions, each judged on its own; SUBACK waits for their commit.

        Takes one slice of them, and returns whether it was the last: else call again. To the client
        a packet with several filters is as several packets [MQTT-3.8.4-5].
        """
        session = connection.session
        assert session is not None
        codes = self.under_way.pop(connection, None)
        if codes is None:
            self._check_fits(connection, Suback(packet.packet_id, [0] * len(packet.subscriptions)))
            self._check_features(connection, packet)
            codes = []
        granted: list[tuple[Subscription, bool]] = []
        slice_ = packet.subscriptions[len(codes) : len(codes) + FILTERS_SLICE]
        self._tick.work += FILTER_WORK * len(slice_)
        for request in slice_:
            refusal = self._subscription_refusal(session, request)
            if refusal:
                codes.append(_refused(connection.version, refusal, request.qos))
                continue
            subscription = self._granted(session, request, packet.subscription_identifier)
            is_new = self._sessions.subscribe(connection, subscription)
            granted.append((subscription, is_new))
            codes.append(subscription.qos)
        is_done = len(codes) == len(packet.subscriptions)
        if is_done:
            self._counters.packets_sent[SUBACK] += 1
            data = encode(Suback(packet.packet_id, codes), connection.version)
            self._gate.reply(connection, data, promises=session.is_stored)
        else:
            self.under_way[connection] = codes
        for subscription, is_new in granted:
            self._owe_retained(connection, session, subscription, is_new)
        return is_done

    def _check_features(self, connection: Connection, packet: Subscribe) -> None:
        """Fail for what CONNACK has announced not to be available; v3.1.1 was not told."""
        settings = self._settings
        if connection.version < 5:
            return
        if packet.subscription_identifier and not settings.subscription_identifiers:
            raise ProtocolError(
                "subscription identifier, expected none",
                reasons.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
            )
        for request in packet.subscriptions:
            missing = self._missing_feature(request.topic_filter)
            if missing:
                raise ProtocolError(f"topic filter {request.topic_filter!r}", missing)

    def _missing_feature(self, topic_filter: str) -> int:
        """Return why a filter asks for what is switched off, or 0."""
        settings = self._settings
        if settings.wildcard_subscriptions and settings.shared_subscriptions:
            return 0
        shared = split_shared(topic_filter)
        if shared is not None and not settings.shared_subscriptions:
            return reasons.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        asked = shared[1] if shared else topic_filter
        if not settings.wildcard_subscriptions and ("+" in asked or "#" in asked):
            return reasons.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
        return 0

    def _subscription_refusal(self, session: Session, request: Request) -> int:
        topic_filter = request.topic_filter
        if filter_problem(topic_filter) is not None:
            return reasons.TOPIC_FILTER_INVALID
        if levels_count(topic_filter) > self._settings.topic_levels_max:
            return reasons.TOPIC_FILTER_INVALID
        missing = self._missing_feature(topic_filter)
        if missing:
            return missing  # v4 [MQTT-3.8.3-2]
        shared = split_shared(topic_filter)
        asked = shared[1] if shared else topic_filter
        if not self._policy.may_subscribe(session.identity, session.client_id, asked):
            return reasons.NOT_AUTHORIZED
        if topic_filter in session.subscriptions:
            return 0
        if len(session.subscriptions) >= self._settings.subscriptions_per_session_max:
            return reasons.QUOTA_EXCEEDED
        size = session.subscription_bytes + len(topic_filter.encode())
        if size > self._settings.subscription_bytes_max:
            return reasons.QUOTA_EXCEEDED
        if session.is_stored and self._publishing.refuses_writes:
            return reasons.QUOTA_EXCEEDED
        return 0

    def _granted(self, session: Session, request: Request, identifier: int) -> Subscription:
        shared = split_shared(request.topic_filter)
        share_name, stream_filter = shared if shared else (None, request.topic_filter)
        return Subscription(
            request.topic_filter,
            share_name,
            stream_filter,
            min(request.qos, self._settings.maximum_qos),
            request.no_local,
            request.retain_as_published,
            request.retain_handling,
            identifier,
            0,
            False,
        )

    def _owe_retained(
        self,
        connection: Connection,
        session: Session,
        subscription: Subscription,
        is_new: bool,
    ) -> None:
        """Queue the retained messages that this SUBSCRIBE asks for [MQTT-3.3.1-9..11]."""
        if subscription.share_name is not None or subscription.retain_handling == 2:
            return
        if subscription.retain_handling == 1 and not is_new:
            return
        for message in self._retained.system(subscription.stream_filter):
            self._retained_replay.send(
                connection, session, message, subscription.qos, subscription.identifier
            )
        if session.replays.pop(subscription.topic_filter, None) is not None:
            self._tick.mark(session)
        if not self._retained.may_match(subscription.stream_filter):
            return
        session.replays[subscription.topic_filter] = Replay(
            subscription.topic_filter, subscription.qos, subscription.identifier, b""
        )
        self._tick.mark(session)
        self._tick.readers[connection] = None

    def unsubscribe(self, connection: Connection, packet: Unsubscribe) -> bool:
        """Remove subscriptions; UNSUBACK waits for the commit.

        Takes one slice of them, and returns whether it was the last: else call again.
        """
        session = connection.session
        assert session is not None
        codes = self.under_way.pop(connection, None)
        if codes is None:
            count = len(packet.topic_filters)
            self._check_fits(connection, Unsuback(packet.packet_id, [0] * count))
            codes = []
        slice_ = packet.topic_filters[len(codes) : len(codes) + FILTERS_SLICE]
        self._tick.work += FILTER_WORK * len(slice_)
        for topic_filter in slice_:
            existed = self._sessions.unsubscribe(connection, topic_filter)
            codes.append(reasons.SUCCESS if existed else reasons.NO_SUBSCRIPTION_EXISTED)
            session.replays.pop(topic_filter, None)
        self._tick.mark(session)
        if len(codes) < len(packet.topic_filters):
            self.under_way[connection] = codes
            return False
        self._counters.packets_sent[UNSUBACK] += 1
        data = encode(Unsuback(packet.packet_id, codes), connection.version)
        self._gate.reply(connection, data, promises=session.is_stored)
        return True

    def _check_fits(self, connection: Connection, answer: Suback | Unsuback) -> None:
        """Refuse a request whose answer the client would not take [MQTT-3.1.2-24]."""
        limit = connection.maximum_packet_size
        if limit and len(encode(answer, connection.version)) > limit:
            raise ProtocolError(
                f"the answer exceeds {limit} bytes, expected fewer topic filters",
                reasons.PACKET_TOO_LARGE,
            )

    def ping(self, connection: Connection) -> None:
        """PINGRESP at once, whatever the disk does [MQTT-3.12.4-1]."""
        self._counters.packets_sent[PINGRESP_KIND] += 1
        self._gate.send(connection, PINGRESP_BYTES)
