"""One POST with the verdict, and one line if it was not taken."""

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from audit.outgoing import webhook

DOCUMENT: dict[str, Any] = {
    "status": "violated", "batch": 4, "from": "a", "to": "b", "history": "/h",
    "invariants": {
        "L2": {"status": "violated", "violated": 3, "unknown": 0, "suppressed": 1,
               "witnesses": [{"client_id": "secret"}]},
        "O1": {"status": "ok", "violated": 0, "unknown": 0, "suppressed": 0},
        "D2": {"status": "ok", "violated": 2, "unknown": 0, "suppressed": 2},
    },
}  # fmt: skip


class Receiver:
    """A server that answers each POST with `answer`, and keeps what it got."""

    def __init__(self) -> None:
        self.answer = 204
        self.got: list[tuple[str, str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                kind = self.headers["Content-Type"]
                outer.got.append((self.path, kind, json.loads(self.rfile.read(length))))
                self.send_response(outer.answer)
                if outer.answer == 302:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                """Nobody reads it."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = Thread(target=made.server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_a_verdict_is_told_once_in_numbers_without_a_name(receiver: Receiver) -> None:
    webhook.send(receiver.url, webhook.body(DOCUMENT, "out/report.html", 1_793_520_000_000_000))
    ((path, kind, told),) = receiver.got
    assert (path, kind) == ("/hook", "application/json")
    assert told == {
        "kind": "holdfast.audit.verdict", "version": 1, "status": "violated", "at": 1_793_520_000,
        "batch": 4, "from": "a", "to": "b", "history": "/h", "report": "out/report.html",
        "invariants": {
            "L2": {"status": "violated", "violated": 3, "suppressed": 1, "unknown": 0},
            "D2": {"status": "ok", "violated": 2, "suppressed": 2, "unknown": 0},
        },
    }  # fmt: skip


@pytest.mark.parametrize("answer", [302, 404, 500])
def test_another_answer_is_a_failure_and_no_second_attempt(receiver: Receiver, answer: int) -> None:
    receiver.answer = answer
    with pytest.raises(webhook.WebhookFailed, match=f"127.0.0.1 answered {answer}"):
        webhook.send(receiver.url, {})
    assert len(receiver.got) == 1


def test_nobody_there_is_one_line_without_the_url() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        port = taken.getsockname()[1]
        with pytest.raises(webhook.WebhookFailed) as problem:
            webhook.send(f"http://127.0.0.1:{port}/secret-token", {})
    assert "secret-token" not in str(problem.value)
    assert "\n" not in str(problem.value)


def test_who_never_answers_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(webhook.WebhookFailed, match="timed out"):
            webhook.send(url, {}, timeout_s=0.2)


@pytest.mark.parametrize(
    ("text", "is_url"),
    [("https://h/x", True), ("http://h:8080", True), ("ftp://h/", False), ("h/x", False),
     ("https:///x", False), ("http://[::1", False), ("http://h:99999/", False)],
)  # fmt: skip
def test_what_is_a_url(text: str, is_url: bool) -> None:
    assert webhook.is_url(text) is is_url
