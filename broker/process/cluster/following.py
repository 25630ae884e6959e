"""A node of a cluster before it leads: it follows the log, and sends clients to the leader.

The database is open, the engine is not: it starts from the rows when this node leads. Read next:
`broker.cluster.member`, `broker.process.server`, which serves with what this has opened.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable
from contextlib import closing
from threading import Event as Signal
from threading import Thread
from typing import Final

from broker.cluster import describing
from broker.cluster.lead import Lead, alive_ms
from broker.cluster.member import Member, SharedLog
from broker.cluster.standby import Standby
from broker.cluster.synced_tail import SyncedTail
from broker.configuration.config import Config
from broker.network.listeners import ListenError
from broker.observe.cluster_figures import ClusterFigures
from broker.observe.metrics import MetricsServer, Status
from broker.observe.structured_log import Log
from broker.operations import checkpoint
from broker.operations.control_socket import ControlError, ControlServer, Request
from broker.process.cluster.signals import ENDING, give_back
from broker.process.open import OpenBroker, StartError
from broker.process.reload import HangUps
from broker.process.systemd import Watchdog, notify
from session.counters import Counters
from storage.errors import Recoverable, StorageError
from storage.local.data_directory import DataDirectory
from storage.local.disk_space import Space
from storage.local.opening import OpenDatabase, open_database
from storage.local.rocks import RocksStore
from storage.replicated.roles.terms import Leads, Settings
from storage.tables.tables import FAMILIES
from storage.time import machine_clocks

# What a leader needs is loaded in half of the time, a little at a time: a million filters in 4 s.
PREPARED_ROWS: Final = 512
PREPARE_S: Final = 0.01
CHECK_AGAIN_S: Final = 1.0  # until Kafka is asked again about the topic


async def follow(
    config: Config,
    log: Log,
    stack: contextlib.ExitStack,
    hang_ups: HangUps,
    *,
    has_led: bool = False,
) -> Lead | None:
    """Follow until this node leads; return None if a signal ends the process before.

    `stack` closes what is open in reverse order. `has_led`: this process led until a moment ago,
    so it may lead again before it has heard another leader. Raises `StartError`.
    """
    try:
        directory = stack.enter_context(closing(DataDirectory(config.shell.data_dir)))
        opened = _open_database(config, directory)
        stack.enter_context(closing(opened.store))
        stack.enter_context(closing(opened.watermark))
        for note in opened.notes:
            tell = log.error if note.is_loss else log.warning
            tell(note.event, note.text, **note.fields)
        member = stack.enter_context(
            closing(_member(config, log, directory, opened, has_led=has_led))
        )
    except StorageError as problem:
        raise StartError(str(problem)) from None
    following = Following(config, log, member, opened.store, hang_ups)
    leads = await following.run()
    if leads is None:
        return None
    now = machine_clocks.boottime_ms()
    alive_at_ms = now - leads.silent_ms
    alive = alive_ms(leads, opened.store)
    filters = member.preparation.filters
    return Lead(member, directory, opened, alive, alive_at_ms, filters, leads.is_timed)


def _open_database(config: Config, directory: DataDirectory) -> OpenDatabase:
    """Open the database; delete the ballast, which a leader has made, if there is no room."""
    accepts = config.shell.accept_data_loss
    try:
        return open_database(directory, families=FAMILIES, accept_data_loss=accepts)
    except Recoverable:
        if not Space(directory.ballast, ballast_bytes=0).release_ballast():
            raise
        return open_database(directory, families=FAMILIES, accept_data_loss=accepts)


def open_broker(
    config: Config, log: Log, stack: contextlib.ExitStack, lead: Lead | None
) -> OpenBroker:
    """Open a broker; as the leader of a cluster, tell the others meanwhile that it lives.

    And systemd, to which this process has been ready since it follows.
    """
    if lead is None:
        return OpenBroker(config, log, stack)
    with lead.member.beating(lead.resumed_ms, Watchdog().feed):
        return OpenBroker(config, log, stack, lead)


class Following:
    """One stretch of following."""

    def __init__(
        self, config: Config, log: Log, member: Member, store: RocksStore, hang_ups: HangUps
    ) -> None:
        self._hang_ups: Final = hang_ups
        self._config: Final = config
        self._log: Final = log
        self._member: Final = member
        self._store: Final = store
        self._status: Final = Status()
        self._watchdog: Final = Watchdog()
        self._is_stopped: bool = False  # by a signal
        self._preparing: asyncio.TimerHandle | None = None

    async def run(self) -> Leads | None:
        """Follow until this node leads, or a signal ends it. Raises `StartError`."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Leads | None] = loop.create_future()
        member, log = self._member, self._log
        member.led = lambda leads: _settle(ended, leads)
        member.failed = lambda error: _fail(ended, error)
        member.looked = self._note_figures
        checked: asyncio.Future[str] = loop.create_future()
        for number in ENDING:
            loop.add_signal_handler(number, self._stop, ended, checked)
        standby = Standby(self._config.listeners, self._address, log)
        with contextlib.ExitStack() as stack:
            self._open_metrics(stack)
            self._open_control(stack, loop)
            try:
                await standby.open()
            except ListenError as problem:
                raise StartError(str(problem)) from None
            self._hang_ups.start(loop, functools.partial(self._reload, standby), keeps=True)
            self._status.phase = "following"
            notify(READY=1, STATUS="following")
            log.info(
                "following", "this node follows the log of its cluster, and leads if nobody does"
            )
            member.attach(loop)
            self._prepare(loop)
            # Not on this thread, nor one that an end waits for: Kafka may not answer for long.
            is_settled = Signal()
            ended.add_done_callback(lambda _: is_settled.set())
            tell = functools.partial(_checked, ended, checked)
            checking = (self._config, log, loop, tell, is_settled)
            Thread(target=_check_topic, args=checking, name="topic", daemon=True).start()
            try:
                leads = await ended
                if leads is not None:
                    wrong = await checked  # it does not lead on a topic that loses records
                    if wrong:
                        raise StartError(wrong)
            except StorageError as problem:
                raise StartError(str(problem)) from None
            finally:
                if self._preparing is not None:
                    self._preparing.cancel()
                member.detach()
                await standby.close()
                give_back(loop)
        return None if self._is_stopped else leads

    def _prepare(self, loop: asyncio.AbstractEventLoop) -> None:
        """Load what it needs as a leader, a little at a time, until all is loaded."""
        self._preparing = None
        preparation = self._member.preparation
        until = loop.time() + PREPARE_S
        while preparation.step(PREPARED_ROWS) and loop.time() < until:
            pass
        if not preparation.is_over:
            self._preparing = loop.call_later(PREPARE_S, self._prepare, loop)

    def _stop(self, ended: "asyncio.Future[Leads | None]", checked: "asyncio.Future[str]") -> None:
        """End, also if this node leads already and waits for what Kafka says of the topic."""
        self._is_stopped = True
        _settle(ended, None)
        if not checked.done():
            checked.set_result("")

    def _reload(self, standby: Standby) -> None:
        """Read again what is in use here: certificates. The rest is read when this node leads."""
        standby.reload()
        self._log.info(
            "reload", "this node follows: it reads users, rules and settings as it leads"
        )

    def _note_figures(self, figures: ClusterFigures) -> None:
        """Take what every tick tells, on the loop: it lives."""
        self._status.cluster = figures
        self._watchdog.feed()

    def _address(self) -> str:
        """Return where clients find the leader, "" = not known."""
        replica = self._member.replica
        return replica.members.address(replica.leader)

    def _open_control(self, stack: contextlib.ExitStack, loop: asyncio.AbstractEventLoop) -> None:
        """Open the control socket, if the file system allows one."""
        try:
            control = ControlServer(
                self._config.shell.data_dir,
                self._answer,
                functools.partial(_call_soon, loop),
                failed=lambda why: self._log.warning("control", why),
            )
        except OSError as problem:
            self._log.warning("control", f"no control socket: {problem.strerror}")
            return
        stack.callback(control.close)

    def _answer(self, request: Request) -> Request:
        """Answer what can be asked of a node that does not lead."""
        if request.get("do") == describing.STATUS:
            return describing.status(self._member)
        if request.get("do") == "checkpoint":  # on the loop, between two batches
            done = checkpoint.answer(self._store, request)
            self._log.info(
                "checkpoint",
                "a copy of the database was made",
                directory=request["directory"],
                milliseconds=int(done["milliseconds"]),
            )
            return done
        raise ControlError(describing.elsewhere(self._member.replica.leader))

    def _open_metrics(self, stack: contextlib.ExitStack) -> None:
        shell = self._config.shell
        if not shell.metrics_enabled:
            return
        try:
            metrics = MetricsServer(
                shell.metrics_host,
                shell.metrics_port,
                counters=Counters(),
                status=self._status,
                take_snapshot=lambda timeout_s: None,
            )
        except OSError as problem:
            from broker.network.listeners import bind_problem

            raise StartError(
                bind_problem("metrics", shell.metrics_host, shell.metrics_port, problem)
            ) from None
        stack.callback(metrics.close)


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(call)


def _settle(ended: "asyncio.Future[Leads | None]", leads: Leads | None) -> None:
    if not ended.done():
        ended.set_result(leads)


def _fail(ended: "asyncio.Future[Leads | None]", error: StorageError) -> None:
    if not ended.done():
        ended.set_exception(error)


def _check_topic(
    config: Config,
    log: Log,
    loop: asyncio.AbstractEventLoop,
    tell: Callable[[str], None],
    is_settled: Signal,
) -> None:
    """Say why the topic would lose records, "" if it would not, or cannot be asked about.

    Kafka may come later than this node, so it is asked again. Once this node is to lead, which
    `is_settled` tells, it is asked once more: a topic that can be used and not asked about, as
    without the right to describe it, must not keep a node from leading.
    """
    from broker.operations import cluster_topic  # the library, only if asked for
    from storage.replicated.kafka.topic import TopicError

    problems: list[str] = []
    told = ""
    while True:
        is_last = is_settled.is_set()
        try:
            problems = cluster_topic.problems(config.cluster)
            break
        except TopicError as problem:
            # A node must come back by itself when Kafka does.
            if str(problem) != told:
                told = str(problem)
                log.warning("cluster_topic", f"the topic could not be checked: {told}")
        if is_last:
            break
        is_settled.wait(CHECK_AGAIN_S)
    with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
        loop.call_soon_threadsafe(tell, "; ".join(problems))


def _checked(
    ended: "asyncio.Future[Leads | None]", checked: "asyncio.Future[str]", wrong: str
) -> None:
    if not checked.done():
        checked.set_result(wrong)
    if wrong:
        _fail(ended, StorageError(wrong))


def _open_log(config: Config, place: int) -> SharedLog:
    """Open the log at a place."""
    from broker.operations import cluster_topic  # the library, only if asked for
    from storage.replicated.kafka_log import KafkaLog

    cluster = config.cluster
    return KafkaLog(cluster_topic.access(cluster), cluster.topic, place=place)


def _member(
    config: Config, log: Log, directory: DataDirectory, opened: OpenDatabase, *, has_led: bool
) -> Member:
    cluster = config.cluster
    assert cluster.node is not None
    settings = Settings(
        cluster.node,
        cluster.members,
        address=cluster.advertise or "",
        takeover_ms=cluster.takeover_ms,
        keep_ms=cluster.keep_ms,
        accepts_data_loss=config.shell.accept_data_loss,
    )
    return Member(
        settings,
        opened.store,
        lambda place: _open_log(config, place),
        lambda synced, failed: SyncedTail(directory.tail, synced, failed),
        log=log,
        database_synced=lambda: opened.watermark.advance(opened.store.synced()),
        has_led=has_led,
    )
