"""A healthy broker under a steady load: what it reports, and which alerts fire. None may.

    python -m tests.broker.observe.healthy --minutes 60

Runs a broker as it is installed, with clients that publish, subscribe, share a subscription, come
and go, are away for a while, vanish and have wills. Scrapes its metrics every 15 seconds, as
Prometheus would, and has Prometheus' own rules engine evaluate the alerts over them. Exits with 1
and what promtool says if one fires. Read next: `tests.broker.observe.test_alerts`, which makes
hours of a few seconds.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mqtt.packets import Will
from tests.broker.observe.alert_rules import judge
from tests.durability.process import BrokerProcess, holdfast
from tests.durability.rawclient import RawClient

SCRAPE_S: Final = 15
ROUND_S: Final = 1.0
PUBLISHERS: Final = 5
MESSAGES: Final = 10  # of each publisher, a round
AWAY_ROUNDS: Final = 20  # a client is away for so long, then fetches what waited
COMES_EVERY: Final = 5  # rounds, for clients that come for a moment
MISSING: Final = "_"


class Fleet:
    """The clients of a healthy broker; all they get is checked."""

    def __init__(self, port: int) -> None:
        self._port: Final = port
        self._rounds = 0
        self._publishers = [RawClient(port, f"sensor-{n}") for n in range(PUBLISHERS)]
        for publisher in self._publishers:
            publisher.connect()
        self._reader = self._subscribed("archive", "telemetry/#")
        self._workers = [self._subscribed(f"w{n}", "$share/night/telemetry/#") for n in range(2)]
        self._boat = self._subscribed("boat", "telemetry/0")
        self._boat.disconnect()
        self._waiting = 0  # for the boat

    def _subscribed(self, client_id: str, topic_filter: str) -> RawClient:
        client = RawClient(self._port, client_id)
        client.durable()
        client.subscribe(topic_filter, qos=1)
        return client

    def play(self) -> None:
        """Play one round."""
        self._rounds += 1
        for number, publisher in enumerate(self._publishers):
            for count in range(MESSAGES):
                topic, payload = f"telemetry/{number}", b"%d" % count * 50
                publisher.publish(topic, payload, qos=2 if count == 0 else 1, retain=count == 1)
        self._waiting += MESSAGES
        expected = PUBLISHERS * MESSAGES
        self._reader.take(expected)
        shared = sum(len(worker.take_all(idle=0.05)) for worker in self._workers)
        while shared < expected:
            shared += sum(len(worker.take_all(idle=0.2)) for worker in self._workers)
        if self._rounds % AWAY_ROUNDS == 0:
            self._boat = RawClient(self._port, "boat")
            self._boat.resume()
            self._boat.take(self._waiting)
            self._boat.disconnect()
            self._waiting = 0
        if self._rounds % COMES_EVERY == 0:
            self._come_and_go()
        for client in (*self._publishers, self._reader, *self._workers):
            client.trace.clear()

    def _come_and_go(self) -> None:
        visitor = RawClient(self._port, "")
        visitor.connect()
        visitor.subscribe("telemetry/+", qos=0)
        visitor.take(PUBLISHERS)  # what is retained
        visitor.disconnect()
        lost = RawClient(self._port, "lost")
        lost.connect(will=Will("status/lost", b"gone", 1, False, 0))
        lost.drop(reset=True)

    def leave(self) -> None:
        """Let all go."""
        for client in (*self._publishers, self._reader, *self._workers):
            client.disconnect()


class Scrapes:
    """What a broker has reported, as series of Prometheus."""

    def __init__(self) -> None:
        self._values: Final[dict[str, list[str]]] = {}
        self.count = 0

    def take(self, broker: BrokerProcess) -> None:
        """Scrape once."""
        samples = broker.metrics() | {"up": 1.0}
        for sample, value in samples.items():
            values = self._values.setdefault(sample, [MISSING] * self.count)
            values.append(f"{value:.17g}")
        self.count += 1
        for values in self._values.values():
            values += [MISSING] * (self.count - len(values))

    def series(self) -> dict[str, str]:
        """Return the values of each sample, in the notation of promtool."""
        return {sample: " ".join(values) for sample, values in self._values.items()}


@contextmanager
def running(directory: Path) -> Iterator[BrokerProcess]:
    """Run a broker as it is installed."""
    broker = holdfast(directory).start()
    try:
        yield broker
    finally:
        broker.close()


def observe(directory: Path, seconds: float) -> Scrapes:
    """Run a broker with its clients for this long; return what it has reported meanwhile."""
    scrapes = Scrapes()
    with running(directory) as broker:
        fleet = Fleet(broker.port)
        began = time.monotonic()
        due, scrape_due = began, began
        while (now := time.monotonic()) < began + seconds or scrapes.count < 3:
            if now >= scrape_due:
                scrapes.take(broker)
                scrape_due += SCRAPE_S
            fleet.play()
            due = max(due + ROUND_S, time.monotonic() - ROUND_S)
            time.sleep(max(0.0, due - time.monotonic()))
        fleet.leave()
    return scrapes


def judge_healthy(directory: Path, scrapes: Scrapes) -> None:
    """Check that no alert fires at any scrape. Raises `AssertionError`."""
    moments: dict[int, list[str]] = {number * SCRAPE_S: [] for number in range(scrapes.count)}
    judge(directory, scrapes.series(), moments, interval_s=SCRAPE_S)


def main() -> int:
    """Run for the time that the command line says; return 1 if an alert fires."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    minutes: float = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        scrapes = observe(directory, minutes * 60)
        try:
            judge_healthy(directory, scrapes)
        except AssertionError as problem:
            sys.stderr.write(f"{problem}\n")
            return 1
    told = len(scrapes.series())
    sys.stdout.write(f"{scrapes.count} scrapes of {told} series: no alert fires\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
