"""Debian's Chromium, driven by Playwright: tabs that fail when a page complains.

A tab notes what its page says on the console, what its policy forbids, and whom it asks; `check`
fails on all of it. Must never download a browser. Read next: `test_in_browser.py`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from tests.broker.admin.running import PASSWORD, Running

ROOT: Final = Path(__file__).resolve().parents[4]
COMMANDS: Final = ("chromium", "chromium-browser")
AXE: Final = ROOT / ".cache" / "axe-4.14.1" / "node_modules" / "axe-core" / "axe.min.js"
WIDTHS: Final = (390, 1280)
PATIENCE_MS: Final = 60_000.0  # for something that comes by itself; the machine may be busy
# An answer with an error is noted by the console, too. It is what such a test is about.
REFUSED: Final = "Failed to load resource: the server responded with a status of "
HTMX: Final = "htmx:"
GONE: Final = "Failed to load resource: net::ERR_"


def chromium() -> str:
    """Return the browser's path, or skip the test."""
    path = next((found for name in COMMANDS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium: scripts/setup --test installs it")
    return path


def axe_source() -> str:
    """Return axe-core, or skip the test."""
    if not AXE.exists():
        pytest.skip("no axe-core: scripts/setup --test installs it")
    return AXE.read_text()


@contextmanager
def browser() -> Iterator[Browser]:
    """Yield a browser without a window."""
    with sync_playwright() as playwright:
        # Its sandbox needs rights that a container does not give.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=chromium(), args=flags)
        yield started
        started.close()


class Tab:
    """One tab, and what is wrong with what it shows."""

    def __init__(self, page: Page, running: Running) -> None:
        self.page: Final = page
        self.url: Final = running.url
        self.wrong: Final[list[str]] = []
        self.may_be_refused = False  # answers with errors are what the test is about
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(f"exception: {error}"))
        page.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        is_expected = self.may_be_refused and message.text.startswith((REFUSED, GONE, HTMX))
        if message.type in ("error", "warning") and not is_expected:
            self.wrong.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(f"{self.url}/"):
            self.wrong.append(f"asks {request.url}")

    def open(self, path: str) -> "Tab":
        """Show a page."""
        self.page.goto(self.url + path)
        return self

    def log_in(self, name: str) -> "Tab":
        """Log in with the form."""
        self.open("/login")
        self.page.fill("#name", name)
        self.page.fill("#password", PASSWORD)
        self.page.click("main button")
        self.page.wait_for_url(f"{self.url}/")
        return self

    def main(self) -> str:
        """Return the text of the page."""
        return self.page.inner_text("main")

    def sees(self, text: str) -> None:
        """Wait until the page has a text that can be seen."""
        self.page.get_by_text(text).locator("visible=true").first.wait_for()

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        found: int = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return found

    def violations(self) -> list[str]:
        """Return what axe-core finds, a line for each rule and place."""
        if not self.page.evaluate("typeof axe === 'object'"):
            self.page.evaluate(axe_source())
        found: dict[str, Any] = self.page.evaluate("axe.run(document)")
        return [
            f"{rule['id']}: {rule['help']}: {node['html'][:200]}"
            for rule in found["violations"]
            for node in rule["nodes"]
        ]

    def check(self) -> None:
        """Fail if a page complained, or asked somebody else."""
        assert not self.wrong, "\n".join(self.wrong)


@contextmanager
def tab(
    started: Browser,
    running: Running,
    *,
    width: int = 1280,
    dark: bool = False,
    script: bool = True,
) -> Iterator[Tab]:
    """Yield a tab with cookies of its own; whatever its pages complain of fails at the end."""
    context = started.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if dark else "light",
        java_script_enabled=script,
    )
    made = Tab(context.new_page(), running)
    yield made
    made.check()
    context.close()
