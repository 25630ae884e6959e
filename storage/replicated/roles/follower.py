"""What a node has read and not applied: it waits for the log to keep it, and for the own tail.

What the log has lost before it promised to keep it is forgotten: the node goes back to what its
database has. The tail keeps it until something else counts at its index, because the log may have
promised it after all. Pure. Read next: `storage.replicated.replica`.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from storage.errors import WriteStalled
from storage.replicated import batch_codec
from storage.replicated.batch_codec import Operation
from storage.replicated.record import BATCH, Position, Record, after, counts, decode
from storage.replicated.roles.acknowledgements import Acknowledgements
from storage.replicated.roles.terms import Anchor, Database, Settings, Tail

ANCHORS_MAX: Final = 64


class Following:
    """What was read, the own tail, and the database."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        tail: Tail,
        acks: Acknowledgements,
        at: Anchor,
        anchors: Iterable[Anchor],
    ) -> None:
        """`at` is where the database is; not all `anchors` need to be before it."""
        self.end: Position = at.position  # what this node has applied or may yet apply
        self.applied: Position = at.position  # what the database has, or a leader has committed
        self.longest: Position = at.position  # to where the own tail reaches
        self.tail_synced: int = at.position.index
        # What counts and may not be applied before the log keeps it and the own tail has it synced.
        self.unapplied: deque[tuple[list[Operation], Position, int]] = deque()
        known = [each for each in anchors if each.position.index <= at.position.index]
        self.refusal: WriteStalled | None = None  # why the database did not take the next batch
        self.anchors: Final[deque[Anchor]] = deque(known or [at], ANCHORS_MAX)
        self._doubted: Final[deque[Anchor]] = deque()  # later ones, see `doubt_anchors`
        self._settings: Final = settings
        self._database: Final = database
        self._tail: Final = tail
        self._acks: Final = acks
        self.parts: Final[list[bytes]] = []
        self.kept: int = at.position.index  # the log keeps everything up to this index
        self._said_kept: Position | None = None  # and up to here, which was not read yet
        # What the own tail has behind `end` and was never read from the log, as digests by index.
        self._own: Final[dict[int, bytes]] = {}
        self.doubt_anchors()
        if not known:
            self._remember()

    def load_own(self) -> None:
        """Learn which records of the own tail go on where the database ends."""
        self._own.clear()
        end = self.end
        for _, data in self._tail.read_from(end.index + 1):
            record = decode(data)
            if not counts(record, end):
                self._tail.drop_from(end.index + 1)
                break
            end = after(record, data)
            self._own[end.index] = end.digest
        self.longest = end

    def forget_unapplied(self) -> None:
        """Go back to what the database has; what was read behind it may not be in the log."""
        self.end = self.applied
        self.unapplied.clear()
        self.refusal = None
        self.parts.clear()
        self.kept = self.applied.index
        self._said_kept = None
        self.load_own()

    def wrote(self, position: Position) -> None:
        """This node, as leader, has put a record into its tail and sent it."""
        self._own[position.index] = position.digest
        self.longest = position

    def has_kept(self, position: Position) -> bool:
        """Return whether the own tail had a record before it was read, or read again."""
        return self._own.get(position.index) == position.digest

    def take(self, position: Position, data: bytes) -> None:
        """Go on to a record that counts; another one in the own tail is dropped."""
        index = position.index
        if self.longest.index < index or self._own.pop(index, b"") != position.digest:
            self._keep(position, data)
        self.end = position

    def _keep(self, position: Position, data: bytes) -> None:
        index = position.index
        if self.longest.index >= index:
            self._tail.drop_from(index)
            self.tail_synced = min(self.tail_synced, index - 1)
            self._own.clear()
        self._tail.append(index, data)
        self.longest = position

    def take_part(self, record: Record, place: int) -> None:
        """Apply a batch that counts, once it is whole."""
        self.parts.append(record.body)
        if record.kind == BATCH:
            body = b"".join(self.parts)
            self.parts.clear()
            self.apply(list(batch_codec.decode(body)), place)

    def apply(self, operations: list[Operation], place: int) -> None:
        """Bring the database to `end`, once that is allowed."""
        if self.end == self._said_kept:
            self.kept = max(self.kept, self.end.index)
        self.unapplied.append((operations, self.end, place))
        self.apply_kept()

    def hear_kept(self, position: Position) -> None:
        """A leader has said that it has committed everything up to this position."""
        if any(each == position for _, each, _ in self.unapplied):
            self.kept = max(self.kept, position.index)
        else:
            self._said_kept = position

    def apply_kept(self) -> None:
        """Apply what the log keeps and the own tail has synced, as far as the database takes it.

        It stalls when it is slower than the log, as after a long absence.
        """
        self.refusal = None
        while self.unapplied:
            operations, position, place = self.unapplied[0]
            is_kept = place <= self._acks.promised or position.index <= self.kept
            if not is_kept or position.index > self.tail_synced:
                return
            try:
                self._database.apply(operations, position, place)
            except WriteStalled as refusal:
                self.refusal = refusal
                return
            self.unapplied.popleft()
            self.note_applied(position, place)

    def note_applied(self, position: Position, place: int) -> None:
        """The database has everything up to a position, or the leader's will get it."""
        self.applied = position
        self._anchor(position, place)

    def found_again(self, position: Position, place: int) -> None:
        """What the database has was read again, perhaps at another place than before."""
        if position.index <= self.applied.index:
            self._anchor(position, place)

    def _anchor(self, position: Position, place: int) -> None:
        is_new = not self.anchors or position.index > self.anchors[-1].position.index
        if is_new and position.index % self._settings.anchor_every == 0:
            self.anchors.append(Anchor(position, place))
            while self._doubted and self._doubted[0].position.index <= position.index:
                self._doubted.popleft()
            self._remember()

    def _remember(self, *, is_synced: bool = False) -> None:
        self._database.remember((*self.anchors, *self._doubted), is_synced=is_synced)

    def doubt_anchors(self) -> None:
        """Read on from the first anchor; the others count again when they are found.

        The log may have lost more than is seen, or while this node did not look, and got others
        since: by chance the very record of an anchor at its place, with others missing before it
        (world of clients 170332, world 525973). Until then they are for `begin_behind`.
        """
        while len(self.anchors) > 1:
            self._doubted.appendleft(self.anchors.pop())

    def drop_anchors(self, start: int, end: int) -> None:
        """Forget the anchors from `end` on, whose records the log has lost; doubt the others.

        The log begins at `start`.
        """
        for anchors in (self._doubted, self.anchors):
            while anchors and anchors[-1].position.index and anchors[-1].place >= end:
                anchors.pop()
        while len(self.anchors) > 1 and self.anchors[0].place < start:
            self.anchors.popleft()
        self.doubt_anchors()
        self._remember(is_synced=True)

    def begin_behind(self, start: int) -> bool:
        """Go on from the first doubted anchor that is not before `start`; return False if none is.

        What was before is deleted, so nobody can tell any more whether it was in the log.
        """
        while self._doubted and self._doubted[0].place < start:
            self._doubted.popleft()
        if not self._doubted:
            return False
        self.anchors.clear()
        self.anchors.append(self._doubted.popleft())
        self._remember(is_synced=True)
        return True

    def drop_anchor(self) -> None:
        """Forget the last anchor: another record is at its place. Those behind it are lost, too."""
        self.anchors.pop()
        self._doubted.clear()
        self._remember(is_synced=True)
