"""Every task of a night on call is solved by one tool alone, and none without an answer."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from storage.limits import RESERVE_BYTES
from tests.broker.admin.pages.browser import browser
from tests.durability.process import free_port, holdfast
from tests.durability.small_disk import small_disk
from tests.nights.by_command import ByCommand
from tests.nights.by_dashboard import LISTEN, ByDashboard
from tests.nights.night import Night
from tests.nights.tasks import TASKS, Task

pytestmark = pytest.mark.full  # starts processes

DISK_BYTES = RESERVE_BYTES + (64 << 20)


@contextmanager
def night_of(task: Task, directory: Path) -> Iterator[Night]:
    """Start the broker of a task; at the end its log is looked at."""
    with ExitStack() as stack:
        listen = {LISTEN: f"127.0.0.1:{free_port()}"}
        environment = {**listen, **task.environment, **task.prepare(directory)}
        broker = holdfast(directory / "broker", env=environment)
        if task.needs_disk:
            disk = stack.enter_context(small_disk(directory / "disk", DISK_BYTES))
            broker.data_dir = disk / "data"
        stack.callback(broker.close)
        night = Night(broker.start())
        stack.callback(night.end)
        yield night


class Asleep:
    """An operator who answers without looking, and does nothing."""

    def who_is_owed_most(self) -> str:
        """Name somebody."""
        return "idle"

    def what_waits_for(self, client_id: str) -> list[tuple[str, bytes]]:
        """Say that nothing waits."""
        return []

    def what_a_restart_loses(self) -> tuple[list[str], int]:
        """Say that nothing is lost."""
        return [], 0

    def make_room(self) -> None:
        """Make none."""

    def why_refused(self, client_id: str) -> str:
        """Do not know."""
        return "unknown"

    def who_floods(self) -> str:
        """Name the right one, but do nothing about it."""
        return "loud"

    def keep_away(self, client_id: str) -> None:
        """Keep nobody away."""

    def who_is_away_longest(self) -> str:
        """Name the right one, but do nothing about it."""
        return "boat-3"

    def end_session(self, client_id: str) -> None:
        """End none."""

    def why_lost(self, client_id: str, topic: str) -> str:
        """Do not know."""
        return "it works here"


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_is_solved_by_the_command_line_alone(task: Task, tmp_path: Path) -> None:
    with night_of(task, tmp_path) as night:
        task.play(night, ByCommand(night.broker))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for all nights."""
    with browser() as started:
        yield started


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_is_solved_by_the_dashboard_alone(
    task: Task, chromium: Browser, tmp_path: Path
) -> None:
    with night_of(task, tmp_path) as night:
        task.play(night, ByDashboard(night.broker, chromium))


@pytest.mark.parametrize(
    "task", [task for task in TASKS if not task.needs_disk], ids=lambda task: task.name
)
def test_no_task_is_solved_by_an_operator_who_sleeps(task: Task, tmp_path: Path) -> None:
    with night_of(task, tmp_path) as night, pytest.raises(AssertionError):
        task.play(night, Asleep())
