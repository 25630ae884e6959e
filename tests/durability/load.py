"""Correct clients that keep exact books while the broker is killed.

A publisher re-sends unacknowledged messages and a subscriber remembers its QoS 2 ids, as MQTT
requires. So whatever the books show as lost, duplicated or out of order is the broker's fault.
`verdict` compares the books. Read next: `test_kill_loop`.
"""

import random
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from mqtt.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.durability.rawclient import Closed, RawClient, Silence

RETRY_SECONDS: Final = 0.02  # between two attempts to reach a broker that is down
SLICE_SECONDS: Final = 0.2  # how long a client reads before it checks whether to finish
SESSION_SECONDS: Final = 3600
# What ends a connection without being a fault, by default: a broker that answers no more is one.
Gone: TypeAlias = tuple[type[Exception], ...]
GONE: Final[Gone] = (Closed, OSError)
UNORDERED: Final = "load/foreign/"  # topics of publishers that may reorder messages themselves


class PublisherBooks(Protocol):
    """What `finish` and `verdict` need from a publisher, ours or paho's."""

    name: str
    violations: list[str]
    acknowledged: list[tuple[str, int]]

    def finish(self) -> None: ...
    def join(self, timeout: float) -> None: ...
    def is_alive(self) -> bool: ...


class SubscriberBooks(Protocol):
    """What `finish` and `verdict` need from a subscriber, ours or paho's."""

    name: str
    topic_filter: str
    received: list[tuple[str, int, int]]
    violations: list[str]

    def finish(self) -> None: ...
    def join(self, timeout: float) -> None: ...


class Publisher(threading.Thread):
    """Publishes numbered messages to its own topics; on `finish` it completes those in flight.

    `acknowledged` lists (topic, number) in the order in which the broker took responsibility:
    PUBACK, or PUBREC at QoS 2. `sent` counts how often the broker may have taken each: at QoS 1
    what is sent again may be a second message.
    """

    def __init__(
        self,
        port: int,
        name: str,
        *,
        qos: int,
        version: int,
        rate: int,
        window: int = 20,
        own_topics: bool = False,
        count: int = 0,
        is_paced: bool = False,
    ) -> None:
        """Keep the arguments; with `own_topics` every message has its own topic, which names it.

        `count` is how many messages it publishes at most, 0 = as many as it can. With `is_paced` it
        sends `rate` of them a second at most; otherwise each answer lets it send another one.
        """
        super().__init__(name=name, daemon=True)
        self.acknowledged: list[tuple[str, int]] = []
        # How often: at QoS 1 the broker may accept a message again that it was sent again.
        self.sent: Counter[tuple[str, int]] = Counter()
        self.violations: list[str] = []
        self.qos: int = qos
        self.gone: Gone = GONE
        self.retry_s: float = RETRY_SECONDS
        self._client = RawClient(port, name, version=version)
        self._topics = [f"load/{name}/{letter}" for letter in "ab"]
        self._own_topics = own_topics
        self._count = count
        self._window = window
        self._pause = 1.0 / rate
        self._is_paced = is_paced
        self._next_s = 0.0  # when a paced one may send again
        self._number = 0
        self._begun = False
        self._open: OrderedDict[int, Any] = OrderedDict()  # packet_id -> (publish, is released)
        self._finish = threading.Event()

    def finish(self) -> None:
        """Stop publishing; the thread ends when everything is acknowledged."""
        self._finish.set()

    def run(self) -> None:
        """Connect again and again until finished."""
        while not (self._finish.is_set() and self._begun and not self._open):
            try:
                self._converse()
            except self.gone:
                time.sleep(self.retry_s)
            except AssertionError as error:
                self.violations.append(f"{self.name}: {error}")
                break
        self._client.drop()

    def _converse(self) -> None:
        connack = self._client.durable(expiry=SESSION_SECONDS)
        if self._begun and not connack.session_present:
            self.violations.append(f"{self.name}: session lost")
        self._begun = True
        for packet_id, (publish, is_released) in self._open.items():
            publish.dup = True
            if self.qos == 1:
                self.sent[publish.topic, int(publish.payload)] += 1
            self._client.send(Pubrel(packet_id) if is_released else publish)
        while not self._finish.is_set() or self._open:
            self._publish_more()
            try:
                self._on_packet(self._client.receive(self._pause))
                while self._client.inbox:
                    self._on_packet(self._client.receive())
            except Silence:
                pass

    def _publish_more(self) -> None:
        if self._finish.is_set() or len(self._open) >= self._window:
            return
        if self._count and self._number >= self._count:
            return
        if self._is_paced:
            now_s = time.monotonic()
            if now_s < self._next_s:
                return
            self._next_s = now_s + self._pause
        self._number += 1
        topic = self._topics[self._number % len(self._topics)]
        if self._own_topics:
            topic += f"/{self._number}"
        packet_id = self._client.packet_id()
        while packet_id in self._open:
            packet_id = self._client.packet_id()
        publish = Publish(topic, b"%d" % self._number, qos=self.qos, packet_id=packet_id)
        self._open[packet_id] = (publish, False)
        self.sent[topic, self._number] += 1
        self._client.send(publish)

    def _on_packet(self, packet: Any) -> None:
        if isinstance(packet, Disconnect):
            raise Closed(f"sent away: {packet!r}", packet)
        publish, is_released = self._open.get(packet.packet_id, (None, False))
        assert publish is not None, f"answer to nothing: {packet!r}"
        assert packet.reason_code < 0x80 or isinstance(packet, Pubcomp), f"refused: {packet!r}"
        if isinstance(packet, Puback) and self.qos == 1:
            self._accepted(publish)
            del self._open[packet.packet_id]
        elif isinstance(packet, Pubrec) and self.qos == 2:
            if not is_released:
                self._accepted(publish)
            self._open[packet.packet_id] = (publish, True)
            self._client.send(Pubrel(packet.packet_id))
        else:
            assert isinstance(packet, Pubcomp) and is_released, f"unexpected: {packet!r}"
            del self._open[packet.packet_id]

    def _accepted(self, publish: Publish) -> None:
        self.acknowledged.append((publish.topic, int(publish.payload)))


class Subscriber(threading.Thread):
    """Receives everything below `load/` in a durable session and sometimes drops its connection.

    `received` lists (topic, number, qos) as the application got them, in order.
    """

    def __init__(
        self,
        port: int,
        name: str,
        *,
        qos: int,
        version: int,
        seed: int,
        topic_filter: str = "load/#",
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.received: list[tuple[str, int, int]] = []
        self.violations: list[str] = []
        self.qos: int = qos
        self.topic_filter: str = topic_filter
        self.gone: Gone = GONE
        self.retry_s: float = RETRY_SECONDS
        self.ready = threading.Event()  # subscribed
        self._client = RawClient(port, name, version=version)
        self._random = random.Random(seed)
        self._open: set[int] = set()  # QoS 2 ids received and not released
        self._finish = threading.Event()

    def finish(self) -> None:
        """End the thread."""
        self._finish.set()

    def run(self) -> None:
        """Connect again and again until finished."""
        while not self._finish.is_set():
            try:
                self._converse()
            except self.gone:
                time.sleep(self.retry_s)
            except AssertionError as error:
                self.violations.append(f"{self.name}: {error}")
                break
        self._client.drop()

    def _converse(self) -> None:
        session_present = self._connect()
        if not self.ready.is_set():
            self._client.subscribe(self.topic_filter, qos=self.qos)
            self.ready.set()
        elif not session_present:
            self.violations.append(f"{self.name}: session lost")
        seen: set[int] = set()  # QoS 2 ids of PUBLISHes on this connection
        hang_up_after = self._random.randrange(200, 4000)
        while not self._finish.is_set():
            try:
                packets = [self._client.receive(SLICE_SECONDS)]
            except Silence:
                continue
            while self._client.inbox:
                packets.append(self._client.receive())
            # Sometimes received packets stay unanswered when the connection is lost.
            hang_up_after -= len(packets)
            if hang_up_after <= 0:
                for packet in packets:
                    self._on_packet(packet, seen)
                self._client.drop(reset=self._random.random() < 0.5)
                return
            answers = [answer for p in packets if (answer := self._on_packet(p, seen)) is not None]
            self._client.send(*answers)

    def _connect(self) -> bool:
        """Connect and return whether there was a session."""
        return self._client.durable(expiry=SESSION_SECONDS).session_present

    def _on_packet(self, packet: Any, seen: set[int]) -> Any:
        """Return the answer to a packet."""
        if isinstance(packet, Disconnect):
            raise Closed(f"sent away: {packet!r}", packet)
        if isinstance(packet, Pubrel):
            self._open.discard(packet.packet_id)
            seen.discard(packet.packet_id)
            return Pubcomp(packet.packet_id)
        assert isinstance(packet, Publish), f"unexpected: {packet!r}"
        if packet.qos == 2:
            assert packet.packet_id not in seen, f"sent twice on one connection: {packet!r}"
            seen.add(packet.packet_id)
            if packet.packet_id in self._open:
                assert packet.dup, f"id in use for another message, or DUP=0: {packet!r}"
                return Pubrec(packet.packet_id)
            self._open.add(packet.packet_id)
        self.received.append((packet.topic, int(packet.payload), packet.qos))
        return Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id)


def finish(
    publishers: Sequence[PublisherBooks], subscribers: Sequence[SubscriberBooks], *, seconds: float
) -> None:
    """Let the publishers complete what is in flight and the subscribers catch up; then end all.

    Returns after `seconds` at the latest; messages missing then are missing in the books.
    """
    deadline = time.monotonic() + seconds
    for publisher in publishers:
        publisher.finish()
    for publisher in publishers:
        publisher.join(max(0.0, deadline - time.monotonic()))
    while time.monotonic() < deadline and not is_complete(publishers, subscribers):
        time.sleep(SLICE_SECONDS)
    time.sleep(SLICE_SECONDS)  # for messages that should not come
    for subscriber in subscribers:
        subscriber.finish()
    for publisher in publishers:
        publisher.join(10.0)
    for subscriber in subscribers:
        subscriber.join(10.0)


def is_complete(
    publishers: Sequence[PublisherBooks], subscribers: Sequence[SubscriberBooks]
) -> bool:
    """Return whether everything that was acknowledged has arrived."""
    return not any(_missing(publishers, subscribers).values())


def verdict(
    publishers: Sequence[PublisherBooks], subscribers: Sequence[SubscriberBooks]
) -> list[str]:
    """Return every lost, duplicated or reordered message that the books show."""
    faults = [fault for publisher in publishers for fault in publisher.violations]
    faults += [fault for subscriber in subscribers for fault in subscriber.violations]
    faults += [f"{client.name}: did not finish" for client in publishers if client.is_alive()]
    for name, missing in _missing(publishers, subscribers).items():
        if missing:
            faults.append(f"{name}: {len(missing)} acknowledged and lost: {sorted(missing)[:5]}")
    for name, books in _books(subscribers).items():
        exact = [(topic, number) for topic, number, qos in books if qos == 2]
        if len(exact) != len(set(exact)):
            faults.append(f"{name}: {len(exact) - len(set(exact))} twice at QoS 2")
    for subscriber in subscribers:
        if not subscriber.topic_filter.startswith("$share/"):
            faults += _order(subscriber)
    return faults


def _order(subscriber: SubscriberBooks) -> Iterable[str]:
    """Yield first deliveries out of the publisher's order of a topic, see [MQTT-4.6.0-6]."""
    newest: dict[str, int] = {}
    seen: set[tuple[str, int]] = set()
    for topic, number, _ in subscriber.received:
        if (topic, number) in seen or topic.startswith(UNORDERED):
            continue
        seen.add((topic, number))
        if number < newest.get(topic, 0):
            yield f"{subscriber.name}: {topic} {number} first came after {newest[topic]}"
        newest[topic] = number


def _books(subscribers: Sequence[SubscriberBooks]) -> dict[str, list[tuple[str, int, int]]]:
    """Return what arrived, per session or per shared subscription group."""
    books: dict[str, list[tuple[str, int, int]]] = {}
    for subscriber in subscribers:
        is_shared = subscriber.topic_filter.startswith("$share/")
        name = subscriber.topic_filter if is_shared else subscriber.name
        books.setdefault(name, []).extend(subscriber.received)
    return books


def _missing(
    publishers: Sequence[PublisherBooks], subscribers: Sequence[SubscriberBooks]
) -> dict[str, set[tuple[str, int]]]:
    acknowledged = {message for p in publishers for message in list(p.acknowledged)}
    return {
        name: acknowledged - {(topic, number) for topic, number, _ in books}
        for name, books in _books(subscribers).items()
    }
