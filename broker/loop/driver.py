"""Runs the engine on an event loop: one tick per iteration, one timer, commits from their thread.

Streams hand their bytes to the engine and `wake` the driver. At the end of the iteration `_tick`
has the engine write its batch and asks the committer to make it durable; what waits for the commit
is sent once the committer has reported. Must never block on the disk. Any exception here that is
not a refused write ends the process: memory may then be ahead of the disk, and only a restart
recovers from that.
Read next: `broker.loop.client_stream`.
"""

import asyncio
import concurrent.futures
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Protocol

from broker.loop.lingering import Lingering
from broker.loop.pace import Pace
from broker.loop.sockets import open_poller
from broker.observe.backend_figures import BackendFigures
from broker.observe.metrics import Snapshot
from broker.observe.structured_log import Log
from session.engine import Engine
from session.live.connection import Connection
from storage.api import Committing
from storage.errors import Recoverable, StorageError, WriteStalled
from storage.local.committer import FSYNC
from storage.local.rocks import RocksStore

# A fast publisher can fill the disk between two looks a second apart.
SPACE_WATCH_BYTES: Final = 1 << 20
# Pause before the next try after a bug in a timer's work, so that it does not use all of a CPU.
TIMEOUT_BUG_PAUSE_S: Final = 1.0
# A timer this late means that the process was stopped or suspended; load delays it by a few ms.
LATE_MS: Final = 250
REST_S_MIN: Final = 0.0002  # a shorter rest is not worth its system call
# How long the sockets are then read before timeouts count: clients may have sent PINGREQ.
CATCH_UP_S: Final = 0.05


class Stream(Protocol):
    """An open client stream, as the driver sees it."""

    def abort(self) -> None:
        """Drop the connection with whatever was still to be written."""
        ...

    def send_away(self, server: str) -> None:
        """End the connection and name another server; the engine is not told."""
        ...


class Tap(Protocol):
    """Who watches one stream, for a trace; it must change nothing."""

    def received(self, data: bytes) -> None:
        """Take what the client has sent, before the engine does."""
        ...

    def sent(self, data: bytes) -> None:
        """Take what is written to the client."""
        ...

    def said(self, what: str) -> None:
        """Take what happens besides."""
        ...

    def closed(self, what: str) -> None:
        """Take the last thing that happens: the stream is gone."""
        ...


class Driver:
    """Drives one engine until `stop` or a failure."""

    def __init__(
        self,
        engine: Engine,
        store: RocksStore,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        log: Log,
        fail: Callable[[BaseException], None],
        watch_space: Callable[[], None] = lambda: None,
        rest_max_ms: int = 0,
    ) -> None:
        """`clock` gives broker time; `fail` is called once, with the error that ends the process.

        `watch_space` looks at the disk; it is called after each `SPACE_WATCH_BYTES` of input and
        when a write was refused; somebody else calls it regularly. After a tick the loop may rest
        for `rest_max_ms` (`broker.loop.pace`).
        """
        self.engine: Engine = engine
        self.loop: asyncio.AbstractEventLoop = loop
        self.streams: set[Stream] = set()
        self.lingering: Lingering = Lingering(loop)  # those that wait for their peers to close
        self.connections: Counter[str] = Counter()  # number of open streams by listener
        self.now: int = clock()  # broker time of the current tick
        self.is_due: bool = False  # is a tick scheduled?
        self.out_buffer_bytes_max: int = engine.settings.out_buffer_bytes_max
        self.loop_lag_s: float = 0.0
        self.pace: Pace = Pace(rest_max_ms)
        self.sockets = open_poller(loop)  # None in the pure build
        self.more_gauges: Callable[[], dict[str, int]] = _no_gauges  # of the exporter
        self.backends: Callable[[], list[BackendFigures]] = _no_backends  # of external stores
        # Makes the tap of a new connection while a trace is on (`broker.operations.tracing`).
        self.new_tap: Callable[[Connection], Tap | None] | None = None
        self.commits_durable: Callable[[], None] = _nobody_waits  # called after each commit
        # What waits until a commit is durable: (its serial, what to call then), oldest first.
        self._awaiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.before_data: Callable[[], None] = _nobody_waits  # called before data is handled
        self._store = store
        self._clock = clock
        self._log = log
        self._fail_port = fail
        self._watch_space = watch_space
        self._watched_bytes: int = 0  # of input, when the disk was last looked at
        self._received_bytes: int = 0  # of input, at the end of the last tick
        self._counters = engine.counters
        self._committer: Committing | None = None
        self._commit_file: int = -1  # readable when a direct sync has ended
        self._requested: int = 0
        self._reported: int = 0  # by the committer, perhaps not released yet
        self._durable: int = 0
        # (serial, when its tick began, when its commit was requested), oldest first.
        self._commits: deque[tuple[int, float, float]] = deque()
        self._tick_began: float = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: int = 0  # broker time the timer is set for, 0 = no timer
        self._is_catching_up: bool = False  # resumed after a stop, sockets not read yet?
        self._is_stopped: bool = False
        self._refusal: Recoverable | None = None  # why the last write was refused, if it was
        self._alive_ms: int = 0  # broker time last written to the heartbeat file
        self._is_low: bool = False  # is the disk below its low-water mark?
        self._drained: asyncio.Event | None = None

    def start(self, committer: Committing) -> None:
        """Begin to tick; `committer` reports to `durable` and `failed`."""
        self._committer = committer
        if self.sockets is not None:
            self.loop.add_reader(self.sockets.fileno(), self._turn)
        self._commit_file = committer.fileno()
        if self._commit_file >= 0:
            self.loop.add_reader(self._commit_file, self._release)
        self.wake()

    # Ticks.

    def wake(self) -> None:
        """Schedule a tick for the end of this iteration and take the time; not while `is_due`."""
        self._begin_tick()
        self.loop.call_soon(self._tick)

    def _begin_tick(self) -> None:
        self.is_due = True
        self.now = self._clock()
        self._tick_began = time.perf_counter()
        if self.sockets is not None:
            self.sockets.expect()

    def _turn(self) -> None:
        """Read from all sockets that have something; that is a tick, if none is due anyway.

        What became durable meanwhile is released first, so that it leaves with this tick and does
        not wait for the rest behind it.
        """
        is_ours = not self.is_due
        if is_ours:
            self._begin_tick()
        if self._reported > self._durable:
            self._committed(self._reported)
        if self._commit_file >= 0:
            self._release()
        assert self.sockets is not None
        self.sockets.poll()
        if is_ours:
            self._tick()

    def _release(self) -> None:
        """Release what a direct sync has made durable.

        It leaves at the end of this iteration, with what the sockets have: a tick of its own would
        make more and smaller batches.
        """
        assert self._committer is not None
        serial = self._committer.collect()
        if serial > self._durable:
            self._committed(serial)

    def _tick(self) -> None:
        """End the tick: write its batch, send what may go, ask for the commit of the rest."""
        self.is_due = False
        if self._is_stopped:
            return
        self.now = now = self._clock()
        engine = self.engine
        try:
            is_more = engine.end_tick(now)
        except Exception as error:  # shell boundary: memory may be ahead of the disk
            self.fail(error)
            return
        if engine.refused_by is not self._refusal:
            self._note_refusal(engine.refused_by)
            self._show_life(now)
        received = self._counters.bytes_received
        has_read = received != self._received_bytes
        self._received_bytes = received
        if received - self._watched_bytes > SPACE_WATCH_BYTES:
            self._watched_bytes = received
            self._watch_space()
        written = engine.written
        if written != self._requested:
            self._requested = written
            self._commits.append((written, self._tick_began, time.perf_counter()))
            assert self._committer is not None
            self._committer.request(written)
        if self.sockets is not None:
            self.sockets.flush()  # behind the request: the sync begins meanwhile
        if is_more and not self.is_due:
            self.wake()
        self._arm(now)
        if self._drained is not None and self.is_quiet():
            self._drained.set()
        if has_read and self.pace.rest_s and not self.is_due:
            self._rest()

    def _rest(self) -> None:
        """Let what comes within the next moment be one tick: poll no sooner than after a rest.

        It is measured from the first event of this tick, so a busy loop does not rest. A tick in
        which no client has said anything, such as one of a timer, does not either: it comes before
        the sockets are polled, and what they have would wait for a second rest.
        """
        self.pace.look(self.now)
        left = self.pace.rest_s - (time.perf_counter() - self._tick_began)
        if left > REST_S_MIN:
            time.sleep(left)

    def _note_refusal(self, refusal: Recoverable | None) -> None:
        """Count a write that the store refused; log when refusals begin and end.

        The engine keeps the batch and tries it again.
        """
        if refusal is None:
            self._log.info("writes_resumed", "the store takes writes again")
        else:
            self._counters.commit_failures += 1
            if self._refusal is None:
                self._log.warning("write_refused", f"{refusal}; trying again")
                self._watch_space()
        self._refusal = refusal

    def _show_life(self, now: int) -> None:
        """Write the heartbeat file while the store refuses the heartbeat row.

        Not before the first commit: until then the store still has the connections of the previous
        process, and their crash time must not come from this one.
        """
        period_ms = self.engine.settings.heartbeat_ms
        if self._refusal is None or not self._durable or now - self._alive_ms < period_ms // 2:
            return
        self._alive_ms = now
        assert self._committer is not None
        self._committer.alive(now)

    def durable(self, serial: int) -> None:
        """Take the committer's report: on its thread in mode fsync, else inside a tick."""
        assert self._committer is not None
        self._reported = serial
        if self._committer.mode == FSYNC:
            self.call_from_thread(self._committed, serial)
        else:
            self.loop.call_soon(self._committed, serial)

    def failed(self, error: StorageError) -> None:
        """Take the committer's failure, on its thread."""
        self.call_from_thread(self._commit_failed, error)

    def call_from_thread(self, call: Callable[..., object], *arguments: object) -> None:
        """Call on the loop's thread; dropped when the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            return

    def run_from_thread(self, call: Callable[..., None], *arguments: object) -> None:
        """Like `run`, called from another thread."""
        self.call_from_thread(self.run, call, *arguments)

    def run(self, call: Callable[..., None], *arguments: object) -> None:
        """Set the clock, call something that uses the engine, and tick."""
        if self._is_stopped:
            return
        if not self.is_due:
            self.wake()
        if not self._is_behind():
            # Sets the engine's clock. A bug there must not take the call away: somebody waits.
            self._guard("timeout", self.engine.handle_timeout, self.now)
        if not self._is_stopped:
            self._guard("callback", call, *arguments)

    def _guard(self, place: str, call: Callable[..., None], *arguments: object) -> None:
        """Call; count an exception as a bug in `place`, end the process if it is the store's."""
        try:
            call(*arguments)
        except StorageError as error:
            self.fail(error)
        except Exception as bug:  # shell boundary
            self.count_bug(place, bug)

    def _committed(self, serial: int) -> None:
        """Release what waited for `serial`; it leaves at the end of this iteration's tick."""
        if self._is_stopped:
            return
        assert self._committer is not None
        self._committer.resume()
        if serial <= self._durable:
            return
        arrived = time.perf_counter()
        counters = self._counters
        while self._commits and self._commits[0][0] <= serial:
            _, began, requested = self._commits.popleft()
            counters.commit_seconds.add(arrived - requested)
            counters.publish_ack_seconds.add(arrived - began)
            counters.commits += 1
        self._durable = max(self._durable, serial)
        if not self.is_due:
            self.wake()
        try:
            self.engine.committed(serial, self.now)
        except Exception as error:  # shell boundary: memory may be ahead of the disk
            self.fail(error)
            return
        self._tell_durable()
        self.commits_durable()

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call something once all that was done up to now is durable; not if the broker ends."""
        self._awaiting.append((self.engine.settled_by, call))
        self._tell_durable()

    def _tell_durable(self) -> None:
        while self._awaiting and self._awaiting[0][0] <= self._durable:
            _, call = self._awaiting.popleft()
            self._guard("callback", call)

    def _commit_failed(self, error: StorageError) -> None:
        self._counters.commit_failures += 1
        self.fail(error)

    def note_disk_space(self, *, is_low: bool, room_bytes: int) -> None:
        """Refuse or take new durable state, as the disk has room."""
        self._is_low = is_low
        self.engine.note_disk_space(is_low=is_low, room_bytes=room_bytes)

    # Timers.

    def _arm(self, now: int) -> None:
        """Set the one timer to the engine's next deadline, unless it fires early enough anyway."""
        deadline = self.engine.next_deadline()
        if deadline is None or (self._timer_due and self._timer_due <= deadline):
            return  # a timer that fires early does no harm
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = deadline
        self._timer = self.loop.call_later(max(0, deadline - now) / 1000, self._expire)

    def _is_behind(self) -> bool:
        """Return whether the process was stopped, so that clients may only seem silent."""
        if self._is_catching_up:
            return True
        return self._timer_due > 1 and self._clock() - self._timer_due > LATE_MS

    def _expire(self) -> None:
        if self._is_behind() and not self._is_catching_up:
            self._is_catching_up = True
            self._timer_due = 1  # before every deadline: `_arm` leaves this timer alone
            self._timer = self.loop.call_later(CATCH_UP_S, self._expire)
            return
        self._is_catching_up = False
        self._timer = None
        self._timer_due = 0
        if self._is_stopped:
            return
        if not self.is_due:
            self.wake()  # its tick arms the next timer
        deadline = self.engine.next_deadline()
        if deadline is None or deadline > self.now:
            return
        try:
            self.engine.handle_timeout(self.now)
        except StorageError as error:
            self.fail(error)
        except Exception as bug:  # shell boundary
            self.count_bug("timeout", bug)
            self._timer_due = 1  # before every deadline: `_arm` leaves this timer alone
            self._timer = self.loop.call_later(TIMEOUT_BUG_PAUSE_S, self._expire)

    # Ending.

    async def drain(self, timeout_s: float, server: str = "") -> bool:
        """Send every client away, commit, and return whether all was out and durable in time.

        `server` is who serves them from now on, "" = nobody that is known here.
        """
        if not self.is_due:
            self.wake()
        self.engine.drain(self.now, server)
        if not await self.quiet(timeout_s):
            return False
        self.run(self._finish)
        return await self.quiet(timeout_s)

    async def quiet(self, timeout_s: float) -> bool:
        """Return whether, in time, no client was connected and everything was durable."""
        self._drained = asyncio.Event()
        if not self.is_due:
            self.wake()
        try:
            await asyncio.wait_for(self._drained.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _finish(self) -> None:
        self.engine.finish(self.now)

    def is_quiet(self) -> bool:
        """Return whether no client is connected and everything written is durable."""
        return not self.streams and not self.is_due and self._durable >= self.engine.written

    def stop(self) -> None:
        """End ticking."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for stream in list(self.streams):
            stream.abort()
        if self.sockets is not None:
            self.sockets.flush()
            self.loop.remove_reader(self.sockets.fileno())
        if self._commit_file >= 0:
            self.loop.remove_reader(self._commit_file)

    def send_away(self, server: str) -> None:
        """End all connections and ticking: another node has the sessions now.

        No acknowledgement leaves any more. A client of MQTT 5 is told so, and the address
        of `server` if there is one.
        """
        self._is_stopped = True
        for stream in list(self.streams):
            stream.send_away(server)
        if self.sockets is not None:
            self.sockets.flush()

    def fail(self, error: BaseException) -> None:
        """Stop at once: no acknowledgement leaves this process any more."""
        if not self._is_stopped:
            self._is_stopped = True
            self._fail_port(error)

    # Watching.

    def count_bug(self, place: str, error: BaseException, *, remote: str = "") -> None:
        """Log and count an exception that is a bug of the broker."""
        self._counters.internal_errors += 1
        self._log.error(
            "internal_error",
            f"{place}: {type(error).__name__}: {error}",
            remote=remote,
            traceback="".join(traceback.format_exception(error)),
        )

    def take_snapshot(self, timeout_s: float) -> Snapshot | None:
        """Read the engine for a scrape, from another thread; None when the loop does not answer."""
        answer: concurrent.futures.Future[Snapshot] = concurrent.futures.Future()

        def read() -> None:
            try:
                answer.set_result(self.snapshot())
            except Exception as error:  # shell boundary: the scrape must get its answer
                self.count_bug("snapshot", error)
                answer.set_exception(error)

        try:
            self.loop.call_soon_threadsafe(read)
            return answer.result(timeout_s)
        except Exception:  # shell boundary: no snapshot is an answer too
            return None

    def gauges(self) -> dict[str, int]:
        """Return the numbers of the engine and the exporter."""
        gauges = dict(self.engine.stats())
        gauges.update(self.more_gauges())
        gauges["connections"] = len(self.streams)
        gauges["writes_refused"] = int(
            self._is_low
            or (self._refusal is not None and not isinstance(self._refusal, WriteStalled))
        )
        return gauges

    def snapshot(self) -> Snapshot:
        """Return the same numbers with the sizes of the store. On the loop's thread."""
        store = self._store
        return Snapshot(
            self.gauges(),
            connections=dict(self.connections),
            storage_bytes=store.sizes(),
            write_stall=store.property_int("rocksdb.is-write-stopped", "default"),
            loop_lag_s=self.loop_lag_s,
            backends=self.backends(),
        )


def _no_gauges() -> dict[str, int]:
    return {}


def _no_backends() -> list[BackendFigures]:
    return []


def _nobody_waits() -> None:
    return None
