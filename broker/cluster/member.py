"""This process as a node of a cluster: the replica, its log, its tail and its database on one loop.

Follows until it leads. As leader it commits what the engine writes. Everything is called on the
loop's thread; syncs of the tail and of the database are made by threads of their own. Read next:
`storage.replicated.replica` (what a node may do), `broker.cluster.standby` (what clients of a
follower are told), `broker.cluster.committing`.
"""

import asyncio
import contextlib
import secrets
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from threading import Event as Signal
from threading import Thread
from typing import Final, Protocol

from broker.cluster.delays import Delay
from broker.cluster.preparing import Preparation
from broker.observe.cluster_figures import ClusterFigures
from broker.observe.structured_log import Log
from storage.api import Store
from storage.errors import Recoverable, StorageError, Unrecoverable, WriteStalled
from storage.replicated import anchors as anchor_rows
from storage.replicated.batch_codec import Operation
from storage.replicated.log_port import ReplicatedLog
from storage.replicated.members import NONCE_BYTES, Presence
from storage.replicated.overlay import ReplicatedStore
from storage.replicated.record import Position
from storage.replicated.replica import Replica
from storage.replicated.roles.terms import (
    BROKEN,
    LEADS,
    Anchor,
    Committed,
    Deposed,
    Leads,
    Settings,
    Tail,
    Trouble,
)
from storage.time import machine_clocks

TICK_S: Final = 0.1
UNHEARD_MS: Final = 5000  # after it, an operator is told that nothing is heard of the log
# How often the database of a node is synced: what it has not synced is read again from the log.
SYNC_S: Final = 1.0
# What a leader has written and not committed is in its memory, up to four times. Beyond this it
# takes no more: the log is silent, or slower than clients that do not wait for acknowledgements.
PENDING_BYTES_MAX: Final = 32 << 20
PENDING_MAX: Final = 20_000  # batches


class SharedLog(ReplicatedLog, Protocol):
    """A log whose news wakes an event loop."""

    @property
    def said(self) -> str:
        """Return what is wrong with it, in a line; "" = nothing is known to be."""
        ...

    @property
    def refusal(self) -> str:
        """Return why nothing is appended for some seconds, "" = it is, or nobody has tried."""
        ...

    def fileno(self) -> int:
        """Return the descriptor that is readable while there is something to take."""
        ...

    def close(self) -> None:
        """End its threads."""
        ...


class KeptTail(Tail, Protocol):
    """A tail on the disk, synced by a thread of its own."""

    @property
    def synced(self) -> int:
        """Return the greatest index that is synced, and still there."""
        ...

    @property
    def syncs(self) -> int:
        """Return how many syncs have ended."""
        ...

    @property
    def sync_seconds(self) -> float:
        """Return how long these took together."""
        ...

    @property
    def is_new(self) -> bool:
        """Return whether it began empty, and `remember` was not called since."""
        ...

    def remember(self) -> None:
        """From now on it is the tail of a node that knows all that it ever had. Durable."""
        ...

    def truncate_before(self, index: int) -> None:
        """Delete what the database has durably."""
        ...

    def close(self) -> None:
        """End its thread."""
        ...


class Database:
    """The database of this node, as its replica sees it."""

    def __init__(self, base: Store, store: ReplicatedStore) -> None:
        self._base: Final = base
        self._store: Final = store
        self.unsaved: tuple[Anchor, ...] = ()  # for which there was no room
        self.applied: Callable[[Sequence[Operation]], None] = _nobody  # told of each batch

    def apply(self, operations: Sequence[Operation], position: Position, place: int) -> None:
        """Apply a batch that was read from the log."""
        self._store.apply(operations, position, place)
        self.applied(operations)

    def remember(self, anchors: Sequence[Anchor], *, is_synced: bool = False) -> None:
        """Note places of the log from where it can be read again.

        Without room those of before stay, which are still true, unless it must be synced. The log
        may not be deleted beyond them meanwhile: the database does not count as synced.
        """
        try:
            anchor_rows.save(self._base, anchors)
            self.unsaved = ()
        except Recoverable:
            if is_synced:
                raise
            self.unsaved = tuple(anchors)
        if is_synced:
            self._base.sync()

    def save_again(self) -> None:
        """Try again to save the places for which there was no room."""
        if self.unsaved:
            self.remember(self.unsaved)


class Member:
    """A node. `led`, `deposed` and `committed` are called on the loop's thread."""

    def __init__(
        self,
        settings: Settings,
        base: Store,
        make_log: Callable[[int], SharedLog],
        make_tail: Callable[[Callable[[], None], Callable[[StorageError], None]], KeptTail],
        *,
        log: Log,
        database_synced: Callable[[], None] = lambda: None,
        has_led: bool = False,
    ) -> None:
        """`make_log` opens the log at a place; `make_tail` is given whom to tell of a sync.

        `database_synced` is called on a thread of its own. `has_led`: this process did, until a
        moment ago. Raises `StorageError`.
        """
        self.settings: Final = settings
        self.store: Final = ReplicatedStore(base, self._append)
        self.led: Callable[[Leads], None] = _nobody
        self.deposed: Callable[[Deposed], None] = _nobody
        self.committed: Callable[[int], None] = _nobody
        self.failed: Callable[[StorageError], None] = _nobody  # told what ends the process
        self.broker_ms: Callable[[], int] | None = None  # the time of the broker, while it leads
        self.looked: Callable[[ClusterFigures], None] = _nobody  # told of figures, now and then
        self.trouble: str = ""
        self.unheard: str = ""  # since when the log is not heard, and why; "" = it is heard
        self.terms: int = 0  # how often it began to lead
        self.commits: Final = Delay()  # from a write of the leader to its commit
        self._lag: Final = Delay()  # from a record that is known to its being in the database
        self._base: Final = base
        self._log: Final = log
        self._database_synced: Final = database_synced
        self._leader: str = ""  # who was told to lead last
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused: bool = False  # is the log not read from, until the database goes on?
        self._waiting: list[Committed] = []  # committed, and not in the database yet
        self._synced: int = 0
        self._deposition: Deposed | None = None  # perhaps before there was a broker to be told
        self._failure: StorageError | None = None  # of a thread; the process ends with it
        # What each other member said last, and when this node first had it.
        self._words: Final[dict[str, tuple[Presence, int]]] = {}
        self._database: Final = Database(base, self.store)
        self.preparation: Final = Preparation(base, self._unprepared)
        self._database.applied = self.preparation.applied
        reached = self.store.position()
        self._tail: Final = make_tail(self._tail_synced, self._tail_failed)
        self._shared: Final = make_log(reached.place)
        self.replica: Final = Replica(
            settings,
            self._shared,
            self._database,
            self._tail,
            nonce=secrets.token_bytes(NONCE_BYTES),
            at=Anchor(reached.position, reached.place),
            anchors=anchor_rows.load(base),
            now=machine_clocks.boottime_ms(),
            is_new=self._tail.is_new,
            is_warm=has_led,
        )
        self._ends: Final = Signal()
        self._syncer: Final = Thread(target=self._sync_base, name="base-sync", daemon=True)
        self._syncer.start()

    @property
    def written(self) -> int:
        """Return the index of the newest record that this node has written."""
        return self.replica.written

    @property
    def settled(self) -> int:
        """Return the index up to which every record is committed, at least."""
        return self.store.position().position.index if self.store.pending else self.written

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run on this loop from now on."""
        self._loop = loop
        loop.add_reader(self._shared.fileno(), self._pump)
        self._is_paused = False
        if self._deposition is not None:
            loop.call_soon(self.deposed, self._deposition)
        self._tick()

    def detach(self) -> None:
        """Run no more until `attach`."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self._shared.fileno())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """End all threads; what is not committed is given up. Idempotent."""
        self.detach()
        self._ends.set()
        self._syncer.join()
        self._shared.close()
        self._tail.close()

    def resign(self, successor: str) -> None:
        """Lead no more: `successor` may claim at once, "" = everybody."""
        self.replica.resign(successor, self.broker_ms() if self.broker_ms is not None else 0)

    def figures(self, now: int) -> ClusterFigures:
        """Return what the metrics say of this node, at `now` by the boot-time clock."""
        replica, store = self.replica, self.store
        return ClusterFigures(
            role=replica.role,
            has_leader=bool(replica.leader),
            epoch=replica.end.epoch,
            read=replica.end.index,
            applied=store.position().position.index,
            durable=self._synced,
            pending_batches=store.pending,
            pending_bytes=store.pending_bytes,
            silent_s=replica.silent_ms(now) / 1000,
            terms=self.terms,
            lag_records=max(0, self._known() - store.position().position.index),
            lag_s=self._lag.age(now / 1000),
            commits=self.commits.count,
            commit_s=self.commits.seconds,
            tail_syncs=self._tail.syncs,
            tail_sync_s=self._tail.sync_seconds,
            is_warm=replica.is_warm or replica.role == LEADS,
        )

    def _known(self) -> int:
        """Return the index of the newest record that this node, or another one, has."""
        replica = self.replica
        others = (each.reached[1] for _, each in replica.members)
        return max(replica.end.index, replica.written, *others)

    def silent_ms(self, node: str) -> int:
        """Return for how long a member that was heard has said nothing."""
        self._note_words(now := machine_clocks.boottime_ms())
        return now - self._words[node][1]

    # On the loop.

    def _append(self, operations: Sequence[Operation]) -> int:
        store = self.store
        is_full = store.pending_bytes > PENDING_BYTES_MAX or store.pending >= PENDING_MAX
        if is_full and self._loop is not None:  # without it, as in a recovery, nothing is committed
            raise WriteStalled(f"{store.pending} batches wait until the log has them")
        index = self.replica.write(operations)
        self.commits.begin(index, time.monotonic())
        return index

    def _pump(self) -> None:
        """Take what the log has to say, unless the database is behind already."""
        if self.replica.is_refused:
            assert self._loop is not None
            self._loop.remove_reader(self._shared.fileno())  # until a tick finds it ready
            self._is_paused = True
            return
        with self._fail_stop():
            self.replica.events(self._shared.take(), machine_clocks.boottime_ms())
            self._tell()

    @contextlib.contextmanager
    def _fail_stop(self) -> Iterator[None]:
        """End the process after whatever is raised: of what was taken from the log a part is lost.

        A claim of another node may be in that part, and what comes behind it must not count.
        """
        try:
            yield
        except StorageError as error:
            self._fail(error)
        except Exception as error:  # shell boundary
            self._fail(self._bug(error))

    def _fail(self, error: StorageError) -> None:
        """Take nothing more from the log; tell now and with every tick, until somebody ends."""
        self._failure = error
        if self._loop is not None:
            self._loop.remove_reader(self._shared.fileno())
        self.failed(error)

    def _bug(self, error: Exception) -> StorageError:
        """Log a bug; return what ends the process."""
        text = f"{type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
        self._log.error("internal_error", f"member: {text}", traceback=trace)
        return Unrecoverable(f"internal error of this node: {text}")

    def _unprepared(self, problem: StorageError) -> None:
        self._log.warning("cluster_filters", f"the filters of sessions cannot be read: {problem}")

    def _tick(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(TICK_S, self._tick)
        now = machine_clocks.boottime_ms()
        with self._fail_stop():
            if self._failure is not None:
                raise self._failure
            self._database.save_again()
            self.replica.timeout(now)
            if self._is_paused and not self.replica.is_refused:
                self._is_paused = False
                self._loop.add_reader(self._shared.fileno(), self._pump)
            if self.replica.role == LEADS and self.broker_ms is not None:
                self.replica.beat(self.broker_ms(), now)
            self.replica.synced(self._synced)
            self._note_words(now)
            self._note_silence(now)
            self._tell()
            self._lag.begin(self._known(), now / 1000)
            self._lag.reach(self.store.position().position.index, now / 1000)
            self.looked(self.figures(now))

    def _note_silence(self, now: int) -> None:
        """Say once that the log is not heard, and why; and once that it is again."""
        silent_ms = self.replica.silent_ms(now)
        was_heard = not self.unheard
        self.unheard = ""
        if silent_ms > UNHEARD_MS and not self._is_paused:
            why = self._shared.said or "no answer"
            self.unheard = f"for {silent_ms // 1000} s: {why}"
            if was_heard:
                self._log.warning("cluster_log_silent", f"the log is not heard: {why}")
        elif refusal := self._shared.refusal:
            self.unheard = f"to take anything: {refusal}"
            if was_heard:
                self._log.warning("cluster_log_silent", f"the log is not heard {self.unheard}")
        elif not was_heard:
            self._log.info("cluster_log_heard", "the log is heard")

    def _note_words(self, now: int) -> None:
        for name, each in self.replica.members:
            if name not in self._words or self._words[name][0] is not each:
                self._words[name] = each, now

    def _tell(self) -> None:
        replica = self.replica
        if self._tail.is_new and not replica.is_new:
            self._tail.remember()  # before a new leader acknowledges anything
        told, replica.told[:] = list(replica.told), []
        for each in told:
            match each:
                case Committed():
                    self._waiting.append(each)
                case Leads():
                    self.terms += 1
                    self._log.info(
                        "cluster_leads", "this node leads", epoch=each.epoch, silent=each.silent_ms
                    )
                    self.led(each)
                case Deposed():
                    self._log.warning("cluster_deposed", f"{each.leader} leads now")
                    self._deposition = each
                    self.deposed(each)
                case Trouble(why):
                    self._note(why)
        if self._waiting:
            self._commit()
        if replica.leader != self._leader:
            self._leader = replica.leader
            if replica.role != LEADS:
                self._log.info("cluster_follows", f"{self._leader} leads", leader=self._leader)

    def _note(self, why: str) -> None:
        self.trouble = why
        if not why:
            self._log.info("cluster_trouble_ended", "what was told last is over")
        elif self.replica.role == BROKEN:
            self._fail(StorageError(f"this node is broken: {why}"))
        else:
            self._log.warning("cluster_trouble", why)

    def _commit(self) -> None:
        """Release what is committed, and bring it to the database."""
        self.commits.reach(self._waiting[-1].position.index, time.monotonic())
        self.committed(self._waiting[-1].position.index)
        while self._waiting:
            first = self._waiting[0]
            try:
                self.store.committed(first.position, first.place)
            except Recoverable:
                return  # a full disk: the log has it, and the next tick tries again
            del self._waiting[0]

    @contextlib.contextmanager
    def beating(
        self, broker_ms: Callable[[], int], lives: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Tell the others that this node lives while no loop runs, as in a recovery.

        `lives` is called as often, on a thread of its own.
        """
        ends = Signal()
        beat = (ends, broker_ms, lives)
        thread = Thread(target=self._beat, args=beat, name="beating", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()

    def _beat(self, ends: Signal, broker_ms: Callable[[], int], lives: Callable[[], None]) -> None:
        period_s = self.settings.heartbeat_ms / 1000
        while not ends.wait(period_s):
            lives()
            self._shared.append(self.replica.heartbeat(broker_ms()))

    def _tail_synced(self) -> None:
        """On the thread of the tail."""
        self._call(self._tail_is_synced)

    def _tail_is_synced(self) -> None:
        with self._fail_stop():
            self.replica.tail_synced(self._tail.synced)
            self._tell()

    def _tail_failed(self, error: StorageError) -> None:
        """On the thread of the tail."""
        self._failure = error  # told with the next tick, which may be one after a recovery

    def _truncate(self, index: int) -> None:
        with self._fail_stop():
            self._tail.truncate_before(index)

    def _call(self, call: Callable[..., None], *arguments: object) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(call, *arguments)

    # The thread that syncs the database.

    def _sync_base(self) -> None:
        while not self._ends.wait(SYNC_S):
            index = self.store.position().position.index
            if index == self._synced or self._database.unsaved:
                continue
            try:
                self.store.sync()
                self._database_synced()
            except Recoverable:
                continue
            except StorageError as error:
                self._failure = error
                return
            except Exception as error:  # shell boundary
                self._failure = self._bug(error)
                return
            self._synced = index
            self._call(self._truncate, index)


def _nobody(told: object) -> None:
    return None
