"""The process: opens the broker, serves until a signal, ends in order.

Order of an end: stop accepting, send clients away, commit, close. After an unrecoverable failure
there is no orderly end: the process exits at once and the next start recovers from what is durable.
Read next: `broker.process.open` (the order of a start) and `broker.loop.driver`.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from broker import build
from broker.cluster import describing
from broker.cluster.committing import ReplicatedCommitter
from broker.cluster.lead import Lead
from broker.configuration.config import Config, ConfigError
from broker.history import location
from broker.history.export_thread import LAST_KEY
from broker.history.exporter import Exporter, why_not
from broker.history.segment_process_link import SegmenterLink
from broker.loop.driver import Driver
from broker.network.listeners import ListenError
from broker.observe.cluster_figures import ClusterFigures
from broker.observe.structured_log import Log, install_bridge
from broker.operations import checkpoint
from broker.operations.control_socket import Answer, ControlError, ControlServer, Request
from broker.operations.owing.count_thread import Counted, CountThread
from broker.process import collector, feeding
from broker.process.children.admin_child import AdminChild
from broker.process.cluster import following
from broker.process.cluster.signals import ENDING, give_back
from broker.process.desks.reception import Reception
from broker.process.disk_watch import DiskWatch
from broker.process.feeding import Feeding
from broker.process.housekeeping import Housekeeping
from broker.process.open import OpenBroker, StartError
from broker.process.reload import HangUps, ReadConfig, Reload
from broker.process.systemd import notify
from broker.version import VERSION
from storage.api import Committing
from storage.errors import DamagedRows, StorageError
from storage.local.committer import FSYNC, Committer
from storage.replicated.roles.terms import Deposed
from storage.tables.tables import HISTORY

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_DEPOSED: Final = -1  # not of the process: it follows again

SENT_AWAY_S: Final = 0.5  # for clients to read that another node has their sessions
HAND_OVER_HISTORY_S: Final = 0.25  # to export the history before another node may lead

T = TypeVar("T")

HANDSHAKE_FAILED: Final = "SSL handshake failed"  # how the message of both loops begins


def serve(
    config: Config, read_config: ReadConfig | None = None, admin_arguments: Sequence[str] = ()
) -> int:
    """Run a broker until SIGTERM or SIGINT; return the exit status. Raises `StartError`.

    `read_config` reads the configuration again at SIGHUP; None = it has no file. The process of
    the HTTP API, if one is configured, finds its own by `admin_arguments`.
    Does not return after an unrecoverable failure: the process exits with status 1 at once.
    """
    os.umask(0o077)  # what the database writes is for its owner alone (CVE-2017-9868)
    log = Log(level=config.shell.log_level, format=_log_format(config))
    install_bridge(log)
    hang_ups = HangUps()
    has_led = False
    while True:
        with contextlib.ExitStack() as stack:
            lead = None
            if config.cluster.is_replicated:
                lead = _run(following.follow(config, log, stack, hang_ups, has_led=has_led))
                hang_ups.rest()
                if lead is None:
                    return EXIT_OK
            opened = following.open_broker(config, log, stack, lead)
            status = _run(_serve(opened, hang_ups, read_config, admin_arguments))
            hang_ups.rest()
        if status != EXIT_DEPOSED:
            return status
        has_led = True
        del lead, opened, stack  # a million sessions of the broker that has ended
        collector.release()


def _log_format(config: Config) -> Any:
    return config.shell.log_format  # one of log.Format's words: config has checked it


def _run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on uvloop, on asyncio where there is none."""
    factory: Callable[[], asyncio.AbstractEventLoop]
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


async def _serve(
    opened: OpenBroker,
    hang_ups: HangUps,
    read_config: ReadConfig | None,
    admin_arguments: Sequence[str],
) -> int:
    server = Server(opened, asyncio.get_running_loop(), read_config, admin_arguments)
    return await server.run(hang_ups)


class Server:
    """Serves with an open broker until a signal ends it."""

    def __init__(
        self,
        opened: OpenBroker,
        loop: asyncio.AbstractEventLoop,
        read_config: ReadConfig | None,
        admin_arguments: Sequence[str] = (),
    ) -> None:
        self._opened: Final = opened
        self._config: Final = opened.config
        self._log: Final = opened.log
        self._status: Final = opened.status
        self._engine: Final = opened.engine
        self._listeners: Final = opened.listeners
        self._disk: Final = DiskWatch(opened)
        self._driver: Final = Driver(
            opened.engine,
            opened.store,
            loop=loop,
            clock=opened.clock.now,
            log=opened.log,
            fail=self._die,
            watch_space=self._disk.look,
            rest_max_ms=opened.config.shell.rest_max_ms,
        )
        opened.driver = self._driver
        self._exporter: Exporter | None = None
        self._feeding: Feeding | None = None
        self._is_deposed: bool = False
        self._successor: str | None = None  # who leads from now on, by an operator's will
        self._ended: Final = asyncio.Event()
        self._admin: Final = (
            None
            if opened.config.shell.admin_listen is None
            else AdminChild(admin_arguments, opened.log)
        )
        self._reload: Final = Reload(opened, self._driver, read_config)
        self._reception: Final = Reception(opened, self._driver, self._reload)
        self._reception.open(describing.REQUESTS, self._cluster_desk)
        self._reception.open(feeding.REQUESTS, lambda asked: feeding.answer(self._feeding, asked))

    async def run(self, hang_ups: HangUps) -> int:
        """Serve until a signal; return the exit status. Raises `StartError`."""
        driver, loop = self._driver, self._driver.loop
        ended = self._ended
        committer = self._make_committer()
        self._opened.stack.callback(committer.close)
        self._open_control()
        for number in ENDING:
            loop.add_signal_handler(number, self._end, signal.Signals(number).name, ended)
        loop.set_exception_handler(self._loop_exception)
        driver.start(committer)
        self._start_exporter()
        hang_ups.start(loop, self._reload.run)
        driver.before_data = hang_ups.look
        try:
            await self._listeners.start(driver)
        except ListenError as problem:
            driver.stop()
            raise StartError(str(problem)) from None
        self._start_feeding()
        if self._admin is not None:
            self._admin.start()
        self._start_counting()
        Housekeeping(self._opened, driver, self._disk, self._exporter).start()
        self._log_ready()
        await ended.wait()
        status = await (self._step_down() if self._is_deposed else self._drain())
        if status == EXIT_DEPOSED:
            give_back(loop)
        return status

    def _make_committer(self) -> Committing:
        """Return what tells which batches are durable: on this disk, or in the cluster's log."""
        opened, driver = self._opened, self._driver
        lead = opened.lead
        if lead is not None:
            member = lead.member
            member.broker_ms = opened.clock.now
            member.failed = self._die
            member.deposed = self._note_deposed
            member.looked = self._note_figures
            committer = ReplicatedCommitter(member, driver.durable, driver.loop)
            member.attach(driver.loop)
            return committer
        durability, store = self._config.shell.durability, opened.store
        return Committer(
            store,
            driver.durable,
            driver.failed,
            durability=durability,
            watermark=opened.watermark,
            source=store,
            pulse=opened.pulse,
            direct=store.open_direct() if durability == FSYNC else None,
        )

    def _note_deposed(self, told: Deposed) -> None:
        """Another node leads: release nothing any more, and tell the clients where it is."""
        self._is_deposed = True
        self._status.phase = "draining"
        self._driver.send_away(told.address)
        self._ended.set()

    def _note_figures(self, figures: ClusterFigures) -> None:
        self._status.cluster = figures

    def _cluster_desk(self, request: Request) -> Answer:
        """Answer what is asked of this node's cluster."""
        lead = self._opened.lead
        if lead is None:
            raise ControlError('this broker is in no cluster: its storage.backend is "local"')
        if request["do"] == describing.STATUS:
            return describing.status(lead.member)
        self._successor = describing.successor(lead.member, request)
        self._log.info("cluster_hand_over", f"handing over to {self._successor}")
        self._ended.set()
        return {"leader": self._successor}

    def _successor_address(self) -> str:
        """Return where clients find who leads from now on, "" = nobody has said."""
        lead = self._opened.lead
        if lead is None or self._successor is None:
            return ""
        return lead.member.replica.members.address(self._successor)

    async def _resign(self) -> None:
        """Let another node lead at once, rather than when it misses this one."""
        lead = self._opened.lead
        if lead is not None:
            lead.member.resign(self._successor or "")
            await asyncio.sleep(SENT_AWAY_S)
            lead.member.detach()

    async def _step_down(self) -> int:
        """End this broker, and leave what is not committed; the process goes on as a follower."""
        self._listeners.stop()
        await asyncio.sleep(SENT_AWAY_S)
        if self._feeding is not None:
            await self._feeding.close()
        if self._admin is not None:
            await self._admin.close()
        self._driver.stop()
        assert self._opened.lead is not None
        self._opened.lead.member.detach()
        return EXIT_DEPOSED

    def _has_history(self) -> bool:
        """Return whether rows of the history are in the store, damaged ones included."""
        try:
            return self._opened.store.last(HISTORY, b"", LAST_KEY) is not None
        except DamagedRows:
            return True

    def _start_exporter(self) -> None:
        """Start to export the history: rows of earlier starts too, even if recording is now off."""
        shell = self._config.shell
        place = self._opened.history
        if place is None and not self._has_history():
            return
        try:
            settled = place or location.settle(shell)
        except ConfigError as problem:
            raise StartError(str(problem)) from None
        self._exporter = Exporter(
            self._opened.store,
            self._engine.outbox,
            self._engine,
            self._driver,
            lambda before: SegmenterLink(
                settled,
                seal_events=shell.history_seal_events,
                keep_days=shell.history_keep_days,
                before=before,
            ),
            outbox_bytes_max=shell.history_outbox_bytes_max,
            seal_events=shell.history_seal_events,
            seal_s=shell.history_seal_s,
            log=self._log,
            unavailable=why_not(),
            witness=self._opened.witness,
            is_replicated=self._opened.lead is not None,
        )
        self._opened.stack.callback(self._exporter.close)
        self._driver.more_gauges = self._exporter.gauges
        self._exporter.start()

    def _start_feeding(self) -> None:
        """Start to feed the external stores, if a rule names one."""
        told = self._opened.backends
        if not told:
            return
        required = frozenset(each.name for each in self._config.backends if each.required)
        self._feeding = Feeding(told, required, self._engine, self._driver, self._status, self._log)
        self._feeding.start()

    def _start_counting(self) -> None:
        """Count what is owed now and then, in a process of its own."""
        interval_s = self._config.shell.backlog_interval_s
        if not interval_s:
            return
        counting = CountThread(
            self._opened.store.path,
            interval_s,
            self._log,
            is_low=self._status.is_disk_low,
            found=self._note_counted,
        )
        self._opened.stack.callback(counting.close)
        counting.start()

    def _note_counted(self, counted: Counted) -> None:
        """Take what was counted, on a thread of its own."""
        self._status.backlog = counted.figures()
        self._reception.owed.found(counted)

    def _open_control(self) -> None:
        """Open the control socket, if the file system allows one."""
        try:
            control = ControlServer(
                self._config.shell.data_dir,
                self._answer,
                self._driver.call_from_thread,
                failed=lambda why: self._log.warning("control", why),
            )
        except OSError as problem:
            why = problem.strerror
            self._log.warning("control", f"no control socket, so nothing can be asked: {why}")
            return
        self._opened.stack.callback(control.close)

    def _answer(self, request: Request) -> Answer:
        """Answer a request to the control socket."""
        desk = self._reception.desk_of(request)
        return self._make_checkpoint(request) if desk is None else desk(request)

    def _make_checkpoint(self, request: Request) -> Request:
        """Copy the database between two ticks; record and log it."""
        done = checkpoint.answer(self._opened.store, request)
        self._log.info(
            "checkpoint",
            "a copy of the database was made",
            directory=request["directory"],
            milliseconds=int(done["milliseconds"]),
        )
        self._driver.run(self._engine.outbox.copied, int(done["milliseconds"]))
        return done

    def _log_ready(self) -> None:
        status, recovery = self._status, self._opened.recovery
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
            metrics_port=self._opened.metrics_port,
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
                "install a C compiler, then install Holdfast again with --force-reinstall "
                "--no-deps --no-cache-dir, from its checkout",
            )
        notify(READY=1, STATUS=recovered)

    # Signals and ends.

    def _end(self, name: str, ended: asyncio.Event) -> None:
        if ended.is_set():
            self._log.warning("exit", "second signal: ending at once", signal=name)
            _exit_now(EXIT_FAILED)
        self._log.info("draining", "sending clients away, committing", signal=name)
        ended.set()

    async def _drain(self) -> int:
        """End in order; return 0 if everything was sent and durable in time."""
        self._status.phase = "draining"
        tell_end(self._successor)
        self._listeners.stop()
        timeout_s = self._config.shell.drain_timeout_ms / 1000
        is_drained = await self._driver.drain(timeout_s, self._successor_address())
        history_s = history_drain_s(self._config, self._opened.lead)
        if is_drained and history_s and self._exporter is not None:
            if not await self._exporter.finish(history_s):
                self._log.info("exit", "some of the history is left for the next start to export")
        if self._feeding is not None:
            await self._feeding.close()
        if is_drained:
            await self._resign()
        if self._admin is not None:
            await self._admin.close()
        self._driver.stop()
        if not is_drained:
            self._log.error("exit", f"not drained in {timeout_s:g} s; ending without")
            _exit_now(EXIT_FAILED)
        if self._successor is not None:
            self._log.info("cluster_handed_over", f"{self._successor} is to lead")
            return EXIT_DEPOSED
        self._log.info("exit", "everything is durable; good-bye")
        return EXIT_OK

    def _die(self, error: BaseException) -> None:
        """End the process after a failure: memory may be ahead of the disk."""
        self._status.phase = "failed"
        if isinstance(error, StorageError):
            text = f"{error}; ending; a restart helps unless the database is damaged"
            self._log.error("storage_failed", text)
        else:
            self._driver.count_bug("tick", error)
            self._log.error("exit", "ending after an internal error; a restart recovers")
        _exit_now(EXIT_FAILED)

    def _loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an exception that no callback has caught."""
        error = context.get("exception")
        message = str(context.get("message", ""))
        if isinstance(error, OSError) or message.startswith(HANDSHAKE_FAILED):
            # The peer's network, no free file descriptor, or a bad certificate.
            self._log.warning("network", f"{message}: {error}")
        elif isinstance(error, Exception):
            self._driver.count_bug("loop", error)
        else:
            self._log.error("loop", message)


def tell_end(successor: str | None) -> None:
    """Tell systemd that this process ends, or hands over and goes on to follow.

    A process that says that it stops and does not is killed by systemd.
    """
    if successor is None:
        notify(STOPPING=1, STATUS="draining")
    else:
        notify(STATUS=f"handing over to {successor}")


def history_drain_s(config: Config, lead: Lead | None) -> float:
    """Return how long an end waits until the history is exported.

    Clients of a cluster wait meanwhile, and the next leader has the rows as well.
    """
    seconds = config.shell.history_drain_ms / 1000
    return seconds if lead is None else min(seconds, HAND_OVER_HISTORY_S)


def _exit_now(status: int) -> None:
    """Exit without joining threads: one may hang in a sync for ever."""
    sys.stderr.flush()
    os._exit(status)
