"""One node of the simulation: a replica over a database and a tail that survive its process.

As leader it writes commands, each a row of its own, in the order in which it takes them. A crash
loses what was not synced, of the tail and of the database. Read next: `tests.replication.world`.
"""

import struct
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from storage.local.memory import MemoryStore
from storage.replicated.batch_codec import CREATE, DROP, Operation
from storage.replicated.record import CLAIM, Position, Record
from storage.replicated.replica import Replica
from storage.replicated.roles.terms import (
    CLAIMS,
    LEADS,
    Anchor,
    Committed,
    Deposed,
    Leads,
    Settings,
    Trouble,
)
from tests.replication.log import Line, SharedLog

META: Final = "meta"
WHERE: Final = b"where"
ANCHORS: Final = b"anchors"
WHERE_LAYOUT: Final = struct.Struct(">QQ16sQ")
NUMBER: Final = struct.Struct(">Q")
DROPPED: Final = "dropped"  # the names of the generations that were dropped
ROWS_MAX: Final = 7  # of a generation
GENERATIONS_MAX: Final = 8


class Disk:
    """The database of a node."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store: MemoryStore = store or MemoryStore((META,))

    def apply(self, operations: Sequence[Operation], position: Position, place: int) -> None:
        """Apply a batch that may have been applied before."""
        changes = []
        for operation in operations:
            if len(operation) == 3:
                changes.append(operation)
            elif operation[0] == CREATE and operation[1] not in self.store.families():
                self.store.create_family(operation[1])
            elif operation[0] == DROP and operation[1] in self.store.families():
                self.store.drop_family(operation[1])
        changes.append((META, WHERE, _where(position, place)))
        # A family that is gone was dropped by a later batch, before a crash lost its rows.
        self.store.write([each for each in changes if each[0] in self.store.families()])

    def remember(self, anchors: Sequence[Anchor], *, is_synced: bool = False) -> None:
        """Keep the anchors."""
        packed = b"".join(_where(each.position, each.place) for each in anchors)
        self.store.write([(META, ANCHORS, packed)])
        if is_synced:
            self.store.sync()

    def where(self) -> Anchor:
        """Return where the database is."""
        value = self.store.get(META, WHERE)
        return Anchor(Position(), 0) if value is None else _anchor(value)

    def anchors(self) -> list[Anchor]:
        """Return the anchors that were kept."""
        value = self.store.get(META, ANCHORS) or b""
        size = WHERE_LAYOUT.size
        return [_anchor(value[at : at + size]) for at in range(0, len(value), size)]

    def commands(self) -> list[int]:
        """Return the numbers of all commands, in their order."""
        found: list[int] = []
        for family in self.generations():
            rows = self.store.scan(family, b"", count=1 << 30)
            found += [NUMBER.unpack(value[: NUMBER.size])[0] for _, value in rows]
        return found

    def generations(self) -> list[str]:
        """Return the names of the generations that are there."""
        return sorted(name for name in self.store.families() if name not in (META, DROPPED))

    def dropped(self) -> list[str]:
        """Return the names of the generations that were dropped."""
        if DROPPED not in self.store.families():
            return []
        return [key.decode() for key, _ in self.store.scan(DROPPED, b"", count=1 << 30)]

    def synced_to(self) -> int:
        """Return the index that a power cut would leave."""
        return type(self)(self.store.crash(0)).where().position.index


def _where(position: Position, place: int) -> bytes:
    return WHERE_LAYOUT.pack(position.epoch, position.index, position.digest, place)


def _anchor(value: bytes) -> Anchor:
    epoch, index, digest, place = WHERE_LAYOUT.unpack(value)
    return Anchor(Position(epoch, index, digest), place)


class TailFile:
    """The tail of a node: records by index, some of them synced."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.synced: int = 0  # up to this index
        self._sync: int = 0  # what the sync that runs covers, 0 = none runs

    def append(self, index: int, data: bytes) -> None:
        """Keep a record."""
        assert index > next(reversed(self.records), 0), "the tail goes back"
        self.records[index] = data

    def drop_from(self, index: int) -> None:
        """Forget records."""
        while self.records and next(reversed(self.records)) >= index:
            self.records.popitem()
        self.synced = min(self.synced, index - 1)
        self._sync = min(self._sync, index - 1)

    def read_from(self, index: int) -> Iterator[tuple[int, bytes]]:
        """Return the records from `index` on."""
        found: list[tuple[int, bytes]] = []
        for each in reversed(self.records):
            if each < index:
                break
            found.append((each, self.records[each]))
        yield from reversed(found)

    def sync_begin(self) -> None:
        """Begin a sync of everything that is there."""
        if not self._sync:
            self._sync = next(reversed(self.records), 0)

    def sync_end(self) -> int:
        """End it; return what is synced."""
        self.synced, self._sync = max(self.synced, self._sync), 0
        return self.synced

    def copy(self, other: "TailFile") -> None:
        """Have the same records as another tail."""
        self.records = dict(other.records)
        self.synced, self._sync = max(self.records, default=0), 0

    def crash(self, keep: int) -> None:
        """Lose what is not synced but for the first `keep` records."""
        behind = sorted(index for index in self.records if index > self.synced)
        for index in behind[keep:]:
            del self.records[index]
        self.synced = max(self.records, default=0)
        self._sync = 0


class Node:
    """A node over all its processes."""

    replica_type: type[Replica] = Replica
    line_type: type[Line] = Line
    disk_type: type[Disk] = Disk

    def __init__(self, settings: Settings, shared: SharedLog, random: Random) -> None:
        self.settings: Settings = settings
        self.disk: Disk = self.disk_type()
        self.tail: Final = TailFile()
        self.replica: Replica | None = None  # None = no process
        self.line: Line | None = None
        self.is_paused: bool = False
        self.reads_from_ms: int = 0  # what it reads comes later than its answers
        self.epoch: int = 0  # that it leads, or led last
        self.sent: list[tuple[int, int]] = []  # (index, command) that are not committed
        self.acked: list[int] = []  # commands, since this process leads
        self.troubles: list[str] = []
        self._batches: list[tuple[int, list[Operation]]] = []
        self._rows: int = 0
        self._shared: Final = shared
        self._random: Final = random

    @property
    def is_leading(self) -> bool:
        """Return whether its process leads, as far as it knows."""
        return self.replica is not None and self.replica.role == LEADS

    @property
    def has_claimed(self) -> bool:
        """Return whether its process waits for its claim."""
        return self.replica is not None and self.replica.role == CLAIMS

    def may_have_claimed_behind(self, base: Position) -> bool:
        """Return whether its process has read so far, and may have thought that nobody leads."""
        replica = self.replica
        if replica is None or not replica.is_warm or self.is_leading:
            return False
        return replica.end.index >= base.index

    def claim_behind(self, base: Position) -> bytes:
        """Return the claim that it would have made."""
        assert self.replica is not None
        name, nonce = self.settings.node, self.replica._nonce
        return Record(CLAIM, base.epoch + 1, base.index + 1, base.digest, name, nonce).encode()

    def start(self, now: int, *, has_led: bool = False) -> None:
        """Start a process, or go on with one that has led."""
        at = self.disk.where()
        self.line = self.line_type(self._shared, self._random, at.place)
        self.sent, self._batches = [], []
        self.replica = self.replica_type(
            self.settings,
            self.line,
            self.disk,
            self.tail,
            nonce=self._random.randbytes(16),
            at=at,
            anchors=self.disk.anchors(),
            now=now,
            is_warm=has_led,
        )

    def copy(self, other: "Node") -> None:
        """Begin anew with a copy of another node's database and tail, which are synced."""
        assert self.replica is None
        self.disk = self.disk_type(other.disk.store.crash(other.disk.store.unsynced))
        self.tail.copy(other.tail)

    def tail_begins(self) -> int:
        """Return the index of the first record in the tail."""
        return min(self.tail.records, default=self.disk.where().position.index + 1)

    def lose_disk(self) -> None:
        """Begin anew with nothing."""
        assert self.replica is None
        self.disk = self.disk_type()
        self.tail.drop_from(0)

    def kill(self, *, power_cut: bool) -> None:
        """End the process, and with a power cut lose what is not synced."""
        random, store = self._random, self.disk.store
        self.replica = None
        self.is_paused = False
        if self.line is not None:
            # What is on its way to the log may still arrive.
            for _ in range(random.randint(0, len(self.line.waiting))):
                self.line.deliver(0.3)
            self._shared.lines.remove(self.line)
            self.line = None
        if power_cut:
            self.tail.crash(random.randint(0, 5))
            self.disk = self.disk_type(store.crash(random.randint(0, store.unsynced)))
        self.sent, self._batches = [], []

    def write(self, command: int) -> str:
        """Take a command, as the leader; return the generation that gets it."""
        assert self.replica is not None
        generation = f"log{self._rows // ROWS_MAX:04}"
        operations: list[Operation] = []
        if self._rows == 0:
            operations.append((CREATE, DROPPED))
        if self._rows % ROWS_MAX == 0:
            operations.append((CREATE, generation))
            old = f"log{self._rows // ROWS_MAX - GENERATIONS_MAX:04}"
            if self._rows // ROWS_MAX >= GENERATIONS_MAX:
                operations += [(DROP, old), (DROPPED, old.encode(), b"")]
        padding = bytes(self._random.choice((0, 0, 0, 90)))
        value = NUMBER.pack(command) + padding
        operations.append((generation, NUMBER.pack(self._rows), value))
        self._rows += 1
        index = self.replica.write(operations)
        self._batches.append((index, operations))
        self.sent.append((index, command))
        return generation

    def hear(self, now: int, broker_ms: int | None) -> list[Leads | Deposed | Committed | Trouble]:
        """Take what the log said, do what is due, return what the replica told.

        A leader says that it lives if it knows the time of its broker.
        """
        replica, line = self.replica, self.line
        assert replica is not None and line is not None
        replica.events(line.take(), now)
        replica.timeout(now)
        if broker_ms is not None:
            replica.beat(broker_ms, now)
        told, replica.told[:] = list(replica.told), []
        return told

    def run(self, now: int) -> list[Leads | Deposed | Committed | Trouble]:
        """Do what `hear` says, and what follows from it; return what the replica told."""
        told = self.hear(now, now)
        for each in told:
            if isinstance(each, Committed):
                self._commit(each)
            elif isinstance(each, Leads):
                self.epoch = each.epoch
                self.acked = []
                dropped = len(self.disk.dropped()) * ROWS_MAX
                self._rows = dropped + len(self.disk.commands())
            elif isinstance(each, Trouble) and each.why:
                self.troubles.append(each.why)
        return told

    def _commit(self, committed: Committed) -> None:
        """Apply what is committed, then release it."""
        index, operations = self._batches.pop(0)
        assert index == committed.position.index
        self.disk.apply(operations, committed.position, committed.place)
        self.acked += [command for at, command in self.sent if at <= index]
        self.sent = [each for each in self.sent if each[0] > index]
