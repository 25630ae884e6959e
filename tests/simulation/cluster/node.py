"""A node of a world: a replica over a database and a tail, and a broker while it leads.

It does with the real replica, store and committer what the shell does (`broker.cluster.member`);
disk, tail and log are those of `tests.replication`. Read next: `tests.simulation.cluster.leader`.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from broker.cluster.member import Database
from broker.cluster.preparing import Preparation
from session.routing.loading import FilterLoad
from storage.errors import StorageError
from storage.local.memory import MemoryStore
from storage.replicated import anchors as anchor_rows
from storage.replicated.applied import load_reached
from storage.replicated.batch_codec import Operation
from storage.replicated.log_port import Event, Read
from storage.replicated.overlay import ReplicatedStore
from storage.replicated.record import HEARTBEAT, Position, decode
from storage.replicated.replica import BEAT
from storage.replicated.roles.terms import Anchor, Committed, Deposed, Leads, Settings, Trouble
from storage.tables.tables import FAMILIES, FILTERS, decode_filter
from tests.replication.log import Line, SharedLog
from tests.replication.node import Disk, Node
from tests.simulation.verdict import Violation

PREPARED_ROWS: Final = 2  # loaded at a time, as a node follows

if TYPE_CHECKING:
    from tests.simulation.cluster.leader import LeaderProcess
    from tests.simulation.cluster.world import ClusterWorld


class BrokerDisk(Disk):
    """The database of a node, as its broker and its replica see it."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        super().__init__(store or MemoryStore(FAMILIES))
        self.written: ReplicatedStore | None = None  # what the broker of this process writes to
        self.preparation: Preparation | None = None  # of this process
        self._port: Database | None = None

    def open(self, append: Callable[[Sequence[Operation]], int]) -> None:
        """Open it for a process."""
        self.written = ReplicatedStore(self.store, append)
        self._port = Database(self.store, self.written)
        self.preparation = Preparation(self.store, _unprepared)
        self._port.applied = self.preparation.applied

    def apply(self, operations: Sequence[Operation], position: Position, place: int) -> None:
        """Apply a batch that was read from the log."""
        assert self._port is not None
        self._port.apply(operations, position, place)

    def prepared(self) -> FilterLoad:
        """Return the filters that are loaded."""
        assert self.preparation is not None
        filters = self.preparation.filters
        if FILTERS in self.store.families():
            filters.finish(self.store)
            self.judge_prepared(filters)
        return filters

    def judge_prepared(self, filters: FilterLoad) -> None:
        """What is loaded is what the rows say."""
        rows = self.store.scan(FILTERS, b"", count=1 << 30)
        for key, value in rows:
            entry = filters.index.wake(key.decode())
            found = None if entry is None else (entry.filter_id, entry.holders)
            if found != decode_filter(value):
                raise Violation("prepared_filters", f"{key!r}: {found}, not {decode_filter(value)}")
            if entry is not None and entry.may_rest():
                filters.index.rest(entry)
        if len(filters.index) != len(rows):
            raise Violation("prepared_filters", f"{len(filters.index)}, not {len(rows)}")
        return filters

    def remember(self, anchors: Sequence[Anchor], *, is_synced: bool = False) -> None:
        """Keep the anchors."""
        assert self._port is not None
        self._port.remember(anchors, is_synced=is_synced)

    def where(self) -> Anchor:
        """Return where the database is."""
        return Anchor(*load_reached(self.store))

    def anchors(self) -> list[Anchor]:
        """Return the anchors that were kept."""
        return anchor_rows.load(self.store)


class HeardLine(Line):
    """A line that knows what its node has heard of the time of leaders."""

    def __init__(self, shared: SharedLog, random: Random, place: int) -> None:
        super().__init__(shared, random, place)
        self.beats: list[tuple[int, int, int]] = []  # epoch, broker time, when it was read: newest

    def hear(self, events: Sequence[Event], now: int) -> None:
        """Note the signs of life among these: of whoever led at their place of the log."""
        for event in events:
            if isinstance(event, Read):
                record = decode(event.data)
                if record.kind == HEARTBEAT and record.epoch == self._epoch_at(event.place):
                    self.beats = [(record.epoch, BEAT.unpack_from(record.body)[0], now)]

    def _epoch_at(self, place: int) -> int:
        chain = self._shared.chain
        return next((end.epoch for at, end in reversed(chain) if at < place), 0)


class BrokerNode(Node):
    """A node over all its processes."""

    disk_type = BrokerDisk
    line_type = HeardLine
    disk: BrokerDisk
    line: HeardLine | None
    world: "ClusterWorld"

    def __init__(self, settings: Settings, shared: SharedLog, random: Random) -> None:
        super().__init__(settings, shared, random)
        self.process: LeaderProcess | None = None
        self.wall_offset: int = 0  # of its wall clock, minus true time
        # As `broker.cluster.member.Member`, for the committer of a broker.
        self.committed: Callable[[int], None] = _nobody
        self._waiting: Final[list[Committed]] = []

    @property
    def written(self) -> int:
        """Return the index of the newest record that this node has written."""
        assert self.replica is not None
        return self.replica.written

    @property
    def settled(self) -> int:
        """Return the index up to which every record is committed, at least."""
        store = self.disk.written
        assert store is not None
        return store.position().position.index if store.pending else self.written

    def start(self, now: int, *, has_led: bool = False) -> None:
        """Start a process, or go on with one that has led."""
        self._waiting.clear()
        self.committed = _nobody
        self.disk.open(self._append)
        super().start(now, has_led=has_led)

    def _append(self, operations: Sequence[Operation]) -> int:
        assert self.replica is not None
        return self.replica.write(operations)

    def kill(self, *, power_cut: bool) -> None:
        """End the process, with its broker."""
        process, self.process = self.process, None
        if process is not None:
            self.world.broker_ends(process)
        super().kill(power_cut=power_cut)

    def run(self, now: int) -> list[Leads | Deposed | Committed | Trouble]:
        """Do what is due, as the shell does."""
        process, line = self.process, self.line
        assert line is not None
        if process is None and self.disk.preparation is not None:
            self.disk.preparation.step(PREPARED_ROWS)
        line.hear(line.news(), now)
        told = self.hear(now, None if process is None else process.broker_now())
        for each in told:
            if isinstance(each, Committed):
                self._waiting.append(each)
            elif isinstance(each, Leads):
                self.epoch = each.epoch
                self.world.begin_to_lead(self, each)
            elif isinstance(each, Deposed) and self.process is not None:
                process, self.process = self.process, None
                self.world.send_away(process)
            elif isinstance(each, Trouble) and each.why:
                self.troubles.append(each.why)
        if self._waiting:
            self.committed(self._waiting[-1].position.index)
            store = self.disk.written
            assert store is not None
            for each in self._waiting:
                store.committed(each.position, each.place)
            self._waiting.clear()
        return told


def _unprepared(problem: StorageError) -> None:
    raise problem


def _nobody(index: int) -> None:
    return None
