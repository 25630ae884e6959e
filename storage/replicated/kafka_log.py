"""The shared log as one partition of one topic of Apache Kafka.

The topic keeps what was acknowledged on as many machines as its `min.insync.replicas` says, and
shows to readers only what all in-sync replicas have (`storage.replicated.kafka.topic` checks that).
Two threads talk to Kafka; the event loop is told through a descriptor. Read next:
`storage.replicated.kafka.sender`, `storage.replicated.kafka.reader`.
"""

from typing import Final

from storage.replicated.kafka.client import Access
from storage.replicated.kafka.inbox import Inbox
from storage.replicated.kafka.reader import Reader
from storage.replicated.kafka.sender import OUTCOME_MS, Sender
from storage.replicated.log_port import Event
from storage.time import machine_clocks

CLOSE_S: Final = 5.0  # for each of the two threads


class KafkaLog:
    """A `storage.replicated.log_port.ReplicatedLog`, read from `place` on. Tokens are unique."""

    def __init__(
        self, access: Access, topic: str, *, place: int, outcome_ms: int = OUTCOME_MS
    ) -> None:
        self._inbox: Final = Inbox(machine_clocks.boottime_ms)
        self._sender: Final = Sender(access, topic, self._inbox, outcome_ms=outcome_ms)
        self._reader: Final = Reader(
            access, topic, place, self._inbox, machine_clocks.boottime_ms, self._sender.renew
        )
        self._sender.start()
        self._reader.start()

    def fileno(self) -> int:
        """Return the descriptor that is readable while there is something to take."""
        return self._inbox.fileno()

    def append(self, data: bytes, token: int | None = None) -> None:
        """Send a record. The outcome comes as `Acked` or `Unknown` if a token is given."""
        self._sender.append(data, token)

    def take(self) -> list[Event]:
        """Return what happened since the last call, in order."""
        return self._inbox.take()

    def read_from(self, place: int) -> None:
        """Read on from `place`; what was to be taken from behind it comes again."""
        self._reader.read_from(place)

    def delete_before(self, place: int) -> None:
        """Delete what is before `place`, some time."""
        self._reader.watch.delete_before(place)

    @property
    def said(self) -> str:
        """What is wrong with reading, in a line; "" = nothing is known to be."""
        return self._reader.said

    @property
    def refusal(self) -> str:
        """Why nothing is appended for some seconds although it is tried, "" = that is not so."""
        return self._sender.refusal

    def close(self) -> None:
        """End the threads; outcomes that were not taken are unknown. Takes at most 10 s."""
        self._sender.close(CLOSE_S)
        self._reader.close(CLOSE_S)
        self._inbox.close()
