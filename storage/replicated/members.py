"""What a node knows of the others: how far each one's records reach, and who may lead.

Each node tells of itself now and then, by a record that is not part of the chain. What an earlier
process of a node said does not count, so a node believes only what it reads behind the first word
of its own. Pure. Read next: `storage.replicated.replica`.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from storage.replicated.record import NotARecord, Record

BODY: Final = struct.Struct(">16sQQ")
NONCE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Presence:
    """What a node says of itself."""

    nonce: bytes  # of its process
    longest: int  # index of its last record, those that it only has in its own tail included
    reached: int  # index of its last record that it has read from the log
    durable: int  # the index to which its database is synced
    address: str  # where clients find it, "" = nobody said

    def encode(self) -> bytes:
        """Return the body of a record."""
        return BODY.pack(self.nonce, self.longest, self.durable) + self.address.encode()


def decode(record: Record) -> Presence:
    """Return what the record of a node says. Raises `NotARecord`."""
    if len(record.body) < BODY.size:
        raise NotARecord(f"presence of {len(record.body)} bytes, expected {BODY.size} or more")
    nonce, longest, durable = BODY.unpack_from(record.body)
    try:
        address = record.body[BODY.size :].decode()
    except UnicodeDecodeError:
        raise NotARecord("the node's address is not UTF-8") from None
    return Presence(nonce, longest, record.index, durable, address)


class Members:
    """The presences that one node has read since it began."""

    def __init__(self, node: str, members: Sequence[str], nonce: bytes) -> None:
        """`members` are the names of all nodes, this one included."""
        self._node: Final = node
        self._members: Final = tuple(sorted(set(members) | {node}))
        self._nonce: Final = nonce
        self._was_heard = False  # has this node read its own first word?
        self.heard: Final[dict[str, Presence]] = {}

    @property
    def rank(self) -> int:
        """Return the place of this node among all, from 0: who is before it tries earlier."""
        return self._members.index(self._node)

    def take(self, node: str, presence: Presence) -> None:
        """Take what a node said of itself, in the order of the log."""
        if node == self._node:
            self._was_heard = self._was_heard or presence.nonce == self._nonce
        elif self._was_heard:
            self.heard[node] = presence

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all members, sorted."""
        return self._members

    @property
    def are_heard(self) -> bool:
        """Return whether what is read now was written since this process began."""
        return self._was_heard

    def missing(self) -> list[str]:
        """Return the members that said nothing since this node's own first word."""
        if not self._was_heard:
            return list(self._members)
        return [name for name in self._members if name != self._node and name not in self.heard]

    def ahead_of(self, longest: int) -> list[str]:
        """Return the members that have more than `longest` records, counted or not."""
        return sorted(name for name, each in self.heard.items() if each.longest > longest)

    def have_read_beyond(self, reached: int) -> list[str]:
        """Return the members that have read more than `reached` records from the log."""
        return sorted(name for name, each in self.heard.items() if each.reached > reached)

    def twice_durable(self, durable: int) -> int:
        """Return the index up to which two nodes have a synced database, this one at `durable`."""
        others = [each.durable for each in self.heard.values()]
        return min(durable, max(others, default=0))

    def address(self, node: str) -> str:
        """Return where clients find a node, "" = not known."""
        found = self.heard.get(node)
        return "" if found is None else found.address

    def __iter__(self) -> Iterator[tuple[str, Presence]]:
        return iter(sorted(self.heard.items()))
