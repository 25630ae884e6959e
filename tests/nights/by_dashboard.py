"""Solves a night by the dashboard alone: a browser, and what its pages say.

The account is there before the night begins, as an operator's is. Read next: `tests.nights.night`,
`tests.broker.admin.pages.browser`.
"""

import re
import time
from collections import Counter
from typing import Final
from urllib.parse import quote

from playwright.sync_api import Browser, Locator, Page, expect

from broker.admin.pages.fresh import AGE_S
from tests.broker.admin.pages.browser import PATIENCE_MS
from tests.broker.admin.running import PASSWORD
from tests.durability.process import POLL_SECONDS, READY_SECONDS, BrokerProcess, http_get
from tests.nights.by_command import run

NAME: Final = "olga"
LISTEN: Final = "HOLDFAST__ADMIN__LISTEN"
READ_MS: Final = 60_000.0  # a history is read, or a process of the dashboard starts


class ByDashboard:
    """An operator with a browser, somewhere else."""

    def __init__(self, broker: BrokerProcess, browser: Browser) -> None:
        secret = broker.directory / "password"
        secret.write_text(f"{PASSWORD}\n")
        given = ("--role", "operator", "--payloads", "--password-file", str(secret))
        run(broker, "user", "add", NAME, *given)
        self._url: Final = f"http://{broker.env[LISTEN]}"
        self._wait(broker)
        self._page: Final[Page] = browser.new_context().new_page()
        self._page.set_default_timeout(PATIENCE_MS)
        self._log_in()

    def who_is_owed_most(self) -> str:
        """Look at the first line of the front page, which has most bytes."""
        self._open("/?sort=bytes")
        # An order of all sessions may take its time on a disk that is full.
        return self._first("#list").get_by_role("link").inner_text(timeout=READ_MS)

    def what_waits_for(self, client_id: str) -> list[tuple[str, bytes]]:
        """Look at the queue with its payloads."""
        self._open_client(client_id)
        self._page.click("text=Show payloads")
        self._page.wait_for_url("**payloads=1**")
        found = []
        for row in self._page.locator("#queue-list tbody tr").all():
            topic, _, payload = row.locator("th").inner_text().partition("\n")
            found.append((topic, _bytes(payload)))
        return found

    def what_a_restart_loses(self) -> tuple[list[str], int]:
        """Look at the front page, which was shown at log-in, once its answers may be old."""
        self._page.wait_for_timeout(1000 * (AGE_S + 1))
        self._open("/")
        restart = self._page.locator("#restart")
        against = restart.locator("ul.dots li").all_inner_texts()
        clean = re.search(r"(\d+) (?:has a|have) clean session", restart.inner_text())
        assert clean is not None, restart.inner_text()
        return against, int(clean[1])

    def make_room(self) -> None:
        """Drop what waits for the one who is owed most bytes, and give the room back."""
        self._open_client(self.who_is_owed_most())
        self._page.click("text=Drop what waits")
        self._page.fill("#reason", "the disk is full")
        self._page.locator("button.danger").click()
        self._sees("that is durable", READ_MS)
        self._open("/storage")
        self._page.get_by_role("button", name="Reclaim").click()
        self._page.wait_for_load_state()

    def why_refused(self, client_id: str) -> str:
        """Trace the client until it is refused."""
        self._trace("client", client_id)
        told = self._page.locator("#told tbody tr", has_text="refused").first
        told.wait_for()
        return told.inner_text()

    def who_floods(self) -> str:
        """Trace all topics until many packets came, and count."""
        self._trace("topic", "#")
        rows = self._page.locator("#told tbody tr")
        expect(rows.nth(99)).to_be_attached(timeout=READ_MS)
        clients = self._page.locator("#told tbody td[data-is=Client]").all_inner_texts()
        return Counter(name.strip() for name in clients).most_common(1)[0][0]

    def keep_away(self, client_id: str) -> None:
        """Ban the client for an hour."""
        self._open_client(client_id)
        self._page.click("text=Ban it")
        self._page.fill("#time", "1h")
        self._page.locator("button.danger").click()
        self._page.locator("#bans tbody tr", has_text=client_id).wait_for()

    def who_is_away_longest(self) -> str:
        """Compare since when those of the list are away."""
        self._open("/?sort=oldest")
        away = [
            (
                row.locator("td[data-is=State] time").get_attribute("datetime") or "",
                row.get_by_role("link").inner_text(),
            )
            for row in self._page.locator("#list tbody tr", has_text="away").all()
        ]
        return min(away)[1]

    def end_session(self, client_id: str) -> None:
        """Delete the session."""
        self._open_client(client_id)
        self._page.click("text=Delete its session")
        self._page.fill("#reason", "sold")
        self._page.locator("button.danger").click()
        self._page.wait_for_url(lambda url: "/session/delete" not in url)

    def why_lost(self, client_id: str, topic: str) -> str:
        """Read whether it misses messages, on the page of the client."""
        self._open_client(client_id)
        line = self._page.locator("#past li", has_text=re.compile("not sent|dropped")).first
        line.wait_for(timeout=READ_MS)
        return line.inner_text().strip()

    def _wait(self, broker: BrokerProcess) -> None:
        """Wait until the dashboard is there: its process starts after the broker's."""
        port = int(broker.env[LISTEN].rpartition(":")[2])
        deadline = time.monotonic() + READY_SECONDS
        while http_get(port, "/healthz")[0] != 200:
            assert time.monotonic() < deadline, broker.tail()
            time.sleep(POLL_SECONDS)

    def _log_in(self) -> None:
        self._page.goto(f"{self._url}/login")
        self._page.fill("#name", NAME)
        self._page.fill("#password", PASSWORD)
        self._page.click("main button")
        self._page.wait_for_url(f"{self._url}/")

    def _open(self, path: str) -> None:
        self._page.goto(self._url + path)

    def _open_client(self, client_id: str) -> None:
        self._open(f"/session?id={quote(client_id, safe='')}")

    def _first(self, table: str) -> Locator:
        return self._page.locator(f"{table} tbody tr").first

    def _sees(self, text: str, timeout_ms: float = PATIENCE_MS) -> None:
        self._page.get_by_text(text).first.wait_for(timeout=timeout_ms)

    def _trace(self, kind: str, value: str) -> None:
        self._open("/trace")
        self._page.select_option("#kind", kind)
        self._page.fill("#value", value)
        self._page.get_by_role("button", name="Begin").click()
        self._page.wait_for_url("**/trace/lines**")


def _bytes(shown: str) -> bytes:
    """Return the payload that a page shows, as text or in hexadecimal digits."""
    kind, _, digits = shown.partition(": ")
    return bytes.fromhex(digits) if kind == "hexadecimal" else shown.encode()
