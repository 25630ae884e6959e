"""A night on call: a real broker with a situation in it, and somebody who has to find his way.

A `Solver` answers with one tool alone: the command line, or the dashboard. It knows what the
operator knows, which is the question. Read next: `tests.nights.tasks`, the situations, and
`tests.nights.by_command`, which solves them by the command line.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Final, Protocol

from mqtt.packets import Puback
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import Closed, RawClient

PATIENCE_S: Final = 60.0
QUOTA_EXCEEDED: Final = 0x97


class Solver(Protocol):
    """An operator at night with one tool. Each method is a question that somebody asks."""

    def who_is_owed_most(self) -> str:
        """Who holds the backlog? Return the client id."""
        ...

    def what_waits_for(self, client_id: str) -> list[tuple[str, bytes]]:
        """What waits for this client? Return topics and payloads, in their order."""
        ...

    def what_a_restart_loses(self) -> tuple[list[str], int]:
        """Is a restart safe? Return what is against it, and how many sessions end with it."""
        ...

    def make_room(self) -> None:
        """Publishers are refused, the disk is full: let them publish again."""
        ...

    def why_refused(self, client_id: str) -> str:
        """Why does this client not get in? Return the reason, in words."""
        ...

    def who_floods(self) -> str:
        """Who publishes so much? Return the client id."""
        ...

    def keep_away(self, client_id: str) -> None:
        """End the connection of this client, and do not let it in for an hour."""
        ...

    def who_is_away_longest(self) -> str:
        """Which session has waited longest for its client? Return the client id."""
        ...

    def end_session(self, client_id: str) -> None:
        """End a session whose client will never come back."""
        ...

    def why_lost(self, client_id: str, topic: str) -> str:
        """This client says that it lost messages on this topic. Return why, in words."""
        ...


class Night:
    """A running broker, and its clients."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker: Final = broker
        self._ended: Final = threading.Event()
        self._threads: Final[list[threading.Thread]] = []

    def connected(self, client_id: str) -> RawClient:
        """Return a client with a clean session."""
        client = RawClient(self.broker.port, client_id)
        client.connect()
        return client

    def away(self, client_id: str, *topic_filters: str) -> None:
        """Leave a session behind."""
        client = RawClient(self.broker.port, client_id)
        client.durable()
        client.subscribe(*topic_filters, qos=1)
        client.disconnect()

    def let_a_second_pass(self) -> None:
        """Wait until a time in whole seconds is another one."""
        self._ended.wait(1.1)

    def publish(self, topic: str, *payloads: bytes) -> None:
        """Publish messages; on return they are stored."""
        publisher = self.connected("")
        for payload in payloads:
            publisher.publish(topic, payload)
        publisher.disconnect()

    def is_taken(self, publisher: RawClient, topic: str, payload: bytes) -> bool:
        """Publish a message; return whether the broker has taken it."""
        publisher.publish_begin(topic, payload)
        answer = publisher.expect(Puback, timeout=PATIENCE_S)
        assert answer.reason_code in (0, QUOTA_EXCEEDED)
        return answer.reason_code == 0

    def again_and_again(self, act: Callable[[], None], pause_s: float) -> None:
        """Let a client do something until the night ends, as devices do, whatever it meets."""

        def go_on() -> None:
            while not self._ended.wait(pause_s):
                with contextlib.suppress(Closed, AssertionError, OSError):
                    act()

        self._threads.append(threading.Thread(target=go_on, daemon=True))
        self._threads[-1].start()

    def end(self) -> None:
        """Let all clients go."""
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
