"""A real server, of Redis or of Valkey: started, killed, damaged and read by tests."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import pytest

from tests.broker.network.certificates import LOOPBACK, Authority
from tests.durability.process import POLL_SECONDS, READY_SECONDS, free_port, suspend
from tests.real_servers import REDIS, VALKEY, needs

redis: Any = pytest.importorskip("redis")
needs_redis = needs("Redis")
# The programs that tests run with: parameters of a fixture.
PROGRAMS: Final = (
    pytest.param(REDIS, id="redis"),
    pytest.param(VALKEY, id="valkey", marks=needs("Valkey")),
)

Names: TypeAlias = Sequence[Any]


def tls_options(
    authority: Authority, *, asks_clients: bool = False, names: Names = LOOPBACK
) -> "list[str]":
    """Return the options of a server that shows a certificate for `names`."""
    certificate, key = authority.issue("server", san=names)
    return [
        *("--tls-cert-file", str(certificate), "--tls-key-file", str(key)),
        *("--tls-ca-cert-file", str(authority.file), "--tls-replication", "yes"),
        *("--tls-auth-clients", "yes" if asks_clients else "no"),
    ]


class RedisServer:
    """One server with an append-only file, over any number of starts."""

    def __init__(self, directory: Path, program: str | Path | None = None) -> None:
        """`program` is one of `PROGRAMS`, None = Redis."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory: Path = directory
        self.program: Path = Path(program or REDIS or "redis-server")
        # With "everysec" an answer may come before its write: a SIGKILL then loses it.
        self.sync: str = "always"
        self.name: str = "Valkey" if program == VALKEY else "Redis"
        self.port: int = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._tls: list[str] = []  # its options
        self.client_tls: dict[str, Any] = {}

    def secure(
        self, authority: Authority, *, asks_clients: bool = False, names: Names = LOOPBACK
    ) -> Self:
        """Have it speak TLS only, with a certificate for `names`; call it before `start`."""
        self._tls = tls_options(authority, asks_clients=asks_clients, names=names)
        certificate, key = authority.issue("client")
        self.client_tls = {
            **{"ssl": True, "ssl_ca_certs": str(authority.file), "ssl_check_hostname": False},
            **{"ssl_certfile": str(certificate), "ssl_keyfile": str(key)},
        }
        return self

    def start(self, *options: str) -> Self:
        """Start it and return once it answers."""
        ports = ["--port", str(self.port)]
        if self._tls:
            ports = ["--port", "0", "--tls-port", str(self.port), *self._tls]
        command = [str(self.program), *ports, "--bind", "127.0.0.1"]
        command += ["--dir", str(self.directory), "--save", "", "--appendonly", "yes"]
        command += ["--appendfsync", self.sync]
        with open(self.directory / "redis.log", "ab") as log:
            self._process = subprocess.Popen([*command, *options], stdout=log, stderr=log)
        deadline = time.monotonic() + READY_SECONDS
        while True:
            with contextlib.suppress(redis.exceptions.RedisError):
                with self.client() as client:
                    client.ping()
                return self
            assert time.monotonic() < deadline and self._process.poll() is None
            time.sleep(POLL_SECONDS)

    @property
    def addresses(self) -> "list[str]":
        """Where it is."""
        return [f"127.0.0.1:{self.port}"]

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not killed."""
        return self._process is not None

    def client(self) -> Any:
        """Return a client, to be closed."""
        return redis.Redis(port=self.port, socket_timeout=30, **self.client_tls)

    def has_given(self, replica: "RedisServer") -> bool:
        """Has a replica everything?"""
        with self.client() as giver, replica.client() as taker:
            given = giver.info("replication")["master_repl_offset"]
            told = taker.info("replication")
        return told.get("master_link_status") == "up" and bool(told["slave_repl_offset"] >= given)

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(READY_SECONDS)
            self._process = None

    def freeze(self) -> None:
        """Suspend it: connections stay open, and nothing is answered."""
        assert self._process is not None
        suspend(self._process)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill_child(self) -> None:
        """Wait for a process that the server has started to write a file, and kill it."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        deadline = time.monotonic() + READY_SECONDS
        while not (found := children.read_text().split()):
            assert time.monotonic() < deadline
            time.sleep(POLL_SECONDS)
        os.kill(int(found[0]), signal.SIGKILL)

    def lose(self, share: float) -> None:
        """Cut the end of what a killed server has written since it began its newest file."""
        (file,) = (self.directory / "appendonlydir").glob("*.incr.aof")
        with open(file, "r+b") as stream:
            stream.truncate(int(file.stat().st_size * (1 - share)))

    def cut(self, count: int) -> None:
        """Cut bytes from the end of what a killed server has written."""
        (file,) = (self.directory / "appendonlydir").glob("*.incr.aof")
        with open(file, "r+b") as stream:
            stream.truncate(file.stat().st_size - count)

    def everything(self) -> dict[str, Any]:
        """Return every key with its value, but for the cursors of backends and for streams.

        A key that goes away between its listing and its reading is left out: Redis keeps no
        empty hash, set or list, so an empty answer says that it is gone.
        """
        found: dict[str, Any] = {}
        with self.client() as client:
            for key in client.keys("*"):
                if key.startswith(b"holdfast:"):
                    continue
                kind = client.type(key)
                if kind == b"stream":
                    continue
                value = (
                    client.hgetall(key)
                    if kind == b"hash"
                    else client.zrange(key, 0, -1)
                    if kind == b"zset"
                    else client.lrange(key, 0, -1)
                    if kind == b"list"
                    else client.get(key)
                )
                if value is not None and value != {} and value != []:
                    found[key.decode()] = value
        return found

    def list(self, key: str) -> "list[bytes]":
        """Return the members of a list."""
        with self.client() as client:
            members: list[bytes] = client.lrange(key, 0, -1)
        return members
