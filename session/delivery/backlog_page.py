"""Sends a page of stored messages to one session: a fast path for the plain ones among them.

Most messages of a page need no check of their own: no limit applies, none expires, and a topic has
the same options for all its messages. These are bound and encoded together and sent as one piece.
The others are left to `session.delivery.backlog`, which does the same for one message; a property
test compares the two. Read next: `session.delivery.sender`.
"""

from typing import Final

from mqtt.encoder import PACKET_ID
from mqtt.message import Message
from mqtt.topics import matches
from session.delivery.context import DeliveryContext
from session.delivery.publish_bytes import encode_delivery
from session.live.connection import Connection
from session.routing.router import Router
from session.state.in_flight import FROM_LOG
from session.state.session import Session

_NEVER: Final = 1 << 62  # above every offset


class TopicOptions:
    """The options of one topic, from all the session's subscriptions that match it."""

    __slots__ = ("after", "identifiers", "keeps_retain", "qos")

    def __init__(self, session: Session, routes: Router, topic: str) -> None:
        self.qos: int = 0  # the highest one granted
        self.keeps_retain: bool = False
        self.identifiers: tuple[int, ...] = ()
        # They hold for messages with a greater offset; others need a check of their own.
        self.after: int = 0
        for entry in routes.match(topic).entries:
            subscription = session.subscriptions.get(entry.topic_filter)
            if subscription is None:
                continue
            if session.is_no_local(subscription):
                self.after = _NEVER
            elif subscription.since > self.after:
                self.after = subscription.since
            if subscription.qos > self.qos:
                self.qos = subscription.qos
            if session.keeps_retain(subscription):
                self.keeps_retain = True
            if subscription.identifier:
                self.identifiers = (*self.identifiers, subscription.identifier)
        for purged in session.purged or ():
            if matches(purged.topic_filter, topic):
                self.after = max(self.after, purged.upto)


class BacklogPages:
    """Sends pages of stored messages."""

    def __init__(self, context: DeliveryContext) -> None:
        self._tick: Final = context.tick
        self._gate: Final = context.gate
        self._routes: Final = context.routes
        self._counters: Final = context.counters
        self._deliveries: Final = context.history.deliveries
        self._is_plain: Final = context.is_open and not context.settings.max_age_s

    def send(
        self, connection: Connection, session: Session, messages: list[Message], at: int
    ) -> int:
        """Send messages from index `at` on; return the index of the first one that was not sent.

        That one needs a check of its own. The window must have room for all. The messages wait for
        the commit of this batch, which has the session's record.
        """
        if not self._is_plain or connection.trim is not None or not session.is_stored:
            return at
        known: dict[str, TopicOptions] = {}
        options: TopicOptions | None = None
        topic = ""
        flags = 0  # the QoS of all that are sent
        version = connection.version
        limit = connection.maximum_packet_size
        offsets: list[int] = []
        heads: list[bytes] = []
        tails: list[bytes] = []
        # Parts of the last packet: one with the same size and properties has the same head.
        head = prefix = properties = b""
        size = -1
        retain = False
        payload_bytes = 0
        retained: list[bool] = []
        for number in range(at, len(messages)):
            message = messages[number]
            if options is None or message.topic != topic:
                topic = message.topic
                options = known.get(topic)
                if options is None:
                    options = known[topic] = TopicOptions(session, self._routes, topic)
                size = -1
            qos = message.qos if message.qos < options.qos else options.qos
            offset = message.offset
            if (
                not qos
                or offset <= options.after
                or message.expires_at_ms
                or (flags and qos != flags)
            ):
                break
            flags = qos
            payload = message.payload
            keeps = message.retain and options.keeps_retain
            if len(payload) != size or keeps != retain or message.properties != properties:
                size, retain, properties = len(payload), keeps, message.properties
                head, tail = encode_delivery(
                    version, message, qos, options.identifiers, self._tick.now, retain=retain
                )
                prefix = tail[: len(tail) - size]
            else:
                tail = prefix + payload if prefix else payload
            if limit and len(head) + len(tail) + 2 > limit:
                break
            payload_bytes += size
            offsets.append(offset)
            retained.append(keeps)
            heads.append(head)
            tails.append(tail)
        if offsets:
            packet_ids = self._send(connection, session, offsets, flags, heads, tails)
            self._counters.payload_bytes_sent += payload_bytes
            if self._deliveries.wants_sent:
                sent, now = messages[at : at + len(offsets)], self._tick.now
                self._deliveries.delivered_each(
                    connection, session, sent, packet_ids, flags, retained, now
                )
        return at + len(offsets)

    def _send(
        self,
        connection: Connection,
        session: Session,
        offsets: list[int],
        qos: int,
        heads: list[bytes],
        tails: list[bytes],
    ) -> list[int]:
        """Bind packet ids to encoded messages and send them as one piece; return the ids."""
        count = len(offsets)
        self._counters.messages_sent[qos] += count
        packet_ids = session.bind_each(offsets, qos | FROM_LOG)
        pieces: list[bytes] = []
        for index in range(count):
            pieces.append(heads[index])
            pieces.append(PACKET_ID[packet_ids[index]])
            pieces.append(tails[index])
        if offsets[-1] > session.position:
            session.position = offsets[-1]
        self._tick.dirty[session] = None
        self._gate.send_messages_after_commit(connection, b"".join(pieces), count)
        return packet_ids
