"""One session as its client knows it: subscriptions with their history, deliveries, obligations.

Time is the world's step number. Events in one step count as simultaneous, and every comparison then
decides in favour of the broker. Must never look inside the broker. Read next:
`tests.simulation.oracle`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mqtt.packets import Publish, Subscription
from mqtt.topics import matches, split_shared
from tests.simulation.rare import sometimes
from tests.simulation.verdict import Violation

if TYPE_CHECKING:
    from tests.simulation.oracle import Sent

OPEN: Final = 1 << 60  # a step that has not come yet

_matches: dict[tuple[str, str], bool] = {}


def filter_matches(topic_filter: str, topic: str) -> bool:
    """Match with a cache: a world knows a handful of filters and topics."""
    key = (topic_filter, topic)
    result = _matches.get(key)
    if result is None:
        result = _matches[key] = matches(topic_filter, topic)
    return result


class Option:
    """One set of options that was asked for, while the broker may have been using it."""

    __slots__ = ("from_step", "identifier", "no_local", "qos", "rap", "to_step")

    def __init__(self, asked: Subscription, identifier: int, step: int) -> None:
        self.qos = asked.qos
        self.no_local = asked.no_local
        self.rap = asked.retain_as_published
        self.identifier = identifier
        self.from_step = step
        self.to_step = OPEN


class Filter:
    """One topic filter of one session."""

    __slots__ = (
        "held_since",
        "identified",
        "name",
        "options",
        "retained_floor",
        "share",
        "stream",
        "windows",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        shared = split_shared(name)
        self.share: str | None = shared[0] if shared else None
        self.stream: str = shared[1] if shared else name
        self.identified = 0  # bytes of the longest identifier asked for, as a property
        self.held_since = 0  # step of the SUBACK since when it is certainly held; 0 = not certain
        self.windows: list[list[int]] = []  # [from, to] steps in which it may have been held
        self.options: list[Option] = []
        self.retained_floor: dict[str, int] = {}  # topic -> index known when first asked for

    def live(self, since: int) -> list[Option]:
        """Return the options that may have been used for a message first sent at `since`."""
        return [option for option in self.options if option.to_step >= since]

    def may_cover(self, sent: "Sent") -> bool:
        """May this subscription have been held when the message was accepted?

        A shared one gets what its group had kept before this member joined, too.
        """
        last = OPEN if self.share is not None else sent.acked_step or OPEN
        return any(start <= last and end >= sent.first_step for start, end in self.windows)

    def covers(self, sent: "Sent") -> bool:
        """Was this subscription certainly held before the message was sent?"""
        return 0 < self.held_since < sent.first_step


class SessionView:
    """Everything a client may expect of one session, from its CONNACK to its end."""

    __slots__ = (
        "_by_topic",
        "_order_sizes",
        "_packet_sizes",
        "_undone_sizes",
        "applied",
        "client",
        "connected_ms",
        "durable",
        "filters",
        "first",
        "number",
        "order",
        "owed",
        "owed_retained",
        "retained_copies",
        "version",
        "version4_until",
        "was_limited",
    )

    def __init__(self, client: str, number: int) -> None:
        # Maximum Packet Size of the present connection and of those that came to nothing since.
        self._packet_sizes: list[int] = []
        self.was_limited = False  # was there ever a Maximum Packet Size?
        self.version = 5  # of the protocol, on the present connection
        self.version4_until = 0  # step up to which a v3.1.1 connection may have held it
        self.client = client
        self.number = number
        self.durable = False
        self.filters: dict[str, Filter] = {}
        self._by_topic: dict[str, list[Filter]] = {}
        self.owed: dict[int, list[Filter]] = {}  # message index -> filters that own it to us
        self.connected_ms = 0
        self.owed_retained: dict[str, int] = {}  # topic -> least index a replay owes
        self.applied: dict[int, int] = {}  # index -> QoS 2 applications of live copies
        self.retained_copies: dict[int, int] = {}  # index -> QoS 2 applications with RETAIN set
        self.first: set[int] = set()
        self.order: dict[tuple[str, str, int, int], int] = {}
        # Maximum Packet Size of the connection on which the last message of `order` came, 0 = none;
        # and what of this was so when the broker crashed.
        self._order_sizes: dict[tuple[str, str, int, int], int] = {}
        self._undone_sizes: dict[tuple[str, str, int, int], int] = {}

    def connecting(self, version: int, packet_size_max: int, messages: "list[Sent]") -> None:
        """CONNECT is sent: from now on the session may be held with this version and size."""
        if version == 4:
            self.version4_until = OPEN
        if packet_size_max:
            self.was_limited = True
            self._packet_sizes.append(packet_size_max)
            for index in [i for i in self.owed if self._may_exceed(messages[i])]:
                del self.owed[index]
            for topic, index in list(self.owed_retained.items()):
                if self._may_exceed(messages[index]):
                    del self.owed_retained[topic]

    def connected(self, version: int, packet_size_max: int, step: int, sent_ms: int) -> None:
        """CONNACK came: the session is held with this protocol version and packet size.

        `sent_ms` is when the CONNECT was sent: nothing of this connection was sent before.
        """
        self.version = version
        self.connected_ms = sent_ms
        self._packet_sizes = [packet_size_max] if packet_size_max else []
        self.was_limited |= packet_size_max > 0
        self.version4_until = OPEN if version == 4 else min(self.version4_until, step)

    def crashed(self) -> None:
        """The broker died: what it has dropped as too large may come, to a client that takes it."""
        self._undone_sizes = dict(self._order_sizes)

    def matching(self, topic: str) -> list[Filter]:
        """Return every filter that was ever asked for and matches."""
        found = self._by_topic.get(topic)
        if found is None:
            found = [f for f in self.filters.values() if filter_matches(f.stream, topic)]
            self._by_topic[topic] = found
        return found

    def keeps_retain(self, topic: str) -> bool:
        """May a live copy on this topic have RETAIN 1?"""
        return any(option.rap for item in self.matching(topic) for option in item.options)

    # Subscriptions

    def subscribing(
        self, asked: Subscription, identifier: int, step: int, messages: "list[Sent]"
    ) -> Filter:
        """SUBSCRIBE is sent: from now on the filter may be held with these options."""
        item = self.filters.get(asked.topic_filter)
        if item is None:
            item = self.filters[asked.topic_filter] = Filter(asked.topic_filter)
            self._by_topic.clear()
        if not item.windows or item.windows[-1][1] != OPEN:
            item.windows.append([step, OPEN])
        item.options.append(Option(asked, identifier, step))
        if identifier:
            item.identified = max(item.identified, 2 if identifier < 128 else 3)
        if asked.qos == 0:
            self._drop_filter(item, own=None)
        elif asked.no_local:
            self._drop_filter(item, own=messages)
        return item

    def subscribed(self, item: Filter, option: Option, step: int, granted: int) -> None:
        """SUBACK came with a granted QoS: the options before are history."""
        option.qos = granted
        for other in item.options[: item.options.index(option)]:
            other.to_step = min(other.to_step, step)
        if len(item.options) > 64:  # a client may ask often before it is answered
            del item.options[:32]
        if not item.held_since:
            item.held_since = step

    def unsubscribing(self, name: str) -> Filter | None:
        """UNSUBSCRIBE is sent: nothing is owed through this filter any more."""
        item = self.filters.get(name)
        if item is not None:
            item.held_since = 0
            self._drop_filter(item, own=None)
        return item

    def unsubscribed(self, item: Filter, step: int) -> None:
        """UNSUBACK came: no message sent from now on may match it."""
        if item.windows and item.windows[-1][1] == OPEN:
            item.windows[-1][1] = step
        for option in item.options:
            option.to_step = min(option.to_step, step)

    def weaken(self) -> None:
        """The session may be over: what it held is not certain any more."""
        self.owed.clear()
        self.owed_retained.clear()
        for item in self.filters.values():
            item.held_since = 0

    def _drop_filter(self, item: Filter, *, own: "list[Sent] | None") -> None:
        """Nothing is owed through this filter; with `own`, none of the client's own messages."""
        for index in [i for i, filters in self.owed.items() if item in filters]:
            if own is not None and own[index].publisher != self.client:
                continue
            filters = [f for f in self.owed[index] if f is not item]
            if filters:
                self.owed[index] = filters
            else:
                del self.owed[index]
        for topic in [t for t in self.owed_retained if filter_matches(item.stream, t)]:
            del self.owed_retained[topic]

    # Messages

    def owe(self, sent: "Sent") -> None:
        """A QoS 1 or 2 message is sent for the first time: note it if we must get it."""
        filters: list[Filter] = []
        for item in self.matching(sent.topic):
            if item.share is not None or not item.covers(sent):
                continue
            live = item.live(sent.first_step)
            if all(o.qos > 0 and not (o.no_local and sent.publisher == self.client) for o in live):
                filters.append(item)
        if filters and not self._may_exceed(sent):
            self.owed[sent.index] = filters

    def resized(self, sent: "Sent") -> None:
        """A message is sent again with properties that it had not, or without: it may not fit."""
        if sent.index in self.owed and self._may_exceed(sent):
            del self.owed[sent.index]
        if self.owed_retained.get(sent.topic) == sent.index and self._may_exceed(sent):
            del self.owed_retained[sent.topic]

    def owe_retained(self, sent: "Sent") -> None:
        """A retained message is owed to a new subscription."""
        if not self._may_exceed(sent):
            self.owed_retained[sent.topic] = sent.index

    def packet_size_max(self) -> int:
        """Return the least Maximum Packet Size since the last CONNACK, 0 = none was given."""
        return min(self._packet_sizes, default=0)

    def packet_size(self, sent: "Sent") -> int:
        """Return how large a PUBLISH of a message may be at QoS 1 and 2 without a topic alias."""
        contents = sent.contents() if sent.from_both_versions else sent.properties()
        properties = len(contents) + (5 if sent.expiry_s >= 0 else 0)
        properties += sum([item.identified for item in self.matching(sent.topic)])
        body = 2 + len(sent.topic) + 2 + 1 + properties + len(sent.payload())
        assert body < 128, "one byte of length"
        return 2 + body

    def _may_exceed(self, sent: "Sent") -> bool:
        """May a message be too large for the client? Then the broker drops it [MQTT-3.1.2-25]."""
        if not self._packet_sizes:
            return False
        over = self.packet_size(sent) - min(self._packet_sizes)
        if over == 1:
            sometimes("packet_above_the_maximum_size")
        return over > 0

    def check_delivery(self, sent: "Sent", packet: Publish, step: int) -> None:
        """Judge whether this delivery may be, and with this QoS, flag and these identifiers."""
        possible: set[int] = set()
        certain = True
        least = 0
        identifiers: list[int] = []
        for item in self.matching(sent.topic):
            if not item.may_cover(sent) and not (packet.retain and item.windows):
                continue
            live = item.live(0 if packet.retain else sent.first_step)
            certain = certain and item.covers(sent) and len(live) == 1
            for option in live:
                if option.no_local and sent.publisher == self.client and not packet.retain:
                    if sent.first_step > self.version4_until:  # v3.1.1 has no such option
                        continue
                    certain = False
                qos = min(sent.qos, option.qos)
                possible.add(qos)
                if option.identifier:
                    identifiers.append(option.identifier)
                if item.covers(sent) and len(live) == 1 and item.share is None:
                    least = max(least, qos)
        if not possible:
            raise Violation(
                "no_phantom",
                f"{self.client} got {sent} on {packet.topic!r},"
                " which none of its subscriptions could match",
            )
        if packet.qos not in possible or (packet.qos < least and not packet.retain):
            raise Violation(
                "delivered_qos_is_the_minimum",
                f"{self.client} got {sent} at QoS {packet.qos}, possible are {sorted(possible)},"
                f" expected at least {least}",
            )
        if not certain or packet.retain or self.version == 4:
            return
        if sorted(packet.subscription_identifiers) != sorted(identifiers):
            raise Violation(
                "delivered_qos_is_the_minimum",
                f"{self.client} got {sent} with subscription identifiers"
                f" {packet.subscription_identifiers}, expected {sorted(identifiers)}",
            )

    def check_order(self, sent: "Sent", packet: Publish) -> None:
        """Judge the order of first deliveries of one publisher, topic and pair of QoS."""
        if sent.index in self.first or packet.retain:
            self.first.add(sent.index)
            return
        matching = self.matching(sent.topic)
        if any(item.share is not None for item in matching):
            return  # no promise is made for shared subscriptions
        if packet.qos < sent.qos and any(len(f.live(sent.first_step)) > 1 for f in matching):
            return  # a change of the granted QoS met a backlog
        self.first.add(sent.index)
        key = (sent.publisher, sent.topic, sent.qos, packet.qos)
        before = self.order.get(key, -1)
        repeated = sent.attempts > 1 or (sent.qos == 1 and sent.transmissions > 1)
        # The first copy may have been too large for the client, and lost in a crash.
        repeated |= self.was_limited and sent.transmissions > 1
        # Or it was too large when the later one came, and a crash undid that it was dropped.
        repeated |= 0 < self._undone_sizes.get(key, 0) < self.packet_size(sent)
        if sent.index < before and (repeated or sent.doubtful):
            return  # its second copy, and the first one was before this session or subscription
        if sent.index < before:
            raise Violation(
                "order_per_topic_and_publisher",
                f"{self.client} got {sent} after message {before}"
                f" of {sent.publisher} on {sent.topic!r}",
            )
        self.order[key] = sent.index
        self._order_sizes[key] = self.packet_size_max()
        self._undone_sizes.pop(key, None)

    def apply_once(self, sent: "Sent", packet: Publish, subscribes: int) -> None:
        """Count an application of a QoS 2 delivery and judge the number."""
        counts = self.retained_copies if packet.retain else self.applied
        count = counts[sent.index] = counts.get(sent.index, 0) + 1
        allowed = sent.attempts + (subscribes if packet.retain else 0)
        if sent.qos == 2 and count > allowed:
            raise Violation(
                "qos2_is_delivered_once",
                f"{self.client} applied {sent} {count} times, expected at most {allowed}",
            )

    def losses(self, messages: "list[Sent]") -> Iterator["Sent"]:
        """Yield the acknowledged messages this session is still owed."""
        for index in self.owed:
            sent = messages[index]
            if sent.acked_step and not sent.rejected and sent.expiry_s < 0:
                yield sent
