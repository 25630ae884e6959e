"""A real HTTP server that receives rows: it checks signatures, refuses, hangs, is killed."""

import base64
import contextlib
import hashlib
import hmac
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self, TypeAlias

from tests.durability.process import free_port

PATIENCE_S: Final = 60.0
RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


class Received:
    """One request."""

    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path: Final = path
        self.headers: Final = headers  # names in lower case
        self.body: Final = body
        self.told: Final[dict[str, Any]] = json.loads(body)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the batch."""
        rows: list[dict[str, Any]] = self.told["rows"]
        return rows

    @property
    def payloads(self) -> list[str]:
        """Return the payloads of the batch."""
        return [row["payload"] for row in self.rows]

    def is_signed(self, key: bytes) -> bool:
        """Check the signature as the Standard Webhooks say."""
        head = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}."
        digest = hmac.new(key, head.encode() + self.body, hashlib.sha256).digest()
        wanted = f"v1,{base64.b64encode(digest).decode()}"
        return hmac.compare_digest(self.headers.get("webhook-signature", ""), wanted)


class Reply:
    """What is answered."""

    def __init__(self, status: int = 200, body: bytes = b"", **headers: str) -> None:
        self.status: Final = status
        self.body: Final = body
        self.headers: Final = {name.replace("_", "-"): each for name, each in headers.items()}


OK: Final = Reply()
# Says what to answer; None = close the connection without an answer.
Decide: TypeAlias = Callable[[Received], Reply | None]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "Server"

    def handle(self) -> None:
        """Serve the connection until somebody ends it."""
        self.server.receiver.connections.append(self.connection)
        with contextlib.suppress(OSError):
            super().handle()

    def finish(self) -> None:
        """Close it, whoever has closed it before."""
        with contextlib.suppress(OSError):
            super().finish()

    def do_POST(self) -> None:
        """Take a request and answer it."""
        size = int(self.headers["Content-Length"])
        if size > self.server.receiver.bytes_max:
            self.close_connection = True  # with most of the body unread
            self.send_error(413)
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server.receiver.take(Received(self.path, headers, self.rfile.read(size)))
        if reply is None:
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """The server of a receiver."""

    daemon_threads = False
    receiver: "Receiver"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that were ended."""


class Receiver:
    """A receiver of rows, over any number of starts on one port."""

    def __init__(self, decide: Decide = lambda request: OK) -> None:
        self.decide: Decide = decide  # of batches with rows
        self.bytes_max: int = 1 << 30  # of a body; a larger one is refused before it is read
        self.probed: Decide = lambda request: OK  # of batches without
        self.requests: Final[list[Received]] = []  # with rows
        self.taken: Final[list[dict[str, Any]]] = []  # rows, in their order
        self.probes: Final[list[Received]] = []
        self.connections: Final[list[socket.socket]] = []
        self.port: Final = free_port()
        self._lock: Final = threading.Lock()
        self._server: Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Return its URL without TLS."""
        return f"http://127.0.0.1:{self.port}/rows"

    def start(self, tls: ssl.SSLContext | None = None) -> Self:
        """Listen, and return."""
        self._server = Server(("127.0.0.1", self.port), Handler)
        self._server.receiver = self
        if tls is not None:
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def take(self, request: Received) -> Reply | None:
        """Take a request; return what to answer."""
        if not request.rows:
            self.probes.append(request)
            return self.probed(request)
        with self._lock:
            self.requests.append(request)
        reply = self.decide(request)
        if reply is not None and 200 <= reply.status < 300:
            self.keep(request)
        return reply

    def keep(self, request: Received) -> None:
        """Take the rows of a request."""
        with self._lock:
            self.taken.extend(request.rows)

    def payloads(self) -> list[str]:
        """Return the payloads of all rows that it has taken, in their order."""
        with self._lock:
            return [row["payload"] for row in self.taken]

    def disconnect(self) -> None:
        """Reset all connections."""
        while self.connections:
            connection = self.connections.pop()
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End at once, whatever it is doing. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        assert self._thread is not None
        server.shutdown()
        self._thread.join(PATIENCE_S)
        server.socket.close()
        self.disconnect()
        server.server_close()


def receivers() -> Iterator[Receiver]:
    """Yield a receiver that runs, for a fixture."""
    receiver = Receiver().start()
    yield receiver
    receiver.kill()
