"""The configuration in force: every value and where it came from.

`broker.configuration.load` fills it by the table in `broker.configuration.options`. Read next:
`broker.configuration.listener_options`.
"""

from typing import Final, TypeAlias

from broker.configuration import backend_options
from broker.configuration.backend_options import Backend, WrittenRule
from broker.configuration.cluster_options import ClusterOptions
from broker.configuration.listener_options import (
    NAME,
    NAME_CHARACTERS_MAX,
    UNIX,
    Endpoint,
    conflicts,
)
from broker.configuration.option_types import Headers, Secret, Setting
from broker.configuration.options import BACKEND_OPTIONS, OPTIONS, Option
from session.settings import Settings

# What is written in a table that there may be several of.
Table: TypeAlias = Endpoint | Backend | WrittenRule

FSYNC: Final = "fsync"
LOOPBACK_HOSTS: Final = frozenset({"localhost", "::1"})


class ConfigError(Exception):
    """A configuration that cannot be used; its message is one line for the operator."""


class Shell:
    """Settings of the process around the engine; `session.settings` has the engine's."""

    def __init__(self) -> None:
        self.data_dir: str = "holdfast-data"
        self.durability: str = FSYNC
        self.rest_max_ms: int = 2  # of the loop after a tick, 0 = never (`broker.loop.pace`)
        # Free space below which new durable state is refused, None = the default of
        # `storage.local.disk_space`. The ballast file is deleted on a full disk: to open the
        # database again takes the size of the write-ahead logs (64 MiB) and a little.
        self.low_water_bytes: int | None = None
        self.ballast_bytes: int = 80 << 20
        self.accept_data_loss: bool = False  # a flag only: it must not stay in a file
        self.metrics_enabled: bool = True
        self.metrics_host: str = "127.0.0.1"
        self.metrics_port: int = 18083
        # Where the process of the HTTP API listens, None = there is no such process.
        self.admin_listen: str | None = None
        self.admin_tls_certificate: str | None = None
        self.admin_tls_key: str | None = None  # None = in the certificate's file
        self.admin_public_urls: tuple[str, ...] = ()
        self.admin_trusted_proxies: tuple[str, ...] = ()
        self.admin_log_file_bytes: int = 16 << 20
        self.admin_log_files: int = 16
        self.backlog_interval_s: int = 60  # between two counts of what is owed, 0 = never
        self.password_file: str | None = None
        self.acl_file: str | None = None
        # None = anonymous clients are accepted if there is no password file.
        self.allow_anonymous: bool | None = None
        self.hash_threads: int = 2
        self.log_level: str = "info"
        self.log_format: str = "auto"
        self.drain_timeout_ms: int = 30_000
        # Where the history goes (None = `history` in the data directory), under which name (None =
        # the host's when the data directory was new), and for how long it stays (0 = for ever).
        self.history_dir: str | None = None
        self.history_node: str | None = None
        # A cluster has one history, whoever leads: by default under the name of its topic.
        self.history_cluster: str | None = None
        self.history_keep_days: int = 30
        # Rows that wait for their export are in the database; near this limit less is recorded.
        self.history_outbox_bytes_max: int = 256 << 20
        # A segment is sealed at whichever comes first. 500,000 rows are about 10 MB of Parquet.
        self.history_seal_events: int = 500_000
        self.history_seal_s: int = 60
        self.history_drain_ms: int = 5000
        # File that knows how far the history went, for another volume; None = there is none.
        self.history_witness: str | None = None


class Config:
    """Every value, and where it came from."""

    def __init__(self) -> None:
        self.settings: Settings = Settings()
        self.shell: Shell = Shell()
        self.cluster: ClusterOptions = ClusterOptions()
        self.listeners: list[Endpoint] = [Endpoint()]  # `[listener]`, then the named ones
        self.backends: list[Backend] = []
        self.rules: list[WrittenRule] = []  # of `[[rules]]`, in their order
        self.origins: dict[str, str] = {option.name: "default" for option in OPTIONS}

    def value(self, option: Option) -> Setting:
        """Return the value in force of `option`."""
        if option.attribute == "allow_anonymous":
            return self.settings.allow_anonymous
        value: Setting = getattr(self._holder(option, None), option.attribute)
        return value

    def _holder(self, option: Option, table: Table | None) -> object:
        if table is not None:
            return table
        if option.owner == "listener":
            return self.listeners[0]
        if option.owner == "cluster":
            return self.cluster
        return self.settings if option.owner == "settings" else self.shell

    def listener(self, name: str, origin: str) -> Endpoint:
        """Return the options of `[listener.name]`; the first call makes them."""
        for listener in self.listeners[1:]:
            if listener.name == name:
                return listener
        _check_name("listener", name, origin)
        self.listeners.append(Endpoint(name))
        return self.listeners[-1]

    def backend(self, name: str, origin: str) -> Backend:
        """Return the options of `[backends.name]`; the first call makes them."""
        for backend in self.backends:
            if backend.name == name:
                return backend
        _check_name("backend", name, origin)
        self.backends.append(Backend(name))
        return self.backends[-1]

    def rule(self, origin: str) -> WrittenRule:
        """Return the options of another `[[rules]]`."""
        self.rules.append(WrittenRule(len(self.rules) + 1, origin))
        return self.rules[-1]

    def set(self, option: Option, raw: object, origin: str, table: Table | None = None) -> None:
        """Parse `raw` into `option` (of a named listener, a backend or a rule: `table`).

        Raises `ConfigError` naming key, value and expectation.
        """
        name = option.name if table is None else f"{table.section}.{option.key}"
        try:
            value = option.kind.parse(raw)
        except ValueError as problem:
            given = "..." if isinstance(option.kind, Secret | Headers) else shown(raw)
            raise ConfigError(f"{origin}: {name} = {given}: expected {problem}") from None
        setattr(self._holder(option, table), option.attribute, value)
        self.origins[name] = origin

    def finish(self) -> None:
        """Derive and check what depends on several keys; raise `ConfigError` on a contradiction."""
        shell = self.shell
        if shell.allow_anonymous is not None:
            self.settings.allow_anonymous = shell.allow_anonymous
        else:
            self.settings.allow_anonymous = shell.password_file is None
            if shell.password_file is None:
                self._refuse_open_listeners()
        self._check_admin()
        for problem in self.cluster.problems():
            raise ConfigError(problem)
        if self.cluster.is_replicated and shell.durability != FSYNC:
            raise ConfigError(
                f"storage.durability = {shell.durability!r}: expected {FSYNC!r}, or nothing, with "
                'storage.backend = "kafka": an acknowledgement waits for the log and this disk'
            )
        if self.cluster.is_replicated:
            shell.history_cluster = self.cluster.topic
            self.settings.member = self.cluster.node or ""
        for problem in self.settings.problems():
            raise ConfigError(problem)
        self.listeners[0].name = self.listeners[0].type
        for listener in self.listeners:
            for problem in listener.problems():
                raise ConfigError(problem)
        for problem in conflicts(self.listeners):
            raise ConfigError(problem)
        for backend in self.backends:
            self._refuse_keys_of_other_types(backend)
            backend.finish()
            for problem in backend.problems():
                raise ConfigError(problem)
        for rule in self.rules:
            for problem in rule.problems():
                raise ConfigError(f"{rule.origin}: {problem}")
        for problem in backend_options.conflicts(self.backends, self.rules):
            raise ConfigError(problem)

    def _refuse_keys_of_other_types(self, backend: Backend) -> None:
        keys = backend.keys()
        for option in BACKEND_OPTIONS:
            name = f"{backend.section}.{option.key}"
            if name in self.origins and option.key not in keys:
                raise ConfigError(
                    f"{self.origins[name]}: {name} has no meaning for the type {backend.type}: "
                    f"expected one of {', '.join(keys)}"
                )

    def _check_admin(self) -> None:
        """Refuse passwords and tokens in the clear on a network."""
        shell = self.shell
        if shell.admin_tls_key is not None and shell.admin_tls_certificate is None:
            raise ConfigError("admin.tls_key needs admin.tls_certificate as well")
        if shell.admin_listen is None or shell.admin_tls_certificate is not None:
            return
        host = shell.admin_listen.rpartition(":")[0].strip("[]")
        if not is_loopback(host):
            raise ConfigError(
                f"admin.listen = {shown(shell.admin_listen)} can be reached from other machines: "
                "set admin.tls_certificate, or listen on 127.0.0.1"
            )

    def _refuse_open_listeners(self) -> None:
        """Refuse to be open to a network unless the operator has said so."""
        for listener in self.listeners:
            is_local = listener.type == UNIX or is_loopback(listener.host)
            if not is_local and listener.tls_client_ca is None:
                raise ConfigError(
                    f"{listener.section}.host = {shown(listener.host)} can be reached from other "
                    "machines: set auth.password_file, or auth.allow_anonymous = true to let "
                    "everybody in"
                )


def _check_name(kind: str, name: str, origin: str) -> None:
    if NAME.fullmatch(name) is None or len(name) > NAME_CHARACTERS_MAX:
        raise ConfigError(
            f"{origin}: {kind} name {shown(name)}: expected lower-case letters, digits and "
            f"single underscores, at most {NAME_CHARACTERS_MAX}"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    return host in LOOPBACK_HOSTS or (
        host.startswith("127.") and all(part.isdecimal() for part in host.split("."))
    )


def shown(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 80 else text[:77] + "..."
