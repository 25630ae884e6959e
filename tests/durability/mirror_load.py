"""Clients that leave something of everything a store mirrors, and keep books of it.

They go on while the broker is killed. A change that was not acknowledged leaves two possibilities
in the books, until it is made again. Read next: `mirror_books`, and `load` for those that publish
and read without a pause.
"""

import random
import threading
import time
from typing import Final, Protocol

from mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.durability.load import RETRY_SECONDS, Publisher, Subscriber, finish, verdict
from tests.durability.mirror_books import Books, joined
from tests.durability.rawclient import Closed, RawClient, Silence

FILTERS: Final = ("own/a", "own/+", "own/b/#", "other/x")  # nobody publishes there
KEPT_TOPICS: Final = 4  # retained, of each client
BURST_MAX: Final = 8
LISTEN_S: Final = 0.05  # for acknowledgements of a burst
VISIT_MESSAGES: Final = 20  # that a client which lags takes at once
PATIENCE_S: Final = 60.0
PASSING_NAMES: Final = 10
IMPATIENT: Final = 0.2  # share of those that do not wait for an answer
OWN_PACKET_IDS: Final = 1000  # packet ids above this are for messages: each is used once
WINDOW: Final = 20  # messages of a publisher that are not acknowledged
VISITS: Final = 5  # messages that a publisher sends for each visit of a client
LAGGING_VISITS: Final = 4 * VISIT_MESSAGES  # the same for the client that lags behind it


class Life(Protocol):
    """A client that comes and goes."""

    books: Books

    def visit(self, *, is_last: bool) -> None:
        """Connect, change something, and go; the last time nothing may stay open."""


class Visitor(threading.Thread):
    """Lets a client come again and again, until a last visit is complete."""

    def __init__(self, name: str, life: Life, pause_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self.violations: list[str] = []
        self.visits: int = 0
        self._life: Final = life
        self._pause_s: Final = pause_s
        self._finish: Final = threading.Event()

    def finish(self) -> None:
        """Let the next visit be the last one."""
        self._finish.set()

    def run(self) -> None:
        """Come again and again."""
        while True:
            is_last = self._finish.is_set()
            try:
                self._life.visit(is_last=is_last)
                self.visits += 1
                if is_last:
                    return
                self._finish.wait(self._pause_s)
            except (Closed, OSError):
                time.sleep(RETRY_SECONDS)
            except AssertionError as error:
                self.violations.append(f"{self.name}: {error}")
                return


class Passing:
    """Clients whose sessions end with the connection; some do not wait for an answer."""

    def __init__(self, port: int, name: str, seed: int) -> None:
        self.books: Books = Books()
        self._port: Final = port
        self._name: Final = name
        self._random: Final = random.Random(seed)
        self._number = 0

    def visit(self, *, is_last: bool) -> None:
        """Live a short life."""
        rng, books = self._random, self.books
        # Half of them never come again: nobody tidies up behind these.
        name = f"{self._name}-{rng.choice((rng.randrange(PASSING_NAMES), f'once-{self._number}'))}"
        client = RawClient(self._port, name, version=rng.choice((4, 5)))
        client.connect()
        topic_filter = rng.choice(FILTERS)
        books.settle(name, topic_filter, None)  # all of these sessions end
        client.subscribe(topic_filter, qos=rng.randrange(3))
        open_ids: dict[int, Publish] = {}
        for _ in range(rng.randrange(1, BURST_MAX)):
            self._number += 1
            publish = Publish(
                f"load/{self._name}",
                b"%d" % self._number,
                qos=rng.choice((1, 2)),
                packet_id=client.packet_id(),
            )
            open_ids[publish.packet_id] = publish
            books.sent[publish.topic, publish.payload] += 1
        client.send(*open_ids.values())
        if not is_last and rng.random() < IMPATIENT:
            client.drop(reset=rng.random() < 0.5)  # it never knows whether they were taken
            return
        try:
            while open_ids:
                self._answered(client, open_ids)
                # No CONNACK of such a client waits for what the store is told of it; a message
                # that is acknowledged was committed behind it.
                books.clients.add(name)
        except Silence:
            pass  # it does not know whether they were taken
        if is_last or rng.random() < 0.5:
            client.disconnect()
        else:
            client.drop(reset=rng.random() < 0.5)

    def _answered(self, client: RawClient, open_ids: dict[int, Publish]) -> None:
        answer = client.receive(LISTEN_S)
        assert answer.reason_code < 0x80, f"refused: {answer!r}"
        if isinstance(answer, Pubcomp):
            return
        publish = open_ids.pop(answer.packet_id)
        self.books.taken[publish.topic, publish.payload] += 1
        if isinstance(answer, Pubrec):
            client.send(Pubrel(answer.packet_id))


class Staying:
    """A durable session whose subscriptions and retained messages change."""

    def __init__(self, port: int, name: str, seed: int) -> None:
        self.books: Books = Books()
        self._port: Final = port
        self._name: Final = name
        self._random: Final = random.Random(seed)
        self._number = 0

    def visit(self, *, is_last: bool) -> None:
        """Come back, or anew, and change something."""
        rng, books = self._random, self.books
        client = self._connected(is_anew=not is_last and rng.random() < 0.15)
        if not is_last and rng.random() < 0.2:
            heir = RawClient(self._port, self._name)
            heir.resume()
            client.drop()
            client = heir
        filters = FILTERS if is_last else rng.sample(FILTERS, rng.randrange(3))
        for topic_filter in filters:
            self._change(client, topic_filter)
        topics = [f"kept/{self._name}/{number}" for number in range(KEPT_TOPICS)]
        for topic in topics if is_last else rng.sample(topics, rng.randrange(3)):
            self._retain(client, topic)
        if is_last or rng.random() < 0.3:
            client.disconnect()
        elif rng.random() < 0.2:
            books.session_gone(self._name, is_sure=False)
            client.disconnect(expiry=0)
        else:
            client.drop(reset=rng.random() < 0.5)

    def _connected(self, *, is_anew: bool) -> RawClient:
        client = RawClient(self._port, self._name)
        if is_anew:
            self.books.session_gone(self._name, is_sure=False)
        connack = client.connect(clean_start=is_anew, expiry=3600)
        self.books.clients.add(self._name)
        if not connack.session_present:
            self.books.session_gone(self._name, is_sure=True)
        return client

    def _change(self, client: RawClient, topic_filter: str) -> None:
        qos = self._random.choice((None, 0, 1, 2))
        self.books.begin(self._name, topic_filter, qos)
        if qos is None:
            client.unsubscribe(topic_filter)
        else:
            client.subscribe(topic_filter, qos=qos)
        self.books.settle(self._name, topic_filter, qos)

    def _retain(self, client: RawClient, topic: str) -> None:
        self._number += 1
        payload = self._random.choice((b"", b"%d" % self._number))
        message = (topic, payload)
        self.books.retained.setdefault(topic, {b""}).add(payload)
        self.books.sent[message] += 1
        # An exchange that a crash cut off stays open with its packet id: nobody takes it up again.
        packet_id = OWN_PACKET_IDS + self._number
        qos = self._random.choice((1, 2))
        client.publish(topic, payload, qos=qos, retain=True, packet_id=packet_id)
        self.books.taken[message] += 1
        self.books.retained[topic] = {payload}


class Lagging:
    """A durable subscriber that acknowledges less than comes."""

    def __init__(self, port: int, name: str, topic_filter: str) -> None:
        self.books: Books = Books()
        self._port: Final = port
        self._name: Final = name
        self._topic_filter: Final = topic_filter

    def visit(self, *, is_last: bool) -> None:
        """Acknowledge some messages. Only the last time a crash takes none of that back."""
        name, books = self._name, self.books
        client = RawClient(self._port, name)
        books.begin(name, self._topic_filter, 1)
        if not client.durable().session_present:
            assert not books.last_acked, f"{name}: session lost"
            client.subscribe(self._topic_filter, qos=1)
        books.settle(name, self._topic_filter, 1)
        books.clients.add(name)
        books.last_acked.clear()
        try:
            for _ in range(VISIT_MESSAGES):
                publish = client.expect(Publish, timeout=PATIENCE_S if is_last else LISTEN_S)
                client.send(Puback(publish.packet_id))
                books.last_acked[name, publish.topic] = publish.payload
        except Silence:
            assert books.last_acked or not is_last, f"{name}: nothing is left to lag behind"
        if is_last:
            client.disconnect()
        else:
            client.drop()


class MirrorLoad:
    """All of them, and publishers and readers that never pause."""

    def __init__(self, port: int, seed: int, rate: int) -> None:
        """Each publisher sends `rate` messages a second."""
        self._publishers: Final = [
            Publisher(port, name, qos=qos, version=version, rate=rate, window=WINDOW, is_paced=True)
            for name, qos, version in (("p1", 1, 5), ("p2", 2, 4), ("q1", 1, 4), ("q2", 2, 5))
        ]
        self.readers: Final = [
            Subscriber(port, f"reader-{qos}", qos=qos, version=6 - qos, seed=seed + qos)
            for qos in (1, 2)
        ]
        self._lives: Final[dict[str, Life]] = {
            "v1": Passing(port, "v1", seed + 10),
            "v2": Passing(port, "v2", seed + 11),
            "s1": Staying(port, "s1", seed + 20),
            "s2": Staying(port, "s2", seed + 21),
            "lagging": Lagging(port, "lagging", "load/p2/#"),
        }
        pauses = {"lagging": LAGGING_VISITS / rate}
        self._visitors: Final = [
            Visitor(name, life, pauses.get(name, VISITS / rate))
            for name, life in self._lives.items()
        ]

    def start(self) -> None:
        """Let the readers subscribe, then begin."""
        for reader in self.readers:
            reader.start()
        for reader in self.readers:
            assert reader.ready.wait(PATIENCE_S), reader.violations
        for thread in (*self._publishers, *self._visitors):
            thread.start()

    def finish(self) -> None:
        """Let everybody but the readers finish; fails if the broker broke a promise to a client."""
        threads = (*self._publishers, *self._visitors)
        for thread in threads:
            thread.finish()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} did not finish"
            assert thread.violations == [], thread.violations

    def finish_reading(self) -> None:
        """Let the readers go, too; fails if one lost a message, or got one out of order."""
        finish(self._publishers, self.readers, seconds=PATIENCE_S)
        faults = verdict(self._publishers, self.readers)
        assert not faults, "\n".join(faults)

    def close(self) -> None:
        """Let everybody go, whatever became of them."""
        for thread in (*self._publishers, *self._visitors, *self.readers):
            thread.finish()

    def books(self) -> Books:
        """Return what the clients know."""
        own = Books()
        for publisher in self._publishers:
            for (topic, number), count in publisher.sent.items():
                own.sent[topic, b"%d" % number] = count
            for topic, number in publisher.acknowledged:
                own.taken[topic, b"%d" % number] += 1
            own.clients.add(publisher.name)
        for reader in self.readers:
            own.settle(reader.name, reader.topic_filter, reader.qos)
            own.clients.add(reader.name)
        return joined([own, *(life.books for life in self._lives.values())])

    def told(self) -> str:
        """Return how much there was, in a line."""
        books = self.books()
        visits = ", ".join(f"{each.name} {each.visits}" for each in self._visitors)
        resent = sum(books.sent.values()) - len(books.sent)
        unknown = sum(1 for message in books.sent if not books.taken[message])
        return (
            f"{len(books.sent)} messages, {resent} sent again, {unknown} not acknowledged;"
            f" visits: {visits}"
        )
