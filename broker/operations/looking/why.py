"""Why a client lacks messages, in sentences: its session, its queue, and what the history tells.

Judges nothing and reads nothing: it counts what others have read. Read next:
`broker.cli.looking.why`, which reads, `broker.history.queries`, `broker.operations.sessions.owed`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from broker.history.queries import moment
from broker.operations.sessions.owed import Owed
from mqtt.topics import matches, split_shared
from session.state.session import Session
from session.state.subscription import Subscription
from storage.history.events import FULL, LEVELS, REASONS
from storage.history.words import Event, describe, printable

# What the states of a queue mean to somebody who misses a message.
STATES: Final[dict[str, str]] = {
    "waits": "behind its position: to be sent",
    "sent": "in flight: sent, and not acknowledged",
    "perhaps_sent": "in flight: perhaps sent, and not acknowledged",
    "received": "in flight: received, and PUBREL is not answered",
    "expired": "not sent any more: expired (Message Expiry Interval)",
    "max_age": "not sent any more: older than session.max_age",
    "session_limit": "not sent: over session.max_offline_messages or max_offline_bytes",
    "no_local": "not sent: its own (No Local)",
    "purged": "not sent: an operator has dropped them by topic",
    "damaged": "not sent: cannot be read",
}
ENDS: Final = frozenset({"session_expired", "session_terminated"})
NOTABLE_MAX: Final = 10  # events that are told one by one; the newest
TRACED_MAX: Final = 5  # stretches in which it was traced that are told one by one; the newest


class Story:
    """What the history tells of one client."""

    def __init__(self) -> None:
        self.events: int = 0
        self.counts: Counter[str] = Counter()  # of events by name
        self.dropped: Counter[str] = Counter()  # messages by reason
        self._notable: list[Event] = []  # the newest of those that lose something
        self._traced: list[tuple[Event, Event | None]] = []  # the newest: from when to when

    def add(self, event: Event) -> None:
        """Take an event of the client."""
        name = str(event["ev"])
        self.events += 1
        self.counts[name] += 1
        if name in ("msg_dropped", "msg_expired"):
            reason = event.get("reason")
            why = REASONS.get(reason, "") if isinstance(reason, int) else ""
            count = event.get("count")
            self.dropped[why or "expired"] += count if isinstance(count, int) else 1
        if name in ENDS or name in ("session_purged", "history_gap"):
            self._notable = [*self._notable, event][-NOTABLE_MAX:]
        if name == "trace_began":
            self._traced = [*self._traced, (event, None)][-TRACED_MAX:]
        elif name == "trace_ended" and self._traced:
            self._traced[-1] = self._traced[-1][0], event

    def sentences(self) -> Iterator[str]:
        """Yield what it tells, a line each."""
        counts = self.counts
        if not self.events:
            yield "the history has nothing of it in that time"
            return
        new, resumed = counts["session_created"], counts["session_resumed"]
        yield (
            f"it connected {_times(new + resumed)}: its session was resumed {_times(resumed)}, "
            f"and a new one {_times(new)}"
        )
        if counts["session_taken_over"]:
            yield (
                f"another connection with its client id took over "
                f"{_times(counts['session_taken_over'])}: do two clients share the id?"
            )
        for event in self._notable:
            yield f"{moment(event['ts'])}: {describe(event)}"
        for began, ended in self._traced:
            until = "now, or the end of the broker" if ended is None else moment(ended["ts"])
            yield (
                f"a trace had all of it recorded from {moment(began['ts'])} to {until}: "
                "`holdfast history timeline` has what became of its messages then"
            )
        if counts["unsubscribed"]:
            yield f"it unsubscribed {_times(counts['unsubscribed'])}"
        for why, count in sorted(self.dropped.items()):
            yield f"messages for it that were dropped ({why.replace('_', ' ')}): {count}"


def session_lines(
    session: Session | None, *, since: str | None, expires: str | None, is_connected: bool
) -> Iterator[str]:
    """Yield what there is of a session now; the times are text."""
    if session is None:
        yield (
            "it has no stored session: what is published while it is away is not stored for it. "
            "For that it has to connect with a Session Expiry Interval (MQTT 5) or with Clean "
            "Session 0 (3.1.1)"
        )
        return
    state = "connected" if is_connected else "away"
    end = (
        "" if is_connected else f", and its session ends {'never' if expires is None else expires}"
    )
    yield f"it has a stored session, and is {state} since {since or '-'}{end}"
    if not session.subscriptions:
        yield "it has no subscriptions: nobody owes it anything"


def connection_lines(client: dict[str, Any], topic: str | None) -> Iterator[str]:
    """Yield what a running broker says of a client that is connected (`client_show`)."""
    user = f"user {printable(client['user'])!r}" if client["user"] else "anonymous"
    yield (
        f"it is connected since {client['connected_seconds']} s from {client['address']} "
        f"({client['listener']}), {user}"
    )
    if client["lagging"]:
        yield "it is behind: it reads what it is owed from the disk"
    if client["durable"]:
        return
    yield (
        "its session is clean: it gets what comes while it is connected, and nothing is stored for "
        "it. Messages beyond its window and its queue are dropped (slow_consumer, queue_full)"
    )
    filters = client["topic_filters"]
    if topic is not None:
        found = [each for each in filters if _filter_matches(each["topic_filter"], topic)]
        for each in found:
            yield f"its subscription {printable(each['topic_filter'])!r} matches, QoS {each['qos']}"
        if not found:
            more = " of the first 1,000" if len(filters) < client["subscriptions"] else ""
            yield f"no subscription{more} of it matches {printable(topic)!r}"
    elif not client["subscriptions"]:
        yield "it has no subscriptions: nobody owes it anything"


def _filter_matches(topic_filter: str, topic: str) -> bool:
    """Return whether a filter, perhaps a shared one, matches."""
    shared = split_shared(topic_filter)
    return matches(topic_filter if shared is None else shared[1], topic)


def topic_lines(session: Session, topic: str) -> Iterator[str]:
    """Yield which subscriptions match a topic, and what each of them gets."""
    found = [each for each in session.subscriptions.values() if matches(each.stream_filter, topic)]
    if not found:
        yield f"no subscription of it matches {printable(topic)!r}: it is owed nothing on it"
    for each in found:
        yield f"its subscription {printable(each.topic_filter)!r} matches: {_gets(each)}"


def _gets(subscription: Subscription) -> str:
    if subscription.share_name is not None:
        return "each message goes to one member of the group, which may be another client"
    if not subscription.qos:
        return "at QoS 0, so that it gets only what comes while it is connected"
    return f"at QoS {subscription.qos}, from offset {subscription.since + 1} on"


def queue_lines(queue: Iterable[Owed], topic: str | None) -> Iterator[str]:
    """Yield how many messages the session is owed, by what becomes of them."""
    found: Counter[str] = Counter()
    for each in queue:
        if topic is None or (each.message is not None and each.message.topic == topic):
            found[each.state] += 1
    for state, words in STATES.items():
        if found[state]:
            yield f"{found[state]} {'message' if found[state] == 1 else 'messages'} {words}"
    if not found:
        yield "nothing waits for it, and nothing is in flight"


def limits_of_knowledge(level: int, *, has_rules: bool) -> Iterator[str]:
    """Yield what these sentences cannot know, and where to find it."""
    if level < FULL:
        yield (
            f"history.detail is {LEVELS[level]!r}: what became of single messages is not "
            'recorded. With "full" it is from then on, for all clients (SIGHUP is enough, '
            "unless it is off); `holdfast trace client` records it for this one while it is on"
        )
    if has_rules:
        yield "what the rules deny is in the log: event client_denied"
    yield "messages with QoS 0 are not stored for clients that are away (session.store_qos0)"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
