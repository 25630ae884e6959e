"""A headless Chromium by its DevTools protocol: what a page asks for, says and looks like."""

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

COMMANDS = ("chromium", "chromium-browser", "google-chrome")
START_S = 60.0
ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / ".cache" / "axe-4.14.1" / "node_modules" / "axe-core" / "axe.min.js"


def find() -> str | None:
    """Return the browser's path, None if there is none here."""
    return next((path for name in COMMANDS if (path := shutil.which(name))), None)


class Page:
    """One tab, driven by commands; what happened in it meanwhile is kept in `events`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._last = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Run one command of the protocol and return its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._connection.send(json.dumps(message))
        while True:
            answer: dict[str, Any] = json.loads(self._connection.recv(timeout=START_S))
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def wait_for(self, method: str) -> dict[str, Any]:
        """Return the first event of that name, past or future."""
        while True:
            for event in self.events:
                if event.get("method") == method:
                    return event
            self.events.append(json.loads(self._connection.recv(timeout=START_S)))

    def attach(self) -> None:
        """Open a tab and listen to everything in it."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Show a file in a window of this size and wait until it has loaded."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def requests(self) -> list[str]:
        """Return every address the page asked for since it was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Return what the page's scripts threw and what the browser complained about."""
        return [
            json.dumps(event["params"])
            for event in self.events
            if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]

    def violations(self) -> list[str]:
        """Return what axe-core finds, a line for each rule and place; none without axe-core."""
        if not AXE.exists():
            assert "HOLDFAST_TEST_REQUIRE_SERVERS" not in os.environ, "no axe-core"
            return []
        if not self.evaluate("typeof axe === 'object'"):
            self.evaluate(AXE.read_text() + "; true")
        told = (
            "axe.run(document).then(found => found.violations.flatMap(rule => rule.nodes.map("
            "node => `${rule.id}: ${rule.help}: ${node.html.slice(0, 200)}`)))"
        )
        result = self.send(
            "Runtime.evaluate", expression=told, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        found: list[str] = result["result"]["value"]
        return found

    def screenshot(self, path: Path) -> None:
        """Save the whole page, top to bottom, as PNG."""
        taken = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def browse(command: str, profile: Path) -> Iterator[Page]:
    """Start a browser with a fresh profile, hand out a tab, and end the browser."""
    process = subprocess.Popen(
        [command, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
         "--no-first-run", "--disable-background-networking", "--disable-component-update",
         f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        address = None
        for line in process.stderr:
            found = re.search(r"DevTools listening on (ws://\S+)", line)
            if found:
                address = found.group(1)
                break
        assert address is not None, "the browser did not start"
        with connect(address, max_size=None, proxy=None) as connection:
            page = Page(connection)
            page.attach()
            yield page
            page._session = ""
            page.send("Browser.close")
    finally:
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()
