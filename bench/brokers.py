"""Start and stop the brokers of the benchmark as processes on loopback.

Each run has a fresh process, port and data directory, unless it measures a restart. Processes are
ended by their own id. A broker that is not installed is not measured. Read next: `bench.scenarios`,
`bench.clusters`.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, Self

ROOT: Final = Path(__file__).resolve().parents[1]
START_SECONDS_MAX: Final = 180.0  # a million sessions, interpreted, on a slow disk
STOP_SECONDS_MAX: Final = 30.0
POLL_S: Final = 0.005
PATHS: Final = ":/usr/sbin:/usr/local/sbin:/usr/local/bin:/opt/emqx/bin"  # searched after PATH

HOLDFAST: Final = "holdfast"
COMPILED: Final = "holdfast compiled"  # core compiled by scripts/compile
MOSQUITTO: Final = "mosquitto"
SQLITE: Final = "mosquitto + sqlite"  # 2.1, persist-sqlite, `flush_period 0`, `sync full`
FLASHMQ: Final = "flashmq"
NANOMQ: Final = "nanomq"
EMQX: Final = "emqx"
# Several machines' worth of processes, from `bench.clusters`; measured only where they are named.
KAFKA: Final = "holdfast kafka"  # a leader, a follower, three Kafka brokers
COMPILED_KAFKA: Final = "holdfast compiled kafka"
NATS: Final = "nats"  # three servers, JetStream with three replicas, `sync_interval: always`
SINK: Final = "sink"  # bench/sink.c: the generator's limit without a broker
OURS: Final = (HOLDFAST, COMPILED)
REPLICATED: Final = {KAFKA: HOLDFAST, COMPILED_KAFKA: COMPILED}  # and the build of its nodes
CLUSTERS: Final = (*REPLICATED, NATS)
OTHERS: Final = (MOSQUITTO, SQLITE, FLASHMQ, NANOMQ, EMQX)

# mosquitto 2.1 beside an installed 2.0: the path of its program.
SQLITE_VARIABLE: Final = "BENCH_MOSQUITTO_SQLITE"
NATS_VARIABLE: Final = "BENCH_NATS_SERVER"  # the path of nats-server, if it is not in PATH

_PROGRAMS: Final = {
    SQLITE: os.environ.get(SQLITE_VARIABLE, "mosquitto"),
    NATS: os.environ.get(NATS_VARIABLE, "nats-server"),
}
_PLUGIN: Final = "mosquitto_persist_sqlite.so"
_PLUGIN_PLACES: Final = ("/usr/lib", "/usr/local/lib", "/usr/lib64", "/opt/mosquitto")
# clean session, keep alive 0, client id "ready"
_CONNECT: Final = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x00\x00\x05ready"
_DISCONNECT: Final = b"\xe0\x00"


class BenchError(Exception):
    """The measurement cannot be made; the message says why."""


def python() -> str:
    """Return the checkout's .venv interpreter, or this one if there is no .venv."""
    own = ROOT / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def tree_of(kind: str) -> Path:
    """Return the directory with the packages of this build of Holdfast."""
    return ROOT / "build" / "compiled" if REPLICATED.get(kind, kind) == COMPILED else ROOT


def free_port() -> int:
    """Return a loopback port below the ephemeral range that nothing listens on."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return as many different ones, for processes that are started together."""
    found: list[int] = []
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise BenchError("no free port below the ephemeral range")


def program(kind: str) -> str | None:
    """Return the path of another broker's program, None if it is not installed."""
    return shutil.which(_PROGRAMS.get(kind, kind), path=os.environ.get("PATH", "") + PATHS)


def sqlite_plugin() -> Path | None:
    """Return mosquitto's persistence plugin, None if it is not installed."""
    found_program = program(SQLITE)
    own = [str(Path(found_program).resolve().parents[1] / "lib")] if found_program else []
    for place in (*own, *_PLUGIN_PLACES):
        for found in sorted(Path(place).rglob(_PLUGIN)) if Path(place).is_dir() else ():
            return found
    return None


def installed() -> list[str]:
    """Return the other brokers that are installed."""
    return [
        kind for kind in OTHERS if program(kind) and (kind != SQLITE or sqlite_plugin() is not None)
    ]


def version_of(kind: str) -> str:
    """Return the version a broker reports.

    Raises `BenchError` if Holdfast is not the build that was asked for.
    """
    if kind in (*OURS, *REPLICATED):
        said = subprocess.run(
            [python(), "-m", "broker", "--version"],
            cwd=tree_of(kind),
            env={**os.environ, "PYTHONPATH": str(tree_of(kind))},
            capture_output=True,
            text=True,
        ).stdout.strip()
        check_build(REPLICATED.get(kind, kind), said)
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip()
        return f"{kind}: {said}, commit {commit or 'unknown'}"
    flags = {MOSQUITTO: "-h", SQLITE: "-h", **dict.fromkeys((FLASHMQ, NANOMQ, NATS), "--version")}
    ran = subprocess.run(
        [program(kind) or kind, flags.get(kind, "version")], capture_output=True, text=True
    )
    lines = (ran.stdout or ran.stderr).splitlines()
    return f"{kind}: {lines[0].strip()}" if lines else f"{kind}, unknown version"


def check_build(kind: str, said: str) -> None:
    """Raise `BenchError` unless the version line `said` is that of the build `kind`."""
    is_compiled = ", compiled" in said
    if is_compiled != (kind == COMPILED) or not said:
        raise BenchError(f"{kind} is not what runs in {tree_of(kind).name}: {said!r}")


class Running(Protocol):
    """What the load generator meets: a broker that runs, or several processes that are one."""

    kind: str
    directory: Path  # on the disk that is measured
    ready_s: float  # from its start to its first CONNACK

    @property
    def port(self) -> int:
        """Return where clients connect."""
        ...

    @property
    def is_durable(self) -> bool:
        """Return whether it promises that acknowledged messages survive a crash."""
        ...

    @property
    def data(self) -> Path:
        """Return the data directory of the process that answers clients."""
        ...

    def pids(self) -> list[int]:
        """Return the processes that answer clients."""
        ...

    def beside(self) -> dict[str, list[int]]:
        """Return the others that it needs, by what their CPU time is called."""
        ...

    def memory_mib(self) -> float:
        """Return the resident memory of the processes that answer clients."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Broker:
    """A running broker; leave the `with` block to stop it and remove its directory."""

    def __init__(
        self,
        kind: str,
        *,
        sink: Path | None = None,
        durability: str = "fsync",
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        data: Path | None = None,
        configuration: Sequence[str] = (),
        options: str = "",
        tree: Path | None = None,
        port: int = 0,
    ) -> None:
        """Start the broker on a port, 0 = any that is free.

        Its data directory is created in `directory`, on the disk to measure. `data` is an existing
        database to use instead; it is not removed. `configuration` is added to mosquitto.conf, and
        is all of that of NATS; `options` is Holdfast's configuration, TOML, and `tree` has its
        packages, None = those of this checkout. `sink` is the path of the sink program.
        """
        self.kind: str = kind
        self.port: int = port or free_port()
        self.directory: Path = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=directory))
        self.data: Path = data or self.directory / "data"
        self._log = open(self.directory / "log", "wb")
        variables = dict(environment or {})
        command = self._command(sink, configuration, variables)
        if options:
            (self.directory / "holdfast.toml").write_text(options)
            command += ["--config", str(self.directory / "holdfast.toml")]
        if kind in OURS:
            variables.setdefault("HOLDFAST__METRICS__ENABLED", "false")
            variables.setdefault("HOLDFAST__STORAGE__DURABILITY", durability)
            tree = tree or tree_of(kind)
            variables["PYTHONPATH"] = str(tree)
        self._began: float = time.monotonic()
        self.ready_s: float = 0.0  # from the start of the process to its first CONNACK
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=tree if kind in OURS else self.directory,
            env={**os.environ, **variables},
            start_new_session=True,  # its children are stopped with it
        )

    def _command(
        self, sink: Path | None, configuration: Sequence[str], variables: dict[str, str]
    ) -> list[str]:
        """Return the command line; write the configuration file it names."""
        port, path = self.port, self.directory / "broker.conf"
        if self.kind in OURS:
            serve = [python(), "-m", "broker", "serve", "-p", str(port)]
            return [*serve, "--data-dir", str(self.data)]
        if self.kind == SINK:
            assert sink is not None
            return [str(sink), str(port)]
        found = program(self.kind)
        if not found:
            raise BenchError(f"{self.kind} is missing")
        if self.kind in (MOSQUITTO, SQLITE):
            path.write_text("\n".join([*self._mosquitto(), *configuration, ""]))
            return [found, "-c", str(path)]
        if self.kind == FLASHMQ:
            path.write_text(_FLASHMQ.format(port=port, directory=self.directory))
            return [found, "--config-file", str(path)]
        if self.kind == NATS:
            path.write_text("\n".join([*configuration, ""]))
            return [found, "--config", str(path)]
        if self.kind == NANOMQ:
            path.write_text(_NANOMQ.format(port=port))
            return [found, "start", "--conf", str(path)]
        assert self.kind == EMQX
        variables.update(
            {
                "EMQX_LISTENERS__TCP__DEFAULT__BIND": f"127.0.0.1:{port}",
                "EMQX_LISTENERS__SSL__DEFAULT__ENABLE": "false",
                "EMQX_LISTENERS__WS__DEFAULT__ENABLE": "false",
                "EMQX_LISTENERS__WSS__DEFAULT__ENABLE": "false",
                "EMQX_DASHBOARD__LISTENERS__HTTP__BIND": "0",
                "EMQX_MQTT__MAX_MQUEUE_LEN": "infinity",
                "EMQX_NODE__DATA_DIR": str(self.directory),
            }
        )
        return [found, "foreground"]

    def _mosquitto(self) -> list[str]:
        """Return the default configuration, without the limits that would drop messages."""
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", "max_queued_messages 0"]
        if os.geteuid() == 0:
            lines.append("user root")  # only our user can read its directory
        if self.kind == SQLITE:
            lines += [
                f"persistence_location {self.directory}/",
                f"global_plugin {sqlite_plugin()}",
                "plugin_opt_flush_period 0",
                "plugin_opt_sync full",
            ]
        return lines

    @property
    def is_durable(self) -> bool:
        """Return whether it promises that acknowledged messages survive a crash."""
        return self.kind in (*OURS, SQLITE)

    @property
    def pid(self) -> int:
        """Return the id of the process that was started."""
        return self._process.pid

    def pids(self) -> list[int]:
        """Return the ids of the process and its descendants."""
        return descendants(self._process.pid)

    def beside(self) -> dict[str, list[int]]:
        """Return no other processes: it needs none."""
        return {}

    def memory_mib(self) -> float:
        """Return the resident memory of its processes."""
        return memory_mib(self.pids())

    def is_running(self) -> bool:
        """Return whether the process has not ended."""
        return self._process.poll() is None

    def log(self) -> str:
        """Return what it has written."""
        return (self.directory / "log").read_text(errors="replace")

    def kill(self) -> None:
        """Send SIGKILL to it and its children, and wait."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        deadline = self._began + START_SECONDS_MAX
        try:
            while time.monotonic() < deadline and self._process.poll() is None:
                if answers(self.port):
                    self.ready_s = time.monotonic() - self._began
                    return self
                time.sleep(POLL_S)
        except KeyboardInterrupt:  # the caller's `with` block has not begun
            self.close()
            raise
        said = self.log()[-2000:]
        self.close()
        raise BenchError(f"{self.kind} does not answer on port {self.port}\n{said}")

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop its processes (SIGTERM, then SIGKILL) and remove its directory."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        with contextlib.suppress(ProcessLookupError):  # usually the whole group has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


_FLASHMQ: Final = """\
allow_anonymous true
storage_dir {directory}
max_qos_msg_pending_per_client 65535
max_qos_bytes_pending_per_client 1000000000
listen {{
  protocol mqtt
  port {port}
  inet4_bind_address 127.0.0.1
}}
"""

_NANOMQ: Final = """\
listeners.tcp {{
  bind = "127.0.0.1:{port}"
}}
auth {{
  allow_anonymous = true
}}
"""


def memory_mib(pids: Sequence[int]) -> float:
    """Return the resident memory of processes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1])
    return total / 1024


def descendants(pid: int) -> list[int]:
    """Return the ids of a process and its descendants."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def answers(port: int) -> bool:
    """Return whether a broker on the port accepts a CONNECT."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(_CONNECT)
            answer = connection.recv(4)
            connection.sendall(_DISCONNECT)
    except OSError:
        return False
    return answer == b"\x20\x02\x00\x00"


def is_compiled() -> bool:
    """Return whether the compiled build is up to date with the sources."""
    return subprocess.run([ROOT / "scripts" / "compile", "--current"]).returncode == 0


def compile_holdfast() -> None:
    """Build the compiled Holdfast if it is missing or out of date. Call it before measuring."""
    if subprocess.run([ROOT / "scripts" / "compile"], stdin=subprocess.DEVNULL).returncode:
        raise BenchError("scripts/compile failed; --brokers mosquitto holdfast does without it")
