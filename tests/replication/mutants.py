"""Planted bugs of the replicated store: each must be noticed by some world.

Each is a replica, a node or a line with one mistake. Read next: `tests.replication.test_mutants`.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from storage.replicated import replica as real
from storage.replicated.batch_codec import Operation
from storage.replicated.log_port import Acked
from storage.replicated.record import CLAIM, Position, Record
from storage.replicated.replica import Replica
from storage.replicated.roles import follower
from storage.replicated.roles.follower import Following
from storage.replicated.roles.terms import CLAIMS, LEADS, Committed, Leads
from tests.replication.log import Line
from tests.replication.node import Node
from tests.replication.world import PLAIN, SITE, World


@dataclass(frozen=True)
class Mutant:
    """One planted bug, and where it is looked for."""

    replica: type[Replica] = Replica
    follower: type[Following] = Following
    node: type[Node] = Node
    line: type[Line] = Line
    kind: str | None = None
    seeds: int = 20  # worlds within which it must be noticed
    start: int = 0  # the first of them

    def world(self, seed: int) -> World:
        """Return a world that has the bug."""
        world = World(seed, self.kind, self.replica, self.node, self.line)
        return world


class ReleasedWhenAcknowledged(Replica):
    """A batch is released when the log has acknowledged it, whatever was before it there."""

    def _commit(self) -> None:
        self._acks.read(1 << 60)
        pending, index = self._writing.pending, self._follower.tail_synced
        while pending and pending[0].position.index <= min(index, self._acked_to):
            sent = pending.popleft()
            if sent.ends_batch:
                self.told.append(Committed(sent.position, max(sent.place, 0)))

    _acked_to = 0

    def events(self, events: Iterable[real.Event], now: int) -> None:
        """Note what is acknowledged."""
        events = list(events)
        for each in events:
            if isinstance(each, Acked):
                self._acked_to = max(self._acked_to, self._acks.index_of(each.token))
        super().events(events, now)


class ReleasedWhenRead(Replica):
    """A batch is released when it is read back, though the log has not acknowledged it."""

    def _commit(self) -> None:
        self._acks.promised = 1 << 60
        super()._commit()


class ReleasedWithoutTail(Replica):
    """A batch is released before the own tail has it synced."""

    def _commit(self) -> None:
        self._follower.tail_synced = max(self._follower.tail_synced, self.end.index)
        super()._commit()


class LeadsWhenItClaims(Replica):
    """A node leads from when it appends its claim."""

    def _claim(self, now: int) -> None:
        super()._claim(now)
        if self.role == CLAIMS and not self._follower.unapplied:
            self.told.append(Leads(self.end.epoch + 1, 0, 0))


class LeadsBeforeItHasAll(Replica):
    """A node leads although its database waits for its tail."""

    def _lead_if_clear(self, now: int) -> None:
        follower = self._follower
        unapplied, follower.unapplied = follower.unapplied, deque()
        super()._lead_if_clear(now)
        follower.unapplied = unapplied


class ClaimOfAnyIndex(Replica):
    """A claim counts though it does not continue the chain."""

    counts = staticmethod(
        lambda record, end: (
            record.epoch > end.epoch and record.index <= end.index + 1
            if record.kind == CLAIM
            else record.index == end.index + 1 and record.epoch == end.epoch
        )
    )


class EpochNotLookedAt(Replica):
    """A record counts though it is of an earlier epoch, and whatever is before it."""

    counts = staticmethod(lambda record, end: record.index == end.index + 1)


class DatabaseBeforeCommit(Node):
    """The leader's database has a batch when it is written."""

    def write(self, command: int) -> str:
        """Take a command, as the leader."""
        generation = super().write(command)
        where = self.disk.where()
        self.disk.apply(self._batches[-1][1], where.position, where.place)
        return generation


class FamiliesNotInTheLog(Replica):
    """The leader drops and creates families in its own database only."""

    def write(self, operations: list[Operation]) -> int:  # type: ignore[override]
        """Append a batch without its families."""
        return super().write([each for each in operations if len(each) == 3])


class DeletedBeyondTheSecondNode(Replica):
    """The log is deleted up to where only this node's database is synced."""

    def _trim(self, now: int) -> None:
        kept = [
            each.place for each in self._follower.anchors if each.position.index <= self._durable
        ]
        if kept:
            self._log.delete_before(kept[-1])


class DeletedUpToTheEnd(Replica):
    """The log is deleted up to where this node has read."""

    def _trim(self, now: int) -> None:
        self._log.delete_before(self.place)


class ColdStartAlone(Replica):
    """A node that has just begun leads without having heard all."""

    @property
    def is_warm(self) -> bool:
        """Return whether it followed a leader."""
        return True

    @is_warm.setter
    def is_warm(self, value: bool) -> None:
        pass


class WarmByOldRecords(Replica):
    """What continues the chain tells that a leader lives, though others may have sent it again."""

    def _count(self, record: Record, data: bytes, place: int, now: int) -> None:
        super()._count(record, data, place, now)
        if record.node != self.settings.node and self.members.is_new(place):
            self.is_warm = True


class PartsKeptAtAClaim(Replica):
    """The parts of a batch that an old leader did not end are put before the next batch."""

    def _begin_epoch(self, record: Record, now: int) -> None:
        parts = list(self._follower.parts)
        super()._begin_epoch(record, now)
        self._follower.parts[:] = parts


class PlaceTooFarAhead(Node):
    """The place that a database notes is where the log was read to, not where its rows are from."""

    def _commit(self, committed: Committed) -> None:
        assert self.replica is not None
        position, place = self.replica.end, self.replica.place
        super()._commit(Committed(committed.position, committed.place))
        self.disk.apply((), position, place)


class AppliedBeforeTheTail(Following):
    """A follower applies what its tail does not have synced yet."""

    def apply_kept(self) -> None:
        """Apply what the log keeps."""
        synced, self.tail_synced = self.tail_synced, 1 << 60
        super().apply_kept()
        self.tail_synced = synced


class AppliedWhenRead(Following):
    """A follower applies what the log has not promised to keep."""

    def apply_kept(self) -> None:
        """Apply what the own tail has synced."""
        self.kept = 1 << 60
        super().apply_kept()


class NotForgotten(Following):
    """What was read stays read, though the log has lost it before it promised to keep it."""

    def forget_unapplied(self) -> None:
        """Forget nothing."""
        end, unapplied, parts = self.end, list(self.unapplied), list(self.parts)
        super().forget_unapplied()
        self.end, self.parts[:] = end, parts
        self.unapplied.extend(unapplied)


class BeatsWhatItHasRead(Replica):
    """A leader says that it has committed what it has read back."""

    def heartbeat(self, broker_ms: int, more: bytes = b"") -> bytes:
        """Return the record that says that this leader lives."""
        applied, self._follower.applied = self._follower.applied, self.end
        data = super().heartbeat(broker_ms, more)
        self._follower.applied = applied
        return data


class TailNotRestored(Replica):
    """A candidate does not append again what only its tail has."""

    def _append_missing(self, *, counted_only: bool = False) -> Position:
        return self.log_end


class AcksWhatWasLost(Line):
    """An append that did not arrive is acknowledged."""

    def take(self) -> list[real.Event]:
        """Return what happened."""
        end = self._shared.end - 1
        return [
            Acked(each.token, end) if isinstance(each, real.Unknown) else each
            for each in super().take()
        ]


MUTANTS: Final[dict[str, Mutant]] = {
    "released when acknowledged": Mutant(ReleasedWhenAcknowledged),
    "released when read": Mutant(ReleasedWhenRead, start=4),
    "released without tail": Mutant(ReleasedWithoutTail, kind=SITE),
    "leads when it claims": Mutant(LeadsWhenItClaims, start=36),
    "leads before it has all": Mutant(LeadsBeforeItHasAll, start=6),
    "claim of any index": Mutant(ClaimOfAnyIndex, start=5),
    "epoch not looked at": Mutant(EpochNotLookedAt),
    "database before commit": Mutant(node=DatabaseBeforeCommit),
    "families not in the log": Mutant(FamiliesNotInTheLog),
    "deleted beyond the second node": Mutant(DeletedBeyondTheSecondNode, kind=PLAIN),
    "deleted up to the end": Mutant(DeletedUpToTheEnd, kind=PLAIN),
    "cold start alone": Mutant(ColdStartAlone, kind=SITE),
    "warm by old records": Mutant(WarmByOldRecords, kind=SITE, start=7),
    "parts kept at a claim": Mutant(PartsKeptAtAClaim, start=15),
    "place too far ahead": Mutant(node=PlaceTooFarAhead, start=10),
    "applied before the tail": Mutant(follower=AppliedBeforeTheTail, kind=SITE, start=7),
    "applied when read": Mutant(follower=AppliedWhenRead, kind=PLAIN),
    "beats what it has read": Mutant(BeatsWhatItHasRead, kind=PLAIN, start=30),
    "not forgotten": Mutant(follower=NotForgotten),
    "tail not restored": Mutant(TailNotRestored),
    "acks what was lost": Mutant(line=AcksWhatWasLost),
}


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Have the rule of a mutant in place of the real one, if it has one of its own."""
    rule = getattr(mutant.replica, "counts", None)
    before = real.counts
    if rule is not None:
        real.counts = follower.counts = rule
    real.Following = mutant.follower  # type: ignore[misc]
    try:
        yield
    finally:
        real.counts = follower.counts = before
        real.Following = Following  # type: ignore[misc]


__all__ = ["LEADS", "MUTANTS", "Mutant", "planted"]
