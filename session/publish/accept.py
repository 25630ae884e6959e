"""Accepts a message: retains it, stores it once, and delivers it to the connected sessions.

Everything that one message changes goes into one batch: its log rows, the retained row, and
(through `session.delivery.live`) the packet ids of its receivers. Used for clients' PUBLISH, for
wills and for `$SYS`. Read next: `session.delivery.live`.
"""

from typing import Final

from mqtt import reasons
from mqtt.message import NEVER, Message
from session.delivery.delivery import Delivery
from session.feed.recorder import FeedRecorder
from session.history.history import History
from session.history.publish_events import Publication
from session.live.core import Core, Database
from session.live.tick import COPY_SHIFT, RETAIN_WORK
from session.publish.storage_quota import Quota
from session.publish.store_health import StoreHealth
from session.routing.retained import Retained
from session.routing.router import Route, Router

# Upper limits: bytes of a stored message without its strings and payload, and of an index row.
RECORD_BYTES_MAX: Final = 64
INDEX_BYTES_MAX: Final = 32
UTF8_BYTES_MAX: Final = 4  # of one character


class Accepted:
    """What became of a message."""

    __slots__ = ("is_changed", "reason_code")

    def __init__(self, reason_code: int, *, is_changed: bool) -> None:
        self.reason_code: int = reason_code
        self.is_changed: bool = is_changed  # does its acknowledgement wait for the commit?


REFUSED: Final = Accepted(reasons.QUOTA_EXCEEDED, is_changed=False)
UNCHANGED: Final = Accepted(reasons.SUCCESS, is_changed=False)
CHANGED: Final = Accepted(reasons.SUCCESS, is_changed=True)
UNMATCHED: Final = Accepted(reasons.NO_MATCHING_SUBSCRIBERS, is_changed=False)
UNMATCHED_YET: Final = Accepted(reasons.NO_MATCHING_SUBSCRIBERS, is_changed=True)


class Publishing:
    """Accepts messages from clients, wills and the broker itself."""

    def __init__(
        self,
        core: Core,
        database: Database,
        routes: Router,
        retained: Retained,
        delivery: Delivery,
        quota: Quota,
        health: StoreHealth,
        history: History,
        feed: FeedRecorder,
    ) -> None:
        settings = core.settings
        self._tick: Final = core.tick
        self._settings: Final = settings
        self._counters: Final = core.counters
        self._log: Final = database.log
        self._routes: Final = routes
        self._retained: Final = retained
        self._live: Final = delivery.live
        self._shared: Final = delivery.shared
        self._retained_replay: Final = delivery.retained_replay
        self._inbox: Final = delivery.inbox
        delivery.lookup.keep = self.keep_found
        self._quota: Final = quota
        self._health: Final = health
        self._session_events: Final = history.sessions
        self._feed: Final = feed
        self._store_qos0: Final = settings.store_qos0
        self._is_limited: bool = False  # is there a limit to look at before a message is accepted?
        self._store_all: Final = settings.store == "all"
        self._refused: frozenset[str] = frozenset()
        self.settings_changed()

    def settings_changed(self) -> None:
        """Apply the present limits to messages from now on."""
        self._look_at_limits()
        self._quota.settings_changed()

    def _look_at_limits(self) -> None:
        settings = self._settings
        self._is_limited = bool(
            self._refused
            or settings.total_bytes_max
            or settings.retained_messages_max
            or settings.on_limit == "reject"
        )

    def refuse(self, filters: frozenset[str]) -> None:
        """Refuse messages with QoS 1 and 2 that match one of these filters, which are held."""
        self._refused = filters
        self._look_at_limits()

    @property
    def refuses_writes(self) -> bool:
        """Is new durable state refused? The disk is nearly full, or the store refuses writes."""
        return self._health.refuses_new

    @property
    def is_pending(self) -> bool:
        """Are there accepted messages whose rows are in no batch yet?"""
        return self._log.is_pending

    @property
    def end(self) -> int:
        """The offset of the newest stored message."""
        return self._log.end

    def accept(
        self,
        message: Message,
        route: Route,
        publication: Publication | None,
        *,
        is_will: bool = False,
    ) -> Accepted:
        """Accept a message, or refuse it (0x97) without changing anything.

        `route` is that of its topic, `publication` its record in the history, None if that is off.
        What it changes is durable with the commit of this tick's batch.
        """
        self._tick.work += route.weight
        if route.targets:
            self._tick.work += len(route.targets) * (len(message.payload) >> COPY_SHIFT)
        to_store = message.qos > 0 or self._store_qos0
        to_store = to_store and (bool(route.filter_ids) or self._store_all)
        changed = kept = False
        now = self._tick.now
        if to_store or message.retain:
            if self._health.refuses_new or (
                self._is_limited
                and (
                    self._is_over_limit(message, route) or self._is_refused(message, route, is_will)
                )
            ):
                self._counters.drop("storage_refused")
                if publication is not None:
                    publication.refused(message.topic, len(message.payload), "storage_refused", now)
                return REFUSED
            if message.retain:
                self._tick.work += RETAIN_WORK
                kept = self._retained.keep(message)
                # Even if there was nothing to clear: it may have been cleared by an earlier message
                # that is not durable yet.
                changed = True
                if self._inbox.is_on:
                    self._inbox.retained_changed(message.topic)
                if route.targets:
                    self._retained_replay.replaced(message, route)
            if to_store and not (self._is_limited and self._drops_new(message, publication)):
                self._log.append(self._tick.batch, message, route.filter_ids)
                self._counters.messages_stored += 1
                changed = True
        if publication is not None:
            publication.accepted(message, route.filter_ids, now)
        published = None
        if route.wants_qos0 and not to_store and self._may_tell(1):
            published = self._feed.published(message)
        if message.retain:
            self._feed.retained(message, published)
        if kept:
            self._session_events.retained_kept(message)
        if route.targets:
            self._live.publish(message, route.targets)
        if route.groups:
            self._shared.publish(message, route.groups)
        if changed:
            return CHANGED
        # A stored session that matched may have just ended. A crash before that end is durable
        # would bring it back without the message, so the acknowledgement waits for that commit.
        waits = bool(self._tick.ended or self._tick.ending)
        if route.targets or route.groups or route.filter_ids:
            return CHANGED if waits else UNCHANGED
        self._counters.unmatched_messages += 1
        return UNMATCHED_YET if waits else UNMATCHED

    def clear_retained(self, topic: str) -> bool:
        """Delete the retained message of a topic; False if it has none. Nobody is sent anything.

        That takes no space, so it is done while new durable state is refused, too.
        """
        nothing = Message(topic, b"", 0, True, b"", "", self._tick.now, NEVER)
        self._tick.work += RETAIN_WORK
        if not self._retained.keep(nothing):
            return False
        if self._inbox.is_on:
            self._inbox.retained_changed(topic)
        self._feed.retained(nothing)
        self._session_events.retained_kept(nothing)
        return True

    def keep_found(self, message: Message, backend: str) -> bool:
        """Retain a message that the store `backend` had; False if there is no room for it.

        Nobody is sent it, and that store is not told of it. The caller knows that it is the newest.
        """
        if self._health.refuses_new or self._retained.is_full_for(message.topic):
            return False
        self._tick.work += RETAIN_WORK
        self._retained.keep(message)
        self._feed.retained(message, source=backend)
        self._session_events.retained_kept(message)
        return True

    def accept_run(
        self,
        message: Message,
        payloads: list[bytes],
        size: int,
        route: Route,
        publication: Publication | None,
    ) -> Accepted | None:
        """Accept messages that differ from `message` only in their payloads, `size` bytes together.

        None if they have to be accepted one by one; nothing has changed then.
        """
        to_store = message.qos > 0 or self._store_qos0
        to_store = to_store and (bool(route.filter_ids) or self._store_all)
        if route.groups or not (to_store or route.targets or route.wants_qos0):
            return None
        self._tick.work += len(payloads) * (1 + route.weight)
        first = 0
        if to_store:
            if self._health.refuses_new or (
                self._is_limited and not self._has_room(message, payloads, route)
            ):
                return None
            first = self._log.append_run(self._tick.batch, message, payloads, route.filter_ids)
            self._counters.messages_stored += len(payloads)
        number = 0
        if publication is not None:
            number = publication.accepted_run(
                message, payloads, size, first, route.filter_ids, self._tick.now
            )
        if route.wants_qos0 and not to_store and self._may_tell(len(payloads)):
            self._feed.published_run(message, payloads)
        if route.targets:
            self._live.publish_run(message, payloads, first, number, route.targets)
        if first or self._tick.ended or self._tick.ending:
            return CHANGED
        return UNCHANGED

    def publish_system(self, topic: str, payload: bytes) -> None:
        """Publish a `$SYS` message; it is retained in memory only."""
        now = self._tick.now
        self._retained.set_system(_system_message(topic, payload, now, retain=True))
        route = self._routes.match(topic)
        live = _system_message(topic, payload, now, retain=False)
        if route.targets:
            self._live.publish(live, route.targets)

    def route(self, topic: str) -> Route:
        """Return the receivers of a topic."""
        return self._routes.match(topic)

    def _may_tell(self, count: int) -> bool:
        """May stores be told of messages with QoS 0? Not while new durable state is refused."""
        if self._health.refuses_new:
            self._counters.drop("storage_refused", count)
            return False
        return True

    def _has_room(self, message: Message, payloads: list[bytes], route: Route) -> bool:
        """Are messages like this one, with these payloads, certainly within the limits?"""
        if self._settings.on_limit == "reject" or self._refused:
            return False
        limit = self._settings.total_bytes_max
        if not limit:
            return True
        size = RECORD_BYTES_MAX + INDEX_BYTES_MAX * len(route.filter_ids)
        size += UTF8_BYTES_MAX * (len(message.topic) + len(message.publisher))
        size = size * len(payloads) + sum([len(payload) for payload in payloads])
        return self._quota.total_bytes() + size < limit

    def _drops_new(self, message: Message, publication: Publication | None) -> bool:
        on_limit = self._settings.on_limit
        if on_limit == "drop_oldest" or not self._quota.is_total_full():
            return False
        if on_limit == "reject" and message.qos:
            return False  # `_is_over_limit` has checked it
        self._counters.drop("total_limit")
        if publication is not None:
            size = len(message.payload)
            publication.refused(message.topic, size, "total_limit", self._tick.now)
        return True

    def _is_over_limit(self, message: Message, route: Route) -> bool:
        if message.retain and message.payload and self._retained.is_full_for(message.topic):
            return True
        if message.qos == 0 or not route.filter_ids:
            return False
        if self._settings.on_limit == "reject" and self._quota.is_total_full():
            return True
        return self._quota.rejects(route, message, self._tick.now)

    def _is_refused(self, message: Message, route: Route, is_will: bool) -> bool:
        """Is a message refused because too much waits for a store that gets it?

        Nobody could send a will again.
        """
        refused = self._refused
        if not refused or not message.qos or is_will:
            return False
        return any(entry.topic_filter in refused for entry in route.entries)


def _system_message(topic: str, payload: bytes, now: int, *, retain: bool) -> Message:
    return Message(
        topic,
        payload,
        qos=0,
        retain=retain,
        properties=b"",
        publisher="",
        accepted_at_ms=now,
        expires_at_ms=NEVER,
    )
