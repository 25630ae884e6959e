"""PUBLISH and PUBREL: the client sends a message, and ends a QoS 2 exchange.

All checks come before the first change, so a packet that breaks the protocol changes nothing. Which
reply waits for the commit is decided here, as in the table of docs/design.md. Read next:
`session.publish.accept`.
"""

from typing import Final

from mqtt import reasons
from mqtt.decoder import BLOCK_KEPT_SIZE_MAX
from mqtt.encoder import encode, puback, pubacks, pubcomp, pubrec
from mqtt.errors import ProtocolError
from mqtt.message import NEVER, Message
from mqtt.packet_runs import PublishRun
from mqtt.packets import PUBACK, PUBCOMP, PUBREC, Puback, Pubcomp, Publish, Pubrec, Pubrel
from session.history.publish_events import Publication
from session.lifetime.context import ClientContext
from session.lifetime.repository import Sessions
from session.live.connection import Connection
from session.live.tick import UNIT_SHIFT
from session.publish.accept import Publishing
from session.routing.retained import Retained
from session.routing.router import Route, Router
from session.state.session import Session

# A run of messages is divided if its work exceeds this, that of a run that few want, and the room
# that its turn has left.
RUN_WORK: Final = 256
PROPERTIES_SHIFT: Final = 4  # bytes of user properties, of five or more each: 16 are a unit of work


class PublishHandler:
    """Handles the messages that clients send."""

    def __init__(
        self,
        context: ClientContext,
        routes: Router,
        sessions: Sessions,
        publishing: Publishing,
        retained: Retained,
    ) -> None:
        self._tick: Final = context.tick
        self._gate: Final = context.gate
        self._routes: Final = routes
        self._sessions: Final = sessions
        self._publishing: Final = publishing
        self._retained: Final = retained
        self._settings: Final = context.settings
        feeds = context.settings.feeds
        self._keeps_usernames: Final = any(feed.usernames for feed in feeds)
        self._policy: Final = context.policy
        self._is_open: Final = context.policy.is_open
        self._counters: Final = context.counters
        self._denied: Final = context.denied
        self._publish_events: Final = context.history.publishes

    def publish(self, connection: Connection, packet: Publish) -> None:
        """Accept a message; its acknowledgement waits until the append is durable."""
        session = connection.session
        assert session is not None
        qos = packet.qos
        self._counters.messages_received[qos] += 1
        self._counters.payload_bytes_received += len(packet.payload)
        topic = packet.topic
        if packet.topic_alias or not topic:
            topic = self._resolve_alias(connection, packet)
        if len(packet.properties) > BLOCK_KEPT_SIZE_MAX:
            self._tick.work += len(packet.properties) >> PROPERTIES_SHIFT  # it was decoded anew
        publication = None  # its record in the history
        if self._publish_events.is_on:
            publication = self._publish_events.received(
                session, connection, packet.packet_id, dup=packet.dup
            )
        if qos:
            if qos > self._settings.maximum_qos:
                raise _too_high(qos, self._settings.maximum_qos)
            if qos == 2 and packet.packet_id in session.incoming:
                # The same message again: acknowledge, do not deliver [MQTT-4.3.3-10].
                if publication is not None:
                    publication.received_again(self._tick.now)
                self._acknowledge(
                    connection, session, packet, publication, reasons.SUCCESS, is_changed=True
                )
                return
            connection.inbound_open += 1
            if connection.inbound_open > self._settings.receive_maximum and connection.version >= 5:
                raise _too_many(connection.inbound_open, self._settings.receive_maximum)
        if packet.retain and not self._settings.retain_available:
            raise ProtocolError("RETAIN 1, expected 0", reasons.RETAIN_NOT_SUPPORTED)
        route = self._routes.match(topic)
        refusal = self._refusal(session, topic, route)
        now = self._tick.now
        if refusal:
            if refusal == reasons.NOT_AUTHORIZED:
                self._deny(session, topic, len(packet.payload), publication)
            self._refuse(connection, session, packet, publication, refusal)
            return
        retain = packet.retain
        if retain and connection.version < 5 and packet.payload:
            if self._retained.is_full_for(topic):
                # v3.1.1 cannot be told, and after a close it would send the same message again.
                self._counters.drop("storage_refused")
                retain = False
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
            username=connection.username if self._keeps_usernames else "",
        )
        accepted = self._publishing.accept(message, route, publication)
        reason_code = accepted.reason_code
        if reason_code >= 0x80:
            self._refuse(connection, session, packet, publication, reason_code)
        elif qos:
            if qos == 2:
                self._sessions.receive_begun(session, packet.packet_id)
            is_changed = accepted.is_changed
            self._acknowledge(
                connection, session, packet, publication, reason_code, is_changed=is_changed
            )

    def publish_run(self, connection: Connection, run: PublishRun) -> int:
        """Accept messages of one topic together; return how many, 0 = they go one by one.

        Nothing has changed then; `publish` finds what is wrong with them, if anything. Of messages
        that match very much only as many are accepted as the turn has room for: the accepted ones
        are removed from `run`, and the rest has to be handed in again.
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
                return 0
            if connection.version >= 5 and (
                connection.inbound_open + count > settings.receive_maximum
            ):
                return 0
        route = self._routes.match(topic)
        if self._refusal(session, topic, route):
            return 0
        tick = self._tick
        if count * (1 + route.weight) > RUN_WORK:
            room = max(RUN_WORK, tick.work_max - tick.work) // (1 + route.weight)
            if room < count:
                if room < 2:
                    return 0
                return self._publish_part(connection, run, room)
        message = Message(
            topic,
            b"",
            qos,
            retain=False,
            properties=b"",
            publisher=session.client_id,
            accepted_at_ms=self._tick.now,
            expires_at_ms=NEVER,
            username=connection.username if self._keeps_usernames else "",
        )
        publication = None
        if self._publish_events.is_on:
            packet_ids = run.packet_ids
            others = None if run.is_sequential or not qos else packet_ids
            publication = self._publish_events.received(session, connection, packet_ids[0], others)
        size = sum([len(payload) for payload in payloads])
        accepted = self._publishing.accept_run(message, payloads, size, route, publication)
        if accepted is None:
            return 0
        counters = self._counters
        counters.messages_received[qos] += count
        counters.payload_bytes_received += size
        if qos:
            counters.packets_sent[PUBACK] += count
            data = pubacks(run.packet_ids, run.is_sequential)
            connection.inbound_open += count
            waits = self._gate.acknowledge(connection, data, count, promises=accepted.is_changed)
            if publication is not None:
                publication.acknowledged(qos, reasons.SUCCESS, waits=waits, now=self._tick.now)
        return count

    def _publish_part(self, connection: Connection, run: PublishRun, count: int) -> int:
        """Accept the first messages of a run, and remove them from it."""
        part = run.first(count)
        done = self.publish_run(connection, part)
        if done:
            run.remove_first(done)
        return done

    def _resolve_alias(self, connection: Connection, packet: Publish) -> str:
        """Return the topic of a PUBLISH with an alias; keep the alias if it is new."""
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

    def _deny(
        self, session: Session, topic: str, size: int, publication: Publication | None
    ) -> None:
        """Report a message of `size` bytes that the policy forbids."""
        self._denied("publish", session.client_id, session.identity, topic)
        if publication is not None:
            publication.refused(topic, size, "not_authorized", self._tick.now)

    def _refuse(
        self,
        connection: Connection,
        session: Session,
        packet: Publish,
        publication: Publication | None,
        reason_code: int,
    ) -> None:
        """Answer a message that was refused: v5 gets a reason code, v3.1.1 has none.

        At v3.1.1 an unauthorised message is acknowledged and dropped [MQTT-3.3.5-2]. If a message
        could not be stored, the connection is closed: the client still has it and sends it again.
        """
        if reason_code == reasons.NOT_AUTHORIZED:
            self._counters.drop("not_authorized")
        if connection.version >= 5:
            if packet.qos:
                self._acknowledge(
                    connection, session, packet, publication, reason_code, is_changed=False
                )
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
            self._acknowledge(
                connection, session, packet, publication, reasons.SUCCESS, is_changed=True
            )

    def _acknowledge(
        self,
        connection: Connection,
        session: Session,
        packet: Publish,
        publication: Publication | None,
        reason_code: int,
        *,
        is_changed: bool,
    ) -> None:
        """Answer PUBACK or PUBREC; it waits for the commit if something changed."""
        packet_id = packet.packet_id
        if packet.qos == 1:
            self._counters.packets_sent[PUBACK] += 1
            if reason_code and connection.version >= 5:
                data = encode(Puback(packet_id, reason_code), 5)
            else:
                data = puback(packet_id)
            waits = self._gate.acknowledge(connection, data, 1, promises=is_changed)
            if publication is not None:
                publication.acknowledged(1, reason_code, waits=waits, now=self._tick.now)
            return
        self._counters.packets_sent[PUBREC] += 1
        if reason_code and connection.version >= 5:
            data = encode(Pubrec(packet_id, reason_code), 5)
        else:
            data = pubrec(packet_id)
        promises = is_changed or session.is_stored
        waits = self._gate.reply(connection, data, promises=promises)
        if publication is not None:
            publication.acknowledged(2, reason_code, waits=waits, now=self._tick.now)

    def pubrel(self, connection: Connection, packet: Pubrel) -> None:
        """Free the id of a QoS 2 exchange; the PUBCOMP waits until that is durable."""
        session = connection.session
        assert session is not None
        packet_id = packet.packet_id
        self._counters.packets_sent[PUBCOMP] += 1
        if self._sessions.receive_ended(session, packet_id):
            if connection.inbound_open:
                connection.inbound_open -= 1
            data = pubcomp(packet_id)
            if self._publish_events.is_on:
                self._publish_events.released(session, connection, packet_id, self._tick.now)
        elif connection.version >= 5:
            data = encode(Pubcomp(packet_id, reasons.PACKET_IDENTIFIER_NOT_FOUND), 5)
        else:
            data = pubcomp(packet_id)
        waits = self._gate.reply(connection, data, promises=session.is_stored)
        if self._publish_events.is_on:
            self._publish_events.completed(
                session, connection, packet_id, waits=waits, now=self._tick.now
            )


def _too_high(qos: int, maximum_qos: int) -> ProtocolError:
    return ProtocolError(f"QoS {qos}, expected at most {maximum_qos}", reasons.QOS_NOT_SUPPORTED)


def _too_many(count: int, receive_maximum: int) -> ProtocolError:
    return ProtocolError(
        f"{count} unacknowledged messages, expected at most {receive_maximum}",
        reasons.RECEIVE_MAXIMUM_EXCEEDED,
    )
