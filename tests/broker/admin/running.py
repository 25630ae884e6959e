"""A broker with its process of the HTTP API, and clients of that for each role."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import httpx

from tests.durability.process import (
    POLL_SECONDS,
    READY_SECONDS,
    ROOT,
    BrokerProcess,
    free_port,
    holdfast,
    http_get,
)
from tests.durability.rawclient import RawClient

ROLES: Final = ("viewer", "operator", "admin")
# "+payloads" may read what messages say.
KINDS: Final = (*ROLES, "viewer+payloads", "operator+payloads")
PASSWORD: Final = "correct horse battery"
PATIENCE_S: Final = 180.0


class Running:
    """A broker process, its HTTP API, and a token of each kind."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.admin_port: Final = free_port()
        self.url: Final = f"http://127.0.0.1:{self.admin_port}"
        self.broker: Final[BrokerProcess] = holdfast(
            directory,
            env={"HOLDFAST__ADMIN__LISTEN": f"127.0.0.1:{self.admin_port}", **environment},
        )
        self.tokens: Final[dict[str, str]] = {}
        self._clients: Final[dict[str, httpx.Client]] = {}
        self._alone: subprocess.Popen[bytes] | None = None

    def start(self) -> "Running":
        """Start the broker; return when the API answers and knows that the broker does."""
        self.broker.start()
        self.wait(lambda: self.health() == (200, True))
        return self

    def start_alone(self) -> None:
        """Start the process of the API by itself; return when it answers."""
        with open(self.broker.log_path, "ab") as log:
            self._alone = subprocess.Popen(
                [sys.executable, "-m", "broker", "admin", "serve", *self._place],
                cwd=self.broker.directory,
                env={
                    **os.environ,
                    **self.broker.env,
                    "HOLDFAST__ADMIN__LISTEN": f"127.0.0.1:{self.admin_port}",
                },
                stdout=log,
                stderr=log,
            )
        self.wait(lambda: self.health() == (200, True))

    @property
    def _place(self) -> tuple[str, str]:
        return "--data-dir", str(self.broker.data_dir)

    def admin_pid(self) -> int:
        """Return the id of the process that the broker has started for the API, 0 = none."""
        children = Path(f"/proc/{self.broker.pid}/task/{self.broker.pid}/children").read_text()
        for child in map(int, children.split()):
            if b"\0admin\0serve\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
        return 0

    def make_tokens(self) -> "Running":
        """Make a token of each kind."""
        for kind in KINDS:
            role, _, payloads = kind.partition("+")
            extra = ["--payloads"] if payloads else []
            name = kind.replace("+", "-")
            made = self.command("token", "add", name, "--role", role, "--expires", "1d", *extra)
            self.tokens[kind] = made.strip()
        return self

    def health(self) -> tuple[int, bool]:
        """Return the status of /healthz, and whether the broker answers by it."""
        status, body = http_get(self.admin_port, "/healthz")
        return status, status == 200 and json.loads(body)["broker_answers"]

    def wait(self, is_so: Any) -> None:
        """Return once something is so."""
        deadline = time.monotonic() + READY_SECONDS
        while not is_so():
            assert time.monotonic() < deadline, self.broker.tail()
            time.sleep(POLL_SECONDS)

    def command(self, *arguments: str, input: str = "") -> str:
        """Run `holdfast` on the data directory; return what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "broker", *arguments, *self._place],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            cwd=self.broker.directory,
            input=input,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def http(self, kind: str = "") -> httpx.Client:
        """Return the client with the token of a kind, or the one without a token."""
        if kind not in self._clients:
            headers = {"Authorization": f"Bearer {self.tokens[kind]}"} if kind else {}
            self._clients[kind] = httpx.Client(
                base_url=self.url, headers=headers, timeout=PATIENCE_S, trust_env=False
            )
        return self._clients[kind]

    def as_browser(self, **headers: str) -> httpx.Client:
        """Return a client with cookies of its own, which asks for pages as a browser does."""
        client = httpx.Client(
            base_url=self.url,
            headers={"accept": "text/html", "origin": self.url, **headers},
            timeout=PATIENCE_S,
            trust_env=False,
        )
        self._clients[f"browser {len(self._clients)}"] = client
        return client

    def owe(
        self,
        client_id: str,
        count: int,
        *,
        topic: str = "t",
        publish_to: str = "",
        payload: bytes = b"x",
    ) -> None:
        """Make a session of a client that is away, to which messages are owed."""
        client = RawClient(self.broker.port, client_id)
        client.durable()
        client.subscribe(topic)
        client.disconnect()
        publisher = RawClient(self.broker.port, f"publisher-of-{client_id}")
        publisher.connect()
        for _ in range(count):
            publisher.publish(publish_to or topic, payload, qos=1)
        publisher.disconnect()
        level = client_id.replace("/", "%2F")
        self.wait(lambda: self._waiting(level) == count)

    def _waiting(self, level: str) -> int:
        """Return how many messages wait for a session, by the API, -1 = there is none."""
        answer = self.http("viewer").get(f"/api/v1/sessions/{level}")
        assert answer.status_code in (200, 404), answer.text
        return int(answer.json()["waiting"]) if answer.status_code == 200 else -1

    def log_lines(self) -> list[dict[str, Any]]:
        """Return the lines of the admin log."""
        path = self.broker.data_dir / "admin.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def close(self) -> None:
        """End everything."""
        for client in self._clients.values():
            client.close()
        if self._alone is not None:
            self._alone.terminate()
            self._alone.wait(PATIENCE_S)
        self.broker.close()
