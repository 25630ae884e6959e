"""A small reverse proxy: real sockets on both sides, the headers that nginx is told to send.

It names the server it asks as its `Host`, or passes on what the browser has sent. Read next:
`test_behind_a_proxy.py`.
"""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

PATIENCE_S: Final = 60.0
OF_A_CONNECTION: Final = frozenset({"connection", "keep-alive", "transfer-encoding"})


class Proxy:
    """Serves on a port of its own until it is closed."""

    def __init__(self, upstream_port: int, *, passes_host: bool) -> None:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy.pass_on(self)

            do_POST = do_GET

            def log_message(self, format: str, *arguments: object) -> None:
                """Say nothing."""

        self._upstream_port: Final = upstream_port
        self._passes_host: Final = passes_host
        self._server: Final = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: Final[int] = self._server.server_address[1]
        self._thread: Final = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def pass_on(self, handler: BaseHTTPRequestHandler) -> None:
        """Ask upstream what was asked here, and give its answer back."""
        size = int(handler.headers.get("content-length", "0"))
        body = handler.rfile.read(size)
        headers = {
            name: value
            for name, value in handler.headers.items()
            if name.lower() not in (*OF_A_CONNECTION, "host", "x-forwarded-for")
        }
        # A proxy before this one has asked for somebody: browsers of tests are all on this machine.
        said = handler.headers.get("x-forwarded-for")
        headers["X-Forwarded-For"] = f"{said}, 127.0.0.1" if said else "127.0.0.1"
        headers["X-Forwarded-Proto"] = "https"
        upstream = f"127.0.0.1:{self._upstream_port}"
        headers["Host"] = handler.headers["host"] if self._passes_host else upstream
        asked = http.client.HTTPConnection("127.0.0.1", self._upstream_port, timeout=PATIENCE_S)
        try:
            asked.request(handler.command, handler.path, body, headers)
            answer = asked.getresponse()
            data = answer.read()
        finally:
            asked.close()
        handler.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in (*OF_A_CONNECTION, "content-length"):
                handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)
