"""Adapters and brokers: how the suite starts and controls the broker under test.

An adapter returns the command that starts the broker with given options (`Adapter.prepare`).
`Broker` does the rest for all adapters: start, wait until it listens, stop, kill, start again on
the same data. docs/conformance.md explains how to write an adapter.
"""

import dataclasses
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeAlias, runtime_checkable

from conformance.connection import Stream
from conformance.failure import Failure, NotRun
from conformance.transport import TCP, Transport

Option: TypeAlias = bool | int | float | str | Mapping[str, str] | Sequence[str] | None
Options: TypeAlias = Mapping[str, Option]

HOST: Final = "127.0.0.1"
START_S: Final = 30.0  # the broker may first recover a database, on a busy machine
STOP_S: Final = 30.0
DYING_S: Final = 2.0  # from the first connection it closes to the end of the process
HOLDS_S: Final = 0.2
POLL_S: Final = 0.02
# Below Linux's ephemeral range, so that no outgoing connection takes the port of a broker that is
# being restarted.
PORTS: Final = range(20_000, 32_000)
PORTS_BLOCK: Final = 200  # ports a run takes at a time; a broker needs three, or six

# Every option a check may ask for, and its meaning. Without options the broker has its defaults and
# accepts anonymous clients.
OPTIONS: Final[Mapping[str, str]] = {
    "users": "user names and passwords that are let in; anonymous clients are not",
    "allow_anonymous": "let clients in without a user name (default: only without users)",
    "deny_publish": "topics clients without a user name may not publish to (and perhaps not read)",
    "deny_subscribe": "topic filters they may not subscribe to; `users` may do everything",
    "maximum_qos": "highest QoS of the broker",
    "retain_available": "does the broker keep retained messages?",
    "wildcard_subscriptions": "does the broker know wildcards?",
    "shared_subscriptions": "does the broker know $share/?",
    "subscription_identifiers": "does the broker know subscription identifiers?",
    "receive_maximum": "unacknowledged QoS 1 and 2 messages it takes from one client",
    "maximum_packet_size": "largest packet it takes, bytes",
    "topic_alias_maximum": "topic aliases a client may set",
    "keep_alive_max": "ceiling of the keep alive, seconds (Server Keep Alive)",
    "session_expiry_max": "ceiling of the session expiry interval, seconds",
    "client_id_bytes_max": "longest client identifier it accepts",
    "connect_timeout": "seconds from the TCP connection to a complete CONNECT",
    "scram_users": "user names and passwords for the method SCRAM-SHA-256",
    "websocket": "a WebSocket listener as well (then Broker.websocket_port)",
}


class AdapterError(Exception):
    """The broker cannot be started; the message is one line for the user."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a broker runs: its own directory and free ports."""

    directory: Path
    host: str
    port: int
    websocket_port: int
    status_port: int = 0  # for an adapter that asks its broker how it is


@dataclasses.dataclass(frozen=True)
class Launch:
    """How to start a broker: the command, the same for every start, and its environment.

    A broker that listens before it serves has `is_ready`, which says when it does.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_ready: Callable[[], bool] | None = None
    start_s: float = START_S  # how long a start may take


class Adapter(Protocol):
    """The interface of an adapter; implement it to test another broker."""

    name: str

    def describe(self) -> str:
        """Return name and version ("mosquitto 2.0.11"); raise `AdapterError` if not installed."""

    def prepare(self, place: Place, options: Options) -> Launch:
        """Write the broker's files into `place.directory` and return how to start it.

        The broker must listen on `place.host` and `place.port`, keep its data in the directory, log
        to stdout or stderr and end on SIGTERM. Raise `NotRun("... cannot ...")` for an option it
        does not have, `AdapterError` for other errors.
        """


@runtime_checkable
class Maker(Protocol):
    """An adapter whose broker is more than one process."""

    def make(self, directory: Path, ports: "Ports", options: Options) -> "Broker":
        """Return a broker that is not started yet; raises as `Adapter.prepare`."""


class Broker:
    """A running broker under test; without `launch` only its address is known.

    `stop`, `kill` and `start` are for checks that need "restart" or "kill", from one thread.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        *,
        launch: Launch | None = None,
        directory: Path | None = None,
        websocket_port: int = 0,
        transport: Transport = TCP,
    ) -> None:
        self.name: str = name
        self.host: str = host
        self.port: int = port
        self.websocket_port: int = websocket_port
        self.transport: Transport = transport
        self.starts: int = 0
        self._launch = launch
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def open(self, patience: float) -> Stream:
        """Return a new stream to it; raises `OSError`."""
        return self.transport.open(self.host, self.port, patience)

    @property
    def is_running(self) -> bool:
        """Return whether its process runs; always true for a broker we did not start."""
        return self._launch is None or (self._process is not None and self._process.poll() is None)

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the last process (negative: the signal), None while it runs."""
        return None if self._process is None else self._process.poll()

    def has_died(self) -> bool:
        """Return whether its process has ended; call it after a connection has failed.

        A process that is ending closes or refuses connections shortly before it is gone.
        """
        if self._process is None or (self._process.poll() is None and _holds(self.host, self.port)):
            return False
        try:
            self._process.wait(DYING_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def start(self) -> None:
        """Start it, again on the same data, and return when it listens; raises `AdapterError`."""
        self.begin()
        self._await_listening()

    def begin(self) -> None:
        """Start the process, and return at once; raises `AdapterError`."""
        if self._launch is None or self._directory is None:
            raise NotRun("needs a broker adapter")
        assert self._process is None or self._process.poll() is not None, "it is running"
        with self._lock, open(self._directory / "broker.observe.structured_log", "ab") as log:
            if self._is_closed:  # an interrupted run must not leave a process
                raise AdapterError(f"{self.name} is not started any more: the run is over")
            try:
                self._process = subprocess.Popen(
                    list(self._launch.command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._directory,
                    env={**os.environ, **self._launch.environment},
                    start_new_session=True,  # Ctrl-C must reach only us; we stop the broker
                )
            except OSError as problem:
                raise AdapterError(f"{self.name}: cannot start it: {problem}") from None
        self.starts += 1

    @property
    def _start_s(self) -> float:
        return START_S if self._launch is None else self._launch.start_s

    def _await_listening(self) -> None:
        assert self._process is not None
        end = time.monotonic() + self._start_s
        while not self.serves():
            code = self._process.poll()
            if code is not None:
                raise AdapterError(f"{self.name} ended with {code}: {self._last_words()}")
            if time.monotonic() > end:
                self.close()
                raise AdapterError(
                    f"{self.name} does not listen after {self._start_s:.0f} s: {self._last_words()}"
                )
            time.sleep(POLL_S)

    def serves(self) -> bool:
        """Return whether it listens on all its ports, and is ready if it says so."""
        ports = filter(None, (self.port, self.websocket_port))
        is_ready = self._launch.is_ready if self._launch is not None else None
        return all(_listens(self.host, port) for port in ports) and (is_ready is None or is_ready())

    def log(self) -> str:
        """Return its output on stdout and stderr since the first start."""
        if self._directory is None:
            return ""
        return (self._directory / "broker.observe.structured_log").read_text("utf-8", "replace")

    def _last_words(self) -> str:
        lines = [line for line in self.log().splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"

    def stop(self) -> None:
        """Send SIGTERM and return when the process has ended."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL and return when the process is gone."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._launch is None:
            raise NotRun("needs a broker adapter")
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise Failure(f"{self.name} did not end within {STOP_S:.0f} s of SIGTERM") from None

    def close(self) -> None:
        """End the process and prevent further starts; never raises."""
        with self._lock:
            self._is_closed = True
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
                self._process.wait()


def prepared(name: str, place: Place, launch: Launch, options: Options) -> Broker:
    """Return a broker that is not started yet."""
    return Broker(
        name,
        place.host,
        place.port,
        launch=launch,
        directory=place.directory,
        websocket_port=place.websocket_port if options.get("websocket") else 0,
    )


class Ports:
    """Gives out free ports that no other run on this machine gives out.

    Ports are taken in blocks: a run owns a block while its socket is bound to the first port. To
    check that a port is free is not enough: the broker binds it later, so two runs could choose the
    same port and test the same broker.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guards: list[socket.socket] = []
        self._left: list[int] = []

    def take(self) -> int:
        """Return a port; raises `AdapterError` if there is none."""
        with self._lock:
            while True:
                while self._left:
                    port = self._left.pop(0)
                    if not _is_taken(port):
                        return port
                self._claim()

    def place(self, directory: Path) -> Place:
        """Return a place with free ports; raises `AdapterError` if there is none."""
        return Place(directory, HOST, self.take(), self.take(), self.take())

    def _claim(self) -> None:
        for first in range(PORTS.start, PORTS.stop, PORTS_BLOCK):
            guard = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                guard.bind((HOST, first))
            except OSError:
                guard.close()
                continue
            self._guards.append(guard)
            self._left = list(range(first + 1, first + PORTS_BLOCK))
            return
        raise AdapterError(f"no free block of ports in {PORTS.start}..{PORTS.stop - 1}")

    def close(self) -> None:
        """Release all blocks, once the brokers on them have ended."""
        with self._lock:
            for guard in self._guards:
                guard.close()
            self._guards.clear()
            self._left.clear()


def _is_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as channel:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            channel.bind((HOST, port))
        except OSError:
            return True
    return False


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _holds(host: str, port: int) -> bool:
    """Return whether a connection can be opened and stays open for a moment."""
    try:
        with socket.create_connection((host, port), timeout=1.0) as channel:
            channel.settimeout(HOLDS_S)
            channel.recv(1)
    except TimeoutError:
        return True
    except OSError:
        return False
    return False


def launch(
    adapter: Adapter,
    directory: Path,
    ports: Ports,
    options: Options,
    admit: Callable[[Broker], None] = lambda _: None,
) -> Broker:
    """Start a new broker with `options` on an empty `directory` and return it.

    `admit` gets it before it is started, so that it can be ended at any time. Raises `NotRun` if
    the adapter lacks an option, `AdapterError` if the broker does not start.
    """
    unknown = set(options) - set(OPTIONS)
    if unknown:
        raise ValueError(f"unknown options of a broker: {sorted(unknown)}")
    directory.mkdir(parents=True)
    if isinstance(adapter, Maker):
        broker = adapter.make(directory, ports, options)
    else:
        place = ports.place(directory)
        broker = prepared(adapter.name, place, adapter.prepare(place, options), options)
    try:
        admit(broker)
        broker.start()
    except BaseException:
        broker.close()
        raise
    return broker
