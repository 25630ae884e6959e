"""A broker with users and with something owed, and a browser, for the tests of a file."""

from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Browser

from tests.broker.admin.pages import scene
from tests.broker.admin.pages.browser import browser as a_browser
from tests.broker.admin.running import Running


@pytest.fixture(scope="module")
def port_town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A broker with users, two boats that are away, and clients that are there."""
    running = Running(tmp_path_factory.mktemp("pages"), **scene.COUNTS)
    try:
        yield scene.populate(running.start())
    finally:
        running.close()


@pytest.fixture
def browse(port_town: Running) -> Callable[[str], httpx.Client]:
    """Return a function that logs somebody in and returns a client with the cookie."""
    return lambda name: scene.logged_in(port_town, name)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for the tests of a file."""
    with a_browser() as started:
        yield started
