"""How a takeover is measured: the clients, and what the log of the node tells."""

import json
import socket
import threading
from datetime import UTC, datetime

import pytest

from bench import takeover
from bench.brokers import BenchError
from bench.takeover import Client, Held

ACCEPTED = b"\x20\x02\x01\x00"
REFUSED = b"\x20\x02\x00\x03"
PUBACK = b"\x40\x02\x00\x01"


class Node:
    """A server that gives each connection the answers of its list, one for each packet."""

    def __init__(self, *connections: list[bytes]) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, args=(connections,), daemon=True)
        self._thread.start()

    def _serve(self, connections: tuple[list[bytes], ...]) -> None:
        for answers in connections:
            client, _ = self._server.accept()
            with client:
                for answer in answers:
                    client.recv(4096)
                    client.sendall(answer)

    def close(self) -> None:
        """Wait until everybody was served."""
        self._thread.join(30)
        self._server.close()


class Told:
    """A node that has a log."""

    def __init__(self, *lines: object) -> None:
        self._lines = lines

    def log(self) -> str:
        """Return the lines as JSON, behind one that is none."""
        return "\n".join(["no JSON", *(json.dumps(line) for line in self._lines)])


def test_a_client_publishes_until_its_connection_ends() -> None:
    node = Node([ACCEPTED, PUBACK])
    client = Client(3)
    assert client.connect(node.port) and client.session_present
    assert client.publish()
    assert not client.publish()
    client.close()
    node.close()


def test_a_client_that_is_refused_is_not_connected() -> None:
    node = Node([REFUSED])
    assert not Client(3).connect(node.port)
    node.close()
    assert not Client(3).connect(node.port)  # nobody listens


def test_held_clients_are_all_accepted_or_it_is_told() -> None:
    node = Node([ACCEPTED], [REFUSED])
    held = Held()
    with pytest.raises(BenchError, match="refused: 3"):
        held.connect(node.port, 2)
    held.close()
    node.close()


def test_held_clients_leave_when_they_are_sent_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = Held()
        connecting = threading.Thread(target=held.connect, args=(server.getsockname()[1], 1))
        connecting.start()
        channel, _ = server.accept()
        with channel:
            channel.recv(4096)
            channel.sendall(ACCEPTED)
            connecting.join(30)
            channel.shutdown(socket.SHUT_WR)
            channel.settimeout(30)
            assert channel.recv(1) == b""
        held.close()


def test_the_log_splits_a_takeover_into_detection_and_work() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    node = Told(
        {"event": "cluster_leads", "ts": "2026-01-01T00:00:03.250Z"},
        {"event": "ready", "ts": "2026-01-01T00:00:03.700Z", "seconds": 0.2},
    )
    found = takeover._split(node, began, 4.0)  # type: ignore[arg-type]
    assert found == {"detection_s": 3.25, "work_s": 0.75, "recovery_s": 0.2}
    with pytest.raises(BenchError, match="does not tell"):
        takeover._split(Told(), began, 4.0)  # type: ignore[arg-type]
