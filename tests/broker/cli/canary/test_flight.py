"""A canary in flight at a real broker: nothing to say over a crash, and a lost session is named."""

import shutil
import time
from collections.abc import Callable

from broker.cli.canary.client import Server
from broker.cli.canary.flight import FRESH, NAP_ROUNDS, READER, SLEEPER, Flight
from mqtt.packets import Publish
from tests.durability.process import BrokerProcess

Start = Callable[..., BrokerProcess]
PATIENCE_S = 60.0


class Told:
    """A flight, and what it says."""

    def __init__(self, port: int) -> None:
        self.lines: list[str] = []
        self.flight = Flight(
            Server("127.0.0.1", port, None, None, None), "run", "canary", None, time.monotonic,
            interval_s=0.01, timeout_s=PATIENCE_S, say=self.lines.append,
        )  # fmt: skip

    def turn_until(self, what: Callable[[], bool], *, publishes: bool = True) -> None:
        """Fly until something is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline, self.lines
            self.flight.turn(publishes=publishes)

    def settle(self) -> None:
        """Wait for all that is under way."""
        self.flight.wake()
        self.turn_until(lambda: self.flight.is_done, publishes=False)

    def land(self) -> None:
        """Wait for all that is under way, and end."""
        self.settle()
        self.flight.end()


def test_a_crash_loses_nothing_and_is_told_as_lost_connections(start: Start) -> None:
    broker = start()
    told = Told(broker.port)
    told.turn_until(lambda: told.flight.rounds >= 2 * NAP_ROUNDS)
    broker.crash()
    told.turn_until(lambda: told.flight.rounds >= 6 * NAP_ROUNDS)
    told.land()
    assert [line for line in told.lines if line.startswith("PROBLEM")] == []
    sums = told.flight.books.sums
    assert sums.published == sums.acknowledged == 2 * told.flight.rounds
    assert sums.received >= 2 * sums.published  # a crash may double one at QoS 1
    assert told.flight.outages >= 1
    assert any(line.endswith(" s") and "connected again after" in line for line in told.lines)
    assert all(client.socket is None for client in told.flight._clients.values())


def test_a_session_that_the_broker_has_forgotten_and_a_double_are_problems(start: Start) -> None:
    broker = start()
    told = Told(broker.port)
    told.turn_until(lambda: told.flight.rounds >= 1)
    told.settle()
    again = Publish("canary/run/q2", b"1", 2, packet_id=9)
    told.flight._clients[READER].on_message(again)
    assert told.lines == ["PROBLEM reader: message 1 at QoS 2 came twice"]
    broker.kill()
    shutil.rmtree(broker.data_dir)
    broker.start()
    named = "PROBLEM reader: the session is lost: Session Present was 0"
    told.turn_until(lambda: named in told.lines, publishes=False)
    told.flight.end()


def test_a_retained_message_that_is_older_or_missing_is_a_problem(start: Start) -> None:
    told = Told(start().port)
    told.turn_until(lambda: told.flight._asked_kept is not None)
    told.flight._asked_kept = (5, 0.0)
    told.flight._clients[FRESH].on_message(Publish("canary/run/kept", b"4", 1, packet_id=1))
    assert told.lines == ["PROBLEM the retained message was number 4, not 5"]
    told.flight._asked_kept = (6, 0.0)
    told.flight._clients[FRESH].connected_at = -2 * PATIENCE_S
    told.flight._check_kept()
    assert told.lines[1:] == ["PROBLEM retained message 6 was not served in 60 s"]
    told.flight.end()


def test_the_sleeper_comes_and_goes(start: Start) -> None:
    told = Told(start().port)
    sleeper = told.flight._clients[SLEEPER]
    told.turn_until(lambda: told.flight.rounds > 0)
    told.turn_until(lambda: sleeper.socket is None)
    told.turn_until(lambda: sleeper.socket is not None)
    assert sleeper.session_present
    told.land()
    assert told.lines == []
