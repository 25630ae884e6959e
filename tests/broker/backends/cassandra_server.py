"""A real Cassandra: started, killed, frozen and read by tests.

Java takes a while to start, so the tests of one process share one server. Each test has a keyspace
of its own.
"""

import atexit
import contextlib
import functools
import itertools
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import pytest

from tests.durability.process import POLL_SECONDS, READY_SECONDS, free_port, suspend
from tests.real_servers import CASSANDRA as JARS
from tests.real_servers import JAVA, needs

cluster_module: Any = pytest.importorskip("cassandra.cluster")
auth: Any = pytest.importorskip("cassandra.auth")
reactor: Any = pytest.importorskip("cassandra.io.asyncioreactor")
needs_cassandra = needs("Cassandra")
START_S: Final = 6 * READY_SECONDS  # Java, on a busy machine
ASK_S: Final = 60.0
# The driver loses bytes with version 5: see `broker.backends.cassandra_sink`.
PROTOCOL_VERSION: Final = 4
# A frame of the protocol, OPTIONS, and the opcode of its answer, SUPPORTED. The port takes
# connections before anything answers there.
OPTIONS: Final = bytes([PROTOCOL_VERSION, 0, 0, 0, 5, 0, 0, 0, 0])
SUPPORTED: Final = 6
MUTATION_BYTES_MAX: Final = 4 << 20  # half a segment of the commit log
FRAME_BYTES_MAX: Final = 16 << 20  # native_transport_max_frame_size
SETTINGS: Final = """\
cluster_name: holdfast-test
num_tokens: 1
allocate_tokens_for_local_replication_factor: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
data_file_directories: [{place}/data/data]
commitlog_directory: {place}/data/commitlog
saved_caches_directory: {place}/data/saved_caches
hints_directory: {place}/data/hints
cdc_raw_directory: {place}/data/cdc_raw
commitlog_sync: periodic
commitlog_sync_period: 500ms
commitlog_segment_size: 8MiB
memtable_heap_space: 16MiB
memtable_offheap_space: 16MiB
file_cache_size: 16MiB
networking_cache_size: 16MiB
key_cache_size: 2MiB
counter_cache_size: 0MiB
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
storage_port: {storage_port}
native_transport_port: {port}
start_native_transport: true
endpoint_snitch: SimpleSnitch
concurrent_reads: 4
concurrent_writes: 4
concurrent_compactors: 1
auto_snapshot: false
disk_access_mode: standard
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "127.0.0.1:{storage_port}"}}]
"""
OPEN: Final = """\
authenticator: AllowAllAuthenticator
authorizer: AllowAllAuthorizer
"""
LOGGING: Final = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %date{ISO8601} %F:%L - %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""
# Small, quick to start, and enough for direct memory: with 48 MB it resets every connection, with
# 96 MB it answers nothing more once it has read half of a request of 16 MiB.
JAVA_OPTIONS: Final = (
    *("-Xms160m", "-Xmx448m", "-Xss512k", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=256m"),
    *("-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djdk.attach.allowAttachSelf=true"),
)
# What Cassandra needs of Java 17's own modules.
EXPORTS: Final = (
    "java.base/jdk.internal.misc=ALL-UNNAMED",
    "java.base/java.lang.ref=ALL-UNNAMED",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi=ALL-UNNAMED",
    "java.rmi/sun.rmi.registry=ALL-UNNAMED",
    "java.rmi/sun.rmi.server=ALL-UNNAMED",
    "java.rmi/sun.rmi.transport.tcp=ALL-UNNAMED",
    "java.sql/java.sql=ALL-UNNAMED",
    "jdk.unsupported/sun.misc=ALL-UNNAMED",
    "jdk.naming.dns/com.sun.jndi.dns=java.naming",
)
OPENS: Final = (
    *("java.lang.module", "jdk.internal.loader", "jdk.internal.ref", "jdk.internal.reflect"),
    *("jdk.internal.math", "jdk.internal.module", "jdk.internal.util.jar", "sun.nio.ch"),
    *("java.io", "java.lang", "java.lang.reflect", "java.util", "java.util.concurrent"),
    *("java.util.concurrent.atomic", "java.nio"),
)
_keyspaces: Final = itertools.count(1)


class CassandraServer:
    """One server, over any number of starts."""

    def __init__(
        self, directory: Path, settings: str = OPEN, login: tuple[str, str] | None = None
    ) -> None:
        """`settings` are further lines of its configuration, `login` is what tests log in with."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory: Final = directory
        self._settings: Final = settings
        self._login: Final = login
        self.port: Final = free_port()
        self._storage_port: Final = free_port()
        self._jmx_port: Final = free_port()
        self.keyspace: str = ""
        self._process: subprocess.Popen[bytes] | None = None
        self.fresh()

    def fresh(self) -> Self:
        """Use another keyspace from now on."""
        self.keyspace = f"k{next(_keyspaces)}"
        return self

    def options(self) -> dict[str, Any]:
        """Return the options of a backend that writes there."""
        return {
            "servers": [f"127.0.0.1:{self.port}"],
            "keyspace": self.keyspace,
            "table_prefix": "",
            "consistency": "local_quorum",
            "timeout_ms": 10_000,
        }

    def start(self) -> Self:
        """Start it and return once it answers."""
        (self.directory / "tmp").mkdir(exist_ok=True)
        settings = SETTINGS.format(
            place=self.directory, port=self.port, storage_port=self._storage_port
        )
        (self.directory / "cassandra.yaml").write_text(settings + self._settings)
        (self.directory / "logback.xml").write_text(LOGGING)
        with open(self.directory / "cassandra.log", "ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdout=log, stderr=log, cwd=self.directory, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < deadline and self._process.poll() is None, self._log()
            time.sleep(POLL_SECONDS)
        return self

    def _command(self) -> list[str]:
        (agent,) = JARS.glob("jamm-*.jar")
        place = self.directory
        opened = [f"java.base/{each}=ALL-UNNAMED" for each in OPENS]
        opened.append("jdk.management/com.sun.management.internal=ALL-UNNAMED")
        opened.append("java.rmi/sun.rmi.transport.tcp=ALL-UNNAMED")
        return [
            *(JAVA or "java", *JAVA_OPTIONS, f"-javaagent:{agent}"),
            *(word for each in EXPORTS for word in ("--add-exports", each)),
            *(word for each in opened for word in ("--add-opens", each)),
            f"-Dcassandra.config=file://{place}/cassandra.yaml",
            f"-Dcassandra.storagedir={place}/data",
            f"-Dlogback.configurationFile={place}/logback.xml",
            *("-Dcassandra.skip_wait_for_gossip_to_settle=0", "-Dcassandra.ring_delay_ms=1"),
            *("-Dcassandra.superuser_setup_delay_ms=0", "-Dcassandra.initial_token=0"),
            f"-Dcassandra.jmx.local.port={self._jmx_port}",
            f"-Djava.io.tmpdir={place}/tmp",
            *("-cp", f"{place}:{JARS}/*", "org.apache.cassandra.service.CassandraDaemon"),
        ]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            with socket.create_connection(("127.0.0.1", self.port), READY_SECONDS) as asked:
                asked.sendall(OPTIONS)
                answer = asked.recv(64)
                return len(answer) > 4 and answer[4] == SUPPORTED
        return False

    def _log(self) -> str:
        return (self.directory / "cassandra.log").read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(READY_SECONDS)
            self._process = None

    def stop(self) -> None:
        """End it as an operator does, and wait: what it has taken is on its disk then."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(START_S)
        self._process = None

    @property
    def is_running(self) -> bool:
        """Has it been started, and not been ended?"""
        return self._process is not None

    def freeze(self) -> None:
        """Suspend it: connections stay open, and nothing is answered."""
        assert self._process is not None
        suspend(self._process)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def session(self) -> Iterator[Any]:
        """Return a session of a client of the test's own."""
        with warnings_off():
            cluster = cluster_module.Cluster(
                ["127.0.0.1"],
                port=self.port,
                protocol_version=PROTOCOL_VERSION,
                auth_provider=self._login and auth.PlainTextAuthProvider(*self._login),
                connect_timeout=ASK_S,
                control_connection_timeout=ASK_S,
                connection_class=reactor.AsyncioConnection,
            )
            try:
                session = cluster.connect()
                session.default_timeout = ASK_S
                yield session
            finally:
                cluster.shutdown()

    def execute(self, text: str, *values: Any) -> list[dict[str, Any]]:
        """Run a statement in the test's keyspace; `{k}` is its name. Return rows."""
        with self.session() as session:
            found = session.execute(text.replace("{k}", self.keyspace), values or None)
            return [each._asdict() for each in found]

    def table(self, name: str) -> list[dict[str, Any]]:
        """Return every row of a table, in the order of their values."""
        rows = self.execute(f"SELECT * FROM {{k}}.{name}")
        return sorted(rows, key=lambda row: [str(row[key]) for key in sorted(row)])


@contextlib.contextmanager
def warnings_off() -> Iterator[None]:
    """Let the driver say what it says of its own settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@functools.cache
def shared() -> CassandraServer:
    """Return the server of this process, which is started for its first test."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-cassandra-"))
    server = CassandraServer(directory)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(server.kill)
    return server.start()
