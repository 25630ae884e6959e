"""What a node knows of the others: how far each one's records reach, and who may lead.

Each node tells of itself now and then, by a record that is not part of the chain. What an earlier
process of a node said does not count, so a node believes only what it reads behind the first word
of its own. Pure. Read next: `storage.replicated.replica`.
"""

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from storage.replicated.record import NotARecord, Record

BODY: Final = struct.Struct(">16sQQQ")
NONCE_BYTES: Final = 16
# So often another process says that it is this node before it is believed: one that was killed may
# have had a word or two on its way.
TWINS_MIN: Final = 3

# How far a chain of records reaches: epoch and index. The epoch counts first: what an old leader
# wrote to its own tail may be long, and none of it may ever have counted.
Reach: TypeAlias = tuple[int, int]
# Of a node that began with nothing, or with a copy: it may have known more than it has now. No
# record is there, as epochs begin with 1; a node that never had any record says (0, 0).
UNKNOWN: Final[Reach] = (0, 1)


@dataclass(frozen=True, slots=True)
class Presence:
    """What a node says of itself."""

    nonce: bytes  # of its process
    # Its last record, those that it only has in its own tail included, or `UNKNOWN`.
    longest: Reach
    reached: Reach  # its last record that it has read from the log
    durable: int  # the index to which its database is synced
    address: str  # where clients find it, "" = nobody said

    def encode(self) -> bytes:
        """Return the body of a record."""
        return BODY.pack(self.nonce, *self.longest, self.durable) + self.address.encode()


def decode(record: Record) -> Presence:
    """Return what the record of a node says. Raises `NotARecord`."""
    if len(record.body) < BODY.size:
        raise NotARecord(f"presence of {len(record.body)} bytes, expected {BODY.size} or more")
    nonce, epoch, index, durable = BODY.unpack_from(record.body)
    try:
        address = record.body[BODY.size :].decode()
    except UnicodeDecodeError:
        raise NotARecord("the node's address is not UTF-8") from None
    return Presence(nonce, (epoch, index), (record.epoch, record.index), durable, address)


class Members:
    """The presences that one node has read since it began."""

    def __init__(self, node: str, members: Sequence[str], nonce: bytes) -> None:
        """`members` are the names of all nodes, this one included."""
        self._node: Final = node
        self._members: Final = tuple(dict.fromkeys((*members, node)))
        self._nonce: Final = nonce
        self._first_word: int | None = None  # its place, None = not read yet
        self._twins: Final[Counter[bytes]] = Counter()  # words of other processes of this name
        self.heard: Final[dict[str, Presence]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all members, in the order in which they take over."""
        return self._members

    @property
    def rank(self) -> int:
        """Return the place of this node among all, from 0: who is before it tries earlier."""
        return self._members.index(self._node)

    def take(self, node: str, presence: Presence, place: int) -> None:
        """Take what a node said of itself at a place of the log."""
        if node != self._node:
            if self.is_new(place):
                self.heard[node] = presence
        elif presence.nonce != self._nonce:
            self._twins[presence.nonce] += self.is_new(place)
        elif self._first_word is None:
            self._first_word = place

    def is_new(self, place: int) -> bool:
        """Return whether what is at this place was written since this process began."""
        return self._first_word is not None and place > self._first_word

    @property
    def has_twin(self) -> bool:
        """Return whether another process says that it is this node."""
        return any(count >= TWINS_MIN for count in self._twins.values())

    def shrunk(self, end: int) -> None:
        """Forget what was heard if the log lost this node's first word."""
        if self._first_word is not None and self._first_word >= end:
            self._first_word = None
            self.heard.clear()
            self._twins.clear()

    @property
    def strangers(self) -> list[str]:
        """Return who says to be a member and is none: the lists of two nodes are not the same."""
        return sorted(name for name in self.heard if name not in self._members)

    def missing(self) -> list[str]:
        """Return the members that said nothing since this node's own first word."""
        if self._first_word is None:
            return list(self._members)
        return [name for name in self._members if name != self._node and name not in self.heard]

    def forgetful(self) -> list[str]:
        """Return the members that began with nothing or a copy: nobody knows what they had."""
        return sorted(name for name, each in self.heard.items() if each.longest == UNKNOWN)

    def ahead_of(self, longest: Reach) -> list[str]:
        """Return the members whose records reach further than `longest`, counted or not."""
        known = {name: e.longest for name, e in self.heard.items() if e.longest != UNKNOWN}
        return sorted(name for name, theirs in known.items() if theirs > longest)

    def have_read_beyond(self, reached: Reach) -> list[str]:
        """Return the members that have read records from the log beyond `reached`."""
        return sorted(name for name, each in self.heard.items() if each.reached > reached)

    def twice_durable(self, durable: int) -> int:
        """Return the index up to which two nodes have a synced database, this one at `durable`."""
        others = [each.durable for each in self.heard.values()]
        return min(durable, max(others, default=0))

    def durable(self, node: str) -> int:
        """Return the index up to which the database of another node is synced, as far as known."""
        found = self.heard.get(node)
        return 0 if found is None else found.durable

    def address(self, node: str) -> str:
        """Return where clients find a node, "" = not known."""
        found = self.heard.get(node)
        return "" if found is None else found.address

    def __iter__(self) -> Iterator[tuple[str, Presence]]:
        return iter(sorted(self.heard.items()))
