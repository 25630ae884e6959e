"""Brokers as real processes: start, wait until ready, kill -9, stop, freeze, read the log.

The same class runs Holdfast and, for comparison, Debian's mosquitto, so that a scenario can run on
both. Must never import the broker's code: these tests are about the program.
Read next: `rawclient` (the client) and `matrix` (the scenarios).
"""

import faulthandler
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parents[2]
WATCHDOG_SECONDS: Final = 900.0  # `faulthandler_timeout` of pytest, after which a test hangs
READY_SECONDS: Final = 60.0  # a busy two-core machine; a start takes well under a second
POLL_SECONDS: Final = 0.01
# Below Linux's ephemeral range (32768 and up). Otherwise a client that polls a port on which nobody
# listens yet may get this port as its source port and connect to itself.
PORTS: Final = (20_000, 32_000)
# What must never be in the log of a broker, whatever a test does.
FORBIDDEN: Final = (
    "Traceback (most recent call last)",
    "Exception ignored in",
    "Task exception was never retrieved",
    "Fatal Python error",
)
# Test processes that run in parallel take ports from different blocks.
BLOCK: Final = 200
_claims: Final[list[socket.socket]] = []


class BrokerFailed(AssertionError):
    """The process did not do what the test needs; the message has the end of its log."""


def suspend(process: subprocess.Popen[bytes]) -> None:
    """Send SIGSTOP to a child, and return when the last of its threads has stopped, or it is dead.

    The signal alone does not do that: a thread on another core may still answer a request.
    """
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def _claimed() -> Iterator[int]:
    """Yield the ports of blocks that no other process has claimed, then the same ones again.

    A claim is the name of an abstract Unix socket, which is free again when the process ends.
    """
    mine: list[int] = []
    blocks = (PORTS[1] - PORTS[0]) // BLOCK
    for number in range(blocks):
        block = (os.getpid() + number) % blocks
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0holdfast-test-ports-{block}")
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        ports = range(PORTS[0] + block * BLOCK, PORTS[0] + (block + 1) * BLOCK)
        mine.extend(ports)
        yield from ports
    yield from itertools.cycle(mine)


_ports = _claimed()


def free_port() -> int:
    """Return a loopback port that nothing listens on and no other caller got."""
    for port in itertools.islice(_ports, PORTS[1] - PORTS[0]):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise BrokerFailed("no free port below the ephemeral range")


def let_run_for(seconds: float) -> None:
    """Let the present test run for this long before it counts as hanging, and the usual time."""
    assert sys.__stderr__ is not None
    faulthandler.dump_traceback_later(WATCHDOG_SECONDS + seconds, exit=True, file=sys.__stderr__)


def http_get(
    port: int, path: str, *, timeout: float = 5.0, host: str = "127.0.0.1"
) -> tuple[int, str]:
    """Return (status, body) of a plain GET; status 0 when nobody answers."""
    try:
        with socket.create_connection((host, port), timeout) as connection:
            request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            connection.sendall(request.encode())
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
    except OSError:
        return 0, ""
    head, _, body = answer.partition(b"\r\n\r\n")
    parts = head.split(b" ", 2)
    if len(parts) < 2 or not parts[1].isdigit():
        return 0, ""
    return int(parts[1]), body.decode("utf-8", "replace")


class BrokerProcess:
    """One broker with one data directory and one port, over any number of starts."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str,
        command: Callable[["BrokerProcess"], Sequence[str]],
        is_ready: Callable[["BrokerProcess"], bool],
        env: Mapping[str, str],
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name: str = name
        self.directory: Path = directory
        self.data_dir: Path = directory / "data"
        self.host: str = "127.0.0.1"  # where others reach it
        self.port: int = free_port()
        self.metrics_port: int = free_port()
        self.log_path: Path = directory / "broker.log"
        self.env: dict[str, str] = dict(env)
        self.arguments: Sequence[str] = ()  # additional, for the next start
        self.starts: int = 0
        self.command: Final = command
        self.is_ready: Final = is_ready
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start: int = 0  # offset of the current start in the log

    def start(self, timeout: float = READY_SECONDS) -> Self:
        """Start the broker and return once it is ready; raises BrokerFailed if it ends first."""
        self.launch()
        return self.wait_until_ready(timeout)

    def wait_until_ready(self, timeout: float = READY_SECONDS) -> Self:
        """Return once a launched broker is ready; raises BrokerFailed if it ends first."""
        deadline = time.monotonic() + timeout
        while not self.is_ready(self):
            if self.exit_code() is not None:
                raise BrokerFailed(f"{self.name} ended with {self.exit_code()}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise BrokerFailed(f"{self.name} is not ready after {timeout} s\n{self.tail()}")
            time.sleep(POLL_SECONDS)
        return self

    def launch(self) -> None:
        """Start the process and return at once."""
        assert self.exit_code() is not None or self._process is None, "already running"
        self.data_dir.mkdir(exist_ok=True)
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                list(self.command(self)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={**os.environ, **self.env},
                start_new_session=True,
            )
        self.starts += 1

    @property
    def pid(self) -> int:
        """Return the id of the current process."""
        assert self._process is not None
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code (negative: the signal), or None while it runs or never ran."""
        return None if self._process is None else self._process.poll()

    def is_running(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL and return when the process is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(READY_SECONDS)

    def signal(self, number: int) -> None:
        """Send a signal and return at once."""
        os.kill(self.pid, number)

    def stop(self, timeout: float = READY_SECONDS) -> int:
        """Send SIGTERM and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait_exit(timeout)

    def wait_exit(self, timeout: float) -> int:
        """Return the exit code once the process has ended by itself."""
        assert self._process is not None
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise BrokerFailed(f"{self.name} still runs after {timeout} s\n{self.tail()}") from None

    def freeze(self) -> None:
        """Suspend the process (SIGSTOP): sockets stay open, nothing is answered."""
        assert self._process is not None
        suspend(self._process)

    def thaw(self) -> None:
        """Continue a frozen process (SIGCONT)."""
        self.signal(signal.SIGCONT)

    def crash(self) -> Self:
        """Kill -9 and start again on the same data."""
        self.kill()
        return self.start()

    def restart(self) -> Self:
        """SIGTERM (the exit code must be 0) and start again on the same data."""
        code = self.stop()
        assert code == 0, f"{self.name} ended with {code} on SIGTERM\n{self.tail()}"
        return self.start()

    def log(self) -> str:
        """Return the log of the current start."""
        with open(self.log_path, "rb") as log:
            log.seek(self._log_start)
            return log.read().decode("utf-8", "replace")

    def wait_for_event(self, event: str, *, after: int = 0) -> None:
        """Wait until the current start has logged `event` more than `after` times."""
        deadline = time.monotonic() + READY_SECONDS
        while self.log().count(f'"{event}"') <= after:
            assert time.monotonic() < deadline, f"no {event} in the log:\n{self.tail()}"
            time.sleep(POLL_SECONDS)

    def reload(self, *, event: str = "reload") -> None:
        """Send SIGHUP and wait until the broker has logged what it did with it."""
        before = self.log().count(f'"{event}"')
        self.signal(signal.SIGHUP)
        self.wait_for_event(event, after=before)

    def tail(self, lines: int = 40) -> str:
        """Return the end of the log, for a failure message."""
        return "\n".join(self.log().splitlines()[-lines:])

    def metrics(self) -> dict[str, float]:
        """Return the samples of /metrics by name and labels, as written there."""
        status, body = http_get(self.metrics_port, "/metrics")
        assert status == 200, f"/metrics answered {status}"
        samples = {}
        for line in body.splitlines():
            if line and not line.startswith("#"):
                sample, _, value = line.rpartition(" ")
                samples[sample] = float(value)
        return samples

    def rss_bytes(self) -> int:
        """Return the resident memory of the process."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise BrokerFailed("no VmRSS")

    def close(self) -> None:
        """End the process if it still runs, and check its whole log."""
        if self.is_running():
            self.kill()
        text = self.log_path.read_text("utf-8", "replace") if self.log_path.exists() else ""
        for phrase in FORBIDDEN:
            position = text.find(phrase)
            if position >= 0:
                raise BrokerFailed(f"{self.name} logged:\n{text[max(0, position - 500) :][:6000]}")


def holdfast(
    directory: Path, *, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> BrokerProcess:
    """Return a Holdfast that is not started yet.

    `env` adds to the environment, for example `HOLDFAST__SECTION__KEY`; `prefix` goes in front of
    the command line.
    """

    def command(process: BrokerProcess) -> list[str]:
        python = [*prefix, sys.executable, "-m", "broker", "serve"]
        place = ["-p", str(process.port), "--data-dir", str(process.data_dir)]
        return [*python, *place, *process.arguments]

    def is_ready(process: BrokerProcess) -> bool:
        return http_get(process.metrics_port, "/readyz")[0] == 200 and _listens(process.port)

    process = BrokerProcess(
        directory, name="holdfast", command=command, is_ready=is_ready, env=env or {}
    )
    process.env.setdefault("HOLDFAST__METRICS__PORT", str(process.metrics_port))
    # Otherwise a stop would start an export process; tests of the history turn it on.
    process.env.setdefault("HOLDFAST__HISTORY__DRAIN_TIMEOUT", "0")
    # The tests also run on a disk of which 5 % are not free.
    process.env.setdefault("HOLDFAST__STORAGE__LOW_WATER", "128MiB")
    process.env.setdefault("PYTHONPATH", str(ROOT))
    process.env.setdefault("PYTHONFAULTHANDLER", "1")
    return process


def mosquitto(directory: Path, *, config: str = "") -> BrokerProcess:
    """Return a Debian mosquitto with built-in persistence that is not started yet."""
    binary = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
    assert binary is not None, "mosquitto is not installed"

    def command(process: BrokerProcess) -> list[str]:
        path = process.directory / "mosquitto.conf"
        path.write_text(
            f"listener {process.port} 127.0.0.1\nallow_anonymous true\nuser root\n"
            f"persistence true\npersistence_location {process.data_dir}/\n"
            f"max_queued_messages 0\n{config}\n"
        )
        return [binary, "-c", str(path)]

    return BrokerProcess(
        directory,
        name="mosquitto",
        command=command,
        is_ready=lambda process: _listens(process.port),
        env={},
    )


def have_mosquitto() -> bool:
    """Return whether mosquitto is installed."""
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    return shutil.which("mosquitto", path=path) is not None


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True
