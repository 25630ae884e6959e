"""Nodes of a cluster without sockets, threads or time: the real engine over the real replica.

The verbs are those of `tests.session.harness`. A batch of the leader goes to its tail and to a log
in memory, is acknowledged and read back, released, applied and synced, and each of these is a step
that `on_step` is told of: what it raises ends the leader just there. `take_over` lets the other
node lead, `come_back` the same node again. Each node has a boot-time clock of its own. Read next:
`tests.takeover.points`.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Final

from storage.local.memory import MemoryStore
from storage.replicated import anchors as anchor_rows
from storage.replicated.batch_codec import Operation
from storage.replicated.overlay import ReplicatedStore
from storage.replicated.record import Position
from storage.replicated.replica import Replica
from storage.replicated.roles.terms import LEADS, Anchor, Committed, Leads, Settings
from storage.tables.tables import FAMILIES
from tests.replication.log import Line, SharedLog
from tests.replication.node import TailFile
from tests.session.harness import START_MS, TICKS_MAX, Broker

BEAT_MS: Final = 100  # how often a node looks at its log when nothing else happens
ELECTION_STEPS: Final = 200
TAKEOVER_MS: Final = 1000
ALL: Final = 1 << 20
# Fates of what a dead leader has sent and the log does not have yet.
LOST: Final = "lost"
EARLY: Final = "early"  # it arrives before another node claims
LATE: Final = "late"  # it arrives when another node leads
FATES: Final = (LOST, EARLY, LATE)


class Database:
    """The database of a node, as its replica sees it."""

    def __init__(self, base: MemoryStore, store: ReplicatedStore) -> None:
        self._base: Final = base
        self._store: Final = store

    def apply(self, operations: list[Operation], position: Position, place: int) -> None:  # type: ignore[override]
        """Apply a batch of another leader."""
        self._store.apply(operations, position, place)

    def remember(self, anchors: Any, *, is_synced: bool = False) -> None:
        """Note places of the log."""
        anchor_rows.save(self._base, anchors)
        if is_synced:
            self._base.sync()


class Node:
    """One node over all its processes."""

    def __init__(self, settings: Settings, shared: SharedLog, number: int) -> None:
        self.settings: Final = settings
        self.base: MemoryStore = MemoryStore(FAMILIES)
        self.tail: Final = TailFile()
        self.boottime_ms: Final = 7_000_000 * (number + 1)  # when the world began
        self._shared: Final = shared
        self._processes: int = 0

    def begin(self, true_ms: int) -> None:
        """Start a process."""
        self._processes += 1
        self.store: ReplicatedStore = ReplicatedStore(
            self.base, lambda operations: self.replica.write(operations)
        )
        reached = self.store.position()
        self.line: Line = Line(self._shared, Random(0), reached.place)
        self.replica: Replica = Replica(
            self.settings,
            self.line,
            Database(self.base, self.store),
            self.tail,
            nonce=f"{self.settings.node}{self._processes}".encode().ljust(16, b"."),
            at=Anchor(reached.position, reached.place),
            anchors=anchor_rows.load(self.base),
            now=self.now(true_ms),
        )

    def now(self, true_ms: int) -> int:
        """Return this machine's boot-time clock."""
        return self.boottime_ms + true_ms

    def die(self, *, power_cut: bool = False) -> list[bytes]:
        """End the process; return what is on its way to the log."""
        waiting = [data for data, _ in self.line.waiting]
        self._shared.lines.remove(self.line)
        if power_cut:
            self.tail.crash(0)
            self.base = self.base.crash(0)
        return waiting

    def follow(self, true_ms: int) -> list[Leads]:
        """Read the log and do what is due, as a follower; return whether it leads."""
        line, replica, now = self.line, self.replica, self.now(true_ms)
        for _ in range(3):
            while line.waiting:
                line.deliver(0.0)
            line.answer(ALL)
            line.read(ALL)
            replica.events(line.take(), now)
            self.tail.sync_begin()
            replica.tail_synced(self.tail.sync_end())
        replica.timeout(now)
        while line.waiting:
            line.deliver(0.0)
        told, replica.told[:] = list(replica.told), []
        return [each for each in told if isinstance(each, Leads)]


def _settings(name: str, names: tuple[str, ...]) -> Settings:
    return Settings(
        name,
        names,
        address=f"{name}:1883",
        takeover_ms=TAKEOVER_MS,
        heartbeat_ms=2 * BEAT_MS,
        presence_ms=2 * BEAT_MS,
    )


class Cluster(Broker):
    """A leader with its engine, a log, and one node more or none."""

    def __init__(self, *, names: tuple[str, ...] = ("ann", "bob"), **settings: Any) -> None:
        self.shared: Final = SharedLog(Random(0))
        self.true_ms: int = 0  # since the world began
        self.follower_lags: bool = False  # it reads nothing
        self.log_is_first: bool = False  # the log is faster than the own tail's disk
        self.on_step: Callable[[str], None] = lambda name: None
        self.nodes: Final = [
            Node(_settings(name, names), self.shared, number) for number, name in enumerate(names)
        ]
        self.ghosts: list[bytes] = []
        self._asked: deque[tuple[int, int]] = deque()
        self._requested: int = 0
        self._has_released: bool = False  # and it has not left yet
        for node in self.nodes:
            node.begin(self.true_ms)
        self.leader: Node = self.nodes[0]
        self._offset: int = START_MS  # broker time when the world began
        self._elected: Leads = self._elect(self.nodes)
        super().__init__(**settings)
        self.advance(TAKEOVER_MS)  # so that the other node has followed for a while

    # Who leads.

    def _elect(self, nodes: list[Node]) -> Leads:
        """Let time pass until one of these leads."""
        for _ in range(ELECTION_STEPS):
            self.true_ms += BEAT_MS
            for node in nodes:
                for leads in node.follow(self.true_ms):
                    self.leader = node
                    return leads
        raise AssertionError(f"nobody leads: {[node.replica.told for node in nodes]}")

    def start(self, *, alive_ms: int = 0, told_of: int = 0) -> Any:
        """Start the engine of the leader on its store."""
        self._asked.clear()
        self._requested = 0
        self._has_released = False
        self.store = self.leader.store  # type: ignore[assignment]
        self.now = self._offset + self.true_ms
        return super().start(alive_ms=alive_ms, told_of=told_of)

    def crash(self, keep: int | None = None) -> None:
        """Forget the process of the broker; its node is ended by who calls this."""
        for client in self.clients:
            client.stream.is_lost = True
        self.clients = []
        self.commits_are_held = False
        self._collecting = False

    def take_over(self, fate: str = LOST) -> Leads:
        """The leader's machine is gone for good: the other node leads."""
        gone, (other,) = self.leader, [node for node in self.nodes if node is not self.leader]
        self.ghosts = gone.die()
        self.nodes.remove(gone)
        self.follower_lags = False
        return self._begin_again([other], fate)

    def come_back(self, fate: str = LOST, *, power_cut: bool = False, after_ms: int = 0) -> Leads:
        """The leader's process ends, and begins again on the same disk; no other node is there."""
        node = self.leader
        self.ghosts = node.die(power_cut=power_cut)
        self.true_ms += after_ms
        node.begin(self.true_ms)
        return self._begin_again([node], fate)

    def _begin_again(self, nodes: list[Node], fate: str) -> Leads:
        self.crash()
        if fate == EARLY:
            self._haunt()
        leads = self._elect(nodes)
        if fate == LATE:
            self._haunt()
        if leads.alive_ms and leads.is_timed:  # else the wall clock tells, which is right here
            self._offset = leads.alive_ms + leads.silent_ms - self.true_ms
        self.start(alive_ms=leads.alive_ms)
        return leads

    def _haunt(self) -> None:
        for data in self.ghosts:
            self.shared.add(data)
        self.ghosts = []

    @property
    def broker_offset(self) -> int:
        """Return broker time when the world began, as the leader counts."""
        return self._offset

    # What the leader does.

    def settle(self) -> None:
        """Let the broker do all work that is due now."""
        if self._collecting:
            return
        for _ in range(TICKS_MAX):
            more = self.engine.end_tick(self.now)
            self._report_closed()
            if self._has_released:
                self._sent()
            if self.engine.written != self._requested:
                self._requested = self.engine.written
                self._asked.append((self.leader.replica.written, self._requested))
                self.on_step("written")
            if not self.commits_are_held and self.engine.durable < self.engine.written:
                self._commit()
                more = True
            if not more:
                self._check()
                return
        raise AssertionError("the broker is never quiet")

    def _commit(self) -> None:
        """Bring to everywhere what was written, a step at a time."""
        if self.log_is_first:
            self._to_log()
            self._to_tail()
        else:
            self._to_tail()
            self._to_log()
        self._others()

    def _to_tail(self) -> None:
        leader = self.leader
        leader.tail.sync_begin()
        self.on_step("sync of the tail begun")
        leader.replica.tail_synced(leader.tail.sync_end())
        self.on_step("synced in the tail")
        self._released()

    def _to_log(self) -> None:
        leader = self.leader
        line, now = leader.line, leader.now(self.true_ms)
        while line.waiting:
            line.deliver(0.0)
            self.on_step("in the log")
        line.answer(ALL)
        leader.replica.events(line.take(), now)
        self.on_step("acknowledged by the log")
        line.read(ALL)
        leader.replica.events(line.take(), now)
        self.on_step("read back")
        self._released()

    def _released(self) -> None:
        """Tell the database what is committed, then the engine."""
        leader = self.leader
        told, leader.replica.told[:] = list(leader.replica.told), []
        committed = [each for each in told if isinstance(each, Committed)]
        if not committed:
            return
        for each in committed:
            leader.store.committed(each.position, each.place)
        self.on_step("applied")
        serial = 0
        while self._asked and self._asked[0][0] <= committed[-1].position.index:
            serial = self._asked.popleft()[1]
        if serial:
            self.engine.committed(serial, self.now)
            self._has_released = True
            self.on_step("released")

    def _sent(self) -> None:
        """What was released has left; the database is synced some time later."""
        self._has_released = False
        self.on_step("sent")
        leader = self.leader
        leader.base.sync()
        leader.replica.synced(leader.store.position().position.index)
        self.on_step("synced in the database")

    def _others(self) -> None:
        """Let the others read."""
        for node in self.nodes:
            if node is not self.leader and not self.follower_lags:
                assert not node.follow(self.true_ms), "two lead"

    def advance(self, ms: int = 0, *, s: int = 0) -> None:
        """Let time pass, and let everybody do what becomes due on time."""
        end = self.true_ms + ms + s * 1000
        while self.true_ms < end:
            self.true_ms = min(end, self.true_ms + BEAT_MS)
            self.now = self._offset + self.true_ms
            deadline = self.engine.next_deadline()
            if deadline is not None and deadline <= self.now:
                self.engine.handle_timeout(self.now)
            leader = self.leader
            leader.replica.timeout(leader.now(self.true_ms))
            leader.replica.beat(self.now, leader.now(self.true_ms))
            self.settle()
            self._to_log()
            self._others()
        assert self.leader.replica.role == LEADS


__all__ = ["EARLY", "FATES", "LATE", "LOST", "Cluster", "Node"]
