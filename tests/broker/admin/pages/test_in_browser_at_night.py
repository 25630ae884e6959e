"""The dashboard when the broker dies while it is open, and with 100,000 sessions."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.broker.admin.pages import fleet, scene
from tests.broker.admin.pages.browser import tab
from tests.broker.admin.running import Running

SESSIONS = 100_000
FIRST_MS = 120_000.0  # until all of them are counted for the first time, on a busy machine


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Running]:
    """A broker that its test may kill."""
    running = Running(tmp_path / "alone", **scene.COUNTS)
    running.start()
    scene.add_users(running)
    yield running
    running.close()


def test_a_page_says_that_the_broker_is_gone_and_comes_back(
    alone: Running, browser: Browser
) -> None:
    scene.owe(alone, "boat-17", 2, topic="t")
    with tab(browser, alone) as here:
        here.log_in("vera")
        here.sees("boat-17")
        here.may_be_refused = True
        alone.broker.kill()
        here.sees("This page comes back by itself.")
        here.sees("boat-17")  # what was known is still there
        alone.start()
        # Who was logged in is known to the process that has gone: the form comes back.
        here.page.wait_for_url("**/login**")
        here.log_in("vera")
        here.sees("boat-17")


@pytest.mark.ci
def test_a_hundred_thousand_sessions_are_never_on_one_page(
    alone: Running, browser: Browser
) -> None:
    scene.owe(alone, fleet.FIRST, 100, topic=fleet.TOPIC)
    alone.broker.stop()
    fleet.multiply(alone.broker.data_dir, SESSIONS)
    alone.start()
    with tab(browser, alone) as here:
        here.log_in("vera")
        here.page.set_default_timeout(FIRST_MS)
        here.sees(fleet.name(0))
        expect(here.page.locator("#list tbody tr")).to_have_count(50)
        here.sees("10,000,000 messages for 100,000 sessions")
        here.page.click("text=Further ones")
        here.sees(fleet.name(50))
        expect(here.page.locator("#list tbody tr")).to_have_count(50)
        here.page.locator("#find-match").press_sequentially("09999")
        here.sees(fleet.name(99_999))
        here.page.click(f"text={fleet.name(99_999)}")
        expect(here.page.locator("h1")).to_have_text(fleet.name(99_999))
