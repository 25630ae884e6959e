"""The process: opens what the broker needs in order, listens, looks after the disk, ends cleanly.

Order of a start: lock, bind (so that a port in use is known at once), database, watermark, engine,
and only then listen and say "ready". Order of an end: stop accepting, send clients away, commit,
close. After an unrecoverable failure there is no orderly end: the process exits at once and the
next start recovers from what is durable. Read next: `broker.loop.driver`.
"""

import asyncio
import contextlib
import gc
import os
import resource
import secrets
import signal
import string
import sys
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final

from broker import build
from broker.configuration.config import Config, ConfigError
from broker.history import location
from broker.history.export_thread import LAST_KEY
from broker.history.exporter import Exporter, why_not
from broker.history.location import Place
from broker.history.segment_process_link import SegmenterLink
from broker.loop.driver import Driver
from broker.network.listeners import ListenError, Listeners, bind_problem
from broker.observe.metrics import MetricsServer, Status
from broker.observe.structured_log import Log, install_bridge
from broker.operations import checkpoint
from broker.operations.control_socket import ControlServer, Request
from broker.process.sys_topics import SystemTopics
from broker.process.systemd import notify, watchdog_period_s
from broker.security import access_files
from broker.version import VERSION
from session.counters import Counters
from session.engine import Engine, Recovery
from session.live.connection import Connection
from storage.errors import Recoverable, StorageError
from storage.history import events
from storage.history.segment_names import newest_boot
from storage.local.committer import Committer
from storage.local.data_directory import DataDirectory
from storage.local.disk_space import Space, is_full
from storage.local.heartbeat_file import Pulse
from storage.local.rocks import RocksStore
from storage.local.watermark import Watermark
from storage.tables.tables import FAMILIES, HISTORY, META
from storage.time import broker_clock as clock
from storage.time import machine_clocks
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1

HOUSEKEEPING_S: Final = 1.0
HANDSHAKE_FAILED: Final = "SSL handshake failed"  # how both loops begin to tell of one
# A collection looks at all objects younger than the last one of its kind, and 30,000 connected
# sessions are 540,000: 580 ms for a full one. So what has lived for a second is frozen while the
# broker grows, and only the youngest, 20,000 at a time (5 ms), are ever looked at. A cycle that is
# frozen is never freed: on uvloop a closed connection leaves none
# (tests/broker/loop/test_client_stream.py; TLS, broken TLS and WebSocket were measured likewise).
# asyncio's transports are cycles, so there nothing is frozen.
GC_THRESHOLDS: Final = (20_000, 1000, 1000)
GC_THRESHOLDS_ASYNCIO: Final = (50_000, 20, 50)
GC_FROZEN_AT: Final = 3  # young generations of so many objects


ALPHANUMERIC: Final = string.digits + string.ascii_letters
CLIENT_ID_DIGITS: Final = 22  # 62 ** 22 > 2 ** 128


class StartError(Exception):
    """The broker cannot start; one line for the operator."""


def serve(config: Config) -> int:
    """Run a broker until SIGTERM or SIGINT; return the exit status. Raises `StartError`.

    Does not return after an unrecoverable failure: the process exits with status 1 at once.
    """
    os.umask(0o077)  # what the database writes is for its owner alone (CVE-2017-9868)
    log = Log(level=config.shell.log_level, format=_log_format(config))
    install_bridge(log)
    with contextlib.ExitStack() as opened:
        server = Server(config, log, opened)
        signal.signal(signal.SIGHUP, server.note_hang_up)  # else it ends who is not ready yet
        server.open()
        return _run(server.run())


def _log_format(config: Config) -> Any:
    return config.shell.log_format  # one of log.Format's words: config has checked it


def _run(main: Coroutine[Any, Any, int]) -> int:
    """Run `main` on uvloop, on asyncio where there is none."""
    factory: Callable[[], asyncio.AbstractEventLoop]
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


class Server:
    """One broker process."""

    def __init__(self, config: Config, log: Log, opened: contextlib.ExitStack) -> None:
        """`opened` collects what has to be closed at the end, in reverse order."""
        self._config = config
        self._log = log
        self._opened = opened
        self._counters = Counters()
        self._status = Status()
        self._status.durability = config.shell.durability
        self._listeners = Listeners(config.listeners, log)
        self._driver: Driver | None = None
        self._metrics_port = 0
        self._history: Place | None = None  # None = nothing is recorded
        self._exporter: Exporter | None = None
        self._damaged_logged = 0
        self._is_full = False  # did RocksDB run out of space, and is it not open again?
        self._freezes = False  # are objects that have grown old frozen?
        self._hung_up = False  # did SIGHUP come before there was anything to reload?

    # Opening, before there is a loop.

    def open(self) -> None:
        """Open everything and recover; raise `StartError`."""
        shell = self._config.shell
        _raise_file_limit()
        began = time.monotonic()
        try:
            directory = DataDirectory(shell.data_dir)
            self._opened.callback(directory.close)
            self._opened.callback(self._listeners.close)
            self._listeners.bind()
            if self._config.settings.history_level > events.OFF:
                self._history = location.settle(shell)
            self._access = access_files.open_files(self._config, self._log, self._answer)
            self._opened.callback(self._access.close)
            self._open_metrics()
            self._status.phase = "recovering"
            notify(STATUS="recovering")
            self._space = Space(
                directory.ballast,
                ballast_bytes=shell.ballast_bytes,
                low_water_bytes=shell.low_water_bytes,
            )
            self._space.check()
            self._store = self._open_store(directory)
            self._watermark = Watermark(directory.watermark)
            self._opened.callback(self._watermark.close)
            lost = self._watermark.check(
                self._store.sequence(), accept_data_loss=shell.accept_data_loss
            )
            if lost:
                self._log.error("data_loss_accepted", "starting without it as told", batches=lost)
            self._pulse = Pulse(directory.pulse)
            self._opened.callback(self._pulse.close)
            self._start_engine()
        except (StorageError, ListenError, ConfigError, access_files.AccessError) as problem:
            raise StartError(str(problem)) from None
        self._status.recovery_seconds = time.monotonic() - began

    def _open_store(self, directory: DataDirectory) -> RocksStore:
        """Open the database, on the ballast's room if there is no other."""
        try:
            store = RocksStore(
                directory.database,
                families=FAMILIES,
                accept_data_loss=self._config.shell.accept_data_loss,
            )
        except Recoverable:
            if not self._space.release_ballast():
                raise
            store = RocksStore(
                directory.database,
                families=FAMILIES,
                accept_data_loss=self._config.shell.accept_data_loss,
            )
        self._opened.callback(store.close)
        return store

    def _open_metrics(self) -> None:
        shell = self._config.shell
        if not shell.metrics_enabled:
            return
        try:
            metrics = MetricsServer(
                shell.metrics_host,
                shell.metrics_port,
                counters=self._counters,
                status=self._status,
                take_snapshot=lambda timeout_s: (
                    None if self._driver is None else self._driver.take_snapshot(timeout_s)
                ),
            )
        except OSError as problem:
            raise StartError(
                bind_problem("metrics", shell.metrics_host, shell.metrics_port, problem)
            ) from None
        self._metrics_port = metrics.port
        self._opened.callback(metrics.close)

    def _start_engine(self) -> None:
        """Recover: broker time goes on from the last heartbeat, then the engine from the rows.

        It never goes back behind a sign of life beside the database either.
        """
        self._boot_id = machine_clocks.boot_id()
        value = self._store.get(META, HEARTBEAT_KEY)
        heartbeat = None if value is None else Heartbeat.decode(value)
        boottime_ms = machine_clocks.boottime_ms()
        start_ms = clock.resume(heartbeat, machine_clocks.wall_ms(), self._boot_id, boottime_ms)
        start_ms = max(start_ms, self._pulse.broker_ms)
        self._clock_offset_ms = start_ms - boottime_ms
        self._engine = Engine(
            self._store,
            self._config.settings,
            authenticator=self._access.authenticator,
            policy=self._access.policy,
            new_client_id=_new_client_id,
            counters=self._counters,
            heartbeat=self._heartbeat,
            observe=self._observe,
        )
        told_of = 0
        if self._history is not None:
            told_of = newest_boot(self._history.directory, self._history.node)
        self._recovery: Recovery = self._engine.start(
            start_ms, alive_ms=self._pulse.broker_ms, told_of=told_of
        )
        self._status.recovered_sessions = self._recovery.sessions
        self._started_ms = start_ms

    def _observe(self, event: str, connection: Connection, detail: str) -> None:
        """Log what happens to a client; a storm of them is cut to what a disk bears."""
        self._log.info(
            f"client_{event}", detail, client_id=connection.client_id, remote=connection.remote
        )

    def _clock(self) -> int:
        """Return broker time now."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + self._clock_offset_ms

    def _heartbeat(self, now: int) -> bytes:
        """Return the heartbeat row for broker time `now`."""
        return Heartbeat(
            now, machine_clocks.wall_ms(), self._boot_id, now - self._clock_offset_ms
        ).encode()

    def _answer(self, call: Callable[..., None], *arguments: object) -> None:
        """Bring a verdict from a password thread to the engine."""
        if self._driver is not None:
            self._driver.run_from_thread(call, *arguments)

    # Running.

    async def run(self) -> int:
        """Serve until a signal; return the exit status."""
        loop = asyncio.get_running_loop()
        driver = Driver(
            self._engine,
            self._store,
            loop=loop,
            clock=self._clock,
            log=self._log,
            fail=self._die,
            watch_space=self._watch_space,
        )
        committer = Committer(
            self._store,
            driver.durable,
            driver.failed,
            durability=self._config.shell.durability,
            watermark=self._watermark,
            durable_sequence=self._store.durable_sequence,
            pulse=self._pulse,
        )
        self._opened.callback(committer.close)
        self._driver = driver
        self._open_control(driver)
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, signal.Signals(number).name, ended)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        loop.set_exception_handler(self._loop_exception)
        driver.start(committer)
        self._start_exporter(driver)
        try:
            await self._listeners.start(driver)
        except ListenError as problem:
            driver.stop()
            raise StartError(str(problem)) from None
        self._system_topics = SystemTopics(
            self._engine.publish_system, self._counters, version=VERSION, started_ms=driver.now
        )
        self._housekeeping_due = loop.time()
        self._system_due = loop.time()
        self._keep_house()
        gc.collect()
        gc.freeze()
        self._freezes = type(loop).__module__.startswith("uvloop")
        gc.set_threshold(*(GC_THRESHOLDS if self._freezes else GC_THRESHOLDS_ASYNCIO))
        self._say_ready()
        if self._hung_up:
            self._hang_up()
        await ended.wait()
        return await self._drain(driver)

    def _start_exporter(self, driver: Driver) -> None:
        """Export the history, that of earlier boots too, also when nothing more is recorded."""
        shell = self._config.shell
        last = self._store.last(HISTORY, b"", LAST_KEY)
        if self._history is None and last is None:
            return
        outbox = self._engine.outbox
        try:
            place = self._history or location.settle(shell)
        except ConfigError as problem:
            raise StartError(str(problem)) from None
        self._exporter = Exporter(
            self._store,
            outbox,
            self._engine,
            driver,
            lambda: SegmenterLink(
                place, seal_events=shell.history_seal_events, keep_days=shell.history_keep_days
            ),
            outbox_bytes_max=shell.history_outbox_bytes_max,
            seal_events=shell.history_seal_events,
            seal_s=shell.history_seal_s,
            log=self._log,
            unavailable=why_not(),
        )
        self._opened.callback(self._exporter.close)
        driver.more_gauges = self._exporter.gauges
        self._exporter.start()

    def _open_control(self, driver: Driver) -> None:
        """Listen to the operator's commands for a running broker, where the file system lets us."""
        try:
            control = ControlServer(
                self._config.shell.data_dir,
                self._make_checkpoint,
                driver.call_from_thread,
            )
        except OSError as problem:
            self._log.warning("control", f"no control socket, so no checkpoint: {problem.strerror}")
            return
        self._opened.callback(control.close)

    def _make_checkpoint(self, request: Request) -> Request:
        """Copy the database between two ticks, and tell the history and the log."""
        assert self._driver is not None
        done = checkpoint.answer(self._store, request)
        self._log.info(
            "checkpoint",
            "a copy of the database was made",
            directory=request["directory"],
            milliseconds=int(done["milliseconds"]),
        )
        self._driver.run(self._engine.outbox.copied, int(done["milliseconds"]))
        return done

    def _say_ready(self) -> None:
        status, recovery = self._status, self._recovery
        port = self._listeners.port
        sessions = f"{recovery.sessions} session" + ("" if recovery.sessions == 1 else "s")
        recovered = f"recovered {sessions} in {status.recovery_seconds:.2f} s"
        built = build.find()
        status.beat = time.monotonic()
        status.phase = "ready"
        self._log.info(
            "ready",
            f"holdfast {VERSION} ready port={port} {recovered}",
            host=self._config.listeners[0].host,
            port=port,
            listeners=str(self._listeners),
            metrics_port=self._metrics_port,
            durability=self._config.shell.durability,
            data_dir=self._config.shell.data_dir,
            sessions=recovery.sessions,
            topic_filters=recovery.filters,
            retained_messages=recovery.retained,
            were_connected=recovery.were_connected,
            seconds=round(status.recovery_seconds, 3),
            build=str(built),
        )
        if built.fell_back:
            self._log.warning(
                "not_compiled",
                f"this is the slow build, pure Python: {built.why}. Nobody asked for that: "
                "install a C compiler, then pip install --force-reinstall --no-cache-dir",
            )
        notify(READY=1, STATUS=recovered)

    def _keep_house(self) -> None:
        """Do what is due every second: disk space, $SYS, signs of life."""
        driver = self._driver
        assert driver is not None
        loop = driver.loop
        late = loop.time() - self._housekeeping_due
        driver.loop_lag_s = max(0.0, late)
        self._status.beat = time.monotonic()
        self._housekeeping_due = loop.time() + HOUSEKEEPING_S
        loop.call_later(HOUSEKEEPING_S, self._keep_house)
        if watchdog_period_s() is not None:
            notify(WATCHDOG=1)
        if self._freezes:
            freeze_if_grown()
        self._watch_space()
        if self._exporter is not None:
            self._exporter.beat()
        damaged = self._counters.internal_errors - driver.bugs_logged
        if damaged > self._damaged_logged:
            self._damaged_logged = damaged
            self._log.error(
                "record_damaged",
                "a stored record does not decode; the client that needs it is refused",
                count=damaged,
            )
        interval = self._config.settings.sys_interval_s
        if interval and loop.time() >= self._system_due:
            self._system_due = loop.time() + interval
            driver.run(self._publish_system)

    def _publish_system(self) -> None:
        driver = self._driver
        assert driver is not None
        stats = driver.gauges()
        stats["recovery_ms"] = int(self._status.recovery_seconds * 1000)
        self._system_topics.refresh(driver.now, stats, heap_bytes=resident_bytes())

    def _watch_space(self) -> None:
        """Refuse new state below the low-water mark; open the store again after a full disk."""
        driver = self._driver
        if driver is None:
            return
        try:
            was_low = self._space.is_low
            is_low = self._space.check()
            if is_low != was_low:
                self._log.warning(
                    "disk_low" if is_low else "disk_recovered",
                    "refusing new durable state" if is_low else "taking new durable state again",
                    free_bytes=self._space.free_bytes(),
                    low_water_bytes=self._space.low_water_bytes(),
                )
            driver.set_low(is_low)
            refusal = self._engine.refused_by
            if self._store.needs_reopen:
                self._reopen()
            elif refusal is not None and is_full(refusal):
                self._space.release_ballast()  # RocksDB goes on by itself where there is room
        except StorageError as error:
            driver.fail(error)
        except OSError as problem:
            self._log.error("disk_unknown", f"cannot look at the disk: {problem}")

    def _reopen(self) -> None:
        """Give the ballast up and open the store again, if there is room for what that takes."""
        if not self._is_full:
            self._is_full = True
            self._log.error("disk_full", "the database found no space; waiting for some")
        self._space.release_ballast()
        try:
            self._store.reopen()
        except Recoverable:
            return  # what is there can still be read; the next look tries again
        self._is_full = False
        self._log.info("disk_full_ended", "the database is open for writing again")

    # Signals and ends.

    def _end(self, name: str, ended: asyncio.Event) -> None:
        if ended.is_set():
            self._log.warning("exit", "second signal: ending at once", signal=name)
            _exit_now(EXIT_FAILED)
        self._log.info("draining", "sending clients away, committing", signal=name)
        ended.set()

    def note_hang_up(self, number: int, frame: FrameType | None) -> None:
        """SIGHUP while the broker starts: what has been read is read again once it is ready."""
        self._hung_up = True

    def _hang_up(self) -> None:
        """SIGHUP: read again what may change while we run."""
        self._listeners.reload()
        if self._access.has_files:
            access_files.reload_files(self._access, self._log, self._send_away)
        elif not self._listeners.has_certificates:
            self._log.info("reload", "nothing to reload: no password file, ACL file or certificate")

    def _send_away(self, users: frozenset[str]) -> None:
        """End the connections of users who are not who they were."""
        driver = self._driver
        assert driver is not None
        self._engine.send_away(users, driver.now)

    async def _drain(self, driver: Driver) -> int:
        """End in order; 0 when everything was out and durable in time."""
        self._status.phase = "draining"
        notify(STOPPING=1, STATUS="draining")
        self._listeners.stop()
        timeout_s = self._config.shell.drain_timeout_ms / 1000
        is_drained = await driver.drain(timeout_s)
        history_s = self._config.shell.history_drain_ms / 1000
        if is_drained and history_s and self._exporter is not None:
            if not await self._exporter.finish(history_s):
                self._log.info("exit", "some of the history is left for the next start to export")
        driver.stop()
        if not is_drained:
            self._log.error("exit", f"not drained in {timeout_s:g} s; ending without")
            _exit_now(EXIT_FAILED)
        self._log.info("exit", "everything is durable; good-bye")
        return EXIT_OK

    def _die(self, error: BaseException) -> None:
        """End the process after a failure that memory cannot be trusted past."""
        self._status.phase = "failed"
        if isinstance(error, StorageError):
            text = f"{error}; ending; a restart helps unless the database is damaged"
            self._log.error("storage_failed", text)
        else:
            assert self._driver is not None
            self._driver.count_bug("tick", error)
            self._log.error("exit", "ending after an internal error; a restart recovers")
        _exit_now(EXIT_FAILED)

    def _loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what no callback of ours caught, as the loop tells it."""
        error = context.get("exception")
        message = str(context.get("message", ""))
        if isinstance(error, OSError) or message.startswith(HANDSHAKE_FAILED):
            # A peer's network, no file descriptor for it, or a certificate that is noise.
            self._log.warning("network", f"{message}: {error}")
        elif isinstance(error, Exception) and self._driver is not None:
            self._driver.count_bug("loop", error)
        else:
            self._log.error("loop", message)


def freeze_if_grown() -> None:
    """Take what has survived a collection of the young out of all later ones, if it is much."""
    if gc.get_count()[1] >= GC_FROZEN_AT:
        gc.freeze()


def _new_client_id() -> str:
    """Return 128 random bits as letters and digits: an id that every server has to take.

    [MQTT-3.1.3-5]: up to 23 of them. Nobody can guess the session behind it.
    """
    number = secrets.randbits(128)
    digits = ""
    for _ in range(CLIENT_ID_DIGITS):
        number, digit = divmod(number, len(ALPHANUMERIC))
        digits += ALPHANUMERIC[digit]
    return digits


def _exit_now(status: int) -> None:
    """Leave without joining a thread that may hang in a sync for ever, and without flushing."""
    sys.stderr.flush()
    os._exit(status)


def _raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one: a connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def resident_bytes() -> int:
    """Return the memory this process has in use, 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0
