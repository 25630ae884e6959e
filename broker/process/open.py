"""Opens what a broker needs, in the order that keeps data safe, and recovers the engine.

Order: lock the data directory, bind the listeners (a port in use is known at once), read the files
of users and rules, open the metrics server, the database and the watermark, recover the engine.
Accepts no client: `broker.process.server` does that next.
"""

import contextlib
import resource
import secrets
import string
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, Final

from broker.backends import rules
from broker.backends.pump.pump import INSTANCE_BYTES
from broker.cluster.lead import Lead
from broker.configuration.config import Config, ConfigError
from broker.history import location
from broker.history.location import Place
from broker.history.witness_thread import WitnessThread
from broker.loop.driver import Driver
from broker.network.listeners import ListenError, Listeners, bind_problem
from broker.observe.denials import NAME_CHARACTERS_MAX, Denials
from broker.observe.metrics import MetricsServer, Snapshot, Status
from broker.observe.structured_log import Log, Value
from broker.operations.tracing.taps import Taps
from broker.process.clock import RunningClock
from broker.process.preflight import admin_problem
from broker.process.systemd import notify
from broker.security import access_files
from broker.security.access_files import Access, AccessError
from mqtt.packets import V3, V4, V5
from session.counters import Counters
from session.engine import Engine
from session.live.connection import Connection
from session.recovery import Recovery
from session.settings import Settings
from storage.errors import DamagedRows, DataLoss, Recoverable, StorageError
from storage.history import events
from storage.history.segment_names import newest_boot
from storage.local.data_directory import DataDirectory
from storage.local.disk_space import Space
from storage.local.heartbeat_file import Pulse
from storage.local.opening import NO_HELP, Note, OpenDatabase, open_database
from storage.local.rocks import RocksStore
from storage.local.watermark import Watermark
from storage.tables.tables import FAMILIES, META
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat

ALPHANUMERIC: Final = string.digits + string.ascii_letters
CLIENT_ID_DIGITS: Final = 22  # 62 ** 22 > 2 ** 128
# Only whole generations free space, so a disk holds several, however small it is.
GENERATIONS_ON_DISK: Final = 16
GENERATION_SIZE_MIN: Final = 1 << 20

BEGINNINGS: Final = frozenset({"connected", "refused"})  # these lines say what CONNECT said
VERSIONS: Final = {V3: "3.1", V4: "3.1.1", V5: "5.0"}


class StartError(Exception):
    """The broker cannot start; one line for the operator."""


class OpenBroker:
    """A broker that is open and recovered, and does not serve yet."""

    def __init__(
        self,
        config: Config,
        log: Log,
        stack: contextlib.ExitStack,
        lead: Lead | None = None,
    ) -> None:
        """Open everything in order; raise `StartError`. `stack` closes it in reverse order.

        `lead` is what this process has open as the leader of a cluster.
        """
        _raise_file_limit()
        began = time.monotonic()
        shell = config.shell
        self.config: Final = config
        self.log: Final = log
        self.stack: Final = stack
        self.lead: Final = lead
        self.counters: Final = Counters()
        self.status: Final = Status()
        self.status.durability = shell.durability
        self.denials: Final = Denials(log)
        self.taps: Taps | None = None  # of traces; set with the driver
        self.driver: Driver | None = None  # set as soon as the event loop runs
        if missing := admin_problem(config):
            raise StartError(missing)
        try:
            directory = self._settle_directory()
            self.listeners: Final = stack.enter_context(closing(Listeners(config.listeners, log)))
            self.listeners.bind()
            self.status.certificates = self.listeners.expiries()
            # Where the history goes; None = nothing is recorded.
            self.history: Final[Place | None] = (
                location.settle(shell) if config.settings.history_level > events.OFF else None
            )
            # What the process of each external store is told; empty = no rule names one.
            self.backends: Final = self._settle_backends()
            self.access: Final[Access] = stack.enter_context(
                closing(access_files.open_files(config, log, self._run_from_thread))
            )
            self.metrics_port: Final[int] = self._open_metrics()
            self.status.phase = "recovering"
            notify(STATUS="recovering")
            self.space: Final = Space(
                directory.ballast,
                ballast_bytes=shell.ballast_bytes,
                low_water_bytes=shell.low_water_bytes,
            )
            self.space.check()
            self.status.disk = self.space.measured
            self._generation_max: Final = max(
                GENERATION_SIZE_MIN, self.space.total_bytes() // GENERATIONS_ON_DISK
            )
            opened = self._open_database(directory) if lead is None else lead.opened
            self.store: Final[RocksStore] = opened.store
            self.watermark: Final[Watermark] = opened.watermark
            self.pulse: Final = stack.enter_context(closing(Pulse(directory.pulse)))
            self.clock: Final = self._resume_clock()
            self.engine: Final = self._make_engine()
            # Compared with the database before a new start is counted.
            self.witness: Final[WitnessThread | None] = self._open_witness()
            self.recovery: Final[Recovery] = self._recover()
        except (StorageError, ListenError, ConfigError, AccessError) as problem:
            raise StartError(str(problem)) from None
        self.status.recovery_seconds = time.monotonic() - began

    def _settle_directory(self) -> DataDirectory:
        """Return the data directory, locked."""
        if self.lead is not None:
            return self.lead.directory
        directory = self.stack.enter_context(closing(DataDirectory(self.config.shell.data_dir)))
        if directory.tail.exists() and not self.config.shell.accept_data_loss:
            raise StartError(
                f"data directory {directory.path} is that of a member of a cluster, whose tail/ "
                "may have acknowledged messages that its database lacks: expected storage.backend "
                '= "kafka"; docs/cluster.md says how a node leaves its cluster'
            )
        if directory.mosquitto.exists():
            self.log.warning(
                "mosquitto_database",
                f"{directory.mosquitto} is mosquitto's database, and Holdfast does not read "
                "it: docs/mosquitto.md says what can be moved, and how",
            )
        return directory

    def _settle_backends(self) -> dict[str, dict[str, Any]]:
        """Return what the processes of external stores are told; keep the name of this node.

        Identifiers of messages in a store are made of it.
        """
        shell = self.config.shell
        node = location.find(shell).node
        told = rules.configurations(self.config, node)
        if told and shell.history_node is None:
            location.remember(shell, node)
        return told

    def _open_metrics(self) -> int:
        """Open the metrics server and return its port, 0 = there is none."""
        shell = self.config.shell
        if not shell.metrics_enabled:
            return 0
        try:
            metrics = MetricsServer(
                shell.metrics_host,
                shell.metrics_port,
                counters=self.counters,
                status=self.status,
                take_snapshot=self._take_snapshot,
            )
        except OSError as problem:
            raise StartError(
                bind_problem("metrics", shell.metrics_host, shell.metrics_port, problem)
            ) from None
        self.stack.callback(metrics.close)
        return metrics.port

    def _open_database(self, directory: DataDirectory) -> OpenDatabase:
        """Open the database; delete the ballast if the disk has no room for that."""
        try:
            opened = self._try_database(directory)
        except Recoverable:
            if not self.space.release_ballast():
                raise
            opened = self._try_database(directory)
        self.stack.enter_context(closing(opened.store))
        self.stack.enter_context(closing(opened.watermark))
        self._tell(opened.notes)
        return opened

    def _try_database(self, directory: DataDirectory) -> OpenDatabase:
        return open_database(
            directory,
            families=FAMILIES,
            accept_data_loss=self.config.shell.accept_data_loss,
        )

    def _tell(self, notes: Iterable[Note]) -> None:
        """Log what the operator is to know about the database."""
        for note in notes:
            tell = self.log.error if note.is_loss else self.log.warning
            tell(note.event, note.text, **note.fields)

    def _resume_clock(self) -> RunningClock:
        """Return the clock, which goes back behind neither heartbeat: database nor file."""
        value = self.store.get(META, HEARTBEAT_KEY)
        heartbeat = None if value is None else Heartbeat.decode(value)
        lead = self.lead
        if lead is not None:
            resumed_ms, is_timed = lead.resumed_ms(), lead.is_timed
            return RunningClock.of_leader(
                heartbeat, alive_ms=lead.alive_ms, resumed_ms=resumed_ms, is_timed=is_timed
            )
        return RunningClock(heartbeat, not_before_ms=self.pulse.broker_ms)

    def fit(self, settings: Settings) -> None:
        """Make generations small enough for the disk, whatever the configuration says."""
        settings.generation_size_bytes = min(settings.generation_size_bytes, self._generation_max)

    def _make_engine(self) -> Engine:
        settings = self.config.settings
        settings.feeds = rules.feeds_of(self.config)
        self.fit(settings)
        return Engine(
            self.store if self.lead is None else self.lead.member.store,
            self.config.settings,
            authenticator=self.access.authenticator,
            policy=self.access.policy,
            new_client_id=_new_client_id,
            counters=self.counters,
            heartbeat=self.clock.heartbeat,
            filters=None if self.lead is None else self.lead.filters,
            observe=self._observe,
            denied=self._deny,
            damaged=self._tell_damage,
            new_instance=_new_instance,
        )

    def _open_witness(self) -> WitnessThread | None:
        """Open the witness of the history, if one is configured."""
        path = self.config.shell.history_witness
        if path is None or self.history is None:
            return None
        return WitnessThread(path, self.history.node, self.store, self.log)

    def _recover(self) -> Recovery:
        """Recover the engine from the rows of the database."""
        told_of = 0
        if self.history is not None:
            told_of = newest_boot(self.history.directory, self.history.node)
        if self.witness is not None:
            told_of = max(told_of, self.witness.newest_boot)
        try:
            recovery = self.engine.start(
                self.clock.started_ms, alive_ms=self._alive_ms(), told_of=told_of
            )
        except DataLoss as problem:  # of rows whose families are gone: the MANIFEST lists those
            raise DataLoss(f"{self.store.path}: {problem}; {NO_HELP}") from None
        except DamagedRows as problem:
            raise StorageError(
                f"{self.store.path}: {problem}; the broker cannot start without this; "
                "run `holdfast db check`"
            ) from None
        self.status.recovered_sessions = recovery.sessions
        for name in recovery.forgotten:
            self.log.warning(
                "backend_forgotten",
                "no rule names it any more: what its store did not get yet is dropped",
                backend=name,
            )
        return recovery

    def _alive_ms(self) -> int:
        """Return when the broker that had these sessions was last known to run, besides its row."""
        return self.pulse.broker_ms if self.lead is None else self.lead.alive_ms

    def _run_from_thread(self, call: Callable[..., None], *arguments: object) -> None:
        """Bring the verdict of a password thread to the engine."""
        if self.driver is not None:
            self.driver.run_from_thread(call, *arguments)

    def _take_snapshot(self, timeout_s: float) -> Snapshot | None:
        return None if self.driver is None else self.driver.take_snapshot(timeout_s)

    def _tell_damage(self, what: str, problem: str, client_id: str, detail: str) -> None:
        """Log that rows were found which cannot be read; the engine tells of each place once."""
        self.log.error(
            "rows_damaged",
            f"{problem}; the broker goes on without them; run `holdfast db check`",
            what=what,
            client_id=client_id[:NAME_CHARACTERS_MAX],
            detail=detail[:NAME_CHARACTERS_MAX],
        )

    def _deny(self, action: str, client_id: str, identity: str, topic: str) -> None:
        """Log what the rules deny a client, and tell the traces."""
        self.denials.note(action, client_id, identity, topic)
        if self.taps is not None and self.taps.traces:
            self.taps.denied(action, client_id, topic)

    def _observe(self, event: str, connection: Connection, detail: str) -> None:
        """Log what happens to a client; the log limits how many lines it writes of one event."""
        if self.taps is not None and self.taps.traces:
            self.taps.observed(event, connection, detail)
        name = f"client_{event}"
        if self.log.suppresses(name):
            return
        fields: dict[str, Value] = {}
        if event in BEGINNINGS:
            fields["version"] = VERSIONS.get(connection.version, "")
            if connection.connect_number:  # its CONNECT could be read
                fields["keep_alive"] = connection.keep_alive_s
                fields["clean_start"] = connection.clean_start
                fields["session_expiry"] = connection.expiry_interval_s
        self.log.info(
            name,
            detail,
            client_id=connection.client_id,
            user=connection.username,
            remote=connection.remote,
            listener=connection.listener,
            **fields,
        )


def _new_client_id() -> str:
    """Return 128 random bits as letters and digits, so that nobody can guess the session's name.

    [MQTT-3.1.3-5]: every server has to accept an id of up to 23 of these characters.
    """
    number = secrets.randbits(128)
    digits = ""
    for _ in range(CLIENT_ID_DIGITS):
        number, digit = divmod(number, len(ALPHANUMERIC))
        digits += ALPHANUMERIC[digit]
    return digits


def _new_instance() -> str:
    """Return what marks the rows of one database in an external store."""
    return secrets.token_hex(INSTANCE_BYTES)


def _raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one: a connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
