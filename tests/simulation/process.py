"""One run of the broker process: the engine, with a simulated shell around it.

Like the shell it passes bytes in, calls `end_tick` after a group of receives, runs one sync at a
time, releases replies when the sync is reported, sets a timer for the engine's next deadline, and
stops on storage errors. A crash loses what was not synced. Must never do anything that the shell
could not do. Read next: `tests.simulation.world`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from session.counters import Counters
from session.engine import Engine
from session.ports import Verdict
from session.routing.loading import FilterLoad
from storage.api import Store
from storage.errors import Unrecoverable
from storage.local.memory import MemoryStore
from storage.log.generations import Generation
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat, crash_time, resume
from tests.simulation.mirror import Pump
from tests.simulation.network import Link
from tests.simulation.observer import note_due, note_tick, note_write
from tests.simulation.presence import MAYBE, YES, Closing
from tests.simulation.rare import sometimes

if TYPE_CHECKING:
    from session.live.connection import Connection
    from tests.simulation.world import World

TICK_SLACK_MS: Final = 48  # a tick after a timer comes at most this late


class BrokerProcess:
    """The broker from start to crash or exit."""

    def __init__(
        self,
        world: "World",
        store: MemoryStore,
        broker_ms: int,
        *,
        written: Store | None = None,
        alive_ms: int | None = None,
        filters: FilterLoad | None = None,
    ) -> None:
        """The engine writes to `written` if that is not `store` itself.

        `filters` are those of the store, as far as they are loaded.
        """
        self.world = world
        self.store = store
        self.offset = broker_ms - world.now  # broker time minus the world's time
        self.started_ms = broker_ms
        self.dead = False
        self.is_superseded = False  # another broker has its sessions, which it need not know
        self.failed = False  # it will exit at the end of this event: nothing is done any more
        self.links: list[Link] = []
        self.stalled_at = -1  # last serial before a write stall that is over; -1 = none
        self.frozen_until = 0  # it does not run before this time
        self.frozen_ms = 0
        self.closings: list[Closing] = []  # those that a crash may undo
        self.syncing = False
        self.tick_due = False
        self.timer_at: int | None = None
        self.requested = 0  # serial of the last sync begun
        self.durable_serial = 0
        self.written_ms = broker_ms  # broker time of the last tick that wrote
        self.durable_ms = broker_ms  # the same, of the last one known to be synced
        # What was written and is not known to be synced: serial, broker time. Oldest first.
        self.unsynced: list[tuple[int, int]] = []
        self.refused_ms = 0  # broker time when the store began to refuse; 0 = that is long over
        self.refused_until = 0  # serial of the first batch it took again; 0 = it still refuses
        self.pulsed_ms = 0  # broker time of the last sign of life beside the store
        self.pulsing = False
        self.lagging: set[str] = set()  # for tests.simulation.observer
        self.generations = (0, 0)
        self.stored: dict[int, Generation] = {}  # by their numbers
        self.housekept: dict[str, int] = {}
        self.counters = Counters()
        self.engine = Engine(
            store if written is None else written,
            world.settings,
            authenticator=world.authenticator,
            policy=world.policy,
            new_client_id=world.new_client_id,
            counters=self.counters,
            heartbeat=self.heartbeat,
            observe=self._observe,
            new_instance=world.mirror.new_instance,
            filters=filters,
        )
        self.engine.start(broker_ms, alive_ms=world.pulse_ms if alive_ms is None else alive_ms)
        if world.seed % 4 == 3:
            self._crowd_routes()
        self.pump = Pump(self, world.mirror) if world.mirror.is_on else None
        self.schedule_tick()

    def _crowd_routes(self) -> None:
        """Let filters go to rest and wake all the time, and most of them be in the tree."""
        routes = self.engine._routes
        routes.routes_max = 2
        routes.admitted_every = 3 if self.world.seed % 8 == 7 else 1
        routes._filters.shapes_max = 1

    def broker_now(self) -> int:
        """Return broker time in ms."""
        return self.world.now + self.offset

    def heartbeat(self, broker_ms: int) -> bytes:
        """Return the row that says that the broker lives."""
        return self.world.heartbeat(broker_ms)

    def next_serial(self) -> int:
        """Return the serial of the batch that the changes made now will be in."""
        return self.engine.written + 1

    def _observe(self, event: str, connection: "Connection", detail: str) -> None:
        """The engine ends a connection; its transport is closed later, if a CONNACK waits."""
        if event == "connected":
            self.world.mirror.proxied.accepted(self, connection)
        if event == "closed":
            if connection.connack_waits():
                sometimes("ended_before_connack")
            link = connection.transport
            assert isinstance(link, Link)
            link.note_closing(self.next_serial() + 1)  # the open batch may be written before

    # What the network calls

    def open(self, link: Link) -> "Connection":
        """A client's connection is accepted."""
        self.links.append(link)
        remote = f"{link.client.address()}:1883"
        return self.engine.open(link, self.broker_now(), remote=remote)

    def receive(self, link: Link, data: bytes) -> None:
        """Bytes arrived."""
        if self.dead or self.failed:
            return
        try:
            self.engine.receive(link.connection, data, self.broker_now())
        except Unrecoverable as error:
            self.world.fail_stop(str(error))
            return
        self.schedule_tick()
        self.world.passing("after_receive")

    def thaws(self, call: Callable[..., None], *arguments: Any) -> bool:
        """Is the process stopped now? Then `call` is made when it runs again."""
        wait = self.frozen_until - self.world.now
        if wait <= 0 or self.dead:
            return False
        self.world.after(wait, call, *arguments)
        return True

    def frozen(self) -> bool:
        """Is the process stopped now?"""
        return self.frozen_until > self.world.now

    def judged(self, done: Callable[[Verdict], None], verdict: Verdict) -> None:
        """The authenticator has an answer to a CONNECT."""
        if self.dead or self.failed or self.thaws(self.judged, done, verdict):
            return
        try:
            done(verdict)
        except Unrecoverable as error:
            self.world.fail_stop(str(error))
            return
        self.schedule_tick()

    def transport_lost(self, link: Link) -> None:
        """A connection is gone; told once."""
        if self.dead or self.failed:
            return
        self.links.remove(link)
        try:
            self.engine.transport_lost(link.connection, self.broker_now())
        except Unrecoverable as error:
            self.world.fail_stop(str(error))
            return
        self.schedule_tick()

    def resume_writing(self, link: Link) -> None:
        """A client took enough of what was waiting for it."""
        if self.dead or self.failed or self.thaws(self.resume_writing, link) or link.lost:
            return
        try:
            self.engine.resume_writing(link.connection, self.broker_now())
        except Unrecoverable as error:
            self.world.fail_stop(str(error))
            return
        self.schedule_tick()

    # The loop

    def schedule_tick(self) -> None:
        """End the tick soon; what arrives until then is in it."""
        if not self.tick_due:
            self.tick_due = True
            self.world.after(self.world.tick_delay(), self._tick)

    def _tick(self) -> None:
        if self.thaws(self._tick):
            return
        self.tick_due = False
        if self.dead or self.failed:
            return
        try:
            self.end_tick()
        except Unrecoverable as error:
            self.world.fail_stop(str(error))

    def end_tick(self) -> None:
        """End the tick as the shell does; raises what the store raises."""
        world = self.world
        now = self.broker_now()
        before = self.engine.written
        more = self.engine.end_tick(now)
        if self.engine.written != before:
            self.written_ms = now
            self.unsynced.append((self.engine.written, now))
            note_write(self)
            world.mirror.look(self)
            world.passing("after_write")
        self.show_life(now)
        if more:
            self.schedule_tick()
        self.sync()
        self.arm_timer()
        note_tick(self)

    def arm_timer(self) -> None:
        """Ask the engine when it wants to be called."""
        deadline = self.engine.next_deadline()
        if deadline is None or deadline == self.timer_at:
            return
        self.timer_at = deadline
        delay = max(0, deadline - self.broker_now()) + self.world.timer_lateness()
        self.world.after(delay, self._timer, deadline)

    def _timer(self, deadline: int) -> None:
        if self.dead or self.failed or deadline != self.timer_at:
            return
        if self.thaws(self._timer, deadline):
            return
        self.timer_at = None
        note_due(self, self.broker_now())
        try:
            self.engine.handle_timeout(self.broker_now())
        except Unrecoverable as error:
            self.world.fail_stop(str(error))
            return
        self.schedule_tick()
        self.arm_timer()

    # The committer

    def show_life(self, now: int) -> None:
        """Keep what dates a crash up to date while the store refuses the heartbeat."""
        if self.engine.refused_by is None:
            self.refused_until = self.refused_until or self.engine.written
            return
        self.refused_ms = self.refused_ms or now
        self.refused_until = 0
        period = self.engine.settings.heartbeat_ms
        if self.pulsing or not self.durable_serial or now - self.pulsed_ms < period // 2:
            return
        self.pulsing = True
        self.world.after(self.world.sync_time(), self._pulsed, now)

    def _pulsed(self, now: int) -> None:
        """The sign of life is durable."""
        self.pulsing = False
        if not self.dead:
            sometimes("life_shown_beside_the_store")
            self.pulsed_ms = self.world.pulse_ms = now

    def sync(self) -> None:
        """Start a sync if none runs and something is written."""
        if self.syncing or self.engine.written <= self.requested:
            return
        world = self.world
        self.syncing = True
        self.requested = self.engine.written
        try:
            token = self.store.sync_begin()
        except Unrecoverable as error:
            world.fail_stop(str(error))
            return
        world.after(world.sync_time(), self._sync_done, token, self.requested, self.written_ms)
        world.passing("sync_running")

    def _sync_done(self, token: int, serial: int, written_ms: int) -> None:
        if self.dead or self.failed:
            return
        if self.world.sync_fails():
            self.world.fail_stop("injected sync failure")
            return
        self.store.sync_end(token)
        self.is_durable(serial, written_ms)
        self.world.after(self.world.report_delay(), self._committed, serial)

    def is_durable(self, serial: int, written_ms: int) -> None:
        """Batches up to `serial` are durable, the last one of `written_ms`."""
        self.durable_serial = serial
        self.durable_ms = written_ms
        self.world.mirror.proxied.committed(self)
        self.unsynced = [entry for entry in self.unsynced if entry[0] > serial]
        if 0 < self.refused_until <= serial:
            self.refused_ms = 0
        if self.closings:
            self.closings = [c for c in self.closings if c.serial > serial]
        self.world.passing("after_sync")

    def _committed(self, serial: int) -> None:
        if self.dead or self.failed or self.thaws(self._committed, serial):
            return
        self.syncing = False
        try:
            self.engine.committed(serial, self.broker_now())
        except Unrecoverable as error:
            self.world.fail_stop(str(error))
            return
        self.schedule_tick()
        self.world.passing("after_committed")
        self.sync()

    # The end

    def drain(self) -> MemoryStore:
        """Shut down cleanly as on SIGTERM; returns the store the next process will find."""
        engine = self.engine
        engine.drain(self.broker_now())
        for _ in range(1_000):
            more = engine.end_tick(self.broker_now())
            if engine.written > self.durable_serial:
                self.store.sync()
                self.durable_serial = self.requested = engine.written
                engine.committed(engine.written, self.broker_now())
                more = True
            if not more:
                break
        engine.finish(self.broker_now())
        engine.end_tick(self.broker_now())
        self.store.sync()
        assert self.store.unsynced == 0, "a clean shutdown leaves nothing un-synced"
        for link in self.links:
            link.note_closing()
        self.closings.clear()
        return self.die(self.store, whole=True)

    def crash(self, keep: int | None) -> MemoryStore:
        """Die now; returns the store with the first `keep` un-synced batches."""
        return self.die(self.store.crash(keep), whole=False)

    def die(self, store: MemoryStore, *, whole: bool) -> MemoryStore:
        """End this process: every connection breaks."""
        self.dead = True
        now = self.broker_now()
        lo, hi = self._dated(now)
        self.undo_closings(lo, hi)
        for link in list(self.links):
            link.broker_died(lo, hi)
            assert link.closing is not None
            self.world.cut.append(link.closing)
        if whole:
            self.world.note("exit", now)
        return store

    def undo_closings(self, lo: int, hi: int) -> None:
        """What may be undone of the ends of connections may have been between these times."""
        for closing in self.closings:
            if not closing.serial:
                continue
            closing.lo = min(closing.lo, lo)
            closing.hi = max(closing.hi, hi)
            if closing.disconnected == YES:
                closing.disconnected = MAYBE
            self.world.cut.append(closing)

    def _dated(self, now: int) -> tuple[int, int]:
        """Return when the next process may say that this one, which dies now, was dead.

        Never before now, but for what kept signs of life from the disk; late by what one may be.
        """
        period = self.engine.settings.heartbeat_ms
        late = crash_time(0, period)
        slack = self.world.profile.timer_late_ms + TICK_SLACK_MS
        lo = now
        if self.unsynced:  # the last heartbeat that is durable came a period before, or later
            lo = min(lo, self.unsynced[0][1] + late - period - slack)
        if self.refused_ms:
            lo = min(lo, self.refused_ms + late - period - slack)
            lo = min(now, max(lo, self.pulsed_ms + late))
        return lo - self.frozen_ms, now + late  # the heart does not beat in a frozen process


def read_heartbeat(store: MemoryStore) -> Heartbeat | None:
    """Return the heartbeat on disk, None if there is none yet."""
    value = store.get("meta", HEARTBEAT_KEY)
    return None if value is None else Heartbeat.decode(value)


def restart_time(
    store: MemoryStore, pulse_ms: int, wall_ms: int, boot_id: str, boottime_ms: int
) -> int:
    """Return the broker time at which a process starts on this store, as the shell does."""
    return max(resume(read_heartbeat(store), wall_ms, boot_id, boottime_ms), pulse_ms)
