"""A real cluster of Redis or Valkey: three masters, and replicas if a test wants them."""

import contextlib
import time
from pathlib import Path
from typing import Any, Self

from tests.broker.backends.redis_server import RedisServer, redis
from tests.broker.network.certificates import Authority
from tests.durability.process import POLL_SECONDS, READY_SECONDS, free_port

SLOTS = 16_384
MASTERS = 3
# A server that does not answer for so long has failed, in the eyes of the others.
NODE_TIMEOUT_MS = 2000


class ClusterServers:
    """Servers with an append-only file each, over any number of starts."""

    def __init__(
        self,
        directory: Path,
        program: str | Path | None = None,
        *,
        replicas: int = 0,
        authority: Authority | None = None,
    ) -> None:
        """`replicas` is how many each master has. With an `authority` everybody speaks TLS."""
        self.servers: list[RedisServer] = []
        self._options: list[list[str]] = []
        for number in range(MASTERS * (1 + replicas)):
            self.servers.append(RedisServer(directory / f"node-{number}", program))
            tls = () if authority is None else ("--tls-cluster", "yes")
            if authority is not None:
                self.servers[-1].secure(authority)
            self._options.append(
                [
                    *("--cluster-enabled", "yes", "--cluster-port", str(free_port())),
                    *("--cluster-node-timeout", str(NODE_TIMEOUT_MS)),
                    # A replica may become a master, however little it has.
                    *("--cluster-replica-validity-factor", "0", *tls),
                ]
            )

    @property
    def masters(self) -> list[RedisServer]:
        """The servers that were made masters."""
        return self.servers[:MASTERS]

    @property
    def addresses(self) -> list[str]:
        """Where they are."""
        return [f"127.0.0.1:{server.port}" for server in self.servers]

    def start(self) -> Self:
        """Start them, make a cluster of them, and return once it takes rows."""
        for number in range(len(self.servers)):
            self.start_one(number)
        first = self.servers[0]
        for number, server in enumerate(self.servers):
            with server.client() as client:
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                if number:
                    bus = self._options[0][3]
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port, bus)
        for number, server in enumerate(self.masters):
            start, end = (SLOTS * each // MASTERS for each in (number, number + 1))
            with server.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", start, end - 1)
        until(lambda: all(self._known(server) == len(self.servers) for server in self.servers))
        for number, server in enumerate(self.servers[MASTERS:]):
            with self.masters[number % MASTERS].client() as client:
                name = client.execute_command("CLUSTER", "MYID")
            with server.client() as client:
                client.execute_command("CLUSTER", "REPLICATE", name)
        self.wait()
        return self

    def start_one(self, number: int) -> None:
        """Start one of them, perhaps again."""
        self.servers[number].start(*self._options[number])

    def wait(self) -> None:
        """Return once all that run take rows, and replicas are in step."""
        until(lambda: all(self._is_ready(server) for server in self.servers if server.is_running))

    def wait_for_replicas(self) -> None:
        """Return once every replica has what its master has."""
        pairs = list(zip(self.masters, self.servers[MASTERS:], strict=True))
        until(lambda: all(master.has_given(replica) for master, replica in pairs))

    def kill(self) -> None:
        """Kill all of them."""
        for server in self.servers:
            server.kill()

    def client(self) -> Any:
        """Return a client of the cluster, to be closed."""
        port = next(server.port for server in self.servers if server.is_running)
        return redis.RedisCluster(host="127.0.0.1", port=port, **self.servers[0].client_tls)

    def owner(self, key: str) -> int:
        """Return the number of the server that has a key now."""
        with contextlib.closing(self.client()) as client:
            port = client.get_node_from_key(key).port
        return [server.port for server in self.servers].index(port)

    def role(self, number: int) -> str:
        """Return what a server is now."""
        return str(self._info(self.servers[number], "role"))

    def everything(self) -> dict[str, Any]:
        """Return every key with its value, but for our own and for streams."""
        found: dict[str, Any] = {}
        for server in self.servers:
            if server.is_running and self._info(server, "role") == "master":
                found |= server.everything()
        return found

    def _known(self, server: RedisServer) -> int:
        with server.client() as client:
            return int(_told(client)["cluster_known_nodes"])

    def _is_ready(self, server: RedisServer) -> bool:
        with contextlib.suppress(redis.exceptions.RedisError), server.client() as client:
            told = _told(client)
            info = client.info("replication")
            is_in_step = info["role"] == "master" or info["master_link_status"] == "up"
            return told["cluster_state"] == "ok" and is_in_step
        return False

    def _info(self, server: RedisServer, name: str) -> Any:
        with server.client() as client:
            return client.info("replication")[name]


def _told(client: Any) -> dict[str, str]:
    text = client.execute_command("CLUSTER", "INFO").decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def until(condition: Any) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)
