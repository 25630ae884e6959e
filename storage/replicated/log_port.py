"""The port between a replica and the log that all nodes share.

The log is one sequence of records, kept on several machines. Whoever appends learns of the outcome
later, or never: then the record may be in the log or not. What is read is kept on as many machines
as the log promises and is read in the same order by everybody. Implementations:
`storage.replicated.kafka_log` (one partition of a Kafka topic) and `tests.replication.log` (that of
the simulation). Read next: `storage.replicated.replica`.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Read:
    """The record at `place`. Places grow, but not without gaps."""

    place: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Everything before `end` was read, and a moment ago nothing more was in the log."""

    end: int


@dataclass(frozen=True, slots=True)
class Acked:
    """What was appended with `token` is at `place`; it and all before it are on enough machines."""

    token: int
    place: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """What was appended with `token` may be in the log or not, or it is not known where."""

    token: int
    why: str


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The log ends at `end` now, or did so for a while, and was longer before: it has lost records.

    It is told before anything is read, or that nothing is there, that came in place of the lost.
    What was lost may begin before `end`: the log may have got other records since.
    """

    end: int
    start: int = 0  # where it begins


@dataclass(frozen=True, slots=True)
class Missing:
    """Records from where this node must read are deleted; the log begins at `start`."""

    start: int


Event: TypeAlias = Read | CaughtUp | Acked | Unknown | Shrunk | Missing


class ReplicatedLog(Protocol):
    """One shared log, as one node uses it. Never blocks."""

    def append(self, data: bytes, token: int | None = None) -> None:
        """Send a record. The outcome comes as `Acked` or `Unknown` if a token is given.

        Records of one node reach the log in the order of their calls, but some may be missing.
        """
        ...

    def take(self) -> list[Event]:
        """Return what happened since the last call, in order."""
        ...

    def read_from(self, place: int) -> None:
        """Read on from `place`; what was to be taken from behind it comes again."""
        ...

    def delete_before(self, place: int) -> None:
        """Delete what is before `place`, some time."""
        ...
