"""MQTT.js in a process of its own, and its events in a queue."""

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.conversation import PATIENCE_SECONDS
from tests.durability.process import ROOT

SCRIPT: Final = Path(__file__).with_name("mqttjs.js")
PREFIX: Final = ROOT / ".cache" / "npm"  # where scripts/setup --test puts it


def installed_modules() -> Path:
    """Return the directory MQTT.js is in; install it where `scripts/setup` did not.

    Skips the test where there is no node.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not installed")
    modules = PREFIX / "node_modules"
    if not (modules / "mqtt").is_dir():
        command = ["npm", "install", "--prefix", str(PREFIX), "--no-save", "--no-audit"]
        subprocess.run([*command, "--no-fund", "mqtt@5"], check=True, timeout=120)
    return modules


class Node:
    """A running `mqttjs.js`."""

    def __init__(self, modules: Path, url: str, name: str, version: int, **env: str) -> None:
        """`env` is further environment of the process."""
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._process = subprocess.Popen(
            ["node", str(SCRIPT), url, name, str(version)],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "NODE_PATH": str(modules), **env},
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.events.put(json.loads(line))

    def expect(self, event: str, **fields: Any) -> None:
        """Check the next event; closes do not count, reconnecting is up to MQTT.js."""
        actual = self._next()
        assert {"event": event, **fields}.items() <= actual.items(), actual

    def expect_resumed(self, payloads: Sequence[str]) -> None:
        """Check that it goes on with its session and gets these messages in their order.

        MQTT.js may report messages that came in one read with CONNACK before the connection.
        """
        events = [self._next() for _ in range(1 + len(payloads))]
        assert {"event": "connect", "sessionPresent": True} in events, events
        received = [event["payload"] for event in events if event["event"] == "message"]
        assert received == list(payloads), events

    def _next(self) -> dict[str, Any]:
        while (actual := self.events.get(timeout=PATIENCE_SECONDS))["event"] == "close":
            pass
        return actual

    def kill(self) -> None:
        """Kill -9 the client."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
