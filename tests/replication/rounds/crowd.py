"""Everybody who uses the cluster during the rounds, and the oracle: what they were promised.

Ours and paho's, MQTT 3.1.1 and MQTT 5: publishers at QoS 1 and 2, durable subscribers, some of
which stay away or are taken over, two shared groups, wills, retained messages, subscriptions that
come and go. They know nothing of the cluster but one port. Read next: `tests.durability.load`,
`tests.durability.promises`.
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import paho.mqtt.client as paho

from tests.durability.foreign import PahoPublisher, PahoSubscriber
from tests.durability.load import (
    GONE,
    Gone,
    Publisher,
    PublisherBooks,
    Subscriber,
    SubscriberBooks,
    finish,
    is_complete,
    verdict,
)
from tests.durability.promises import (
    Fickle,
    Joiner,
    Keeper,
    Life,
    Party,
    Rivals,
    Sleeper,
    WillMaker,
)
from tests.durability.rawclient import RawClient, Silence
from tests.replication.front import Front

RATE: Final = 10  # messages a second of each of our publishers
PAHO_PAUSE_S: Final = 0.1
DRAIN_S: Final = 300.0  # without anything that arrives
READY_S: Final = 120.0
LOOK_S: Final = 0.05
DRAIN_LOOK_S: Final = 1.0
PROTOCOLS: Final = (paho.MQTTv311, paho.MQTTv5)
# While nobody leads, a client may be left without an answer for long: it comes again.
PATIENT: Final[Gone] = (*GONE, Silence)
RETRY_S: Final = 0.1
MEMBERS: Final[Sequence[tuple[type[Subscriber], str, int]]] = (
    (Subscriber, "exact", 2),
    (Sleeper, "exact", 2),
    (Sleeper, "crew", 1),
    (Joiner, "crew", 1),
    (Joiner, "crew", 1),
)


class Testator(WillMaker):
    """Leaves wills; the time of its sessions goes on from what the last leader said."""

    # A leader that is cut off serves clients for some seconds which its successor does not know
    # of; and for some time there may be no leader.
    early_s = 15.0
    late_s = 30.0

    def __init__(self, front: Front, name: str, *, seed: int) -> None:
        super().__init__(front.port, name, seed=seed)
        self._front: Final = front

    def _leave(self, client: RawClient, control: RawClient, life: Life) -> None:
        """Leave; a DISCONNECT counts if the node that got it has closed because of it."""
        if self._random.randrange(4):
            client.drop(reset=self._random.random() < 0.5)
            self.kept += 1
            return
        turns = self._front.turns
        life.least = 0
        client.disconnect()
        control.ping()
        if client.disconnected is None and turns == self._front.turns:
            life.most = 0
            self.kept += 1


class Crowd:
    """All clients of a run, and their books."""

    def __init__(self, front: Front, seed: int) -> None:
        port = front.port
        ours = [
            Publisher(
                port, f"p{n}", qos=1 + n % 2, version=4 + n // 2, rate=RATE, is_paced=True
            )
            for n in range(4)
        ]  # fmt: skip
        foreign = [PahoPublisher(port, f"paho-p{each}", protocol=each) for each in PROTOCOLS]
        for publisher in foreign:
            publisher.pause_s = PAHO_PAUSE_S
        self._subscribers: Final[list[Subscriber]] = [
            Subscriber(port, "s1", qos=1, version=4, seed=seed),
            Subscriber(port, "s2", qos=2, version=5, seed=seed + 1),
            Sleeper(port, "away1", qos=1, version=5, seed=seed + 2),
            Sleeper(port, "away2", qos=2, version=4, seed=seed + 3),
            Rivals(port, "rival", qos=2, version=5, seed=seed + 4),
        ]
        for number, (kind, group, qos) in enumerate(MEMBERS):
            member = kind(
                port, f"{group}{number}", qos=qos, version=5, seed=seed + 10 + number,
                topic_filter=f"$share/{group}/load/#",
            )  # fmt: skip
            self._subscribers.append(member)
        self._readers: Final = [
            PahoSubscriber(port, f"paho-s{each}", qos=2, protocol=each) for each in PROTOCOLS
        ]
        self._watcher: Final = Subscriber(
            port, "watcher", qos=2, version=5, seed=seed + 20, topic_filter="will/#"
        )
        self._makers: Final = [Testator(front, f"t{n}", seed=seed + 30 + n) for n in range(3)]
        self._parties: Final[list[Party]] = [
            *self._makers,
            *(Keeper(port, f"k{n}", seed=seed + 40 + n) for n in range(2)),
            *(Fickle(port, f"f{n}", seed=seed + 50 + n) for n in range(2)),
        ]
        self._ours: Final = ours
        self._publishers: Final[list[PublisherBooks]] = [*ours, *foreign]
        self._foreign: Final = foreign
        for each in (*ours, *self._subscribers, self._watcher, *self._parties):
            each.gone, each.retry_s = PATIENT, RETRY_S
        for party in self._parties:
            party.end_s = DRAIN_S

    def start(self) -> None:
        """Let everybody begin; subscribers first."""
        everybody = (*self._subscribers, self._watcher, *self._readers)
        for subscriber in everybody:
            subscriber.start()
        for subscriber in everybody:
            assert subscriber.ready.wait(READY_S), subscriber.violations
        for client in (*self._ours, *self._foreign, *self._parties):
            client.start()

    def acknowledged(self) -> int:
        """Return how many messages were acknowledged."""
        return sum(len(publisher.acknowledged) for publisher in self._publishers)

    def delivered(self) -> int:
        """Return how many messages arrived, all subscribers together."""
        books: list[SubscriberBooks] = [*self._subscribers, *self._readers]
        return sum(len(each.received) for each in books)

    def kept(self) -> Counter[str]:
        """Return how many other promises were seen kept: of wills, retained messages and so on."""
        found: Counter[str] = Counter()
        for party in self._parties:
            found[type(party).__name__] += party.kept
        return found

    def violations(self) -> list[str]:
        """Return what clients have noticed until now."""
        everybody = (*self._publishers, *self._subscribers, *self._readers, self._watcher)
        found = [each for client in everybody for each in client.violations]
        return found + [each for party in self._parties for each in party.violations]

    def finish(self) -> list[str]:
        """End everybody and return what went wrong."""
        for party in self._parties:
            party.finish()
        readers: list[SubscriberBooks] = [*self._subscribers, *self._readers]
        self._drain(readers)
        finish(self._publishers, readers, seconds=0.0)
        faults = verdict(self._publishers, readers)
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline and any(t.unpaid(self._wills(t)) for t in self._makers):
            time.sleep(LOOK_S)
        self._watcher.finish()
        self._watcher.join(DRAIN_S)
        faults += self._watcher.violations
        for maker in self._makers:
            faults += maker.verdict(self._wills(maker))
        return faults + [fault for party in self._parties for fault in party.violations]

    def _drain(self, readers: Sequence[SubscriberBooks]) -> None:
        """Wait until all has arrived; on a busy machine a backlog may take long, but it moves."""
        for publisher in self._publishers:
            publisher.finish()
        for publisher in self._publishers:
            publisher.join(DRAIN_S)
        count, moved = -1, time.monotonic()
        while time.monotonic() - moved < DRAIN_S and not is_complete(self._publishers, readers):
            if self.delivered() != count:
                count, moved = self.delivered(), time.monotonic()
            time.sleep(DRAIN_LOOK_S)

    def _wills(self, maker: WillMaker) -> dict[int, int]:
        received = list(self._watcher.received)
        return Counter(number for topic, number, _ in received if topic == maker.topic)


class Pauses(threading.Thread):
    """Looks how long nothing is acknowledged; `longest` since `begin`."""

    def __init__(self, crowd: Crowd) -> None:
        super().__init__(name="pauses", daemon=True)
        self._crowd: Final = crowd
        self._ends: Final = threading.Event()
        self._count: int = 0
        self._changed_s: float = time.monotonic()
        self._longest_s: float = 0.0

    def begin(self) -> None:
        """Measure from now on."""
        self._changed_s = time.monotonic()
        self._longest_s = 0.0

    def longest_s(self) -> float:
        """Return the longest time without an acknowledgement since `begin`."""
        return max(self._longest_s, time.monotonic() - self._changed_s)

    def run(self) -> None:
        """Look until closed."""
        while not self._ends.wait(LOOK_S):
            count, now = self._crowd.acknowledged(), time.monotonic()
            if count != self._count:
                self._count = count
                self._longest_s = max(self._longest_s, now - self._changed_s)
                self._changed_s = now

    def close(self) -> None:
        """End the thread."""
        self._ends.set()
        self.join()
