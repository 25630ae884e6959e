"""A real master of Redis or Valkey with a replica, and the sentinels that watch them."""

import contextlib
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Self

from tests.broker.backends.redis_server import RedisServer, redis, tls_options
from tests.broker.network.certificates import Authority
from tests.durability.process import POLL_SECONDS, READY_SECONDS, free_port

NAME: Final = "main"
DOWN_AFTER_MS: Final = 1000
FAILOVER_TIMEOUT_MS: Final = 3000


class Sentinels:
    """Two servers and three sentinels, two of which must agree that a master is down."""

    def __init__(
        self,
        directory: Path,
        program: str | Path | None = None,
        *,
        settings: str = "",
        password: str = "",
        authority: Authority | None = None,
    ) -> None:
        """`settings` are lines for all sentinels, `password` is that of their default user.

        With an `authority` everybody speaks TLS.
        """
        self.master = RedisServer(directory / "master", program)
        self.replica = RedisServer(directory / "replica", program)
        self.ports: list[int] = [free_port() for _ in range(3)]
        self._directory = directory
        self._settings = settings
        self._password = password
        self._authority = authority
        self._processes: list[subprocess.Popen[bytes]] = []
        for server in (self.master, self.replica):
            if authority is not None:
                server.secure(authority)

    @property
    def addresses(self) -> list[str]:
        """Where the sentinels are."""
        return [f"127.0.0.1:{port}" for port in self.ports]

    def start(self) -> Self:
        """Start all, and return once everybody knows everybody."""
        self.master.start()
        self.start_replica()
        self.wait_for_replica()
        for port in self.ports:
            self._start_sentinel(port)
        _until(lambda: all(self._knows_all(port) for port in self.ports))
        return self

    def start_replica(self) -> None:
        """Start the replica, perhaps again with what it had when it was killed."""
        self.replica.start("--replicaof", "127.0.0.1", str(self.master.port))

    def wait_for_replica(self) -> None:
        """Return once the replica has what its master has."""
        _until(lambda: self.master.has_given(self.replica))

    def wait_for_failover(self) -> None:
        """Return once the replica is the master, and every sentinel says so."""
        _until(lambda: all(self.named(port) == self.replica.port for port in self.ports))
        _until(lambda: _info(self.replica)["role"] == "master")

    def named(self, port: int) -> int | None:
        """Return the port of the master that a sentinel names."""
        with contextlib.suppress(redis.exceptions.RedisError), self._ask(port) as client:
            return int(client.sentinel_get_master_addr_by_name(NAME)[1])
        return None

    def kill(self) -> None:
        """Kill all."""
        for process in self._processes:
            process.kill()
            process.wait(READY_SECONDS)
        self._processes.clear()
        self.master.kill()
        self.replica.kill()

    def _start_sentinel(self, port: int) -> None:
        directory = self._directory / f"sentinel-{port}"
        directory.mkdir(parents=True)
        listening = f"port {port}\n"
        if self._authority is not None:
            told = tls_options(self._authority)
            listening = f"port 0\ntls-port {port}\n" + "".join(
                f"{name.removeprefix('--')} {value}\n"
                for name, value in zip(told[::2], told[1::2], strict=True)
            )
        if self._password:
            listening += f"requirepass {self._password}\nsentinel sentinel-pass {self._password}\n"
        path = directory / "sentinel.conf"
        path.write_text(
            f"{listening}bind 127.0.0.1\ndir {directory}\n"
            f"sentinel monitor {NAME} 127.0.0.1 {self.master.port} 2\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {NAME} {FAILOVER_TIMEOUT_MS}\n{self._settings}"
        )
        with open(directory / "sentinel.log", "ab") as log:
            command = [str(self.master.program), str(path), "--sentinel"]
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def _ask(self, port: int) -> Any:
        tls = self.master.client_tls
        return redis.Redis(port=port, password=self._password or None, socket_timeout=30, **tls)

    def _knows_all(self, port: int) -> bool:
        with contextlib.suppress(redis.exceptions.RedisError), self._ask(port) as client:
            told = client.sentinel_master(NAME)
            others = len(self.ports) - 1
            return (told["num-slaves"], told["num-other-sentinels"]) == (1, others)
        return False


def _info(server: RedisServer) -> dict[str, Any]:
    with server.client() as client:
        found: dict[str, Any] = client.info("replication")
    return found


def _until(condition: Any) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)
