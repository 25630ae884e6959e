"""The two brokers of the benchmark as processes on loopback, each on an empty directory of its own.

Must never share anything between two runs: a fresh process, port and data directory each time.
Read next: `run` (what is measured) and `slow_disk` (the same with a disk that takes its time).
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parents[1]
START_SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 15.0
# The kinds of broker there are.
MOSQUITTO: Final = "mosquitto"
HOLDFAST: Final = "holdfast"
COMPILED: Final = "holdfast compiled"  # the same with its core compiled, see scripts/compile


class BenchError(Exception):
    """The measurement cannot be made; the message says what is missing."""


def python() -> str:
    """Return the interpreter with Holdfast's dependencies: the checkout's .venv, or this one."""
    own = ROOT / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def free_port() -> int:
    """Return a loopback port below the ephemeral range that nothing listens on."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise BenchError("no free port below the ephemeral range")


class Broker:
    """A running broker; leave the `with` block to stop it and remove its directory."""

    def __init__(
        self,
        kind: str,
        *,
        durability: str = "fsync",
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.kind: str = kind
        self.port: int = free_port()
        self.directory: Path = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=directory))
        self._log = open(self.directory / "log", "wb")
        variables = {
            "HOLDFAST__METRICS__ENABLED": "false",
            "HOLDFAST__STORAGE__DURABILITY": durability,
            **(environment or {}),
        }
        data = self.directory / "data"
        command = (
            [python(), "-m", "broker", "serve", "-p", str(self.port), "--data-dir", str(data)]
            if kind != MOSQUITTO
            else [mosquitto_path(), "-p", str(self.port)]
        )
        tree = ROOT / "build" / "compiled" if kind == COMPILED else ROOT
        if kind != MOSQUITTO:
            variables["PYTHONPATH"] = str(tree)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=tree,
            env={**os.environ, **variables},
        )
        self.pid: int = self._process.pid

    def __enter__(self) -> Self:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return self
        said = (self.directory / "log").read_text(errors="replace")[-2000:]
        self.close()
        raise BenchError(f"{self.kind} does not listen on port {self.port}\n{said}")

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the process (SIGTERM, then SIGKILL) and remove its directory."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def mosquitto_path() -> str:
    """Return the path of mosquitto, which Debian keeps outside a user's PATH."""
    found = shutil.which(
        "mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    )
    if not found:
        raise BenchError("mosquitto is missing: scripts/setup --bench")
    return found


def compile_holdfast() -> None:
    """Make the compiled build of these sources, unless it is there; once, before measuring."""
    if subprocess.run([ROOT / "scripts" / "compile"], stdin=subprocess.DEVNULL).returncode:
        raise BenchError("scripts/compile failed; --brokers mosquitto holdfast does without it")


def version_of(kind: str) -> str:
    """Return the version a broker states of itself."""
    if kind == MOSQUITTO:
        text = subprocess.run([mosquitto_path(), "-h"], capture_output=True, text=True).stdout
        return text.splitlines()[0].strip() if text else "mosquitto, unknown version"
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return f"{kind} {commit or 'of unknown commit'}"


def build_generator(directory: Path) -> Path:
    """Compile bench/mqttload.c into `directory` and return the program."""
    compiler = shutil.which("cc")
    if not compiler:
        raise BenchError("a C compiler is missing: scripts/setup --bench")
    program = directory / "mqttload"
    source = ROOT / "bench" / "mqttload.c"
    subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True)
    return program
