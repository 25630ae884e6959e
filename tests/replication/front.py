"""What a load balancer does in front of a cluster: bytes go to the node whose /readyz says 200.

Connections to a node that is not ready any more are closed, as HAProxy does with
`on-marked-down shutdown-sessions`. Read next: `tests.replication.test_failover`.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from typing import Final

from tests.durability.process import BrokerProcess, free_port, http_get

LOOK_S: Final = 0.1
PIECE: Final = 65536


class Front:
    """The port that clients know."""

    def __init__(self, nodes: Sequence[BrokerProcess]) -> None:
        self.port: Final = free_port()
        self._nodes: Final = nodes
        self.turns: int = 0  # how often all connections were closed
        self._leader: BrokerProcess | None = None
        self._open: Final[set[socket.socket]] = set()
        self._lock: Final = threading.Lock()
        self._ends: Final = threading.Event()
        self._server: Final = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self._threads: Final = [
            threading.Thread(target=target, daemon=True, name="front")
            for target in (self._accept, self._look)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Close everything."""
        self._ends.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._server.close()
        self._close_all()

    @property
    def leader(self) -> BrokerProcess | None:
        """Return the node that is ready, as it was seen last."""
        return self._leader

    def wait_for_leader(self, seconds: float, than: BrokerProcess | None = None) -> BrokerProcess:
        """Return the node that leads, once another than `than` does."""
        deadline = time.monotonic() + seconds
        while self._leader is None or self._leader is than:
            logs = "\n".join(node.tail(15) for node in self._nodes)
            assert time.monotonic() < deadline, f"nobody leads after {seconds} s\n{logs}"
            time.sleep(LOOK_S)
        return self._leader

    def _look(self) -> None:
        while not self._ends.wait(LOOK_S):
            leader = next((node for node in self._nodes if _is_ready(node)), None)
            if leader is not self._leader:
                self._leader = leader
                self._close_all()

    def _close_all(self) -> None:
        with self._lock:
            self.turns += 1
            gone = set(self._open)
            self._open.clear()
        for each in gone:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while not self._ends.is_set():
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            leader = self._leader
            try:
                if leader is None:
                    raise ConnectionRefusedError
                server = socket.create_connection((leader.host, leader.port), 5.0)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open.update((client, server))
            for one, other in ((client, server), (server, client)):
                threading.Thread(
                    target=self._forward, args=(one, other), daemon=True, name="front"
                ).start()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := one.recv(PIECE):
                other.sendall(data)
        with self._lock:
            self._open.difference_update((one, other))
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _is_ready(node: BrokerProcess) -> bool:
    if not node.is_running():
        return False
    return http_get(node.metrics_port, "/readyz", timeout=1.0, host=node.host)[0] == 200
