"""The broker of a node that leads, from its election to its end, of which it may hear late.

As on one disk, but that a batch is durable when the log has committed it. A process that is stopped
does nothing and loses nothing: it goes on later, perhaps when another node leads. Read next:
`tests.simulation.cluster.world`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from broker.cluster.committing import ReplicatedCommitter
from mqtt.encoder import encode
from mqtt.packets import V5, Disconnect
from mqtt.reasons import USE_ANOTHER_SERVER
from session.live.connection import ACTIVE
from storage.local.memory import MemoryStore
from storage.time.broker_clock import Heartbeat, crash_time
from tests.simulation.network import Link
from tests.simulation.presence import Closing
from tests.simulation.process import BrokerProcess

if TYPE_CHECKING:
    from session.live.connection import Connection
    from tests.simulation.cluster.node import BrokerNode
    from tests.simulation.cluster.world import ClusterWorld

LOOK_MS: Final = 20  # how often a process that drains looks whether all is done
DRAIN_MS: Final = 6_000  # how long it waits for that


class Loop:
    """The loop of the committer."""

    def __init__(self, world: "ClusterWorld") -> None:
        self._world: Final = world

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call it soon."""
        self._world.after(0, call, *arguments)


class LeaderProcess(BrokerProcess):
    """The broker of a node that leads."""

    def __init__(
        self, world: "ClusterWorld", node: "BrokerNode", broker_ms: int, alive_ms: int
    ) -> None:
        self.node: Final = node
        self.cluster: Final = world
        self.before: Final[list[Closing]] = list(world.cut)  # ends that it finds, and dates
        self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._finished = False
        super().__init__(
            world,
            node.disk.store,
            broker_ms,
            written=node.disk.written,
            alive_ms=alive_ms,
            filters=node.disk.prepared(),
        )
        # What the start has written is durable with this serial.
        self._settled: Final = self.engine.written
        self._committer: Final = ReplicatedCommitter(
            cast("Any", node), self._reported, cast("Any", Loop(world))
        )

    def heartbeat(self, broker_ms: int) -> bytes:
        """Return the row that says that the broker lives, by the clocks of this machine."""
        now, node = self.world.now, self.node
        return Heartbeat(broker_ms, now + node.wall_offset, node.settings.node, now).encode()

    def open(self, link: Link) -> "Connection":
        """A client comes, perhaps from a broker that is no more what it says."""
        self.cluster.arrives(link.client, self)
        return super().open(link)

    # A process that is stopped.

    def thaws(self, call: Callable[..., None], *arguments: Any) -> bool:
        """Is the process stopped now? Then `call` is made when it runs again."""
        if self.dead or not self.node.is_paused:
            return False
        self._deferred.append((call, arguments))
        return True

    def frozen(self) -> bool:
        """Is the process stopped now?"""
        return self.node.is_paused

    def go_on(self) -> None:
        """Do what came while it was stopped, as it runs again."""
        deferred, self._deferred = self._deferred, []
        for call, arguments in deferred:
            self.world.after(0, call, *arguments)

    # The committer

    def sync(self) -> None:
        """Ask for a report of what was written."""
        if self.engine.written > self.requested:
            self.requested = self.engine.written
            self._committer.request(self.requested)
            self.world.passing("sync_running")

    def _reported(self, serial: int) -> None:
        """The log has committed the batches up to this one."""
        if self.dead:
            return
        times = [at for each, at in self.unsynced if each <= serial]
        self.is_durable(serial, max(times, default=self.durable_ms))
        if serial >= self._settled and self.before:
            self.cluster.settle_ends(self.before)
        self.world.after(self.world.report_delay(), self._committed, serial)

    def _committed(self, serial: int) -> None:
        if serial > self.engine.durable:  # reports come in order
            super()._committed(serial)

    # The end

    def supersede(self) -> None:
        """Another node leads: it has found every connection ended. This one need not know."""
        self.is_superseded = True
        self._undo()

    def _undo(self) -> None:
        """Its connections have ended for all others, if they were open or are not known to be."""
        lo, hi = self._dated(self.broker_now())
        self.undo_closings(lo, hi)
        self.closings.clear()
        self.world.cut += [link.ended(lo, hi) for link in self.links]

    def send_away(self) -> None:
        """It has been deposed: it tells its clients so, and releases nothing any more."""
        if not self.is_superseded:
            self._undo()
        self.dead = True
        for link in list(self.links):
            connection = link.connection
            if connection.state == ACTIVE and connection.version == V5:
                link.write(encode(Disconnect(USE_ANOTHER_SERVER), V5))
            link.close()
        self._committer.close()

    def die(self, store: MemoryStore, *, whole: bool) -> MemoryStore:
        """End this process: every connection breaks."""
        self._committer.close()
        if not self.is_superseded:
            self._undo()
        self.dead = True
        for link in list(self.links):
            link.broker_died(0, 0)
        return store

    def _dated(self, now: int) -> tuple[int, int]:
        """Return when the next leader may say that this one died; `begin_to_lead` knows better."""
        return now, now + crash_time(0, self.engine.settings.heartbeat_ms)

    def begin_drain(self, successor: str) -> None:
        """Send the clients away and let another node lead, as at the end of a process."""
        self.engine.drain(self.broker_now())
        self.schedule_tick()
        self.world.after(LOOK_MS, self._drain, successor, self.world.now + DRAIN_MS)

    def _drain(self, successor: str, deadline: int) -> None:
        if self.dead or self.failed or self.thaws(self._drain, successor, deadline):
            return
        is_quiet = not (self.links or self.tick_due or self.engine.durable < self.engine.written)
        if not is_quiet and self.world.now > deadline:
            self.cluster.kill(self.node)
            return
        if is_quiet and self._finished:
            assert self.node.replica is not None
            self.node.replica.resign(successor, self.broker_now())
            self.cluster.resigns(self)
            return
        if is_quiet:
            self._finished = True
            self.engine.finish(self.broker_now())
            self.schedule_tick()
        self.world.after(LOOK_MS, self._drain, successor, deadline)
