"""The chain of a node's segments: each footer names the rows of its file and the file before it.

    head = SHA-256 of the text "holdfast chain 1", node, boot, first seq, last seq, number of rows,
           digest of the rows, head of the segment before; each followed by a line feed

Segments of a node are ordered by boot and first seq; the first one of a boot follows the last one
of the boot before. "" stands for the head before where none is known: there a chain begins. Whoever
changes, exchanges or removes a segment has to write all footers after it anew. Only a head that is
kept elsewhere shows that, or that the end of the chain is missing: `storage.history.witness`.

Segments of earlier versions have no chain. The first one after such a segment follows the head that
it would have if a chain began there. Pure: `storage.history.segments` reads and writes footers.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

VERSION: Final = "1"
NONE: Final = ""  # no head is known

Place = tuple[int, int]  # boot and last seq of a segment


@dataclass(frozen=True)
class Link:
    """What a footer says of the chain; all digests are hexadecimal."""

    digest: str  # of the rows
    before: str  # head of the segment before, "" = not known
    head: str
    is_copy: bool = False  # made by `history export` of rows that the broker had not exported


@dataclass(frozen=True)
class Piece:
    """One segment, as far as it could be read."""

    name: str  # of the file
    node: str
    boot: int
    first_seq: int
    last_seq: int
    link: Link | None = None  # None = it is not chained
    digest: str = ""  # of the rows that it has, "" = they were not read
    is_readable: bool = True

    @property
    def place(self) -> Place:
        """Return where it ends."""
        return self.boot, self.last_seq

    @property
    def implied(self) -> str:
        """Return the head that its name and rows have if they begin a chain, "" = not known."""
        return self._head(self.digest, NONE) if self.digest else NONE

    @property
    def head(self) -> str:
        """Return the head by which a later segment may name it, "" = not known."""
        return self.implied if self.link is None else self.link.head

    @property
    def computed(self) -> str:
        """Return the head that its footer should have. It must be chained."""
        assert self.link is not None
        return self._head(self.link.digest, self.link.before)

    def _head(self, digest: str, before: str) -> str:
        return head_of(self.node, self.boot, self.first_seq, self.last_seq, digest, before)


@dataclass(frozen=True)
class Break:
    """A place where the chain does not hold; the text has no name of a file."""

    piece: Piece
    what: str
    is_order: bool = False  # it does not follow the segment before it
    before: Piece | None = None  # that one; None = an earlier run has read it


@dataclass
class Chained:
    """What the chain of some segments shows."""

    breaks: list[Break] = field(default_factory=list)
    chained: int = 0
    unchained: list[Piece] = field(default_factory=list)
    begins: list[Piece] = field(default_factory=list)  # a chain begins there, or what is known
    # Those before them could not be read, or were made by `history export`.
    unproven: list[Piece] = field(default_factory=list)


def head_of(node: str, boot: int, first_seq: int, last_seq: int, digest: str, before: str) -> str:
    """Return the head of a chain that ends with this segment."""
    rows = last_seq - first_seq + 1
    words = (f"holdfast chain {VERSION}", node, boot, first_seq, last_seq, rows, digest, before)
    return hashlib.sha256("".join(f"{word}\n" for word in words).encode()).hexdigest()


def follow(pieces: Iterable[Piece], known: Mapping[str, Mapping[Place, str]]) -> Chained:
    """Return what the chain of segments shows; `known` are heads by node from before them."""
    found = Chained()
    by_node: dict[str, list[Piece]] = {}
    for piece in sorted(pieces, key=lambda each: (each.node, each.boot, each.first_seq)):
        by_node.setdefault(piece.node, []).append(piece)
    for node, mine in by_node.items():
        _follow_node(mine, known.get(node, {}), found)
    return found


def _follow_node(pieces: Sequence[Piece], known: Mapping[Place, str], found: Chained) -> None:
    # Also later ones: rows that a restored backup brought back are exported after newer ones.
    heads = {*known.values(), *(piece.head for piece in pieces)}
    before: Piece | None = None
    for piece in pieces:
        link = piece.link
        if not piece.is_readable:
            pass
        elif link is None:
            found.unchained.append(piece)
        else:
            found.chained += 1
            if piece.computed != link.head:
                found.breaks.append(Break(piece, "its footer was changed"))
            if piece.digest not in ("", link.digest):
                found.breaks.append(Break(piece, "its rows were changed"))
            if link.before == NONE:
                found.begins.append(piece)
            elif link.before not in heads:
                has_known = any(place < piece.place for place in known)
                _tell(piece, before, has_known, found)
        before = piece


def _tell(piece: Piece, before: Piece | None, has_known: bool, found: Chained) -> None:
    """Note a segment whose head before is not among those known."""
    if before is None and not has_known:
        found.begins.append(piece)  # earlier ones were removed in time
    elif before is not None and (
        not before.is_readable
        or (before.link is None and not before.digest)
        or (before.link is not None and before.link.is_copy)
    ):
        found.unproven.append(piece)
    else:
        what = "it was written after another segment than the one before it"
        found.breaks.append(Break(piece, what, is_order=True, before=before))
