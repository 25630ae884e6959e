"""Fixtures of the durability tests: running brokers, whose logs are checked at the end."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.durability.process import BrokerProcess, holdfast
from tests.durability.scene import Scene

_scenes = itertools.count(1)


class _Shelf:
    """The broker that the tests of a module share; after a failed test a new one is started."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._brokers: list[BrokerProcess] = []

    def broker(self) -> BrokerProcess:
        if not self._brokers:
            number = sum(1 for _ in self._directory.iterdir())
            self._brokers.append(holdfast(self._directory / f"broker-{number}"))
        if not self._brokers[0].is_running():
            self._brokers[0].start()
        return self._brokers[0]

    def discard(self) -> None:
        for broker in self._brokers:
            self._brokers = []
            broker.close()


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Shelf]:
    shelf = _Shelf(tmp_path_factory.mktemp("shared"))
    yield shelf
    shelf.discard()


@pytest.fixture
def scene(shelf: _Shelf, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Give a running broker, shared by the module, with the state that earlier tests left."""
    failed_before = request.session.testsfailed
    scene = Scene(shelf.broker(), f"x{next(_scenes)}")
    yield scene
    scene.close()
    failed = getattr(request.node, "report_failed", False)
    if failed or request.session.testsfailed != failed_before:
        shelf.discard()


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    """Start brokers for this test alone: `start_broker(HOLDFAST__STORAGE__DURABILITY="os")`."""
    scenes: list[Scene] = []

    def start(**env: str) -> Scene:
        broker = holdfast(tmp_path / f"broker-{len(scenes)}", env=env)
        scenes.append(Scene(broker, "x"))
        broker.start()
        return scenes[-1]

    yield start
    for scene in scenes:
        scene.close()
    for scene in scenes:
        scene.broker.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note on the test that it failed, for the teardown of `scene`."""
    report: Any = yield
    if report.failed:
        item.report_failed = True  # type: ignore[attr-defined]
    return report
