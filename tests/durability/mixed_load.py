"""A load of many kinds of clients at once, for tests that kill the broker again and again.

`MixedLoad` keeps exact books: whatever they show as lost, doubled or out of order is a fault.
`Churn` keeps none: it makes sessions, wills and retained messages come and go.
"""

import random
import threading
import time
from typing import Final

import paho.mqtt.client as paho

from mqtt.packets import Publish, Will
from tests.durability.foreign import PahoPublisher, PahoSubscriber
from tests.durability.load import (
    RETRY_SECONDS,
    Publisher,
    PublisherBooks,
    Subscriber,
    SubscriberBooks,
    finish,
    verdict,
)
from tests.durability.rawclient import Closed, RawClient

RATE: Final = 250  # messages a second of each publisher
DRAIN_SECONDS: Final = 60.0
PROTOCOLS: Final = (paho.MQTTv311, paho.MQTTv5)
CHURN_NAMES: Final = 40  # client ids and retained topics that the churn uses


class MixedLoad:
    """Six publishers, and eight durable subscribers of which two are a shared group."""

    def __init__(self, port: int, seed: int, *, rate: int = RATE) -> None:
        """Make the clients; each of our publishers sends `rate` messages a second."""
        ours = [
            Publisher(port, f"p{number}", qos=1 + number % 2, version=4 + number // 2, rate=rate)
            for number in range(4)
        ]
        subscribers = [
            Subscriber(port, f"s{n}", qos=1 + n % 2, version=4 + n // 2, seed=seed * 100 + n)
            for n in range(4)
        ]
        members = [
            Subscriber(
                port,
                f"g{n}",
                qos=2,
                version=5,
                seed=seed * 100 + 10 + n,
                topic_filter="$share/group/load/#",
            )
            for n in range(2)
        ]
        self.foreign_publishers = [
            PahoPublisher(port, f"paho-p{protocol}", protocol=protocol) for protocol in PROTOCOLS
        ]
        self.foreign_subscribers = [
            PahoSubscriber(port, f"paho-s{protocol}", qos=2, protocol=protocol)
            for protocol in PROTOCOLS
        ]
        self.publishers: list[PublisherBooks] = [*ours, *self.foreign_publishers]
        self.subscribers: list[SubscriberBooks] = [
            *subscribers,
            *members,
            *self.foreign_subscribers,
        ]
        self._to_start = [*subscribers, *members, *self.foreign_subscribers]
        self._then = [*ours, *self.foreign_publishers]

    def start(self) -> None:
        """Let the subscribers subscribe, then begin to publish."""
        for subscriber in self._to_start:
            subscriber.start()
        for subscriber in self._to_start:
            assert subscriber.ready.wait(30.0), subscriber.violations
        for publisher in self._then:
            publisher.start()

    def finish(self) -> list[str]:
        """End the load and return what went wrong."""
        finish(self.publishers, self.subscribers, seconds=DRAIN_SECONDS)
        return verdict(self.publishers, self.subscribers)

    def acknowledged(self) -> int:
        """Return how many messages were acknowledged."""
        return sum(len(publisher.acknowledged) for publisher in self.publishers)


class Churn(threading.Thread):
    """A client after the other: takeovers, wills, retained messages, short and dropped sessions."""

    def __init__(self, port: int, seed: int) -> None:
        """Make the thread; `violations` says what a correct broker would not have done."""
        super().__init__(name="churn", daemon=True)
        self.violations: list[str] = []
        self.lives: int = 0  # connections that the broker accepted
        self._port = port
        self._random = random.Random(seed)
        self._finish = threading.Event()

    def finish(self) -> None:
        """End the thread and wait for it."""
        self._finish.set()
        self.join(30.0)

    def run(self) -> None:
        """Live one short life after the other until finished."""
        while not self._finish.is_set():
            try:
                self._live()
                self.lives += 1
            except (Closed, OSError):
                time.sleep(RETRY_SECONDS)
            except AssertionError as error:
                self.violations.append(f"churn: {error}")
                break

    def _live(self) -> None:
        rng = self._random
        number = rng.randrange(CHURN_NAMES)
        topic = f"churn/{number}"
        client = RawClient(self._port, f"churn-{number}", version=5)
        will = Will(topic, b"gone", qos=rng.randrange(3), retain=rng.random() < 0.5)
        client.connect(
            clean_start=rng.random() < 0.3,
            expiry=rng.choice((0, 2, 10)),
            will=will if rng.random() < 0.5 else None,
        )
        if rng.random() < 0.5:
            client.subscribe(rng.choice(("load/#", "churn/+", "load/p1/#")), qos=rng.randrange(3))
        if rng.random() < 0.5:
            payload = rng.choice((b"", b"here"))
            client.send(Publish(topic, payload, qos=0, retain=True))
        if rng.random() < 0.3:
            heir = RawClient(self._port, client.client_id, version=5)
            heir.connect(clean_start=False, expiry=2)
            client.expect_closed()
            heir.drop(reset=rng.random() < 0.5)
        client.drop(reset=rng.random() < 0.5)
