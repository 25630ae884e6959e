"""Receive the rows of a webhook for `bench.stores`: read each request as JSON, and answer 200.

A process of its own, so that its CPU time can be told from that of the broker and its backend.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Receiver(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Take a request."""
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_known = isinstance(told.get("rows"), list)
        self.send_response(200 if is_known else 400)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
