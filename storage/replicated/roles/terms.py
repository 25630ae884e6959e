"""What a replica is given and what it tells: settings, its ports, its roles and its news.

Pure. Read next: `storage.replicated.replica`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from storage.replicated.batch_codec import Operation
from storage.replicated.record import Position

FOLLOWS: Final = "follower"
CLAIMS: Final = "candidate"
LEADS: Final = "leader"
DEPOSED: Final = "deposed"  # the process must begin anew
BROKEN: Final = "broken"  # needs a copy of another node's database


@dataclass(frozen=True, slots=True)
class Settings:
    """Who and how often; times in milliseconds."""

    node: str
    members: tuple[str, ...]
    address: str = ""  # where clients find this node
    takeover_ms: int = 3000  # silence of the leader before a claim
    heartbeat_ms: int = 500
    presence_ms: int = 1000
    lease_ms: int = 3000  # a leader that has not heard the log for so long says so
    trim_ms: int = 30_000  # how often the leader deletes what nobody needs
    keep_ms: int = 3_600_000  # for so long it keeps what a member needs that is away
    resend_ms: int = 2000  # the leader appends again what did not count for so long
    part_bytes: int = 512 << 10  # of a batch in one record
    anchor_every: int = 256  # records between two anchors
    accepts_data_loss: bool = False  # lead after a cold start without having heard every member


@dataclass(frozen=True, slots=True)
class Anchor:
    """The record at `place` ends the chain up to `position`; the beginning of a log has none."""

    position: Position
    place: int


class Database(Protocol):
    """What a replica does to the state of its node."""

    def apply(self, operations: Sequence[Operation], position: Position, place: int) -> None:
        """Apply a batch, and note in the same write which record ended it, and its place."""
        ...

    def remember(self, anchors: Sequence[Anchor], *, is_synced: bool = False) -> None:
        """Note these in place of earlier ones; they may be lost in a crash if it is not synced."""
        ...


class Tail(Protocol):
    """The records that this node keeps itself, by index."""

    def append(self, index: int, data: bytes) -> None:
        """Keep a record, of a greater index than all others.

        It is synced when `Replica.tail_synced` is told so, by followers too.
        """
        ...

    def drop_from(self, index: int) -> None:
        """Forget the records from `index` on. No sync that began earlier is told of any more."""
        ...

    def read_from(self, index: int) -> Iterator[tuple[int, bytes]]:
        """Return the records from `index` on, or from the first one that is still kept."""
        ...


@dataclass(frozen=True, slots=True)
class Leads:
    """This node leads from now on; its database has everything before."""

    epoch: int
    # The time of the last leader when it was heard last, 0 = it was never heard. A leader before it
    # may have been, but its clock was ahead by what the last leader had not heard of it.
    alive_ms: int
    silent_ms: int  # for how long it is silent, at least; without a word: since its last batch
    # Was it heard while it led? Otherwise it was silent for longer, and nobody here knows how long.
    is_timed: bool = True


@dataclass(frozen=True, slots=True)
class Deposed:
    """Another node leads: nothing may be released any more."""

    leader: str
    address: str


@dataclass(frozen=True, slots=True)
class Committed:
    """The leader's batch that the record at `place` ends is committed, and all before it."""

    position: Position
    place: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something an operator must know; one sentence. "" = it is over."""

    why: str


Told: TypeAlias = Leads | Deposed | Committed | Trouble
