"""Sends retained messages to a new subscription, a few at a time.

A SUBSCRIBE with a wildcard may match more retained messages than one tick can send. The session and
its record keep what is left to send (`Session.replays`). Read next: `session.routing.retained`,
`session.delivery.mailbox`.
"""

from typing import Final

from mqtt.message import Message
from session.delivery.context import DeliveryContext
from session.delivery.mailbox import Mailbox
from session.delivery.sender import Sender
from session.live.connection import Connection
from session.live.tick import STEPS_SHIFT, UNIT_SHIFT
from session.routing.retained import EXAMINE_MAX, Retained
from session.routing.router import Route
from session.state.in_flight import FROM_MAILBOX
from session.state.session import Session
from storage.tables.fetch_rows import Copy

# Retained messages that one session may read in one tick, and their bytes, which the last message
# may exceed. They bound how long the sockets wait.
REPLAY_MAX: Final = 64
REPLAY_BYTES_MAX: Final = 1 << 20
# Replaced topics that the SUBSCRIBEs of one session remember, together, but each at least one; of
# others the client may get a message twice.
OVERTAKEN_MAX: Final = 10_000


class RetainedReplay:
    """Answers subscriptions with the retained messages that match."""

    def __init__(
        self, context: DeliveryContext, retained: Retained, sender: Sender, mailbox: Mailbox
    ) -> None:
        self._tick: Final = context.tick
        self._deliveries: Final = context.history.deliveries
        self._retained: Final = retained
        self._sender: Final = sender
        self._mailbox: Final = mailbox

    def send_next(self, connection: Connection, session: Session) -> None:
        """Send the next retained messages for the session's SUBSCRIBEs, several filters at once.

        Filters that match nothing must not take a tick each: a stored session's record lists all
        filters that are left, and is written in every tick. What it reads counts as work.
        """
        replays = session.replays
        rows = EXAMINE_MAX
        left = REPLAY_MAX
        size = 0
        while (
            replays and rows > 0 and left > 0 and session.send_quota > 0 and size < REPLAY_BYTES_MAX
        ):
            replay = next(iter(replays.values()))
            found, replay.start, examined = self._retained.read(
                replay.topic_filter, replay.start, min(left, session.send_quota)
            )
            rows -= examined + 1
            left -= len(found)
            self._tick.work += (examined + 1) >> STEPS_SHIFT
            for message in found:
                size += len(message.payload)
                self._tick.work += 1 + (len(message.payload) >> UNIT_SHIFT)
                if message.topic not in replay.overtaken:
                    self.send(connection, session, message, replay.qos, replay.identifier)
            if not replay.start:
                del replays[replay.topic_filter]
        self._tick.mark(session)

    def send(
        self,
        connection: Connection,
        session: Session,
        message: Message,
        granted: int,
        identifier: int,
    ) -> None:
        """Send one retained message to a new subscription, with RETAIN 1 [MQTT-3.3.1-8]."""
        if message.expires_at_ms and message.expires_at_ms <= self._tick.now:
            return
        identifiers = (identifier,) if identifier else ()
        qos = min(message.qos, granted)
        if qos == 0:
            self._sender.send_qos0_in_order(
                connection, message, identifiers, retain=True, is_retained=True
            )
            return
        reference = 0
        if session.is_stored:
            reference = self._mailbox.reserve(session)
        packet_id = self._sender.send_bound(
            connection, message, qos, identifiers, reference, FROM_MAILBOX, retain=True
        )
        if packet_id and self._deliveries.wants_sent:
            now = self._tick.now
            self._deliveries.retained(connection, session, message, packet_id, qos, now)
        if packet_id and session.is_stored:
            self._mailbox.keep(session, reference, Copy(message, identifier, None))

    def replaced(self, message: Message, route: Route) -> None:
        """Note that a retained message was replaced, so that nobody gets the new one twice.

        A session that gets it live would otherwise find it again if its SUBSCRIBE still has
        retained messages to read, at QoS 2 too. `route` is that of the topic.
        """
        topic = message.topic
        entries = route.entries
        for target in route.targets:
            session = target.connection.session
            assert session is not None
            replays = session.replays
            if not replays:
                continue
            if target.no_local and session.client_id == message.publisher:
                continue  # it gets the new one as a retained message only
            self._tick.work += len(entries) >> STEPS_SHIFT
            most = max(1, OVERTAKEN_MAX // len(replays))
            for entry in entries:
                replay = replays.get(entry.topic_filter)
                if replay is not None and len(replay.overtaken) < most:
                    replay.overtaken.add(topic)
