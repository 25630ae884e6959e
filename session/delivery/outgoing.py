"""Decides whether a session gets a message, at which QoS, and in which bytes.

Asks the policy for every message that is sent, and uses the session's subscriptions as they are
now. Receivers that get the same bytes share one encoding. Changes no session and sends nothing.
Read next: `session.delivery.sender`, which sends; `session.delivery.publish_bytes` (the bytes).
"""

from typing import Final

from mqtt.message import Message
from mqtt.topics import SHARE_PREFIX, matches
from session.delivery.context import DeliveryContext
from session.delivery.publish_bytes import EncodedPublish, EncodedRun, encode_delivery, encode_run
from session.live.connection import Connection
from session.live.tick import STEPS_SHIFT
from session.state.session import Session

# A unit of work (`session.scheduling.work_budget`) is 32 subscription identifiers to write: 128
# bytes.
IDENTIFIERS_SHIFT: Final = 5


class Outgoing:
    """Encodes messages for their receivers; drops and counts those that must not be sent."""

    def __init__(self, context: DeliveryContext) -> None:
        self._tick: Final = context.tick
        self._routes: Final = context.routes
        self._policy: Final = context.policy
        self._is_open: Final = context.is_open
        self._counters: Final = context.counters
        self._losses: Final = context.losses
        self._deliveries: Final = context.history.deliveries

    def encode_run(
        self,
        connection: Connection,
        message: Message,
        payloads: list[bytes],
        qos: int,
        identifiers: tuple[int, ...],
        variants: dict[object, EncodedRun],
    ) -> EncodedRun:
        """Return the packets of a run without their ids, encoded once per variant."""
        kind = connection.version << 4 | qos
        key: object = (kind, identifiers) if identifiers else kind
        parts = variants.get(key)
        if parts is None:
            parts = encode_run(connection.version, message, payloads, qos, identifiers)
            variants[key] = parts
        return parts

    def encode(
        self,
        connection: Connection,
        message: Message,
        qos: int,
        identifiers: tuple[int, ...],
        variants: dict[object, EncodedPublish],
        *,
        retain: bool,
        at_once: bool,
    ) -> EncodedPublish | None:
        """Return the packet without its id, encoded once per variant; None if it must not be sent.

        It must not if the policy forbids it or if it is too large for the client. All messages pass
        here when they are sent for the first time, except runs and pages. Topic aliases are used
        only in packets that are sent `at_once`: one that waits could leave after a packet that
        relies on its alias.
        """
        if not self._is_open and not self.may_receive(connection, message):
            return None
        if at_once and connection.alias_out_max and not connection.connack_waits():
            parts = self._aliased(connection, message, qos, identifiers, retain=retain)
        else:
            key: object = connection.version << 4 | qos << 1 | retain
            if identifiers:
                key = (key, identifiers)
                self._tick.work += len(identifiers) >> IDENTIFIERS_SHIFT
            cached = variants.get(key)
            if cached is None:
                cached = encode_delivery(
                    connection.version, message, qos, identifiers, self._tick.now, retain=retain
                )
                variants[key] = cached
            parts = cached
        limit = connection.maximum_packet_size
        if limit and len(parts[0]) + len(parts[1]) + (2 if qos else 0) > limit:
            self.drop(connection, message, "too_large")  # [MQTT-3.1.2-25]: as if it had been sent
            return None
        return parts

    def may_receive(self, connection: Connection, message: Message) -> bool:
        """Ask the policy whether a session may receive a message; count a refusal."""
        session = connection.session
        assert session is not None
        if self.is_permitted(session, message.topic):
            return True
        self.drop(connection, message, "not_authorized")
        return False

    def is_permitted(self, session: Session, topic: str) -> bool:
        """Ask the policy whether a session may receive messages of a topic.

        What it forbids is permitted by a subscription that bypasses it.
        """
        if self._policy.may_receive(session.identity, session.client_id, topic):
            return True
        return bool(session.bypassing) and self._is_bypassed(session, topic)

    def _is_bypassed(self, session: Session, topic: str) -> bool:
        bypassing = session.bypassing
        assert bypassing is not None
        if any(entry.topic_filter in bypassing for entry in self._routes.match(topic).entries):
            return True
        self._tick.work += len(bypassing) >> STEPS_SHIFT
        return any(
            topic_filter.startswith(SHARE_PREFIX) and matches(each.stream_filter, topic)
            for topic_filter, each in bypassing.items()
        )

    def drop(self, connection: Connection, message: Message, reason: str) -> None:
        """Count and record that a connected session does not get a message."""
        self._counters.drop(reason)
        if self._losses.tell is not None:
            self._losses.tell(connection.client_id, message.topic, reason, 1)
        if self._deliveries.is_on:
            session = connection.session
            assert session is not None
            number = connection.number
            self._deliveries.dropped_message(session, number, message, reason, self._tick.now)

    def drop_offline(self, session: Session, message: Message, reason: str) -> None:
        """Count and record that a session that is away will not get a message."""
        self._counters.drop(reason)
        if self._losses.tell is not None:
            self._losses.tell(session.client_id, message.topic, reason, 1)
        if self._deliveries.is_on:
            self._deliveries.dropped_message(session, 0, message, reason, self._tick.now)

    def expire(self, connection: Connection, session: Session, message: Message) -> None:
        """Count and record that a message expired before a connected session got it."""
        self._counters.expired_messages += 1
        if self._losses.tell is not None:
            self._losses.tell(session.client_id, message.topic, "expired", 1)
        if self._deliveries.is_on:
            self._deliveries.expired(session, connection.number, message, self._tick.now)

    def _aliased(
        self,
        connection: Connection,
        message: Message,
        qos: int,
        identifiers: tuple[int, ...],
        *,
        retain: bool,
    ) -> EncodedPublish:
        """Encode with a topic alias; set no new alias if the packet would be too large with it."""
        topic = message.topic
        alias = connection.aliases_out.get(topic, 0)
        now = self._tick.now
        if alias:
            return encode_delivery(
                connection.version,
                message,
                qos,
                identifiers,
                now,
                retain=retain,
                alias=alias,
                alias_known=True,
            )
        if len(connection.aliases_out) >= connection.alias_out_max:
            return encode_delivery(
                connection.version, message, qos, identifiers, now, retain=retain
            )
        alias = len(connection.aliases_out) + 1
        parts = encode_delivery(
            connection.version, message, qos, identifiers, now, retain=retain, alias=alias
        )
        limit = connection.maximum_packet_size
        if limit and len(parts[0]) + len(parts[1]) + (2 if qos else 0) > limit:
            return encode_delivery(
                connection.version, message, qos, identifiers, now, retain=retain
            )
        connection.aliases_out[topic] = alias
        return parts

    def options(
        self, session: Session, message: Message
    ) -> tuple[int, bool, tuple[int, ...]] | None:
        """Return (QoS, RETAIN, subscription identifiers) of a message that waits for a session.

        None if no subscription matches, or an operator has dropped the message.
        """
        if session.purged is not None and message.offset:
            if session.has_purged(message.topic, message.offset):
                return None
        return self.matching(session, message)

    def matching(
        self, session: Session, message: Message
    ) -> tuple[int, bool, tuple[int, ...]] | None:
        """Return the same by the subscriptions alone, for a message in flight.

        Checks each subscription as it is now, with its No Local and its since-offset. None if no
        subscription matches.
        """
        qos = -1
        keep_retain = False
        identifiers: list[int] = []
        entries = self._routes.match(message.topic).entries
        self._tick.work += len(entries) >> STEPS_SHIFT
        for entry in entries:
            subscription = session.subscriptions.get(entry.topic_filter)
            if subscription is None:
                continue
            if message.publisher == session.client_id and session.is_no_local(subscription):
                continue
            if message.offset and message.offset <= subscription.since:
                continue
            if subscription.qos > qos:
                qos = subscription.qos
            keep_retain |= session.keeps_retain(subscription)
            if subscription.identifier:
                identifiers.append(subscription.identifier)
        if qos < 0:
            return None
        return min(qos, message.qos), message.retain and keep_retain, tuple(identifiers)
