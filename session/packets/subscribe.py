"""SUBSCRIBE and UNSUBSCRIBE: each topic filter is checked on its own, in slices.

A packet gets one answer, which waits for the commit. Read next: `session.lifetime.repository`,
which stores subscriptions.
"""

from typing import Final

from mqtt import reasons
from mqtt.encoder import encode
from mqtt.errors import ProtocolError
from mqtt.packets import SUBACK, UNSUBACK, V4, Suback, Subscribe, Unsuback, Unsubscribe
from mqtt.packets import Subscription as Request
from mqtt.topics import filter_problem, levels_count, split_shared
from session.delivery.delivery import Delivery
from session.lifetime.context import ClientContext
from session.lifetime.repository import Sessions
from session.live.connection import Connection
from session.live.tick import FILTER_WORK
from session.publish.accept import Publishing
from session.routing.retained import Retained
from session.state.session import Replay, Session
from session.state.subscription import Subscription

# v3.1.1 has one failure code in SUBACK.
_V4_FAILURE: Final = 0x80
# Topic filters of one packet that are handled in one tick; 15 microseconds each.
FILTERS_SLICE: Final = 256


def _refused(version: int, reason_code: int, qos: int) -> int:
    """Return the code of a refused filter; MQTT 3.1 has none, so the requested QoS is returned.

    (MQTT 3.1, SUBSCRIBE: a server that does not authorise has no way to inform the client.)
    """
    if version >= 5:
        return reason_code
    return _V4_FAILURE if version == V4 else qos


class SubscribeHandler:
    """Adds and removes subscriptions."""

    def __init__(
        self,
        context: ClientContext,
        sessions: Sessions,
        delivery: Delivery,
        publishing: Publishing,
        retained: Retained,
    ) -> None:
        self._tick: Final = context.tick
        self._gate: Final = context.gate
        self._sessions: Final = sessions
        self._retained_replay: Final = delivery.retained_replay
        self._inbox: Final = delivery.inbox
        self._proxies: Final = delivery.proxies
        self._publishing: Final = publishing
        self._retained: Final = retained
        self._settings: Final = context.settings
        self._policy: Final = context.policy
        self._counters: Final = context.counters
        self._denied: Final = context.denied
        # Reason codes so far of each SUBSCRIBE or UNSUBSCRIBE that has more slices to handle.
        self._unfinished: Final[dict[Connection, list[int]]] = {}

    def is_unfinished(self, connection: Connection) -> bool:
        """Return whether a packet of this client has more slices to handle."""
        return connection in self._unfinished

    def forget(self, connection: Connection) -> None:
        """Handle no more slices: the transport is lost."""
        self._unfinished.pop(connection, None)

    def subscribe(self, connection: Connection, packet: Subscribe) -> bool:
        """Add subscriptions, each checked on its own; SUBACK waits for their commit.

        Handles one slice; returns False if there are more: call again then. A packet with several
        filters has the effect of several packets [MQTT-3.8.4-5].
        """
        session = connection.session
        assert session is not None
        codes = self._unfinished.pop(connection, None)
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
            subscription = self._granted(request, packet.subscription_identifier)
            is_new = self._sessions.subscribe(session, connection, subscription)
            if self._inbox.is_on:
                self._proxies.client_subscribed(session, subscription.topic_filter)
            granted.append((subscription, is_new))
            codes.append(subscription.qos)
        is_done = len(codes) == len(packet.subscriptions)
        if is_done:
            self._counters.packets_sent[SUBACK] += 1
            data = encode(Suback(packet.packet_id, codes), connection.version)
            self._gate.reply(connection, data, promises=session.is_stored)
        else:
            self._unfinished[connection] = codes
        for subscription, is_new in granted:
            if self._inbox.is_on:
                self._inbox.subscribed(connection, session, subscription, is_new=is_new)
            self._queue_retained(connection, session, subscription, is_new=is_new)
        return is_done

    def grant(
        self,
        session: Session,
        connection: Connection | None,
        request: Request,
        *,
        bypasses_policy: bool,
    ) -> int:
        """Add a subscription for somebody else than the client; return why not, or 0.

        It is durable with the next commit. A session without a connection must be stored, and was
        just loaded.
        """
        self._tick.work += FILTER_WORK
        refusal = self._subscription_refusal(session, request, bypasses_policy=bypasses_policy)
        if refusal:
            return refusal
        subscription = self._granted(request, 0)
        subscription.bypasses_policy = bypasses_policy
        is_new = self._sessions.subscribe(session, connection, subscription)
        if connection is not None:
            if self._inbox.is_on:
                self._inbox.subscribed(connection, session, subscription, is_new=is_new)
            self._queue_retained(connection, session, subscription, is_new=is_new)
        elif is_new and subscription.share_name is None:
            self._replay(session, subscription)
        return 0

    def revoke(self, session: Session, connection: Connection | None, topic_filter: str) -> bool:
        """Remove a subscription for somebody else than the client; False if there is none."""
        self._tick.work += FILTER_WORK
        existed = self._sessions.unsubscribe(session, connection, topic_filter)
        session.replays.pop(topic_filter, None)
        self._tick.mark(session)
        return existed

    def _check_features(self, connection: Connection, packet: Subscribe) -> None:
        """Fail for a feature that CONNACK said is not available; v3.1.1 was not told."""
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
        """Return the reason code if a filter needs a feature that is switched off, or 0."""
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

    def _subscription_refusal(
        self, session: Session, request: Request, *, bypasses_policy: bool = False
    ) -> int:
        topic_filter = request.topic_filter
        if filter_problem(topic_filter) is not None:
            return reasons.TOPIC_FILTER_INVALID
        shared = split_shared(topic_filter)
        asked = shared[1] if shared else topic_filter
        if levels_count(asked) > self._settings.topic_levels_max:
            return reasons.TOPIC_FILTER_INVALID
        missing = self._missing_feature(topic_filter)
        if missing:
            return missing  # v4 [MQTT-3.8.3-2]
        if not bypasses_policy and not self._policy.may_subscribe(
            session.identity, session.client_id, asked
        ):
            self._denied("subscribe", session.client_id, session.identity, topic_filter)
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

    def _granted(self, request: Request, identifier: int) -> Subscription:
        shared = split_shared(request.topic_filter)
        share_name, stream_filter = shared if shared else (None, request.topic_filter)
        return Subscription(
            request.topic_filter,
            share_name,
            stream_filter,
            min(request.qos, self._settings.maximum_qos),
            no_local=request.no_local,
            retain_as_published=request.retain_as_published,
            retain_handling=request.retain_handling,
            identifier=identifier,
            since=0,
            holds=False,
        )

    def _queue_retained(
        self,
        connection: Connection,
        session: Session,
        subscription: Subscription,
        *,
        is_new: bool,
    ) -> None:
        """Queue the retained messages that this SUBSCRIBE asks for [MQTT-3.3.1-9..11]."""
        if subscription.share_name is not None or subscription.retain_handling == 2:
            return
        if subscription.retain_handling == 1 and not is_new:
            return
        if self._inbox.is_on:
            self._inbox.look_up_retained(connection, session, subscription)
        for message in self._retained.system(subscription.stream_filter):
            self._retained_replay.send(
                connection, session, message, subscription.qos, subscription.identifier
            )
        if self._replay(session, subscription):
            self._tick.readers[connection] = None

    def _replay(self, session: Session, subscription: Subscription) -> bool:
        """Queue the retained messages of a subscription from their beginning; False = none are."""
        if session.replays.pop(subscription.topic_filter, None) is not None:
            self._tick.mark(session)
        if not self._retained.may_match(subscription.stream_filter):
            return False
        session.replays[subscription.topic_filter] = Replay(
            subscription.topic_filter, subscription.qos, subscription.identifier, b""
        )
        self._tick.mark(session)
        return True

    def unsubscribe(self, connection: Connection, packet: Unsubscribe) -> bool:
        """Remove subscriptions; UNSUBACK waits for the commit.

        Handles one slice; returns False if there are more: call again then.
        """
        session = connection.session
        assert session is not None
        codes = self._unfinished.pop(connection, None)
        if codes is None:
            count = len(packet.topic_filters)
            self._check_fits(connection, Unsuback(packet.packet_id, [0] * count))
            codes = []
        slice_ = packet.topic_filters[len(codes) : len(codes) + FILTERS_SLICE]
        self._tick.work += FILTER_WORK * len(slice_)
        for topic_filter in slice_:
            existed = self._sessions.unsubscribe(session, connection, topic_filter)
            if self._inbox.is_on:
                self._proxies.client_unsubscribed(session, topic_filter)
            codes.append(reasons.SUCCESS if existed else reasons.NO_SUBSCRIPTION_EXISTED)
            session.replays.pop(topic_filter, None)
        self._tick.mark(session)
        if len(codes) < len(packet.topic_filters):
            self._unfinished[connection] = codes
            return False
        self._counters.packets_sent[UNSUBACK] += 1
        data = encode(Unsuback(packet.packet_id, codes), connection.version)
        self._gate.reply(connection, data, promises=session.is_stored)
        return True

    def _check_fits(self, connection: Connection, answer: Suback | Unsuback) -> None:
        """Fail if the answer would be too large for the client [MQTT-3.1.2-24]."""
        limit = connection.maximum_packet_size
        if limit and len(encode(answer, connection.version)) > limit:
            raise ProtocolError(
                f"the answer exceeds {limit} bytes, expected fewer topic filters",
                reasons.PACKET_TOO_LARGE,
            )
