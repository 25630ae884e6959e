"""What becomes of a retained message that an external store has for a subscription.

Our own retained message of the topic goes to the client at SUBSCRIBE, whatever the store has. The
store's is sent behind it only if it is newer; then it is ours from now on, as if its publisher had
just published it, but nobody else is sent it. So a client never gets an older one after a newer
one, and none twice for one SUBSCRIBE. Read next: `session.delivery.fetching.inbox`, which asks.
"""

from collections.abc import Callable
from typing import Final

from mqtt.message import NEVER, Message
from mqtt.topics import matches
from session.delivery.context import DeliveryContext
from session.delivery.retained_replay import OVERTAKEN_MAX, RetainedReplay
from session.live.connection import Connection
from session.live.tick import UNIT_SHIFT
from session.routing.retained import Retained
from session.state.session import Session
from session.state.subscription import Subscription

# Clocks of applications may be ahead of ours by so much; a later time is none.
AHEAD_MS: Final = 60_000

# Makes a message from a store our own; False if it must not be, for example for want of space.
Keep = Callable[[Message, str], bool]


class RetainLookup:
    """Judges the answers."""

    def __init__(
        self, context: DeliveryContext, retained: Retained, replay: RetainedReplay
    ) -> None:
        self._tick: Final = context.tick
        self._retained: Final = retained
        self._replay: Final = replay
        self.keep: Keep = _keep_nothing  # what accepts messages is made later, and sets it

    def found(
        self,
        connection: Connection,
        subscription: Subscription,
        found: Message,
        expires_ms: int,
        least_ms: int,
        backend: str,
    ) -> Message | None:
        """Send the message that the store `backend` has, if it is newer than what the client has.

        One that is older than `least_ms` is not. Returns what the client got, None if nothing. The
        window must have room.
        """
        session = connection.session
        assert session is not None
        topic, now = subscription.topic_filter, self._tick.now
        if found.topic != topic or not found.payload:
            return None
        at_ms = found.accepted_at_ms if found.accepted_at_ms <= now + AHEAD_MS else 0
        if at_ms < least_ms:
            return None
        expires_at_ms = now + expires_ms if expires_ms else NEVER
        publisher = found.publisher
        message = Message(
            topic, found.payload, found.qos, True, b"", publisher, at_ms, expires_at_ms
        )
        self._tick.work += 1 + (len(message.payload) >> UNIT_SHIFT)
        native = self._retained.newest(topic)
        is_ours = native is not None and _is_same(native, message)
        if native is not None and at_ms <= native.accepted_at_ms and not is_ours:
            return None
        if is_ours and topic in session.replays:
            return None  # it is about to be sent
        if not is_ours:
            is_ours = self.keep(message, backend)
            self._overtake(session, topic)
        self._replay.send(
            connection,
            session,
            message,
            subscription.qos,
            subscription.identifier,
            after_commit=session.is_stored,
            is_ours=is_ours,
        )
        return message

    def _overtake(self, session: Session, topic: str) -> None:
        """Send the session none of our own of this topic any more for earlier SUBSCRIBEs."""
        replays = session.replays
        if replays.pop(topic, None) is not None:
            self._tick.mark(session)
        if not replays:
            return
        most = max(1, OVERTAKEN_MAX // len(replays))
        self._tick.work += len(replays)
        for replay in replays.values():
            if len(replay.overtaken) < most and matches(replay.topic_filter, topic):
                replay.overtaken.add(topic)


def _keep_nothing(message: Message, backend: str) -> bool:
    return False


def _is_same(one: Message, other: Message) -> bool:
    return (one.accepted_at_ms, one.publisher, one.payload) == (
        other.accepted_at_ms,
        other.publisher,
        other.payload,
    )
